"""When eager operators run: the mode of the process and of the calling thread.

* ``host``: every operator runs on the CPU, on copies of its tensors (nothing is compiled);
* ``strict`` (default): each operator runs on the device by its own program, in order, asynchronously;
* ``fused``: operators are noted and run together: when a value is read, at synchronisation, and when their graph
  repeats or grows too long;
* ``debug``: as strict, and each call waits for its operator, so that an error appears at the operator's own line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .. import _device

MODES = ("host", "debug", "strict", "fused")
VARIABLE = "TORCH_LOOM_EAGER"
PATIENCE = "TORCH_LOOM_FUSE_AFTER"


def _number(mode: str) -> int:
    if mode not in MODES:
        raise ValueError(f"the eager mode must be one of {', '.join(MODES)}, got '{mode}'")
    return MODES.index(mode)


def eager_mode() -> str:
    """Mode of the calling thread."""
    return MODES[_device.eager_mode()]


def set_eager_mode(mode: str) -> None:
    """Mode of all threads that have none of their own. Raises ValueError for an unknown name."""
    number = _number(mode)
    _device.finish_pending()
    _device.set_eager_mode(number)


@contextmanager
def use_eager_mode(mode: str) -> Iterator[None]:
    """Mode of the calling thread inside the ``with`` block, and of backward passes that it starts there. What fused
    mode held back runs before the mode changes."""
    number = _number(mode)
    _device.finish_pending()
    before = _device.exchange_local_eager_mode(number)
    try:
        yield
        _device.finish_pending()
    finally:
        _device.exchange_local_eager_mode(before)


def start() -> None:
    """Set the mode from ``TORCH_LOOM_EAGER``, and from ``TORCH_LOOM_FUSE_AFTER`` how often a fused graph runs operator
    by operator before it is compiled. Raises ValueError for an unknown name or number."""
    mode = os.environ.get(VARIABLE, "") or "strict"
    if mode not in MODES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(MODES)}, got '{mode}'")
    set_eager_mode(mode)
    runs = os.environ.get(PATIENCE, "") or "1"
    if not runs.isdecimal():
        raise ValueError(f"{PATIENCE} must be a whole number, got '{runs}'")
    _device.set_fuse_patience(int(runs))
