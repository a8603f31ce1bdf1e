"""Pass 3b: each group's iteration space is split as far as its addresses need, and its lane program is
written."""

from __future__ import annotations

from torch_loom.scheduler import space as sp
from torch_loom.scheduler.emit import LaneProgram, Leaf, compact
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.footprint import Clip
from torch_loom.scheduler.grouping import Group
from torch_loom.scheduler.inverse import strip
from torch_loom.scheduler.kernel import Kind, Value
from torch_loom.scheduler.placement import Pieces, Placement, Placer
from torch_loom.scheduler.plan import (
    InputPlan,
    OutputPlan,
    PtPlan,
    Ref,
    SegmentPlan,
)
from torch_loom.scheduler.rewrite import substitute
from torch_loom.scheduler.sinks import MoreRoots, Sink
from torch_loom.scheduler.space import Space
from torch_loom.spyrecode.model import Reduce

Index = tuple[Expr, ...]


class SegmentPlanner(Placer):
    """Second half of pass 3: the segments."""

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
            self._corelet_dim(space, outputs, group.matmul is not None),
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
                if v in own:
                    if v in self.fetched:
                        found.append((v, self.fetched[v], index))
                elif v in self.places:
                    found.append((v, self.places[v], index))
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
        return OutputPlan(register, ref, placed.elem, strides, sink.value.reduce if folded else Reduce.NONE, folded)

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

    def _corelet_dim(self, space: Space, outputs: tuple[OutputPlan, ...], contraction: bool) -> int:
        """The outermost dim that both corelets can share: at least two indices, folded by no output. A contraction's
        columns go before its rows, since PT works better the more rows pass a stationary block."""
        if self.corelets < 2:
            return -1
        folded = {d for o in outputs for d in o.dims}
        order = (0, 2, 1) if contraction else range(len(space.extents))
        for k in order:
            extent = space.extents[k]
            if k not in folded and (extent.hi is None or extent.hi >= 2):
                return k
        return -1

    # -- contraction ------------------------------------------------------------------------------

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
