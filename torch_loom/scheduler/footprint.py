"""DDR side of a tile: a linear form over its variables, what may lie outside the view, and indirect parts.

Subscripts may cut a variable into digits (``v floordiv 64``, ``v mod 64``), as views of tiled device layouts
do. Where the digits are those of whole sticks the variable is split in two and everything is linear again;
where the cut is not aligned with the tile, the pair becomes a lane split, which the transfer evaluates per
element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import rewrite as rw
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import ZERO, Atom, Expr
from torch_loom.scheduler.kernel import Indirect, Tile
from torch_loom.scheduler.rewrite import linear, substitute


@dataclass(frozen=True)
class Clip:
    """Indices that stay inside the view: [lo, hi)."""

    lo: Expr
    hi: Expr


@dataclass(frozen=True)
class LaneCut:
    """Element coordinate x = start + sum strides[v] * v at floor(x / elems) * tile_stride + x mod elems."""

    start: Expr
    strides: tuple[Expr, ...]
    elems: int
    tile_stride: Expr  # elements


@dataclass(frozen=True)
class Footprint:
    """Address in elements: start + sum strides[v] * v (+ gathered indices, + lane cut).

    ``clips`` holds a range per variable that may leave the view; negative keys are coordinates without
    variables (``lo`` is the coordinate, ``hi`` the size). ``gathers`` are the numbers of indirect
    coordinates."""

    start: Expr
    strides: tuple[Expr, ...]
    clips: dict[int, Clip]
    gathers: tuple[int, ...]
    lanes: LaneCut | None


@dataclass(frozen=True)
class Split:
    """A tile whose variables are cut so that subscripts are linear; maps between old and new variables.

    ``groups`` lists the new variables that each old one became."""

    tile: Tile
    groups: tuple[tuple[int, ...], ...]
    new: dict[str, Expr]  # old name -> expression over new variables
    old: dict[str, Expr]  # new name -> expression over old variables


def names_of(variables: tuple[Expr, ...]) -> list[str]:
    """Names of counters, "" for dims of extent 1."""
    return [v.terms[0][0][0].name if v.terms else "" for v in variables]


def split_tile(tile: Tile, store: bool) -> Split:
    """Cut variables at the divisors of their subscripts, as long as the cut fits the extents.

    Loads may round the last digit up: the extra elements lie in the same sticks."""
    whole = tuple((k,) for k in range(len(tile.vars)))
    result = Split(tile, whole, {}, {n: v for n, v in zip(names_of(tile.vars), tile.vars, strict=True) if n})
    for _ in range(8):
        found = _find_cut(result.tile, store)
        if found is None:
            return result
        result = _cut(result, *found)
    return result


def _find_cut(tile: Tile, store: bool) -> tuple[int, int] | None:
    position = {n: k for k, n in enumerate(names_of(tile.vars)) if n}
    for coord in tile.coords:
        if isinstance(coord, Indirect):
            continue
        for atom in coord.atoms():
            if atom.kind not in ("floordiv", "mod") or not atom.args[1].static:
                continue
            cut = _cut_of(atom, tile, position, store)
            if cut is not None:
                return cut
    return None


def _cut_of(atom: Atom, tile: Tile, position: dict[str, int], store: bool) -> tuple[int, int] | None:
    n = atom.args[1].value
    split = linear(atom.args[0], tuple(position))
    if split is None:
        return None
    if not split[0].divisible(n) and any(f.static and f.value == 1 for f in split[1].values()):
        return None
    for name, factor in split[1].items():
        if not factor.static or factor.value <= 0 or n % factor.value or factor.value >= n:
            continue
        inner = n // factor.value
        v = position[name]
        extent = tile.extents[v]
        if extent != inner and (extent.divisible(inner) or not store):
            return v, inner
    return None


def _cut(split: Split, v: int, inner: int) -> Split:
    tile = split.tile
    label = f"{tile.vars[v].key}/{inner}".replace("1*", "")
    outer_extent = ex.ceildiv(tile.extents[v], inner)
    outer = ex.variable("dim", f"{label}.o", outer_extent)
    lane = ex.variable("dim", f"{label}.i", Expr(inner))
    name = names_of(tile.vars)[v]
    step = {name: outer * inner + lane}
    coords = tuple(
        replace(c, at=tuple(substitute(a, step) for a in c.at)) if isinstance(c, Indirect) else substitute(c, step)
        for c in tile.coords
    )
    order = tuple(w + (w > v) for w in tile.order)
    at = order.index(v)
    order = (*order[: at + 1], v + 1, *order[at + 1 :])
    cut = Tile(
        tile.view,
        (*tile.vars[:v], outer, lane, *tile.vars[v + 1 :]),
        (*tile.extents[:v], outer_extent, Expr(inner), *tile.extents[v + 1 :]),
        coords,
        order,
        tile.where,
    )
    whole = split.old.pop(name)
    old = {**split.old}
    if outer.terms:
        old[names_of((outer,))[0]] = ex.floordiv(whole, inner)
    old[names_of((lane,))[0]] = ex.mod(whole, inner)
    new = {k: substitute(e, step) for k, e in split.new.items()} | {name: step[name]}
    groups = tuple(
        tuple(x for w in group for x in ((w + (w > v), v + 1) if w == v else (w + (w > v),))) for group in split.groups
    )
    return Split(cut, groups, new, old)


def footprint(tile: Tile) -> Footprint:
    """DDR addresses of a tile. Raises for subscripts that are neither affine nor a cut into lanes."""
    position = {n: k for k, n in enumerate(names_of(tile.vars)) if n}
    view = tile.view
    start = view.offset
    strides = [ZERO] * len(tile.vars)
    clips: dict[int, Clip] = {}
    gathers: list[int] = []
    lanes, cut_coords = _lane_cut(tile, position, clips)
    for k, coord in enumerate(tile.coords):
        if k in cut_coords:
            continue
        if isinstance(coord, Indirect):
            gathers.append(k)
            continue
        split = linear(coord, tuple(position))
        if split is None:
            raise ScheduleError("a subscript is not affine in the tile's variables", where=tile.where)
        base, factors = split
        start = start + base * view.strides[k]
        for name, factor in factors.items():
            v = position[name]
            strides[v] = strides[v] + factor * view.strides[k]
        _clip(tile, coord, base, {position[n]: f for n, f in factors.items()}, view.sizes[k], clips)
    return Footprint(start, tuple(strides), clips, tuple(gathers), lanes)


def _lane_cut(tile: Tile, position: dict[str, int], clips: dict[int, Clip]) -> tuple[LaneCut | None, tuple[int, ...]]:
    """The pair of coordinates (x floordiv n, x mod n) of a tiled layout, if a tile cuts it off its sticks."""
    for k, coord in enumerate(tile.coords):
        if isinstance(coord, Indirect) or linear(coord, tuple(position)) is not None:
            continue
        atom = next((a for a in coord.atoms() if a.kind == "mod" and a.args[1].static), None)
        if atom is None or ex.of(atom) != coord or tile.view.strides[k] != 1:
            continue
        n = atom.args[1].value
        for j, other in enumerate(tile.coords):
            if j == k or isinstance(other, Indirect):
                continue
            x = rw.recombine(other * n + coord)
            split = linear(x, tuple(position))
            if split is None:
                continue
            base, factors = split
            strides = [ZERO] * len(tile.vars)
            for name, f in factors.items():
                strides[position[name]] = f
            _clip(tile, x, base, {position[m]: f for m, f in factors.items()}, tile.view.sizes[j] * n, clips)
            return LaneCut(base, tuple(strides), n, tile.view.strides[j]), (j, k)
    return None, ()


def _clip(tile: Tile, coord: Expr, base: Expr, factors: dict[int, Expr], size: Expr, clips: dict[int, Clip]) -> None:
    """Record how a coordinate may leave the view, unless it provably cannot."""
    low_ok = ex.nonnegative(coord) or (ex.nonnegative(base) and all(ex.nonnegative(f) for f in factors.values()))
    high_ok = _fits(tile, base, factors, size)
    if low_ok and high_ok:
        return
    if not factors:
        clips[-1 - len(clips)] = Clip(base, size)
        return
    if len(factors) > 1 or next(iter(factors.values())) != 1:
        raise ScheduleError(
            "the tile may leave its view in a dim that several variables address",
            where=tile.where,
            hint="bound the sizes so that the tile provably lies inside",
        )
    v = next(iter(factors))
    lo = ZERO if low_ok else ex.maximum(-base, 0)
    hi = tile.extents[v] if high_ok else ex.minimum(tile.extents[v], size - base)
    if v in clips:
        lo, hi = ex.maximum(lo, clips[v].lo), ex.minimum(hi, clips[v].hi)
    clips[v] = Clip(lo, hi)


def _fits(tile: Tile, base: Expr, factors: dict[int, Expr], size: Expr) -> bool:
    """True if base + sum factor * (extent - 1) < size can be proved."""
    last = base
    for v, f in factors.items():
        last = last + (f * (tile.extents[v] - 1) if ex.nonnegative(f) else ZERO)
    return ex.nonnegative(size - 1 - last)
