"""Pass 9: a DataflowIR module becomes a ``spyrecode.model.Program``.

Only the module is read, never the plan: the text is the artifact, and a parsed text lowers to the same bytes.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.postfix import parse
from torch_loom.spyrecode import model as m

_ZERO = m.imm(0)


class Lowering:
    """State: tables of the program and the operand of each SSA value."""

    def __init__(self, program: df.ProgramOp) -> None:
        self.op = program
        self.args: list[m.Arg] = []
        self.symbols: list[m.Symbol] = []
        self.slots: list[m.Slot] = []
        self.exprs: list[m.Expr] = []
        self.expr_ids: dict[m.Expr, int] = {}
        self.blocks: list[m.Block] = []
        self.channels: list[m.Channel] = []
        self.guards: list[m.Guard] = []
        self.meta: dict[str, str] = {}
        self.operands: dict[SSAValue, m.Operand] = {}
        self.names: dict[tuple[str, str], int] = {}

    def run(self) -> m.Program:
        """Lower declarations first, then every stream."""
        streams: dict[m.Unit, tuple[m.Instr, ...]] = {}
        for op in self.op.body.block.ops:
            if isinstance(op, df.DeclareOp):
                self._declare(op)
            elif isinstance(op, df.SlotOp):
                self.operands[op.result] = m.slot(len(self.slots))
                scope = m.Scope.CORE if op.scope.data == "core" else m.Scope.LAUNCH
                self.slots.append(m.Slot(self._symbols_expr(op.expr.data), scope))
            elif isinstance(op, df.UnitOp):
                streams[m.Unit[op.unit.data]] = self._body(op.body.block)
            else:
                raise ScheduleError("does not belong at the top of a program", op=op.name)
        chip, cores, corelets, lx, stick = (v.data for v in self.op.profile.data)  # type: ignore[attr-defined]
        return m.Program(
            self.op.sym_name.data,
            m.Profile(chip, cores, corelets, lx, stick),
            self.op.cores.data,
            tuple(self.args),
            tuple(self.symbols),
            tuple(self.slots),
            tuple(self.exprs),
            tuple(self.blocks),
            tuple(self.channels),
            streams,
            tuple(self.guards),
            self.meta,
        )

    def _declare(self, op: df.DeclareOp) -> None:
        f = op.plain()
        label = op.label.data
        kind = op.kind.data
        if kind == "arg":
            self.names["arg", label] = len(self.args)
            self.args.append(m.Arg(label, m.ArgKind[str(f[0])], m.Elem[str(f[1])], m.Access[str(f[2])]))
        elif kind == "symbol":
            self.symbols.append(m.Symbol(label, m.SymbolKind[str(f[0])], int(f[1]), int(f[2]), int(f[3]), int(f[4])))
        elif kind == "guard":
            self.guards.append(m.Guard(self._symbols_expr(str(f[0])), m.Relation[str(f[1])], str(f[2])))
        elif kind == "block":
            self.names["block", label] = len(self.blocks)
            self.blocks.append(m.Block(label, int(f[0]), int(f[1]), int(f[2])))
        elif kind == "channel":
            self.names["channel", label] = len(self.channels)
            blocks = tuple(self._name("block", b) for b in str(f[3]).split())
            self.channels.append(m.Channel(label, m.Unit[str(f[0])], m.Unit[str(f[1])], int(f[2]), blocks))
        elif kind == "ring":
            self.names["channel", label] = len(self.channels)
            blocks = tuple(self._name("block", b) for b in str(f[2]).split())
            self.channels.append(m.Channel(label, m.Unit[str(f[0])], m.Unit[str(f[1])], 1, blocks, True))
        else:
            self.meta[label] = str(f[0])

    def _name(self, kind: str, label: str) -> int:
        if (kind, label) not in self.names:
            raise ScheduleError(f"no {kind} is called '{label}'", op="dataflow")
        return self.names[kind, label]

    # -- expressions --------------------------------------------------------------------------------

    def _symbols_expr(self, text: str) -> m.Expr:
        tokens: list[tuple[m.ExprOp, int]] = []
        for op, value in parse(text):
            if op == "LEAF":
                name = str(value)
                tokens.append((m.ExprOp.CORE, 0) if name == "core" else (m.ExprOp.SYM, int(name[1:])))
            else:
                tokens.append((m.ExprOp[op], int(value)))
        return m.Expr(tuple(tokens))

    def _let(self, op: df.LetOp) -> m.Let:
        tokens: list[tuple[m.ExprOp, int]] = []
        for name, value in parse(op.expr.data):
            if name == "LEAF":
                operand = self.operands[op.values[int(str(value)[1:])]]
                kind = m.ExprOp.SLOT if operand.kind is m.OperandKind.SLOT else m.ExprOp.REG
                tokens.append((kind, operand.value))
            else:
                tokens.append((m.ExprOp[name], int(value)))
        expr = m.Expr(tuple(tokens))
        if expr not in self.expr_ids:
            self.expr_ids[expr] = len(self.exprs)
            self.exprs.append(expr)
        register = op.reg.value.data
        self.operands[op.result] = m.reg(register)
        return m.Let(register, self.expr_ids[expr])

    def _operand(self, number: df.Number) -> m.Operand:
        return m.imm(number) if isinstance(number, int) else self.operands[number]

    def _operands(self, numbers: list[df.Number]) -> tuple[m.Operand, ...]:
        return tuple(self._operand(n) for n in numbers)

    # -- instructions -------------------------------------------------------------------------------

    def _body(self, block: Block) -> tuple[m.Instr, ...]:
        return tuple(self._instr(op) for op in block.ops)

    def _instr(self, op: Operation) -> m.Instr:
        if isinstance(op, df.LoopOp):
            count = self._operand(op.count)
            self.operands[op.body.block.args[0]] = m.reg(op.reg.data)
            return m.Loop(op.reg.data, count, self._body(op.body.block))
        if isinstance(op, df.LetOp):
            return self._let(op)
        if isinstance(op, df.AcquireOp | df.ReleaseOp):
            kind = m.Acquire if isinstance(op, df.AcquireOp) else m.Release
            side = m.Side.FULL if op.side.data == "full" else m.Side.EMPTY
            return kind(self._name("channel", op.channel.data), side)
        if isinstance(op, df.RingAcquireOp | df.RingReleaseOp):
            ring = m.RingAcquire if isinstance(op, df.RingAcquireOp) else m.RingRelease
            side = m.Side.FULL if op.side.data == "full" else m.Side.EMPTY
            return ring(self._name("channel", op.channel.data), side, self._operand(op.core))
        if isinstance(op, df.RingCopyOp):
            return self._ring_copy(op)
        if isinstance(op, df.CopyOp):
            return self._copy(op)
        if isinstance(op, df.SegLoadOp | df.SegStoreOp):
            numbers = self._operands(op.numbers())
            kind_ = m.SegLoad if isinstance(op, df.SegLoadOp) else m.SegStore
            ref = self._lx(op.lx.data[0].data, op.lx.data[1].data, numbers[0])
            return kind_(op.seg.data, op.queue.data, ref, m.Elem[op.elem.data], numbers[1:])
        if isinstance(op, df.SegPtOp):
            a, b, out = (int(q) for q in op.queues.get_values())
            return m.SegPt(op.seg.data, a, b, out, self._operand(op.numbers()[0]))
        if isinstance(op, df.SegVecOp):
            return self._vec(op)
        raise ScheduleError("is no instruction", op=op.name)

    def _lx(self, block: str, channel: str, offset: m.Operand) -> m.LxRef:
        return m.LxRef(self._name("block", block), self._name("channel", channel) if channel else -1, offset)

    def _ring_copy(self, op: df.RingCopyOp) -> m.RingCopy:
        n = self._operands(op.numbers())
        source, target = (
            self._lx(pair.data[0].data, pair.data[1].data, offset)
            for pair, offset in ((op.source, n[1]), (op.target, n[2]))
        )
        dims = tuple(m.RingDim(*n[k : k + 3]) for k in range(3, len(n), 3))
        return m.RingCopy(n[0], source, target, dims, op.leaf.data)

    def _copy(self, op: df.CopyOp) -> m.Dma:
        n = self._operands(op.numbers())
        rank = op.rank.data
        dims = tuple(m.DmaDim(*n[4 + 5 * k : 9 + 5 * k]) for k in range(rank))
        gathers = []
        at = 4 + 5 * rank
        for pair in op.gathers.data:
            index = self._lx(pair.data[0].data, pair.data[1].data, n[at])
            gathers.append(m.Gather(index, n[at + 3 : at + 3 + rank], n[at + 1], n[at + 2]))
            at += 3 + rank
        lanes = None
        if op.elems.data:
            lanes = m.LaneSplit(n[at], n[at + 2 : at + 2 + rank], op.elems.data, n[at + 1])
        return m.Dma(
            self._name("arg", op.arg.data),
            n[0],
            self._lx(op.lx.data[0].data, op.lx.data[1].data, n[1]),
            dims,
            op.leaf.data,
            bool(op.zero_fill.data),
            tuple(gathers),
            lanes,
            n[2],
            n[3],
            *(n[-2:] if op.shared is not None else ()),
        )

    def _vec(self, op: df.SegVecOp) -> m.SegVec:
        n = self._operands(op.numbers())
        rank = op.rank.data
        ops = tuple(lane_op(text.data, n[rank:]) for text in op.ops.data)
        outputs = tuple(vec_out(text.data) for text in op.outputs.data)
        inputs = tuple(int(q) for q in op.inputs.get_values())
        return m.SegVec(op.seg.data, n[:rank], inputs, ops, outputs, op.corelet_dim.data)


def lane_op(text: str, scalars: tuple[m.Operand, ...]) -> m.VOp:
    """``rD = op rA rB rC`` or ``rD = op number``; SCALAR operations name a scalar operand by position."""
    words = text.split()
    try:
        dst, op = int(words[0][1:]), m.VecOp[words[2].upper()]
        if words[1] != "=" or words[0][0] != "r":
            raise ValueError
        if op in (m.VecOp.SCALAR_F, m.VecOp.SCALAR_I):
            operand = scalars[int(words[3])]
            number = operand.value if operand.kind is m.OperandKind.SLOT else -1 - operand.value
            return m.VOp(op, dst, imm=number)
        if op is m.VecOp.CONST_F:
            return m.VOp(op, dst, imm=float(words[3]))
        if op in (m.VecOp.CONST_I, m.VecOp.IOTA):
            return m.VOp(op, dst, imm=int(words[3]))
        return m.VOp(op, dst, *(int(w[1:]) for w in words[3:]))
    except (IndexError, KeyError, ValueError):
        raise ScheduleError(f"cannot read the lane operation '{text}'", op="dataflow.seg_vec") from None


def vec_out(text: str) -> m.VecOut:
    """``rN -> queue`` with an optional ``reduce [dims]``."""
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    reduce = m.Reduce[words[3].upper()] if len(words) > 3 else m.Reduce.NONE
    return m.VecOut(int(words[0][1:]), int(words[2]), reduce, tuple(int(w) for w in words[4:]))


def lower(module: ModuleOp) -> m.Program:
    """The program of a DataflowIR module. Raises ``ScheduleError`` for a module without one program."""
    programs = [op for op in module.body.block.ops if isinstance(op, df.ProgramOp)]
    if len(programs) != 1:
        raise ScheduleError(f"a DataflowIR module holds one program, this one {len(programs)}", op="dataflow")
    return Lowering(programs[0]).run()
