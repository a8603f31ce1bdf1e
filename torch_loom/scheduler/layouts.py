"""Where a tile lies in DDR and how its transfer places it in LX.

A transfer moves whole sticks. The dims of a tile whose DDR stride is not a multiple of a stick form the
*run*: one stretch of DDR, from the first to the last element that the tile touches in it. The run is
copied as the sticks that cover it, so every element keeps its distance from the others and its position
inside the stick; the offset of the first element is carried into LX. All other dims step by whole sticks
and may be laid out in LX in any order. When a run would mostly copy elements the tile does not hold, or when
a tile may leave its view inside the run in a way a stretch cannot express, the transfer moves single
elements instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import ONE, ZERO, Expr
from torch_loom.scheduler.kernel import Indirect, Tile
from torch_loom.scheduler.plan import DimPlan

STICK = 128
_WASTE = 2  # a run may cover this many times the elements it holds before single elements are moved


@dataclass(frozen=True)
class Clip:
    """Indices of one tile variable that stay inside the view: [lo, hi)."""

    lo: Expr
    hi: Expr


@dataclass(frozen=True)
class Gathered:
    """An indirect coordinate: the tile's coordinate number and what one step of it means in elements."""

    coordinate: int
    stride: Expr


@dataclass(frozen=True)
class Footprint:
    """DDR side of a tile in elements: start + sum stride[v] * v (+ gathered indices)."""

    start: Expr
    strides: tuple[Expr, ...]
    clips: dict[int, Clip]
    gathers: tuple[Gathered, ...]


@dataclass(frozen=True)
class Layout:
    """A transfer and its LX placement. ``place`` is the element offset in LX over the tile's variables."""

    place: Expr
    bytes: int
    ddr: Expr  # bytes from the buffer's address, first stick or element
    dims: tuple[DimPlan, ...]
    axes: tuple[int, ...]  # tile variable of each transfer dim; -1 = sticks of the run
    leaf: int
    clipped: bool
    lane_clips: dict[int, Clip]  # variables whose outside elements hold garbage in LX
    byte_lo: Expr = ZERO
    byte_hi: Expr | None = None


def _names(tile: Tile) -> list[str]:
    return [v.terms[0][0][0].name if v.terms else "" for v in tile.vars]


def footprint(tile: Tile) -> Footprint:
    """DDR addresses of a tile as a linear form. Raises for subscripts that are not affine in the variables."""
    names = _names(tile)
    position = {n: k for k, n in enumerate(names) if n}
    view = tile.view
    start = view.offset
    strides = [ZERO] * len(tile.vars)
    clips: dict[int, Clip] = {}
    gathers: list[Gathered] = []
    for k, coord in enumerate(tile.coords):
        if isinstance(coord, Indirect):
            gathers.append(Gathered(k, view.strides[k]))
            continue
        split = ex.linear(coord, tuple(position))
        if split is None:
            raise ScheduleError("subscripts with floordiv or mod of a variable need a split variable", where=tile.where)
        base, factors = split
        start = start + base * view.strides[k]
        for name, factor in factors.items():
            v = position[name]
            strides[v] = strides[v] + factor * view.strides[k]
        _clip(tile, coord, base, {position[n]: f for n, f in factors.items()}, view.sizes[k], clips)
    return Footprint(start, tuple(strides), clips, tuple(gathers))


def _clip(
    tile: Tile, coord: Expr, base: Expr, factors: dict[int, Expr], size: Expr, clips: dict[int, Clip]
) -> None:
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
        last = last + (f * (tile.extents[v] - 1) if ex.nonnegative(f) else ex.ZERO)
    return ex.nonnegative(size - 1 - last)


def layout(tile: Tile, elem_bytes: int, order: tuple[int, ...], store: bool, by_element: bool = False) -> Layout:
    """Plan the transfer of a tile. ``order``: tile variables from outermost to innermost in LX (those of the
    run are innermost regardless)."""
    foot = footprint(tile)
    lanes = STICK // elem_bytes
    live = [v for v in range(len(tile.vars)) if tile.extents[v] != 1 or v in foot.clips]
    run = [v for v in live if not foot.strides[v].divisible(lanes)]
    aligned_gathers = all(g.stride.divisible(lanes) for g in foot.gathers)
    if by_element or not aligned_gathers or not _run_is_sound(tile, foot, run, lanes, store):
        return _element_layout(tile, foot, elem_bytes, [v for v in order if v in live])
    return _stick_layout(tile, foot, elem_bytes, run, [v for v in order if v in live and v not in run])


def _bound(e: Expr, what: str, tile: Tile) -> int:
    hi = e.hi
    if hi is None:
        symbols = sorted({a.name for a in e.atoms() if a.kind == "sym" and a.hi is None})
        raise ScheduleError(
            f"{what} has no upper bound",
            where=tile.where,
            hint=f"give '{', '.join(symbols) or '?'}' an upperbound",
        )
    return hi


def _run_is_sound(tile: Tile, foot: Footprint, run: list[int], lanes: int, store: bool) -> bool:
    span, count = 1, 1
    for v in run:
        stride = foot.strides[v]
        if not stride.static or stride.value < 0:
            return False
        extent = _bound(tile.extents[v], "the tile", tile)
        span += max(extent - 1, 0) * stride.value
        count *= max(extent, 1)
    ranked = sorted(run, key=lambda v: foot.strides[v].value)
    if any(v in foot.clips for v in ranked[:-1]):
        return False
    dense = _dense(tile, foot, ranked)
    if store:
        return dense or not run
    return dense or span <= _WASTE * count + lanes


def _dense(tile: Tile, foot: Footprint, ranked: list[int]) -> bool:
    """True if the run holds every element of its stretch exactly once."""
    expected: Expr = ONE
    for v in ranked:
        if foot.strides[v] != expected:
            return False
        expected = expected * tile.extents[v]
    return True


def _stick_layout(tile: Tile, foot: Footprint, elem_bytes: int, run: list[int], outer: list[int]) -> Layout:
    lanes = STICK // elem_bytes
    lane = ex.mod(foot.start, lanes)
    span: Expr = ONE
    place = lane
    for v in run:
        span = span + (tile.extents[v] - 1) * foot.strides[v]
        place = place + tile.vars[v] * foot.strides[v]
    sticks = ex.ceildiv(lane + span, lanes)
    pitch = _bound(sticks, "the tile", tile)
    dims: list[DimPlan] = []
    axes: list[int] = []
    step = pitch * lanes
    for v in reversed(outer):
        clip = foot.clips.get(v, Clip(ZERO, tile.extents[v]))
        place = place + tile.vars[v] * step
        dims.insert(
            0, DimPlan(tile.extents[v], clip.lo, clip.hi, foot.strides[v] * elem_bytes, Expr(step * elem_bytes))
        )
        axes.insert(0, v)
        step *= max(_bound(tile.extents[v], "the tile", tile), 1)
    for key, clip in foot.clips.items():
        if key < 0:  # a coordinate without variables: one index that is inside or not
            inside = ex.minimum(ex.less(clip.lo, clip.hi), ex.ONE - ex.less(clip.lo, ZERO))
            dims.insert(0, DimPlan(ONE, ZERO, inside, ZERO, ZERO))
            axes.insert(0, -1)
    first, last = ZERO, sticks
    lane_clips = {v: foot.clips[v] for v in run if v in foot.clips}
    byte_lo, byte_hi = lane * elem_bytes, (lane + span) * elem_bytes
    if lane_clips:
        outermost = max(run, key=lambda v: foot.strides[v].value)
        clip = lane_clips[outermost]
        inner = span - (tile.extents[outermost] - 1) * foot.strides[outermost]
        begin = lane + clip.lo * foot.strides[outermost]
        end = lane + (clip.hi - 1) * foot.strides[outermost] + inner
        first, last = ex.floordiv(begin, lanes), ex.ceildiv(end, lanes)
        byte_lo, byte_hi = begin * elem_bytes, end * elem_bytes
    dims.append(DimPlan(sticks, first, last, Expr(STICK), Expr(STICK)))
    axes.append(-1)
    ddr = (foot.start - lane) * elem_bytes
    full = byte_lo == 0 and byte_hi == sticks * STICK
    return Layout(
        place,
        step * elem_bytes,
        ddr,
        tuple(dims),
        tuple(axes),
        STICK,
        bool(foot.clips),
        lane_clips,
        ZERO if full else byte_lo,
        None if full else byte_hi,
    )


def _element_layout(tile: Tile, foot: Footprint, elem_bytes: int, order: list[int]) -> Layout:
    dims: list[DimPlan] = []
    axes: list[int] = []
    place: Expr = ZERO
    step = 1
    for v in reversed(order):
        clip = foot.clips.get(v, Clip(ZERO, tile.extents[v]))
        place = place + tile.vars[v] * step
        dims.insert(
            0, DimPlan(tile.extents[v], clip.lo, clip.hi, foot.strides[v] * elem_bytes, Expr(step * elem_bytes))
        )
        axes.insert(0, v)
        step *= max(_bound(tile.extents[v], "the tile", tile), 1)
    if any(key < 0 for key in foot.clips) or not dims:
        inside: Expr = ONE
        for key, clip in foot.clips.items():
            if key < 0:
                inside = inside * ex.minimum(ex.less(clip.lo, clip.hi), ex.ONE - ex.less(clip.lo, ZERO))
        dims.insert(0, DimPlan(ONE, ZERO, inside, ZERO, ZERO))
        axes.insert(0, -1)
    bytes_ = -(-step * elem_bytes // STICK) * STICK
    return Layout(place, bytes_, foot.start * elem_bytes, tuple(dims), tuple(axes), elem_bytes, bool(foot.clips), {})


def permutations_first(order: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Candidate LX orders, the given one first (all orders up to four dims, rotations beyond)."""
    from itertools import permutations

    if len(order) <= 4:
        return [order, *(p for p in permutations(order) if p != order)]
    return [order, *(order[k:] + order[:k] for k in range(1, len(order)))]
