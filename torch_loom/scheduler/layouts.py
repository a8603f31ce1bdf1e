"""Where the elements of a tile lie in LX, and the transfer that brings them there or back.

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
from itertools import permutations

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import ONE, ZERO, Expr
from torch_loom.scheduler.footprint import Clip, Footprint, LaneCut, Split, footprint, names_of, split_tile
from torch_loom.scheduler.kernel import Indirect, Tile
from torch_loom.scheduler.plan import DimPlan
from torch_loom.scheduler.rewrite import recombine, substitute

STICK = 128
_WASTE = 2  # a run may cover this many times the elements it holds before single elements are moved


@dataclass(frozen=True)
class Layout:
    """A transfer and its LX placement.

    ``place`` is the element offset in LX over the tile's variables. ``lane_clips`` are (position, range)
    pairs over the same variables: outside the range LX holds whatever lay beside the view in its stick."""

    place: Expr
    bytes: int
    ddr: Expr  # bytes from the buffer's address: first stick or element
    dims: tuple[DimPlan, ...]
    axes: tuple[int, ...]  # variable of ``tile`` per transfer dim; -1 = none
    leaf: int
    clipped: bool
    lane_clips: tuple[tuple[Expr, Clip], ...]
    split: Split
    gathers: tuple[int, ...] = ()
    lanes: LaneCut | None = None
    byte_lo: Expr = ZERO
    byte_hi: Expr | None = None


def layout(tile: Tile, elem_bytes: int, order: tuple[int, ...], store: bool, by_element: bool = False) -> Layout:
    """Plan the transfer of a tile. ``order``: tile variables from outermost to innermost in LX (those of the
    run are innermost regardless)."""
    split = split_tile(tile, store)
    foot = footprint(split.tile)
    order = tuple(v for k in order for v in split.groups[k])
    planner = _Planner(split, foot, elem_bytes, order, store)
    if by_element or not planner.sticks_fit():
        return planner.by_elements()
    return planner.by_sticks()


class _Planner:
    """Both forms of a transfer for one tile."""

    def __init__(self, split: Split, foot: Footprint, elem_bytes: int, order: tuple[int, ...], store: bool) -> None:
        self.split, self.tile, self.foot = split, split.tile, foot
        self.size, self.lanes, self.store = elem_bytes, STICK // elem_bytes, store
        live = [v for v in range(len(self.tile.vars)) if self.tile.extents[v] != 1 or v in foot.clips]
        self.order = [v for v in order if v in live]
        self.run = [v for v in live if not foot.strides[v].divisible(self.lanes)]

    def bound(self, e: Expr) -> int:
        """Upper bound of an extent; LX is sized by it."""
        if e.hi is None:
            symbols = sorted({a.name for a in e.atoms() if a.kind == "sym" and a.hi is None})
            raise ScheduleError(
                "an extent of the tile has no upper bound, so LX cannot hold it",
                where=self.tile.where,
                hint=f"give '{', '.join(symbols) or '?'}' an upperbound",
            )
        return max(e.hi, 1)

    # -- sticks -----------------------------------------------------------------------------------

    def sticks_fit(self) -> bool:
        """True if the tile can be moved as sticks without copying mostly foreign elements."""
        foot, tile = self.foot, self.tile
        if foot.lanes is not None:
            return False
        if not all(tile.view.strides[k].divisible(self.lanes) for k in foot.gathers):
            return False
        if self._run_indices():  # the elements of a stick would come from different places
            return False
        span, count = 1, 1
        for v in self.run:
            stride = foot.strides[v]
            if not stride.static or stride.value < 0:
                return False
            extent = self.bound(tile.extents[v])
            span += (extent - 1) * stride.value
            count *= extent
        ranked = sorted(self.run, key=lambda v: foot.strides[v].value)
        if any(v in foot.clips for v in ranked[:-1]):
            return False
        dense = self._dense(ranked)
        return dense if self.store else dense or span <= _WASTE * count + self.lanes

    def _run_indices(self) -> bool:
        """Does a gathered index vary along the run?"""
        names = names_of(self.tile.vars)
        along = {names[v] for v in self.run}
        read = [self.tile.coords[k] for k in self.foot.gathers]
        return any(a.name in along for c in read if isinstance(c, Indirect) for e in c.at for a in e.atoms())

    def _dense(self, ranked: list[int]) -> bool:
        """True if the run holds every element of its stretch exactly once."""
        expected: Expr = ONE
        for v in ranked:
            if self.foot.strides[v] != expected:
                return False
            expected = expected * self.tile.extents[v]
        return True

    def by_sticks(self) -> Layout:
        """The stick form."""
        foot, tile, lanes = self.foot, self.tile, self.lanes
        lane = ex.mod(foot.start, lanes)
        span: Expr = ONE
        place = lane
        for v in self.run:
            span = span + (tile.extents[v] - 1) * foot.strides[v]
            place = place + tile.vars[v] * foot.strides[v]
        sticks = ex.ceildiv(lane + span, lanes)
        dims, axes, outer_place, step = self._outer(
            [v for v in self.order if v not in self.run], self.bound(sticks) * lanes
        )
        first, last = ZERO, sticks
        byte_lo, byte_hi = lane * self.size, (lane + span) * self.size
        clipped = [v for v in self.run if v in foot.clips]
        if clipped:
            clip, stride = foot.clips[clipped[0]], foot.strides[clipped[0]]
            inner = span - (tile.extents[clipped[0]] - 1) * stride
            begin = lane + clip.lo * stride
            end = lane + (clip.hi - 1) * stride + inner
            first, last = ex.floordiv(begin, lanes), ex.ceildiv(end, lanes)
            byte_lo, byte_hi = begin * self.size, end * self.size
        dims.append(DimPlan(sticks, first, last, Expr(STICK), Expr(STICK)))
        axes.append(-1)
        full = byte_lo == 0 and byte_hi == sticks * STICK
        return Layout(
            self._original(place + outer_place),
            step * self.size,
            (foot.start - lane) * self.size,
            tuple(dims),
            tuple(axes),
            STICK,
            bool(foot.clips),
            tuple((self._original(tile.vars[v]), foot.clips[v]) for v in clipped),
            self.split,
            foot.gathers,
            None,
            ZERO if full else byte_lo,
            None if full else byte_hi,
        )

    def _outer(self, variables: list[int], step: int) -> tuple[list[DimPlan], list[int], Expr, int]:
        """Dims that step through LX by ``step`` elements and more, outermost first."""
        foot, tile = self.foot, self.tile
        dims: list[DimPlan] = []
        axes: list[int] = []
        place: Expr = ZERO
        for v in reversed(variables):
            clip = foot.clips.get(v, Clip(ZERO, tile.extents[v]))
            place = place + tile.vars[v] * step
            ddr = foot.strides[v] * self.size
            dims.insert(0, DimPlan(tile.extents[v], clip.lo, clip.hi, ddr, Expr(step * self.size)))
            axes.insert(0, v)
            step *= self.bound(tile.extents[v])
        for key, clip in foot.clips.items():
            if key < 0:  # a coordinate without variables: one index that is inside or not
                inside = ex.less(clip.lo, clip.hi) * (ex.ONE - ex.less(clip.lo, ZERO))
                dims.insert(0, DimPlan(ONE, ZERO, inside, ZERO, ZERO))
                axes.insert(0, -1)
        if not foot.gathers:  # with gathers the order of indices decides who writes last
            ranked = sorted(range(len(dims)), key=lambda k: -_reach(dims[k].ddr_stride))
            dims, axes = [dims[k] for k in ranked], [axes[k] for k in ranked]
        return dims, axes, place, step

    def _original(self, e: Expr) -> Expr:
        """An expression over cut variables in terms of the tile's own."""
        return recombine(substitute(e, self.split.old)) if self.split.new else e

    # -- single elements --------------------------------------------------------------------------

    def by_elements(self) -> Layout:
        """The element form: exact, and as slow as it looks."""
        foot = self.foot
        dims, axes, place, step = self._outer(self.order, 1)
        if not dims:
            dims, axes = [DimPlan(ONE, ZERO, ONE, ZERO, ZERO)], [-1]
        return Layout(
            self._original(place),
            step * self.size,
            foot.start * self.size,
            tuple(dims),
            tuple(axes),
            self.size,
            bool(foot.clips),
            (),
            self.split,
            foot.gathers,
            foot.lanes,
        )


def _reach(stride: Expr) -> int:
    """Sorting key of a DDR stride: the innermost dims of a transfer should be neighbours in DDR, since only
    there long requests form."""
    if stride.static:
        return abs(stride.value)
    return stride.hi if stride.hi is not None else 1 << 62


def permutations_first(order: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Candidate LX orders, the given one first (all orders up to four dims, rotations beyond)."""
    if len(order) <= 4:
        return [order, *(p for p in permutations(order) if p != order)]
    return [order, *(order[k:] + order[:k] for k in range(1, len(order)))]
