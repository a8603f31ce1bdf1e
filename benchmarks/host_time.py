"""Host time of calls that return before the device is done; used by ``eager.py`` and ``launch.py``."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import torch_loom  # noqa: F401  registers the device


def per_call(work: Callable[[], object], calls: int, rounds: int = 25) -> float:
    """Microseconds until a call returns: best of several rounds after a first call, the queue empty before each."""
    work()
    best = float("inf")
    for _ in range(rounds):
        torch.spyre.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, time.perf_counter() - start)
    torch.spyre.synchronize()
    return best / calls * 1e6
