"""Host <-> device transfers beside a plain loop of the same work, one thread each.

The plain loop copies the dense host bytes to a staging buffer and converts that buffer in one call of the same
conversion; it knows no strides, sticks or layouts. A ratio at or below 1.05 is the goal.
Run: ``python benchmarks/transfers.py [--mib 16] [--repeat 20]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import torch_loom  # noqa: F401  registers the device
from torch_loom import _device


def best(work: Callable[[], object], repeat: int) -> float:
    """Shortest of ``repeat`` runs, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


CASES: list[tuple[str, torch.dtype, Callable[[int], tuple[int, ...]], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("float16 [n/1024, 1024]", torch.float16, lambda n: (n // 1024, 1024), lambda t: t),
    ("float16 [n/1000, 1000] ragged", torch.float16, lambda n: (n // 1000, 1000), lambda t: t),
    ("float16 [32, n/12288, 384]", torch.float16, lambda n: (32, n // 12288, 384), lambda t: t),
    ("float16 flat", torch.float16, lambda n: (n,), lambda t: t),
    ("bfloat16 [n/1024, 1024]", torch.bfloat16, lambda n: (n // 1024, 1024), lambda t: t),
    ("float32 [n/1024, 1024]", torch.float32, lambda n: (n // 1024, 1024), lambda t: t),
    ("int64 [n/1024, 1024]", torch.int64, lambda n: (n // 1024, 1024), lambda t: t),
    ("bool [n/1024, 1024]", torch.bool, lambda n: (n // 1024, 1024), lambda t: t),
    ("float16 transposed view", torch.float16, lambda n: (n // 1024, 1024), lambda t: t.t()),
    ("float16 sliced [:, 32:992]", torch.float16, lambda n: (n // 1024, 1024), lambda t: t[:, 32:992]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=16, help="host size of each tensor")
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.mib} MiB on the host, best of {options.repeat}, one thread, ms")
    head = ("case", "plain", "to spyre", "ratio", "plain", "to cpu", "ratio", "GB/s", "GB/s")
    print(f"{head[0]:32}" + "".join(f"{h:>10}" for h in head[1:]))
    for name, dtype, shape, view in CASES:
        n = (options.mib << 20) // dtype.itemsize
        host = view(torch.ones(shape(n), dtype=dtype))
        back = torch.empty_like(host)
        device = torch.empty(host.shape, dtype=dtype, device="spyre")
        to = best(lambda h=host, d=device: d.copy_(h), options.repeat)
        fro = best(lambda d=device, b=back: b.copy_(d), options.repeat)
        flat = torch.ones(host.numel(), dtype=dtype)
        plain_to, plain_fro = (_device.measure_plain_loop(flat, way, options.repeat) for way in (True, False))
        cells = [plain_to * 1e3, to * 1e3, to / plain_to, plain_fro * 1e3, fro * 1e3, fro / plain_fro]
        rates = [host.numel() * dtype.itemsize / seconds / 1e9 for seconds in (to, fro)]
        print(f"{name:32}" + "".join(f"{c:>10.2f}" for c in [*cells, *rates]))


if __name__ == "__main__":
    main()
