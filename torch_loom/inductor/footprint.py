"""How the tiles of an access lie in LX: whole sticks along their last axis, so short rows are padded there.

The axes come from the emission of the access itself (``tiles.py``), tried on a builder whose text nobody reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import sympy

from .access import Access
from .division import Sticks
from .domain import Dim
from .plan import KernelPlan, access_of, planned

if TYPE_CHECKING:
    from .tiles import Tiles

# Bytes that an element of a computed place takes besides its own: the place.
PLACE_BYTES = 4


def sticks_of(
    plan: KernelPlan,
    loads: Iterable[Access],
    tile: Mapping[Dim, int],
    cut: Mapping[Dim, str],
    together: Sequence[Sequence[Dim]] = (),
) -> Sticks:
    """How the tiles of ``loads`` lie in sticks, that of the one which is padded most. ``tile`` holds the elements along
    tile dims; those in ``cut`` are blocks of an extent, as many as the role that is named there ("m", "n", "k") has.
    Dims in ``together`` are one axis for whoever reads the tile."""
    blocks = {role: tile[d] for d, role in cut.items()}
    found = [_sticks(_dry(plan, tile, cut), access, tile, cut, together) for access in loads]
    return max(found, key=lambda s: (s.factor(blocks), s.packed), default=Sticks())


def _sticks(
    tiles: Tiles, access: Access, tile: Mapping[Dim, int], cut: Mapping[Dim, str], together: Sequence[Sequence[Dim]]
) -> Sticks:
    per_stick = access.geometry.format.per_stick
    if not tiles.regular(access):
        return Sticks(per_stick, per_stick=per_stick, beside=PLACE_BYTES * per_stick / 128, packed=True)
    axes, loose = tiles.axes(access)
    parts = _parts(tiles, axes[-1])
    role = next((cut[p] for p in parts if p in cut), "")
    lanes = math.prod(tile[p] for p in parts if p not in cut)
    ends = [lanes * tiles.extent[p] for p in parts if p in cut] + [lanes * tile[p] for p in parts if p in cut]
    order = list(dict.fromkeys(p for d in axes for p in _parts(tiles, d) if tile[p] > 1))
    apart = any(not _adjacent([order.index(d) for d in dims if d in order]) for dims in together)
    packed = loose or apart or any(end % per_stick for end in ends or [lanes])
    return Sticks(lanes, role, loose, per_stick, packed=packed)


def _parts(tiles: Tiles, d: Dim | None) -> tuple[Dim, ...]:
    return () if d is None else tiles.joined.get(d, (d,))


def _adjacent(places: list[int]) -> bool:
    """Do axes at these places follow one another?"""
    return places == list(range(places[0], places[0] + len(places))) if places else True


def _dry(plan: KernelPlan, tile: Mapping[Dim, int], cut: Mapping[Dim, str]) -> Tiles:
    """Tiles of these sizes at any place; sizes are the bounds of their symbols."""
    from ..ktir.builder import KernelBuilder
    from .tiles import Tiles

    builder = KernelBuilder("dry", 1)
    accesses = [access_of(t, plan.dims) for t in plan.record.touches]
    sizes = [h.extent for a in accesses for h in a.geometry.dims] + [d.extent for d in plan.dims]
    symbols = {s for e in (*sizes, *(t.index for t in plan.record.touches)) for s in sympy.sympify(e).free_symbols}
    known = symbols - {d.symbol for d in plan.dims} - {s for t in plan.record.touches for s in t.indirect}
    tiles = Tiles(builder, {s: planned(s) for s in known})
    tiles.block = dict(tile)
    tiles.extent = {d: planned(d.extent) for d in plan.dims}
    tiles.start = {d: 0 if d in tile and d not in cut else builder.tile_id() for d in plan.dims}
    return tiles
