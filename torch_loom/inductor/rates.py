"""What the clock charges, as formulas over arrays: products, vectors, DDR, exchanges over the ring.

The rates are those of the chip description as the clock uses them (``csrc/chip/clock_segment.cpp``,
``clock_transfer.cpp``); a planner asks here about thousands of ways at once. Times are cycles, sizes bytes or elements.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from ..arch import Chip, load

# Cycles of control around one tile: descriptors and credits of its transfers.
TILE_CYCLES = 60.0
# Cycles that an exchange adds to a launch: numbers of the value table that say who sends what to whom.
EXCHANGE_LAUNCH_CYCLES = 450.0

Array = Any  # a float or an array of them


@cache
def chip_of(name: str) -> Chip:
    """A chip description, read once."""
    return load(name)


def ceil(a: Any, b: Any) -> Any:
    """a / b rounded up."""
    return -(-a // b)


@cache
def _draw(chip_name: str) -> Any:
    chip = chip_of(chip_name)
    return np.array([1.0, *(chip.draw_bytes_per_s(c) / chip.clock_hz for c in range(1, chip.cores + 1))])


def ddr_cycles(read: Array, written: Array, chip: Chip, cores: Any = None) -> Array:
    """Cycles in which DDR moves these bytes for so many cores (None: all), as ``Chip.ddr_seconds`` for arrays."""
    turn = 2e-9 * chip.ddr.turnaround_ns.value / chip.ddr.turnaround_group_bytes.value
    least = (read + written) / chip.ddr_bytes_per_s + turn * np.minimum(read, written)
    draw = _draw(chip.name)[chip.cores if cores is None else cores]
    return np.maximum(least * chip.clock_hz, (read + written) / draw)


def latency(chip: Chip) -> float:
    """Cycles from a request to its data."""
    return chip.ddr.latency_ns.value * 1e-9 * chip.clock_hz


def pt_cycles(rows: Any, columns: Any, k: Any, passes: int, chip: Chip) -> Array:
    """Cycles of the array of one corelet for [rows, k] x [k, columns], the columns shared with the other corelets."""
    pt = chip.pt
    own = ceil(columns, chip.corelets)
    kept = pt.full_rows.value
    depth = pt.rows.value * pt.macs_per_element.value

    def sweep(m: Any) -> Any:
        m = np.maximum(m, 1)
        together = np.maximum(1.0, pt.rows.value / m)
        steps = pt.fill_cycles.value + pt.step_cycles.value * np.maximum(m, pt.rows.value)
        return pt.reload_cycles.value + steps / together

    blocks = ceil(k, depth) * ceil(own, pt.columns.value) * passes
    whole, rest = rows // kept, rows % kept
    return blocks * (whole * sweep(kept) + np.where(rest > 0, sweep(rest), 0.0))


def tile_cycles(
    rows: Any, columns: Any, k: Any, steps: Any, epilogue: float, element_bytes: int, chip: Chip, outputs: Any = 1
) -> Array:
    """Cycles of the compute group for one tile of a product that goes over K in ``steps`` tiles of ``k``; ``outputs``
    products of equal sizes share the epilogue of ``epilogue`` cycles per vector."""
    share = 1.0 / chip.corelets
    pt = pt_cycles(rows, columns, k, 1 if element_bytes == 2 else 4, chip)
    moving = k * rows * element_bytes * ceil(columns * share, chip.pt.columns.value)
    stationary = k * columns * share * element_bytes * ceil(rows, chip.pt.full_rows.value)
    load_cycles = (moving + stationary) / chip.lx.read_bytes_per_cycle.value
    busy = np.maximum(pt, load_cycles)
    sfu = rows * ceil(columns * share, chip.lanes()) * max(epilogue, 1.0)
    start = chip.sfu.start_cycles.value + chip.lx.latency_cycles.value
    return outputs * steps * (busy + start + TILE_CYCLES) + np.maximum(0.0, sfu - busy)


def exchange_cycles(tile: Any, parts: Any, share: Any, chip: Chip) -> Array:
    """Cycles in which ``parts`` neighbouring cores add up a tile of ``tile`` elements each, of which a core keeps
    ``share``: its messages, their way, and the additions."""
    sent = (parts - 1) * share * 4.0 / chip.ring.bytes_per_cycle.value
    way = parts * (chip.ring.hop_cycles.value + chip.sync.credit_cycles.value + chip.dma.issue_cycles.value)
    folds = parts * ceil(share, chip.lanes() * chip.corelets) + tile / chip.lanes() / chip.corelets
    return np.where(parts > 1, sent + way + folds, 0.0)


def log_ways(log: logging.Logger, ways: Iterable[object]) -> None:
    """Log the way that was chosen, which comes first, and what it was chosen over."""
    for place, way in enumerate(ways):
        log.debug("  %s %s", "chosen" if place == 0 else "      ", way)
