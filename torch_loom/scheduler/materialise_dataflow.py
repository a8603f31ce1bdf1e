"""Pass 8: the plan written as a DataflowIR module, one stream per unit.

Each unit gets the loops it has work in (the compute group shares all of its loops), its part of every
node, and the synchronisation around them. An expression without loop variables is a slot of the value
table; with them it is a ``let`` at the head of the innermost loop it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from torch_loom.arch import Chip
from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.expr import Expr, Monomial
from torch_loom.scheduler.plan import (
    InputPlan,
    LoopPlan,
    Node,
    OpPlan,
    OutputPlan,
    Plan,
    Ref,
    RingPlan,
    SegmentPlan,
    TransferPlan,
    node_id,
    units_of,
)
from torch_loom.scheduler.postfix import infix
from torch_loom.spyrecode.model import Access, ArgKind, Reduce, Unit, VecOp

_LET_BASE = 64  # registers below hold loops (register = scope), from here on lets
# Tokens from which an operand of div, mod, min or max gets a let of its own, and from which a sum is cut in two: a let
# has at most 256 (spyrecode page, 10.3).
_LONG_OPERAND, _LONG_SUM = 48, 160
_COUNT_BASE = 512  # trip counts that are lets: one register per loop, equal in all units
_ANY_BYTE = 1 << 40


@dataclass
class _Frame:
    """An open loop body: its variable, and lets that stand at its head."""

    var: str
    argument: SSAValue | None
    head: list[Operation] = field(default_factory=list)
    ops: list[Operation] = field(default_factory=list)
    lets: dict[str, SSAValue] = field(default_factory=dict)


class Materialiser:
    """Writes one module."""

    def __init__(self, plan: Plan, chip: Chip) -> None:
        self.plan = plan
        self.chip = chip
        self.slots: dict[str, df.SlotOp] = {}
        self.symbols: dict[str, int] = {}
        for a in plan.args:
            if a.kind is ArgKind.FLOAT:
                self.symbols[f"bits:{a.index}"] = a.index
            elif a.symbol is not None and a.symbol.terms:
                self.symbols[a.symbol.terms[0][0][0].name] = a.index
        self.channel_of = {b.name: b.channel or "" for b in plan.blocks}
        self.has_pt = any(isinstance(n, SegmentPlan) and n.pt is not None for n in _flat(plan.body))

    def module(self) -> ModuleOp:
        """The whole program."""
        units = [self._unit(u) for u in Unit]
        declared = self._declarations()
        block = Block([*declared, *self.slots.values(), *units])
        p = self.chip.profile()
        profile = (p.chip, p.cores, p.corelets, p.lx_bytes, p.stick_bytes)
        return ModuleOp([df.ProgramOp(self.plan.name, profile, self.plan.cores, block)])

    def _declarations(self) -> list[Operation]:
        ops: list[Operation] = []
        for a in self.plan.args:
            access = self.plan.accesses.get(a.index, Access.READ)
            elem = self.plan.elems[a.index].name if a.index in self.plan.elems else "DF16"
            ops.append(df.DeclareOp("arg", a.name, [a.kind.name, elem, access.name]))
        for a in self.plan.args:
            kind = {ArgKind.BUFFER: "ADDRESS", ArgKind.INT: "DIM" if a.dtype == "index" else "SCALAR"}.get(
                a.kind, "SCALAR"
            )
            lo = a.lo if a.lo is not None else 0
            hi = a.hi if a.hi is not None else 1 << 62
            if a.kind is ArgKind.FLOAT:
                lo, hi = -(1 << 31), (1 << 32) - 1
            ops.append(df.DeclareOp("symbol", a.name, [kind, a.index, lo, hi, a.granularity]))
        for a in self.plan.args:
            if a.kind is ArgKind.BUFFER:
                message = f"buffer '{a.name}' must start at a multiple of 128 bytes"
                ops.append(df.DeclareOp("guard", a.name, [f"s{a.index} mod 128", "EQ", message]))
        for b in self.plan.blocks:
            ops.append(df.DeclareOp("block", b.name, [b.address, b.bytes, b.phases, b.role]))
        for c in self.plan.channels:
            if c.ring:
                ops.append(df.DeclareOp("ring", c.name, [c.producer.name, c.consumer.name, " ".join(c.blocks)]))
                continue
            ops.append(
                df.DeclareOp("channel", c.name, [c.producer.name, c.consumer.name, c.phases, " ".join(c.blocks)])
            )
        return ops

    # -- streams ----------------------------------------------------------------------------------

    def _unit(self, unit: Unit) -> df.UnitOp:
        self.unit = unit
        self.next_let = _LET_BASE
        self.frames = [_Frame("", None)]
        if unit is not Unit.PT or self.has_pt:
            self._nodes(self.plan.body)
        frame = self.frames.pop()
        return df.UnitOp(unit.name, Block([*frame.head, *frame.ops]))

    def _emit(self, op: Operation) -> None:
        self.frames[-1].ops.append(op)

    def _nodes(self, nodes: tuple[Node, ...]) -> None:
        for n in nodes:
            if self.unit not in units_of(n):
                continue
            self._syncs(n, "before")
            if isinstance(n, LoopPlan):
                self._loop(n)
            elif isinstance(n, TransferPlan):
                self._transfer(n)
            elif isinstance(n, RingPlan):
                self._message(n)
            else:
                self._segment(n)
            self._syncs(n, "after")

    def _syncs(self, n: Node, when: str) -> None:
        for s in self.plan.syncs.get((self.unit, node_id(n), when), ()):
            if s.cores:
                for core in s.cores:
                    ring = df.RingAcquireOp if s.acquire else df.RingReleaseOp
                    self._emit(ring(s.channel, s.side, self._number(core)))
                continue
            op = df.AcquireOp if s.acquire else df.ReleaseOp
            self._emit(op(s.channel, s.side))

    def _loop(self, n: LoopPlan) -> None:
        count = self._number(n.count, count_of=n.scope)
        block = Block(arg_types=[IndexType()])
        self.frames.append(_Frame(n.var, block.args[0]))
        self._nodes(n.body)
        frame = self.frames.pop()
        block.add_ops([*frame.head, *frame.ops])
        self._emit(df.LoopOp(n.scope, count, block))

    def _message(self, m: RingPlan) -> None:
        """One message to another core, between the credits of its ring channel."""
        channel = self.channel_of[m.target.block]
        core = self._number(m.core)
        numbers: list[Expr] = [m.source.offset, m.target.offset]
        for d in m.dims:
            numbers += [d.extent, d.source_stride, d.target_stride]
        rest = [self._number(e) for e in numbers]
        self._emit(df.RingAcquireOp(channel, "empty", core))
        self._emit(df.RingCopyOp(self._lx(m.source), self._lx(m.target), m.leaf, [core, *rest], m.where))
        self._emit(df.RingReleaseOp(channel, "full", core))

    def _transfer(self, t: TransferPlan) -> None:
        numbers: list[Expr] = [
            t.ddr,
            t.ref.offset,
            t.byte_lo,
            t.byte_hi if t.byte_hi is not None else Expr(_ANY_BYTE),
        ]
        for d in t.dims:
            numbers += [d.extent, d.lo, d.hi, d.ddr_stride, d.lx_stride]
        for g in t.gathers:
            numbers += [g.ref.offset, g.scale, g.bound, *g.strides]
        if t.lanes is not None:
            numbers += [t.lanes.start, t.lanes.tile_stride, *t.lanes.strides]
        shared = t.sharers != 1
        if shared:
            numbers += [t.group, t.sharers]
        self._emit(
            df.CopyOp(
                self.plan.args[t.arg].name,
                self._lx(t.ref),
                len(t.dims),
                t.leaf,
                t.zero_fill,
                [self._lx(g.ref) for g in t.gathers],
                t.lanes.elems if t.lanes is not None else 0,
                [self._number(e) for e in numbers],
                t.where,
                shared,
            )
        )

    def _lx(self, ref: Ref) -> tuple[str, str]:
        return ref.block, self.channel_of[ref.block]

    # -- segments ---------------------------------------------------------------------------------
    # Queues: operands of PT 0 and 1, inputs from 2 on (the result of PT first), outputs after the inputs.

    def _segment(self, s: SegmentPlan) -> None:
        first = 2 + (s.pt is not None)
        out = first + len(s.inputs)
        if self.unit is Unit.L1LU:
            if s.pt is not None:
                self._load(s, 0, s.pt.a)
                self._load(s, 1, s.pt.b)
            for k, i in enumerate(s.inputs):
                self._load(s, first + k, i)
        elif self.unit is Unit.PT and s.pt is not None:
            self._emit(df.SegPtOp(s.id, 0, 1, 2, self._number(s.pt.k)))
        elif self.unit is Unit.SFU:
            self._vector(s, list(range(2, out)), out)
        elif self.unit is Unit.L1SU:
            for k, o in enumerate(s.outputs):
                numbers = [self._number(e) for e in (o.ref.offset, *o.strides)]
                self._emit(df.SegStoreOp(s.id, out + k, self._lx(o.ref), o.elem.name, numbers))

    def _load(self, s: SegmentPlan, queue: int, i: InputPlan) -> None:
        numbers = [self._number(e) for e in (i.ref.offset, *i.strides)]
        self._emit(df.SegLoadOp(s.id, queue, self._lx(i.ref), i.elem.name, numbers))

    def _vector(self, s: SegmentPlan, inputs: list[int], out: int) -> None:
        scalars: list[df.Number] = []
        texts = [self._lane_text(op, scalars) for op in s.ops]
        outputs = [_output_text(o, out + k) for k, o in enumerate(s.outputs)]
        extents = [self._number(e) for e in s.extents]
        self._emit(df.SegVecOp(s.id, extents, scalars, inputs, texts, outputs, s.corelet_dim, s.where))

    def _lane_text(self, op: OpPlan, scalars: list[df.Number]) -> str:
        head = f"r{op.dst} = {op.op.name.lower()}"
        if op.op in (VecOp.SCALAR_F, VecOp.SCALAR_I):
            assert isinstance(op.imm, Expr)
            scalars.append(self._number(op.imm, force=True))
            return f"{head} {len(scalars) - 1}"
        if op.op in (VecOp.CONST_F, VecOp.CONST_I, VecOp.IOTA):
            return f"{head} {op.imm!r}"
        return " ".join([head, *(f"r{a}" for a in op.args)])

    # -- numbers ----------------------------------------------------------------------------------

    def _number(self, e: Expr, count_of: int | None = None, force: bool = False) -> df.Number:
        """An integer, slot, loop argument or let for an expression. ``force``: never an integer."""
        if e.static and not force:
            return e.value
        if not e.depends(("var",)):
            return self._slot(e)
        if e.const == 0 and len(e.terms) == 1 and e.terms[0][1] == 1 and len(e.terms[0][0]) == 1:
            atom = e.terms[0][0][0]
            if atom.kind == "var":
                return self._argument(atom.name)
        return self._let(e, count_of)

    def _argument(self, name: str) -> SSAValue:
        for frame in self.frames:
            if frame.var == name and frame.argument is not None:
                return frame.argument
        raise AssertionError(f"loop variable {name} is not open in {self.unit.name}")

    def _slot(self, e: Expr) -> SSAValue:
        if e.key not in self.slots:
            scope = "core" if e.depends(("core",)) else "launch"
            self.slots[e.key] = df.SlotOp(scope, infix(e, self._symbol_leaf))
        return self.slots[e.key].result

    def _symbol_leaf(self, e: Expr) -> str | None:
        if e.const or len(e.terms) != 1 or e.terms[0][1] != 1 or len(e.terms[0][0]) != 1:
            return None
        atom = e.terms[0][0][0]
        if atom.kind == "core":
            return "core"
        return f"s{self.symbols[atom.name]}" if atom.kind == "sym" else None

    def _let(self, e: Expr, count_of: int | None) -> SSAValue:
        deep = max(k for k, f in enumerate(self.frames) if any(a.name == f.var for a in e.atoms() if a.kind == "var"))
        frame = self.frames[deep]
        key = e.key if count_of is None else f"count of {count_of}"
        if key in frame.lets:
            return frame.lets[key]
        operands: list[SSAValue] = []

        def operand(value: df.Number) -> str:
            if isinstance(value, int):
                return str(value) if value >= 0 else f"(0 - {-value})"
            if value not in operands:
                operands.append(value)
            return f"d{operands.index(value)}"

        half = len(e.terms) // 2
        if half and _tokens(e) > _LONG_SUM:
            halves = Expr(e.const, e.terms[:half]), Expr(0, e.terms[half:])
            text = " + ".join(operand(self._number(x)) for x in halves)
        else:
            text = self._let_text(e, operand)
        register = self.next_let if count_of is None else _COUNT_BASE + count_of
        self.next_let += count_of is None
        op = df.LetOp(register, text, operands)
        frame.head.append(op)
        frame.lets[key] = op.result
        return op.result

    def _let_text(self, e: Expr, operand: object) -> str:
        """Infix text of an expression whose launch-constant parts are slots."""
        assert callable(operand)
        fixed: dict[Monomial, int] = {}
        parts: list[str] = []
        for monomial, c in e.terms:
            varying = [a for a in monomial if a.kind == "var" or any(x.depends(("var",)) for x in a.args)]
            if not varying:
                fixed[monomial] = c
                continue
            factors = []
            for a in varying:
                if not a.args:
                    factors.append(operand(self._argument(a.name)))
                    continue
                x, y = (
                    operand(self._number(arg)) if _tokens(arg) > _LONG_OPERAND else self._let_text(arg, operand)
                    for arg in a.args
                )
                factors.append(f"{a.kind}({x}, {y})" if a.kind in ("min", "max") else f"(({x}) {a.kind} ({y}))")
            rest = tuple(a for a in monomial if a not in varying)
            scale = Expr(0, ((rest, c),)) if rest else Expr(c)
            if scale != 1:
                factors.append(operand(self._number(scale)))
            parts.append(" * ".join(factors))
        base = Expr(e.const, tuple(sorted(fixed.items(), key=lambda t: tuple(a.key for a in t[0]))))
        if base != 0 or not parts:
            parts.append(operand(self._number(base)))
        return " + ".join(parts)


def _tokens(e: Expr) -> int:
    """Postfix tokens of the let of an expression, at most; what gets a slot or a let of its own is one."""
    if not e.depends(("var",)):
        return 1
    total = 2
    for monomial, _ in e.terms:
        total += 2
        for a in monomial:
            total += 1 + sum(min(_tokens(x), _LONG_OPERAND) for x in a.args)
    return total


def _output_text(o: OutputPlan, queue: int) -> str:
    if o.reduce is Reduce.NONE:
        return f"r{o.reg} -> {queue}"
    return f"r{o.reg} -> {queue} {o.reduce.name.lower()} {list(o.dims)}"


def _flat(nodes: tuple[Node, ...]) -> list[Node]:
    out: list[Node] = []
    for n in nodes:
        out.append(n)
        if isinstance(n, LoopPlan):
            out += _flat(n.body)
    return out


def materialise(plan: Plan, chip: Chip) -> ModuleOp:
    """DataflowIR of a plan."""
    return Materialiser(plan, chip).module()
