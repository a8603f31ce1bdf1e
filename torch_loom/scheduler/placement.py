"""Pass 3a: where values lie in LX, and the transfers that bring tiles there and back.

For loads and stores an order of the tile's dims is searched under which the segments' addresses are affine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import rewrite as rw
from torch_loom.scheduler import space as sp
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import ZERO, Expr
from torch_loom.scheduler.footprint import Clip, names_of
from torch_loom.scheduler.grouping import Group, Grouping
from torch_loom.scheduler.inverse import invert, strip
from torch_loom.scheduler.kernel import Assign, Indirect, Kernel, Kind, Numerics, Ring, Store, Tile, Value
from torch_loom.scheduler.layouts import STICK, Layout, layout, permutations_first
from torch_loom.scheduler.memory_ops import stored_index
from torch_loom.scheduler.plan import (
    BlockPlan,
    GatherPlan,
    LanePlan,
    Ref,
    RingDimPlan,
    RingPlan,
    SegmentPlan,
    TransferPlan,
)
from torch_loom.scheduler.rewrite import substitute
from torch_loom.scheduler.sinks import MoreRoots, Sink
from torch_loom.scheduler.space import Space
from torch_loom.spyrecode.model import Elem, Unit

Index = tuple[Expr, ...]


@dataclass(frozen=True)
class Placement:
    """A value in LX: element offset ``place`` over the value's index variables ``vars`` in ``block``."""

    block: str
    elem: Elem
    vars: Index
    place: Expr
    lane_clips: tuple[tuple[Expr, Clip], ...] = ()  # positions over ``vars`` and the range that holds data

    def at(self, index: Index) -> Expr:
        """Element offset of an index."""
        return substitute(self.place, self._names(index))

    def clips_at(self, index: Index) -> tuple[tuple[Expr, Clip], ...]:
        """The lane clips at an index."""
        names = self._names(index)
        return tuple((substitute(p, names), clip) for p, clip in self.lane_clips)

    def _names(self, index: Index) -> dict[str, Expr]:
        return {n: i for n, i in zip(names_of(self.vars), index, strict=True) if n}


@dataclass
class Pieces:
    """What the pass makes: blocks, and per scope and run the transfers and segments in order."""

    blocks: dict[str, BlockPlan] = field(default_factory=dict)
    loads: dict[int, list[TransferPlan]] = field(default_factory=dict)  # by id of the statement; indices first
    stores: dict[int, list[TransferPlan]] = field(default_factory=dict)
    segments: dict[tuple[int, int], list[SegmentPlan]] = field(default_factory=dict)
    rings: dict[int, list[RingPlan]] = field(default_factory=dict)  # by id of the statement


class Placer:
    """State of pass 3 and its first half. Raises ``MoreRoots`` when a value must lie in LX for an address to be
    affine."""

    def __init__(self, kernel: Kernel, grouping: Grouping, corelets: int) -> None:
        self.kernel = kernel
        self.numerics: Numerics = kernel.numerics
        self.grouping = grouping
        self.corelets = corelets
        self.pieces = Pieces()
        self.places: dict[Value, Placement] = {}
        self.fetched: dict[Value, Placement] = {}  # where transfers put loads
        self.outs: dict[Sink, Placement] = {}
        self.locals: dict[int, Placement] = {}
        self.cells: dict[int, Placement] = {}
        self.starts: dict[Sink, Index] = {}
        self.spaces: dict[int, Space] = {}
        self.next_id = 0

    def _fresh(self) -> int:
        self.next_id += 1
        return self.next_id

    # -- spaces -----------------------------------------------------------------------------------

    def _start(self, group: Group, sink: Sink, space: Space) -> Index:
        """Index of the sink's source at a point of the group's space."""
        source = sink.source
        if group.matmul is None:
            return space.dims
        if source is group.matmul:
            return space.dims
        path = self._path(source, group)
        found = invert(path, source, group.matmul)
        if found is None:
            raise MoreRoots({group.matmul})
        names = {x.terms[0][0][0].name: d for x, d in zip(group.matmul.vars, space.dims, strict=True) if x.terms}
        return tuple(substitute(e, names) for e in found)

    def _path(self, source: Value, group: Group) -> Index:
        """Index of the group's contraction as a function of the source's index."""
        for leaf, index in self._cone(source, source.vars, group):
            if leaf is group.matmul:
                return index
        raise MoreRoots({group.matmul} if group.matmul is not None else set())

    def _cone(self, v: Value, index: Index, group: Group) -> Iterable[tuple[Value, Index]]:
        """Leaves that the group's segment reads for ``v`` at ``index``."""
        own = {s.value for s in group.sinks if s.target is None and not s.reduces}
        seen: set[tuple[int, Index]] = set()
        stack = [(v, index)]
        while stack:
            u, at = stack.pop()
            if (u.id, at) in seen:
                continue
            seen.add((u.id, at))
            if (u in self.grouping.roots and u not in own) or u.kind in (Kind.LOAD, Kind.CELL):
                yield u, at
            elif u.kind is Kind.REMAP:
                names = {x.terms[0][0][0].name: i for x, i in zip(u.vars, at, strict=True) if x.terms}
                stack.append((u.operands[0], tuple(substitute(e, names) for e in u.imap)))
            elif u.kind is Kind.MAP:
                stack.extend((o, at) for o in u.operands)
            elif u.kind is Kind.MATMUL:
                yield u, at

    def _pt_spaces(self, group: Group) -> tuple[Space, Space]:
        assert group.matmul is not None
        a, b = group.matmul.operands
        return sp.make(f"pa{a.id}", a.shape), sp.make(f"pb{b.id}", b.shape)

    def _pt_leaf(self, operand: Value, index: Index) -> tuple[Value, Index]:
        """The load or root behind an operand of PT, and its index."""
        v = operand
        while v not in self.grouping.roots and v.kind not in (Kind.LOAD, Kind.CELL):
            v = strip(v)
            if v in self.grouping.roots or v.kind in (Kind.LOAD, Kind.CELL):
                break
            if v.kind is not Kind.REMAP:
                raise MoreRoots({operand})
            names = {x.terms[0][0][0].name: i for x, i in zip(v.vars, index, strict=True) if x.terms}
            index = tuple(substitute(e, names) for e in v.imap)
            v = v.operands[0]
        return v, index

    # -- placement --------------------------------------------------------------------------------

    def _place_roots(self) -> None:
        for v in self.grouping.sinks:
            self.places[v] = self._temporary(f"t{v.id}", v, v.dtype, v.op_name, v in self.grouping.forced)

    def _place_cells(self) -> None:
        """One block per cell; every read of the cell and every assignment uses it."""
        roles = {r.source.cell: "send" for r in self.grouping.rings}
        roles |= {r.target.cell: "land" for r in self.grouping.rings}
        for v in (*(r.source for r in self.grouping.rings), *self.grouping.cells):
            name = f"cell{v.cell}"
            made = self._temporary(name, v, v.dtype, "cell", False, roles.get(v.cell, "temp"))
            self.fetched[v] = made
            self.places.setdefault(v, made)
            self.cells[v.cell] = made
        for ring in self.grouping.rings:
            self.pieces.rings[id(ring)] = self._messages(ring)
        for group in self.grouping.groups:
            for sink in group.sinks:
                if isinstance(sink.target, Assign):
                    self._place_assign(sink, sink.target)

    def _messages(self, ring: Ring) -> list[RingPlan]:
        source, target = self.cells[ring.source.cell], self.cells[ring.target.cell]
        lead = len(target.vars) - len(ring.box)
        elem = source.elem.bytes

        def pitch(place: Placement, dim: int) -> Expr:
            at = [ex.ZERO] * len(place.vars)
            base = place.at(tuple(at))
            at[dim] = ex.ONE
            return (place.at(tuple(at)) - base) * elem

        dims = tuple(
            RingDimPlan(e, pitch(source, k), pitch(target, k + lead)) for k, e in enumerate(ring.box) if e != 1
        )
        return [
            RingPlan(
                self._fresh(),
                hop.core,
                Ref(source.block, source.at(hop.source) * elem),
                Ref(target.block, target.at(hop.target) * elem),
                dims,
                elem,
                ring.senders,
                ring.where,
            )
            for hop in ring.hops
        ]

    def _place_assign(self, sink: Sink, target: Assign) -> None:
        cell = self.cells[target.cell.id]
        at = tuple(v + o for v, o in zip(sink.source.vars, target.offset, strict=True))
        self.outs[sink] = Placement(cell.block, cell.elem, sink.source.vars, cell.at(at))

    def _temporary(self, name: str, v: Value, dtype: str, note: str, dense: bool, role: str = "temp") -> Placement:
        """A block of the compute group that holds a value."""
        elem = self.numerics.elem(dtype)
        pitches, size = self._pitches(v, STICK // elem.bytes, dense)
        place = ZERO
        for var, pitch in zip(v.vars, pitches, strict=True):
            place = place + var * pitch
        self.pieces.blocks[name] = BlockPlan(name, _sticks(size * elem.bytes), role, note=note)
        return Placement(name, elem, v.vars, place)

    def _pitches(self, v: Value, lanes: int, dense: bool) -> tuple[list[Expr], int]:
        """Element stride per dim of a root, row major, and its size. Long rows start at a stick; values that
        are re-shaped later (forced) are dense, so that merged dims stay affine."""
        pitches: list[Expr] = []
        step: Expr = ex.ONE
        size = 1
        for k in reversed(range(len(v.shape))):
            pitches.insert(0, step)
            bound = max(self._bound(v.shape[k], v), 1)
            row = k + 1 == len(v.shape) and k > 0 and bound >= lanes
            wide = -(-bound // lanes) * lanes if row and not dense else bound
            size *= wide
            step = step * v.shape[k] if dense else Expr(size)
        return pitches, size

    def _bound(self, extent: Expr, v: Value) -> int:
        if extent.hi is None:
            symbols = sorted({a.name for a in extent.atoms() if a.kind == "sym" and a.hi is None})
            raise ScheduleError(
                "the extent of a value has no upper bound, so LX cannot hold it",
                op=v.op_name,
                where=v.where,
                hint=f"give '{', '.join(symbols)}' an upperbound",
            )
        return extent.hi

    def _place_loads(self) -> None:
        uses = self._load_uses()
        for load in self.grouping.loads:
            v = load.value
            tile = v.tile
            assert tile is not None
            elem = self.numerics.elem(tile.view.dtype)
            best: tuple[int, Layout, Placement] | None = None
            name = f"b{v.id}"
            for order in permutations_first(tile.order):
                plan = layout(tile, elem.bytes, order, store=False)
                placed = _placement(name, elem, tile, plan, v.vars)
                misses = sum(space.affine(placed.at(index)) is None for space, index in uses.get(v, []))
                if best is None or misses < best[0]:
                    best = (misses, plan, placed)
                if not misses:
                    break
            assert best is not None
            _, plan, placed = best
            self.fetched[v] = placed
            self.places.setdefault(v, placed)
            self.pieces.blocks[name] = BlockPlan(name, _sticks(plan.bytes), "load", note=self._arg_name(tile))
            self.pieces.loads[id(load)] = self._transfers(Unit.MNILU, tile, elem, plan, name)

    def _arg_name(self, tile: Tile) -> str:
        return self.kernel.args[tile.view.arg].name

    def _load_uses(self) -> dict[Value, list[tuple[Space, Index]]]:
        uses: dict[Value, list[tuple[Space, Index]]] = {}
        for group in self.grouping.groups:
            space = self.spaces[id(group)]
            for sink in group.sinks:
                for leaf, index in self._cone(sink.source, self.starts[sink], group):
                    if leaf.kind is Kind.LOAD:
                        uses.setdefault(leaf, []).append((space, index))
            if group.matmul is not None:
                for operand, dims in zip(group.matmul.operands, self._pt_spaces(group), strict=True):
                    leaf, index = self._pt_leaf(operand, dims.dims)
                    if leaf.kind is Kind.LOAD:
                        uses.setdefault(leaf, []).append((dims, index))
        return uses

    def _place_stores(self) -> None:
        for group in self.grouping.groups:
            space = self.spaces[id(group)]
            for sink in group.sinks:
                if sink.store is None:
                    continue
                tile = sink.store.tile
                if tile.view.local:
                    continue
                elem = self.numerics.elem(tile.view.dtype)
                name = f"o{self._fresh()}"
                best: tuple[bool, Layout, Placement] | None = None
                for order in permutations_first(tile.order):
                    plan = layout(tile, elem.bytes, order, store=True)
                    placed = _placement(name, elem, tile, plan, sink.source.vars)
                    fits = space.affine(placed.at(self.starts[sink])) is not None
                    if best is None or fits:
                        best = (fits, plan, placed)
                    if fits:
                        break
                assert best is not None
                _, plan, placed = best
                self.outs[sink] = placed
                self.pieces.blocks[name] = BlockPlan(name, _sticks(plan.bytes), "store", note=self._arg_name(tile))
                self.pieces.stores[id(sink.store)] = self._transfers(Unit.MNISU, tile, elem, plan, name)

    def _place_local(self, sink: Sink, store: Store) -> None:
        """The block of a value that later transfers read as indices: dense, row major."""
        v = sink.source
        place, size = ZERO, 1
        for k in reversed(range(len(v.shape))):
            place = place + v.vars[k] * size
            size *= max(self._bound(v.shape[k], v), 1)
        name = f"x{self._fresh()}"
        self.outs[sink] = Placement(name, Elem.I32, v.vars, place)
        self.pieces.blocks[name] = BlockPlan(name, _sticks(size * 4), "index", note=v.op_name)
        self.locals[id(store)] = self.outs[sink]

    # -- transfers --------------------------------------------------------------------------------

    def _transfers(self, unit: Unit, tile: Tile, elem: Elem, plan: Layout, block: str) -> list[TransferPlan]:
        """The transfer of a tile, after those of the indices it needs."""
        symbol = self.kernel.args[tile.view.arg].symbol
        assert symbol is not None
        before: list[TransferPlan] = []
        gathers = tuple(self._gather(k, tile, elem, plan, before) for k in plan.gathers)
        lanes = None
        if plan.lanes is not None:
            cut = plan.lanes
            strides = tuple(cut.strides[a] if a >= 0 else ZERO for a in plan.axes)
            lanes = LanePlan(cut.start, strides, cut.elems, cut.tile_stride * elem.bytes)
        main = TransferPlan(
            self._fresh(),
            unit,
            tile.view.arg,
            symbol + plan.ddr,
            Ref(block, ZERO),
            plan.dims,
            plan.leaf,
            zero_fill=unit is Unit.MNILU and plan.clipped,
            gathers=gathers,
            byte_lo=plan.byte_lo if unit is Unit.MNISU else ZERO,
            byte_hi=plan.byte_hi if unit is Unit.MNISU else None,
            lanes=lanes,
            where=tile.where,
            tile=tile,
        )
        return [*before, main]

    def _gather(self, k: int, tile: Tile, elem: Elem, plan: Layout, before: list[TransferPlan]) -> GatherPlan:
        """How a transfer reads the indices of coordinate k; what fetches them is put into ``before``."""
        cut = plan.split.tile
        coord = cut.coords[k]
        assert isinstance(coord, Indirect)
        if coord.source is not None:
            placed = self.locals[id(coord.source)]
            address = placed.at(stored_index(coord.source, coord.at))
        else:
            placed, address = self._index_block(coord, cut, before)
        names = names_of(cut.vars)
        found = rw.linear(rw.recombine(address), tuple(n for n in names if n))
        if found is None:
            raise ScheduleError("the indices' addresses are not affine in the tile's variables", where=tile.where)
        offset, factors = found
        strides = tuple(factors.get(names[a], ZERO) * 4 if a >= 0 and names[a] else ZERO for a in plan.axes)
        return GatherPlan(Ref(placed.block, offset * 4), strides, tile.view.strides[k] * elem.bytes, tile.view.sizes[k])

    def _index_block(self, coord: Indirect, tile: Tile, before: list[TransferPlan]) -> tuple[Placement, Expr]:
        """Fetch the part of an index view that the tile needs. Indices beyond the view read as zero."""
        used = {a.name for e in coord.at for a in e.atoms()}
        names = names_of(tile.vars)
        mine = [v for v, n in enumerate(names) if n and n in used]
        part = Tile(
            coord.view,
            tuple(tile.vars[v] for v in mine),
            tuple(tile.extents[v] for v in mine),
            coord.at,
            tuple(range(len(mine))),
            tile.where,
        )
        elem = self.numerics.elem(coord.view.dtype)
        if elem is not Elem.I32:
            raise ScheduleError(f"indices must be i32 on the device, not {coord.view.dtype}", where=tile.where)
        plan = layout(part, elem.bytes, part.order, store=False)
        if plan.lane_clips:
            plan = layout(part, elem.bytes, part.order, store=False, by_element=True)
        name = f"x{self._fresh()}"
        self.pieces.blocks[name] = BlockPlan(name, _sticks(plan.bytes), "index", note=self._arg_name(part))
        before += self._transfers(Unit.MNILU, part, elem, plan, name)
        placed = _placement(name, elem, part, plan, part.vars)
        return placed, placed.place


def _placement(block: str, elem: Elem, tile: Tile, plan: Layout, variables: Index) -> Placement:
    """Placement of a loaded or stored value whose dim j runs over tile variable ``order[j]``."""
    names = {tile.vars[p].terms[0][0][0].name: variables[j] for j, p in enumerate(tile.order) if tile.vars[p].terms}
    place = substitute(plan.place, names)
    clips = tuple((substitute(p, names), c) for p, c in plan.lane_clips)
    return Placement(block, elem, variables, place, clips)


def _sticks(size: int) -> int:
    return max(-(-size // STICK), 1) * STICK
