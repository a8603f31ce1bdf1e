"""Reductions of few results: cores take a part of the reduced extent each and combine over the ring.

A kernel with fewer tiles than cores would leave the rest idle. Here neighbouring cores form groups: a core folds its
part of the outermost reduced dim, the group folds the partial results in one exchange, and each core goes on with its
part of what follows (a softmax, a norm). What belongs to a whole row is stored by the first core of a group. How many
cores share a row is chosen by modelled time.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import sympy
import torch

from . import config
from .access import Access
from .compat import SchedulerNode, real_place
from .domain import Dim
from .plan import SIMPLE, KernelPlan, access_of, ends_alone
from .rates import EXCHANGE_LAUNCH_CYCLES, TILE_CYCLES, ceil, chip_of, ddr_cycles, exchange_cycles, log_ways
from .runtime import chip_name
from .values import register_kind

log = logging.getLogger(__name__)

# Cycles of the SFU per vector that make what lies behind an end neutral: place, its sum with the start, test, choice.
MASK_CYCLES = 8.0
# Cycles that one core more adds to an exchange whose whole result every core gets: its message and its wait for credit.
MEMBER_CYCLES = 55.0
# Uneven parts must be modelled this much faster: their last core also pays for addresses behind the end.
RAGGED_MARGIN = 1.5


@dataclass(frozen=True)
class Folding:
    """A kernel of reductions as its division sees it: ``items`` tiles of ``elements`` values, of which a vector takes
    ``operations`` cycles, and ``mask`` more where the parts do not divide evenly; ``read`` and ``written`` bytes in
    all; ``folds`` reductions of ``results`` values a tile."""

    items: int
    elements: int
    operations: float
    mask: float
    read: float
    written: float
    folds: int
    results: int


def shared_cycles(f: Folding, parts: int, ragged: bool, cores: int, chip: str) -> float:
    """Modelled cycles when ``parts`` cores share every tile, evenly or not (see ``rates.py``)."""
    c = chip_of(chip)
    groups = min(f.items, cores // parts)
    vectors = ceil(ceil(f.elements, parts), c.lanes() * c.corelets)
    rounds = ceil(f.items, groups)
    work = rounds * vectors * (max(f.operations, 1.0) + (f.mask if ragged else 0.0))
    memory = float(ddr_cycles(f.read, f.written, c, groups * parts))
    exchange = 0.0
    if parts > 1:
        one = float(exchange_cycles(f.results * parts, parts, f.results, c))
        exchange = rounds * f.folds * (TILE_CYCLES + parts * MEMBER_CYCLES + one)
    cycles = max(work, memory) + exchange + (EXCHANGE_LAUNCH_CYCLES if parts > 1 else 0.0)
    return cycles * (RAGGED_MARGIN if ragged else 1.0)


def share_reduction(plan: KernelPlan) -> None:
    """Let groups of cores share the outermost reduced dim of a kernel whose tiles are chosen, where that is faster."""
    first = next((d for d in plan.dims if d in plan.reduced), None)
    if first is None or not config.ring_sums or not config.work_division or not _foldable(plan):
        return
    if not all(sympy.sympify(d.extent).is_Integer for d in plan.dims):
        return
    accesses = [access_of(t, plan.dims) for t in plan.record.touches]
    if _updates_rows(plan, first, accesses):
        return
    extent, unit = int(first.extent), _unit(first, accesses)
    items = _items(plan)
    if 2 * items > plan.cores:
        return
    whole = math.prod(int(d.extent) for d in plan.dims)
    kept = math.prod(int(b) for d, b in plan.blocks.items() if d not in plan.reduced)
    bytes_of = {True: 0.0, False: 0.0}
    for t, a in zip(plan.record.touches, accesses, strict=True):
        bytes_of[t.store] += 128.0 / a.geometry.format.per_stick * math.prod(int(d.extent) for d in a.dims)
    kinds = [kind for kind, _, _ in plan.record.reductions]
    passes = kinds.count("welford_reduce")  # a second fold, of squared differences
    folds = len(kinds) + passes
    work = plan.record.operations + folds
    shape = Folding(items, whole // items, work, MASK_CYCLES * folds, bytes_of[False], bytes_of[True], folds, kept)
    # Uneven parts of a variance need the mask twice over the whole part, which costs more than they save.
    alone = passes == 0 and ends_alone(plan, first)
    ways: dict[int, tuple[float, int]] = {}
    for parts in range(1, plan.cores // items + 1):
        block = min(int(plan.blocks[first]), -(-extent // parts // unit) * unit)
        share = -(-extent // block // parts) * block
        ragged = parts * share != extent
        if parts == 1 or ((parts - 1) * share < extent and (alone or not ragged)):
            ways[parts] = shared_cycles(shape, parts, parts > 1 and ragged, plan.cores, chip_name()), block
    best = min(ways, key=lambda p: ways[p][0])
    _explain(plan.nodes, shape, ways, best)
    if best == 1:
        return
    plan.parts, plan.shared = best, first
    plan.cores = best * min(items, plan.cores // best)
    plan.blocks[first] = sympy.Integer(ways[best][1])
    if int(plan.blocks[first]) * best >= extent:
        plan.blocked = None


def _foldable(plan: KernelPlan) -> bool:
    """Can partial results of all reductions of the kernel be combined? Not sums of int64, which are checked in one."""
    kinds = (*SIMPLE, "welford_reduce")
    return bool(plan.record.reductions) and all(
        kind in kinds and register_kind(dtype) != "i1" and (dtype != torch.int64 or kind in ("max", "min"))
        for kind, dtype, _ in plan.record.reductions
    )


def _updates_rows(plan: KernelPlan, first: Dim, accesses: list[Access]) -> bool:
    """Is a buffer that the kernel writes also read other than by the part of ``first`` that a core writes? All cores of
    a group read what belongs to a whole row, and nothing would order that with the first one's store."""
    touches = [(t, real_place(t.name)[0], first in a.dims) for t, a in zip(plan.record.touches, accesses, strict=True)]
    written = {(name, t.index if own else None) for t, name, own in touches if t.store}
    names = {name for name, _ in written}
    return any(name in names and (name, t.index) not in written for t, name, _ in touches if not t.store)


def _unit(first: Dim, accesses: list[Access]) -> int:
    """Steps of the dim by which parts begin at whole sticks in all accesses."""
    unit = 1
    for a in accesses:
        for d, step in a.coordinates[-1].terms if a.coordinates else ():
            if d is first:
                per_stick = a.geometry.format.per_stick
                unit = math.lcm(unit, per_stick // math.gcd(per_stick, int(step)))
    return unit


def _items(plan: KernelPlan) -> int:
    """Tiles that cores would share without dividing a reduced extent."""
    loops = math.prod(int(d.extent) for d in plan.loops)
    return loops * math.prod(int(plan.tiles_of(d)) for d in plan.blocks if d not in plan.reduced)


def _explain(nodes: list[SchedulerNode], f: Folding, ways: dict[int, tuple[float, int]], best: int) -> None:
    """Log the choice and what it was chosen over (``TORCH_LOGS="+loom"``)."""
    if len(ways) < 2 or not log.isEnabledFor(logging.DEBUG):
        return
    log.debug("reduction of %s: %d tiles of %d values", nodes[0].get_name(), f.items, f.elements)
    others = sorted((p for p in ways if p != best), key=lambda p: ways[p][0])
    log_ways(log, [f"{parts} cores a tile: {ways[parts][0]:.0f} cycles" for parts in (best, *others[:5])])
