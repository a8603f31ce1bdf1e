"""Numbers as people read them."""

from __future__ import annotations


def size_text(count: float) -> str:
    """A byte count in binary units, three digits (four from 1000 to 1023)."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}" if abs(count) < 999.5 and unit != "B" else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def rate_text(value: float, unit: str) -> str:
    """A rate with a decimal prefix, three digits: ``rate_text(1.5e11, "B/s")`` is ``150 GB/s``."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def time_text(ns: float) -> str:
    """A time in the unit that needs the fewest digits."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= factor:
            return f"{ns / factor:.4g} {unit}"
    return f"{ns:.4g} ns"
