"""Layouts of the buffers between kernels: along which dims of a buffer its sticks lie.

Buffers that only kernels see may lie as suits them. A layout is a run of neighbouring host dims that together fill
the sticks of a row; the other dims count the rows, in their order. By default the run is the innermost dim. When
Inductor has fused its nodes, every buffer with a short innermost dim, or with a kernel that goes along another dim,
gets candidates: the runs that waste least. ``layout_cost.py`` says what each kernel pays for the layouts of its
buffers; the cheapest combination is found by eliminating one buffer after another, exactly for chains, trees and other
graphs where few buffers meet, else by improving buffer after buffer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any
from weakref import WeakKeyDictionary

from .compat import V

log = logging.getLogger(__name__)

# Dims along which the sticks of a buffer lie, as a range of positions among its dims of more than one element,
# ordered by host stride, outermost first.
Run = tuple[int, int]
# The layout of parameters that are not laid out anew: the public one.
PUBLIC: Run = (-1, -1)

# Candidates of a buffer besides the default.
MAX_CANDIDATES = 5
# Entries of a table of the exact search; larger ones make way for the greedy one.
MAX_TABLE = 2048
# Buffers of a graph that are timed alone when their group gains nothing.
MAX_TRIES = 12
# Kernels before and after those of a choice that it is timed with.
NEIGHBOURS = 4
# A buffer leaves the default layout for at least this part of what its kernels take, since costs are estimates.
LEAST_GAIN = 0.03

_chosen: WeakKeyDictionary[Any, dict[str, Run]] = WeakKeyDictionary()


def chosen_layouts() -> dict[str, Run]:
    """Buffers of the current graph that lie otherwise than in rows of their innermost dim, and parameters that kernels
    read otherwise than in the public layout."""
    return _chosen.setdefault(V.graph, {})


@contextmanager
def using(choice: Mapping[str, Run]) -> Iterator[None]:
    """Give buffers of the current graph these layouts for a while."""
    chosen = chosen_layouts()
    before = dict(chosen)
    chosen.clear()
    chosen.update(choice)
    try:
        yield
    finally:
        chosen.clear()
        chosen.update(before)


def candidates(sizes: Sequence[int], static: Sequence[bool], per_stick: int) -> list[Run]:
    """Runs of dims for a buffer of ``sizes``, the default (the innermost dim) first, then those with the fewest padded
    elements, shorter runs before longer ones. Several dims are one run only where all their extents are known."""
    rank = len(sizes)

    def padded(run: Run) -> int:
        lanes = math.prod(sizes[run[0] : run[1]])
        return -(-lanes // per_stick) * per_stick * (math.prod(sizes) // max(lanes, 1))

    default = (rank - 1, rank)
    runs = [(i, j) for i in range(rank) for j in range(i + 1, rank + 1)]
    runs = [r for r in runs if r != default and (r[1] - r[0] == 1 or all(static[r[0] : r[1]]))]
    runs = [r for r in runs if padded(r) <= padded(default)]
    runs.sort(key=lambda r: (padded(r), r[1] - r[0], -r[1]))
    return [default, *runs[:MAX_CANDIDATES]]


@dataclass(frozen=True)
class Factor:
    """What one kernel pays: ``cost`` of a choice for each of ``buffers``, in cycles."""

    buffers: tuple[str, ...]
    cost: Callable[[Mapping[str, Run]], float]


def solve(options: Mapping[str, Sequence[Run]], factors: Sequence[Factor]) -> dict[str, Run]:
    """The choice with the smallest sum of all factors; of equals the one with the earlier options."""
    return _eliminate(options, factors) or _improve(options, factors)


def _eliminate(options: Mapping[str, Sequence[Run]], factors: Sequence[Factor]) -> dict[str, Run] | None:
    """Exact: buffers are taken out one by one, each with a table of its best choice for those it meets."""
    tables = [(f.buffers, f.cost) for f in factors]
    left = list(options)
    steps: list[tuple[str, dict[tuple[Run, ...], Run], tuple[str, ...]]] = []

    def meets(b: str) -> list[str]:
        return [x for x in left if x != b and any(b in names and x in names for names, _ in tables)]

    while left:
        b = min(left, key=lambda x: (math.prod(len(options[y]) for y in meets(x)), left.index(x)))
        others = tuple(meets(b))
        if math.prod(len(options[x]) for x in (b, *others)) > MAX_TABLE:
            return None
        mine = [cost for names, cost in tables if b in names]
        best: dict[tuple[Run, ...], Run] = {}
        value: dict[tuple[Run, ...], float] = {}
        for key in combinations(*(options[x] for x in others)):
            choice = dict(zip(others, key, strict=True))
            sums = [sum(cost({**choice, b: run}) for cost in mine) for run in options[b]]
            at = min(range(len(sums)), key=lambda i: (sums[i], i))
            best[key], value[key] = options[b][at], sums[at]

        def joint(
            choice: Mapping[str, Run], names: tuple[str, ...] = others, known: Mapping[Any, float] = value
        ) -> float:
            return known[tuple(choice[x] for x in names)]

        tables = [t for t in tables if b not in t[0]] + [(others, joint)]
        left.remove(b)
        steps.append((b, best, others))
    out: dict[str, Run] = {}
    for b, best, others in reversed(steps):
        out[b] = best[tuple(out[x] for x in others)]
    return out


def _improve(options: Mapping[str, Sequence[Run]], factors: Sequence[Factor]) -> dict[str, Run]:
    """Greedy: the best choice of one buffer after another, until none gets better."""
    choice = {b: runs[0] for b, runs in options.items()}
    for _ in range(len(options) + 1):
        before = dict(choice)
        for b, runs in options.items():
            mine = [f.cost for f in factors if b in f.buffers]
            sums = [sum(cost({**choice, b: run}) for cost in mine) for run in runs]
            choice[b] = runs[min(range(len(sums)), key=lambda i: (sums[i], i))]
        if choice == before:
            break
    return choice


def with_gain(
    choice: dict[str, Run], options: Mapping[str, Sequence[Run]], factors: Sequence[Factor]
) -> dict[str, Run]:
    """The choice without what gains little: a buffer goes back to its default unless that costs its kernels
    ``LEAST_GAIN`` of their time."""
    kept = dict(choice)
    for b, runs in options.items():
        if kept[b] == runs[0]:
            continue
        mine = [f.cost for f in factors if b in f.buffers]
        now, plain = (sum(cost({**kept, b: run}) for cost in mine) for run in (kept[b], runs[0]))
        log.debug("layout of %s: dims %d..%d, its kernels take %.0f cycles, by default %.0f", b, *kept[b], now, plain)
        if plain - now < LEAST_GAIN * plain:
            kept[b] = runs[0]
    return kept


def judged(
    wanted: Mapping[str, Run],
    users: Mapping[str, Sequence[int]],
    kernels: int,
    time: Callable[[Sequence[int], Mapping[str, Run]], float],
) -> dict[str, Run]:
    """What of ``wanted`` makes a graph of ``kernels`` faster: buffers that share kernels (``users``, by buffer) are
    tried together, then one by one, and what is left once more among its neighbours. ``time`` gives ns of kernels in a
    row under a choice of layouts."""
    kept: dict[str, Run] = {}
    tries = MAX_TRIES

    def faster(part: Mapping[str, Run], others: Mapping[str, Run], beside: int) -> bool:
        ends = [s for b in part for s in users[b]]
        # What lies between and beside shares LX with them.
        steps = range(max(min(ends) - beside, 0), min(max(ends) + beside + 1, kernels))
        before, after = (time(steps, c) for c in (others, {**others, **part}))
        log.debug("layouts %s: %.0f ns, before %.0f ns", dict(part), after, before)
        return after < (1 - LEAST_GAIN) * before

    for part in _together(wanted, users):
        if faster({b: wanted[b] for b in part}, kept, 0):
            kept.update({b: wanted[b] for b in part})
            continue
        for b in part if len(part) > 1 else ():
            tries -= 1
            if tries >= 0 and faster({b: wanted[b]}, kept, 0):
                kept[b] = wanted[b]
    return kept if kept and faster(kept, {}, NEIGHBOURS) else {}


def _together(names: Iterable[str], users: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """The names in groups that share users, directly or through others."""
    groups: list[list[str]] = []
    for b in names:
        meets = [g for g in groups if any(not set(users[b]).isdisjoint(users[o]) for o in g)]
        groups = [g for g in groups if g not in meets] + [[*(o for g in meets for o in g), b]]
    return groups
