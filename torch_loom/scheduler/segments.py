"""Pass 3: blocks, transfers and segments of a grouped kernel.

First every load, root and store gets an LX layout: for loads and stores an order of the tile's dims under
which the segments' addresses are affine is searched; then each group's iteration space is split as far as its
addresses need, and its lane program is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import space as sp
from torch_loom.scheduler.emit import LaneProgram, Leaf, compact
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import ZERO, Expr, substitute
from torch_loom.scheduler.footprint import Clip, names_of
from torch_loom.scheduler.grouping import Group, Grouping, MoreRoots, Sink, invert, strip
from torch_loom.scheduler.kernel import Assign, Indirect, Kernel, Kind, Numerics, Store, Tile, Value
from torch_loom.scheduler.layouts import STICK, Layout, layout, permutations_first
from torch_loom.scheduler.normalise import stored_index
from torch_loom.scheduler.plan import (
    BlockPlan,
    GatherPlan,
    InputPlan,
    LanePlan,
    OutputPlan,
    PtPlan,
    Ref,
    SegmentPlan,
    TransferPlan,
)
from torch_loom.scheduler.space import Space
from torch_loom.spyrecode.model import Elem, Reduce, Unit

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
    loads: dict[int, list[TransferPlan]] = field(
        default_factory=dict
    )  # by id of the statement; indices first
    stores: dict[int, list[TransferPlan]] = field(default_factory=dict)
    segments: dict[tuple[int, int], list[SegmentPlan]] = field(default_factory=dict)


class SegmentPlanner:
    """State of the pass. Raises ``MoreRoots`` when a value must lie in LX for an address to be affine."""

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

    def run(self) -> Pieces:
        """Plan all pieces."""
        for number, group in enumerate(self.grouping.groups):
            space = sp.make(f"s{number}", group.space)
            self.spaces[id(group)] = space
            for sink in group.sinks:
                self.starts[sink] = self._start(group, sink, space)
        self._place_roots()
        self._place_cells()
        for group in self.grouping.groups:
            for sink in group.sinks:
                if sink.store is not None and sink.store.tile.view.local:
                    self._place_local(sink, sink.store)
        self._place_loads()
        self._place_stores()
        for number, group in enumerate(self.grouping.groups):
            segment = self._segment(number, group)
            self.pieces.segments.setdefault((group.scope, group.run), []).append(segment)
        return self.pieces

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
        names = {
            x.terms[0][0][0].name: d for x, d in zip(group.matmul.vars, space.dims, strict=True) if x.terms
        }
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

    # -- placement --------------------------------------------------------------------------------

    def _place_roots(self) -> None:
        for v in self.grouping.sinks:
            self.places[v] = self._temporary(f"t{v.id}", v, v.dtype, v.op_name, v in self.grouping.forced)

    def _place_cells(self) -> None:
        """One block per cell; every read of the cell and every assignment uses it."""
        for v in self.grouping.cells:
            name = f"cell{v.cell}"
            made = self._temporary(name, v, v.dtype, "cell", False)
            self.fetched[v] = made
            self.places.setdefault(v, made)
            self.cells[v.cell] = made
        for group in self.grouping.groups:
            for sink in group.sinks:
                if isinstance(sink.target, Assign):
                    self._place_assign(sink, sink.target)

    def _place_assign(self, sink: Sink, target: Assign) -> None:
        cell = self.cells[target.cell.id]
        at = tuple(v + o for v, o in zip(sink.source.vars, target.offset, strict=True))
        self.outs[sink] = Placement(cell.block, cell.elem, sink.source.vars, cell.at(at))

    def _temporary(self, name: str, v: Value, dtype: str, note: str, dense: bool) -> Placement:
        """A block of the compute group that holds a value."""
        elem = self.numerics.elem(dtype)
        pitches, size = self._pitches(v, STICK // elem.bytes, dense)
        place = ZERO
        for var, pitch in zip(v.vars, pitches, strict=True):
            place = place + var * pitch
        self.pieces.blocks[name] = BlockPlan(name, _sticks(size * elem.bytes), "temp", note=note)
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
                self.pieces.blocks[name] = BlockPlan(
                    name, _sticks(plan.bytes), "store", note=self._arg_name(tile)
                )
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
        found = ex.linear(ex.recombine(address), tuple(n for n in names if n))
        if found is None:
            raise ScheduleError(
                "the indices' addresses are not affine in the tile's variables", where=tile.where
            )
        offset, factors = found
        strides = tuple(factors.get(names[a], ZERO) * 4 if a >= 0 and names[a] else ZERO for a in plan.axes)
        return GatherPlan(
            Ref(placed.block, offset * 4), strides, tile.view.strides[k] * elem.bytes, tile.view.sizes[k]
        )

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
            raise ScheduleError(
                f"indices must be i32 on the device, not {coord.view.dtype}", where=tile.where
            )
        plan = layout(part, elem.bytes, part.order, store=False)
        if plan.lane_clips:
            plan = layout(part, elem.bytes, part.order, store=False, by_element=True)
        name = f"x{self._fresh()}"
        self.pieces.blocks[name] = BlockPlan(name, _sticks(plan.bytes), "index", note=self._arg_name(part))
        before += self._transfers(Unit.MNILU, part, elem, plan, name)
        placed = _placement(name, elem, part, plan, part.vars)
        return placed, placed.place

    # -- segments ---------------------------------------------------------------------------------

    def _segment(self, number: int, group: Group) -> SegmentPlan:
        space = self._refined(group)
        own = {s.value: self.starts[s] for s in group.sinks if s.target is None and not s.reduces}
        exempt = self._unobservable(group)

        def leaf(v: Value, index: Index) -> Leaf | None:
            if v in own and v not in self.fetched:
                if index != own[v]:
                    raise ScheduleError("a root is read before it is complete", op=v.op_name, where=v.where)
                return None
            if v not in self.places:
                return None
            placed = self.fetched[v] if v in own else self.places[v]
            masks = tuple(c for c in placed.clips_at(index) if c not in exempt)
            return Leaf(self._input(placed, index, space, v), masks)

        program = LaneProgram(space, self.numerics, leaf)
        if group.matmul is not None:
            program.input(None)
        registers = [program.value(*self._unrounded(sink)) for sink in group.sinks]
        inputs = [p for p in program.inputs if p is not None]
        ops, registers = compact(list(program.inputs.values()), program.ops, registers)
        outputs = tuple(self._output(sink, r, space) for sink, r in zip(group.sinks, registers, strict=True))
        return SegmentPlan(
            self._fresh(),
            space.extents,
            tuple(inputs),
            self._pt(group) if group.matmul is not None else None,
            tuple(ops),
            outputs,
            self._corelet_dim(space, outputs),
            group.sinks[0].value.where,
        )

    def _refined(self, group: Group) -> Space:
        space = self.spaces[id(group)]
        addresses = [p.at(index) for _, p, index in self._read_places(group)]
        addresses += [self._out_address(sink) for sink in group.sinks]
        refined = sp.refine(space, addresses)
        if refined is not None and (group.matmul is None or refined is space):
            return refined
        if group.matmul is not None:
            raise MoreRoots({group.matmul})
        raise self._not_affine(group, space)

    def _read_places(self, group: Group) -> list[tuple[Value, Placement, Index]]:
        """What the group's segment reads: value, where it lies, at which index."""
        own = {s.value for s in group.sinks if s.target is None}
        found = []
        for sink in group.sinks:
            for v, index in self._cone(sink.source, self.starts[sink], group):
                if v in self.places:
                    found.append((v, self.fetched[v] if v in own else self.places[v], index))
        return found

    def _not_affine(self, group: Group, space: Space) -> Exception:
        """Which leaf blocks the group: force it into a dense block of its own, or report it."""
        blocked = {v for v, p, index in self._read_places(group) if sp.refine(space, [p.at(index)]) is None}
        fresh = {v for v in blocked if v not in self.grouping.forced}
        if fresh:
            return MoreRoots(fresh)
        v = next(iter(blocked), group.sinks[0].value)
        return ScheduleError(
            "the elements cannot be addressed by affine strides after these shape changes",
            op=v.op_name,
            where=v.where,
            hint="make the split extents multiples of each other",
        )

    def _out_address(self, sink: Sink) -> Expr:
        """Element offset of the output over the group's space."""
        if sink in self.outs:
            return self.outs[sink].at(self.starts[sink])
        index = self.starts[sink]
        if sink.reduces:
            index = tuple(i for k, i in enumerate(index) if k not in sink.value.dims)
        return self.places[sink.value].at(index)

    def _input(self, placed: Placement, index: Index, space: Space, v: Value) -> InputPlan:
        found = space.affine(placed.at(index))
        if found is None:
            raise MoreRoots({v})
        offset, strides = found
        return InputPlan(Ref(placed.block, offset * placed.elem.bytes), placed.elem, strides)

    def _unrounded(self, sink: Sink) -> tuple[Value, Index]:
        """The source without a final rounding that the store performs itself."""
        source = sink.source
        index = self.starts[sink]
        if not sink.reduces and source.kind is Kind.MAP and source.op is self.numerics.rounding(source.dtype):
            opened = sink.target is None or source not in self.grouping.roots
            if opened:
                return source.operands[0], index
        return source, index

    def _output(self, sink: Sink, register: int, space: Space) -> OutputPlan:
        placed = self.outs.get(sink) or self.places[sink.value]
        found = space.affine(self._out_address(sink))
        assert found is not None
        offset, strides = found
        ref = Ref(placed.block, offset * placed.elem.bytes)
        if not sink.reduces:
            return OutputPlan(register, ref, placed.elem, strides)
        folded = self._folded_dims(sink, space)
        return OutputPlan(
            register, ref, placed.elem, strides, sink.value.reduce if folded else Reduce.NONE, folded
        )

    def _folded_dims(self, sink: Sink, space: Space) -> tuple[int, ...]:
        """Nest dims that the reduction folds: those that only folded source dims depend on."""
        start = [substitute(i, space.values) for i in self.starts[sink]]
        folded: set[str] = set()
        kept: set[str] = set()
        for k, i in enumerate(start):
            names = {a.name for a in i.atoms() if a.kind == "dim"}
            (folded if k in sink.value.dims else kept).update(names)
        if folded & kept:
            raise MoreRoots({strip(sink.source)})
        return tuple(k for k, n in enumerate(space.names) if n in folded)

    def _unobservable(self, group: Group) -> set[tuple[Expr, Clip]]:
        """(index, clip) pairs beyond which every sink of the group writes nothing."""
        common: set[tuple[Expr, Clip]] | None = None
        for sink in group.sinks:
            if sink.store is None:
                return set()
            placed = self.outs[sink]
            mine = set(placed.clips_at(self.starts[sink]))
            common = mine if common is None else common & mine
        return common or set()

    def _corelet_dim(self, space: Space, outputs: tuple[OutputPlan, ...]) -> int:
        """The outermost dim that both corelets can share: at least two indices, folded by no output."""
        if self.corelets < 2:
            return -1
        folded = {d for o in outputs for d in o.dims}
        for k, extent in enumerate(space.extents):
            if k not in folded and (extent.hi is None or extent.hi >= 2):
                return k
        return -1

    # -- contraction ------------------------------------------------------------------------------

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

    def _pt(self, group: Group) -> PtPlan:
        assert group.matmul is not None
        sides = []
        for operand, space in zip(group.matmul.operands, self._pt_spaces(group), strict=True):
            v, index = self._pt_leaf(operand, space.dims)
            placed = self.places[v]
            if space.affine(placed.at(index)) is None or placed.lane_clips:
                raise MoreRoots({operand})
            sides.append(self._input(placed, index, space, operand))
        return PtPlan(sides[0], sides[1], group.matmul.operands[0].shape[2])


def _placement(block: str, elem: Elem, tile: Tile, plan: Layout, variables: Index) -> Placement:
    """Placement of a loaded or stored value whose dim j runs over tile variable ``order[j]``."""
    names = {
        tile.vars[p].terms[0][0][0].name: variables[j] for j, p in enumerate(tile.order) if tile.vars[p].terms
    }
    place = substitute(plan.place, names)
    clips = tuple((substitute(p, names), c) for p, c in plan.lane_clips)
    return Placement(block, elem, variables, place, clips)


def _sticks(size: int) -> int:
    return max(-(-size // STICK), 1) * STICK
