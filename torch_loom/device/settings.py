"""The one reader of the device's environment variables on the Python side.

Numbers that the native runtime needs before anything else (cards, threads, numerics, blocking mode) are
read there, when the first card starts; ``docs/device.md`` lists all of them.
"""

from __future__ import annotations

import os

_SWITCH = {"0": False, "false": False, "off": False, "1": True, "true": True, "on": True}
_FALLBACK_MODES = ("warn", "silent", "error")


def fallback_mode() -> str:
    """``TORCH_LOOM_FALLBACK``: what an operator without a device kernel does in eager mode."""
    mode = os.environ.get("TORCH_LOOM_FALLBACK", "") or "warn"
    if mode not in _FALLBACK_MODES:
        raise ValueError(f"TORCH_LOOM_FALLBACK must be one of {', '.join(_FALLBACK_MODES)}, got '{mode}'")
    return mode


def downcast_warning() -> bool:
    """``TORCH_SPYRE_DOWNCAST_WARN``: whether int64 on its way to 32 bits warns once."""
    text = os.environ.get("TORCH_SPYRE_DOWNCAST_WARN", "").lower() or "0"
    if text not in _SWITCH:
        raise ValueError(f"TORCH_SPYRE_DOWNCAST_WARN must be one of {', '.join(_SWITCH)}, got '{text}'")
    return _SWITCH[text]


def default_device() -> int:
    """Card a process starts on: ``LOCAL_RANK`` if set, else 0."""
    rank = os.environ.get("LOCAL_RANK", "") or "0"
    if not rank.isdecimal():
        raise ValueError(f"LOCAL_RANK must be a whole number, got '{rank}'")
    return int(rank)
