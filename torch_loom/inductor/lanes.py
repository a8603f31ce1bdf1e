"""Runs of lanes: which loops walk them together, and which part of them a mask leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from .access import Access, Coordinate
from .domain import Dim, hint

if TYPE_CHECKING:
    from ..ktir.builder import Dim as Num
    from .tiles import Tiles


@dataclass(frozen=True)
class Entry:
    """One dim of a view with its part of the tile."""

    size: Num
    stride: Num
    at: Num
    extent: Num
    dim: Dim | None = None


@dataclass(frozen=True)
class Window:
    """The part of a run of lanes that is wanted: it begins at ``lane`` of the loaded sticks, is ``width`` lanes
    wide (None: as the block) and belongs at ``place`` of the block."""

    lane: Num
    width: int | None = None
    place: int = 0


def run_of(tiles: Tiles, c: Coordinate, last: sympy.Symbol | None, per_stick: int) -> list[tuple[Dim, sympy.Expr]]:
    """Tile dims that together walk a run of lanes from a fixed lane on, innermost first: up to the dim ``last``,
    else to the end of a stick. Empty where there is none."""
    run: list[tuple[Dim, sympy.Expr]] = []
    step = 1
    for d, s in sorted(((d, s) for d, s in c.terms if d in tiles.block), key=lambda t: hint(t[1])):
        block = tiles.block[d]
        if s != step or not isinstance(block, int) or block != tiles.extent[d] or tiles.start[d] != 0:
            return []
        run.append((d, s))
        step *= block
        if d.symbol == last or (last is None and step % per_stick == 0):
            return run
    return []


def joined(tiles: Tiles, c: Coordinate, run: Sequence[tuple[Dim, sympy.Expr]]) -> Coordinate:
    """The coordinate with one dim for those of a run."""
    if len(run) < 2:
        return c
    d = tiles.join(c, run)
    tiles.start[d], tiles.extent[d] = 0, tiles.block[d]
    return Coordinate(c.dim, (*(t for t in c.terms if t not in run), (d, sympy.Integer(1))), c.offset, c.indirect)


def window_of(tiles: Tiles, access: Access, c: Coordinate) -> tuple[list[Entry], Window] | None:
    """Entries of a lane coordinate under a mask that leaves on a part of the lanes only (a half of a head that
    rotates): the sticks of that part, which are often those of an unmasked load, so that both are one. None where
    it is not known when the kernel is written which lanes of which stick these are."""
    per_stick = access.geometry.format.per_stick
    limited = [d for d, _ in c.terms if _narrows(access, d)]
    if len(limited) != 1 or c.dim.device_stride != 1 or not c.offset.is_Integer:
        return None
    run = run_of(tiles, c, limited[0].symbol, per_stick)
    others = [(o, s) for o, s in c.terms if o in tiles.block and (o, s) not in run]
    rest = Coordinate(c.dim, tuple(t for t in c.terms if t[0] not in tiles.block), sympy.Integer(0))
    aligned = not rest.terms or tiles.divides(rest, per_stick) % per_stick == 0
    aligned &= all(s.is_Integer and int(s) % per_stick == 0 for _, s in others)
    if not run or not aligned or (c.dim.tile_stride is not None and others):
        return None
    (low, high), step = access.limits[limited[0].symbol], int(run[-1][1])
    d = joined(tiles, c, run).terms[-1][0] if len(run) > 1 else run[0][0]
    block = tiles.block[d]
    assert isinstance(block, int)
    low, high = max(low or 0, 0) * step, block if high is None else min(high * step, block)
    if low >= high:
        return None
    stick, lane = divmod(int(c.offset) + low, per_stick)
    count = -(-(lane + high - low) // per_stick)
    at = tiles.b.add(tiles.base_of(rest), stick * per_stick)
    window = Window(lane, high - low, low)
    size = tiles.number(c.dim.extent)
    if c.dim.tile_stride is not None:
        first = tiles.b.add(tiles.b.floordiv(tiles.base_of(rest), per_stick), stick)
        entry = Entry(tiles.b.ceildiv(size, per_stick), tiles.number(c.dim.tile_stride), first, count, d)
        return [entry, Entry(per_stick, 1, 0, per_stick, d)], window
    if not others:
        return [Entry(size, 1, at, count * per_stick, d)], window
    entries = [Entry(size, 1, at, 1)] if at != 0 else []
    for o, s in sorted(others, key=lambda t: hint(t[1]), reverse=True):
        entries.append(Entry(tiles.extent[o], tiles.number(s), tiles.start[o], tiles.block[o], o))
    return [*entries, Entry(count * per_stick, 1, 0, count * per_stick, d)], window


def _narrows(access: Access, d: Dim) -> bool:
    """Does a mask leave out a part of the dim?"""
    low, high = access.limits.get(d.symbol, (None, None))
    return (low or 0) > 0 or (high is not None and not (d.extent.is_Integer and high >= int(d.extent)))
