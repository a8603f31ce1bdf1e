"""``torch.spyre.memory``: statistics and control of device memory, in bytes."""

from __future__ import annotations

from typing import Any

from torch_loom import _device
from torch_loom.device.arguments import expect

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def _index(device: Any) -> int:
    from torch_loom.device.module import _index as index

    return index(device)


def memory_stats(device: Any = None) -> dict[str, int]:
    """Flat statistics: ``allocated_bytes.all.current`` and so on; empty before the first use of a card."""
    index = _index(device)
    if not _device.started():
        return {}
    flat: dict[str, int] = {}
    for name, value in _device.memory_stats(index).items():
        if isinstance(value, dict):
            flat.update({f"{name}.all.{k}": v for k, v in value.items()})
        else:
            flat[name] = value
    return flat


def memory_allocated(device: Any = None) -> int:
    """Bytes held by tensors, after rounding to 128."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """Highest ``memory_allocated`` since the last reset."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """Bytes held by tensors or still waiting for a stream."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """Highest ``memory_reserved`` since the last reset."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start new peaks from the current values."""
    if _device.started():
        _device.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Set totals and event counts to zero."""
    if _device.started():
        _device.reset_accumulated_memory_stats(_index(device))


def empty_cache() -> None:
    """Give the host pages behind free device memory back to the system."""
    if _device.started():
        for index in range(_device.device_count()):
            _device.empty_cache(index)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of a card's memory."""
    return _device.memory_info(_index(device))


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let tensors use at most this share of a card's memory."""
    expect("set_per_process_memory_fraction", fraction, (float, int), "a number from 0 to 1")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    limit = max(int(fraction * _device.capacity()), 1)
    _device.set_memory_limit(_index(device), 0 if fraction == 1.0 else limit)


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """Blocks of device memory in address order: ``address``, ``size``, ``state``."""
    if not _device.started():
        return []
    return [
        {"address": address, "size": size, "state": "active_allocated" if live else "inactive"}
        for address, size, live in _device.memory_blocks(_index(device))
    ]


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A readable table of the statistics."""
    index = _index(device)
    stats = memory_stats(index)
    lines = [f"Spyre memory, card {index}", f"{'':24}{'current':>16}{'peak':>16}"]
    for name in ("allocated_bytes", "reserved_bytes", "requested_bytes", "allocation"):
        current, peak = stats.get(f"{name}.all.current", 0), stats.get(f"{name}.all.peak", 0)
        lines.append(f"{name:24}{current:>16,}{peak:>16,}")
    if not abbreviated:
        for name in ("programs_bytes", "free_blocks", "largest_free", "num_ooms"):
            lines.append(f"{name:24}{stats.get(name, 0):>16,}")
    return "\n".join(lines)
