"""Program -> text. Complete: ``parse.assemble`` of the text gives a program with the same bytes.

Signs: ``$3`` slot, ``r3`` scalar register, ``v3`` vector register, ``q3`` queue, ``s3`` symbol, ``e3``
let expression, ``@name`` LX block, ``name.full`` / ``name.empty`` the counters of a channel. A block or
channel whose name is no unique identifier is written by number (``@#3``, ``#3.full``).
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from torch_loom.spyrecode.model import (
    Acquire,
    Arg,
    Dma,
    DmaDim,
    Expr,
    ExprOp,
    Gather,
    Instr,
    Let,
    Loop,
    LxRef,
    Operand,
    OperandKind,
    Program,
    Reduce,
    Relation,
    Release,
    RingAcquire,
    RingCopy,
    RingRelease,
    SegLoad,
    SegPt,
    SegStore,
    SegVec,
    VOp,
    imm,
)
from torch_loom.spyrecode.ops import FLOAT_IMM, INT_IMM, SIGNATURE

VERSION = 1
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
NO_MASK = (imm(0), imm(1 << 40))  # byte_lo, byte_hi of a transfer without a mask

INFIX = {
    ExprOp.ADD: "+",
    ExprOp.SUB: "-",
    ExprOp.MUL: "*",
    ExprOp.FLOORDIV: "floordiv",
    ExprOp.CEILDIV: "ceildiv",
    ExprOp.MOD: "mod",
}
CALLS = {ExprOp.MIN: "min", ExprOp.MAX: "max"}


def names(items: Iterable[str]) -> list[str]:
    """How each item is written: its name when that is a unique identifier, else ``#number``."""
    items = list(items)
    count = Counter(items)
    return [n if count[n] == 1 and IDENTIFIER.match(n) else f"#{i}" for i, n in enumerate(items)]


def disassemble(program: Program) -> str:
    """The text of a program."""
    return "\n".join(_Printer(program).lines()) + "\n"


def expression(expr: Expr) -> str:
    """A postfix expression in infix, parenthesised wherever operators nest."""
    leaf = {ExprOp.SYM: "s", ExprOp.SLOT: "$", ExprOp.REG: "r"}
    stack: list[tuple[str, bool]] = []  # text, needs parentheses as an operand
    for op, value in expr.tokens:
        if op is ExprOp.CONST:
            stack.append((str(value), False))
        elif op is ExprOp.CORE:
            stack.append(("core", False))
        elif op in leaf:
            stack.append((f"{leaf[op]}{value}", False))
        else:
            right, left = stack.pop(), stack.pop()
            if op in CALLS:
                stack.append((f"{CALLS[op]}({left[0]}, {right[0]})", False))
            else:
                a, b = (f"({t})" if nested else t for t, nested in (left, right))
                stack.append((f"{a} {INFIX[op]} {b}", True))
    return stack[0][0]


def operand(value: Operand) -> str:
    return {OperandKind.IMM: "", OperandKind.SLOT: "$", OperandKind.REG: "r"}[value.kind] + str(value.value)


def operands(values: Sequence[Operand]) -> str:
    return "(" + " ".join(operand(v) for v in values) + ")"


def float_text(value: float) -> str:
    """A float that reads back bit by bit: shortest decimal, or the bits of what has none."""
    if math.isfinite(value):
        return repr(float(value))
    return f"bits:{struct.unpack('<Q', struct.pack('<d', value))[0]:#018x}"


class _Printer:
    def __init__(self, program: Program) -> None:
        self.p = program
        self.blocks = names(b.name for b in program.blocks)
        self.channels = names(c.name for c in program.channels)

    def lines(self) -> Iterator[str]:
        p, f = self.p, self.p.profile
        yield f".spyrecode {VERSION}"
        yield f".kernel {_quote(p.name)} cores {p.cores}"
        yield (f".chip {_quote(f.chip)} cores {f.cores} corelets {f.corelets} lx {f.lx_bytes} stick {f.stick_bytes}")
        for key in sorted(p.meta):
            yield f".meta {_quote(key)} = {_quote(p.meta[key])}"
        for i, a in enumerate(p.args):
            yield f".arg {i} {_arg(a)}"
        for i, s in enumerate(p.symbols):
            yield (
                f".symbol s{i} {_quote(s.name)} = {s.kind.name.lower()}({s.arg}) "
                f"min {s.minimum} max {s.maximum} gran {s.granularity}"
            )
        for i, slot in enumerate(p.slots):
            yield f".slot ${i} {slot.scope.name.lower()} = {expression(slot.expr)}"
        for i, expr in enumerate(p.exprs):
            yield f".expr e{i} = {expression(expr)}"
        for g in p.guards:
            relation = ">=" if g.relation is Relation.GE else "=="
            yield f".guard {expression(g.expr)} {relation} 0 {_quote(g.message)}"
        for i, b in enumerate(p.blocks):
            yield f".lx {i} {_quote(b.name)} at {b.address} size {b.bytes} phases {b.phases}"
        for i, c in enumerate(p.channels):
            held = " ".join(f"@{self.blocks[b]}" for b in c.blocks)
            ends = f"{c.producer.name} -> {c.consumer.name}"
            ring = " ring" if c.ring else ""
            yield f".chan {i} {_quote(c.name)} {ends} phases {c.phases} [{held}]{ring}"
        for unit in sorted(p.streams):
            yield f".unit {unit.name}"
            yield from self.body(p.streams[unit], "  ")

    def body(self, body: Sequence[Instr], pad: str) -> Iterator[str]:
        for instr in body:
            match instr:
                case Loop(number, count, inner):
                    yield f"{pad}loop r{number} {operand(count)}"
                    yield from self.body(inner, pad + "  ")
                    yield f"{pad}end"
                case Let(number, expr):
                    yield f"{pad}let r{number} = e{expr}  ; {expression(self.p.exprs[expr])}"
                case Acquire(channel, side):
                    yield f"{pad}acquire {self.channels[channel]}.{side.name.lower()}"
                case Release(channel, side):
                    yield f"{pad}release {self.channels[channel]}.{side.name.lower()}"
                case RingAcquire(channel, side, core):
                    yield f"{pad}ring_acquire {self.channels[channel]}.{side.name.lower()} core {operand(core)}"
                case RingRelease(channel, side, core):
                    yield f"{pad}ring_release {self.channels[channel]}.{side.name.lower()} core {operand(core)}"
                case RingCopy():
                    ends = f"{self.lx(instr.source)} -> {self.lx(instr.target)}"
                    yield f"{pad}ring_copy core {operand(instr.core)} {ends} leaf {instr.leaf}"
                    for d in instr.dims:
                        strides = f"{operand(d.source_stride)} to {operand(d.target_stride)}"
                        yield f"{pad}  dim {operand(d.extent)} from {strides}"
                case Dma():
                    yield from self.dma(instr, pad)
                case SegLoad(seg, queue, ref, elem, strides):
                    place = f"{self.lx(ref)} {elem.name.lower()} {operands(strides)}"
                    yield f"{pad}load seg {seg} q{queue} <- {place}"
                case SegStore(seg, queue, ref, elem, strides):
                    place = f"{self.lx(ref)} {elem.name.lower()} {operands(strides)}"
                    yield f"{pad}store seg {seg} q{queue} -> {place}"
                case SegPt(seg, a, b, out, k):
                    yield f"{pad}pt seg {seg} q{a} q{b} -> q{out} k {operand(k)}"
                case SegVec():
                    yield from _vec(instr, pad)

    def lx(self, ref: LxRef) -> str:
        channel = "" if ref.channel == -1 else f".{self.channels[ref.channel]}"
        offset = "" if ref.offset == imm(0) else f" + {operand(ref.offset)}"
        return f"lx[@{self.blocks[ref.block]}{channel}{offset}]"

    def dma(self, dma: Dma, pad: str) -> Iterator[str]:
        flags = " zero_fill" if dma.zero_fill else ""
        yield f"{pad}copy ddr[{dma.arg} {operand(dma.ddr)}] {self.lx(dma.lx)} leaf {dma.leaf}{flags}"
        for dim in dma.dims:
            yield f"{pad}  dim {_dim(dim)}"
        if (dma.byte_lo, dma.byte_hi) != NO_MASK:
            yield f"{pad}  bytes {operand(dma.byte_lo)} {operand(dma.byte_hi)}"
        if (dma.group, dma.sharers) != (imm(0), imm(1)):
            yield f"{pad}  shared {operand(dma.sharers)} group {operand(dma.group)}"
        for g in dma.gathers:
            yield f"{pad}  gather {self._gather(g)}"
        if dma.lanes:
            s = dma.lanes
            yield (
                f"{pad}  lanes start {operand(s.start)} elems {s.elems} tile {operand(s.tile_stride)} "
                f"strides {operands(s.strides)}"
            )

    def _gather(self, g: Gather) -> str:
        lane = " lane" if g.lane else ""
        text = f"{self.lx(g.index)} strides {operands(g.strides)}"
        return f"{text} scale {operand(g.scale)} bound {operand(g.bound)}{lane}"


def _dim(dim: DmaDim) -> str:
    clip = "" if (dim.lo, dim.hi) == (imm(0), dim.extent) else f" clip {operand(dim.lo)} {operand(dim.hi)}"
    return f"{operand(dim.extent)}{clip} ddr {operand(dim.ddr_stride)} lx {operand(dim.lx_stride)}"


def _vec(vec: SegVec, pad: str) -> Iterator[str]:
    split = "" if vec.corelet_dim < 0 else f" corelets {vec.corelet_dim}"
    yield f"{pad}vec seg {vec.seg} over {operands(vec.extents)}{split}"
    for i, queue in enumerate(vec.inputs):
        yield f"{pad}  v{i} = q{queue}"
    for op in vec.ops:
        yield f"{pad}  {_op(op)}"
    for out in vec.outputs:
        dims = " ".join(map(str, out.dims))
        fold = "" if out.reduce is Reduce.NONE else f" {out.reduce.name.lower()} ({dims})"
        yield f"{pad}  q{out.queue} = v{out.reg}{fold}"
    yield f"{pad}end"


def _op(op: VOp) -> str:
    parts = [f"v{op.dst} = {op.op.name.lower()}"]
    parts += [f"v{r}" for r in (op.a, op.b, op.c)[: len(SIGNATURE[op.op][0])]]
    if op.op in FLOAT_IMM:
        parts.append(float_text(op.imm))
    elif op.op in INT_IMM:
        parts.append(str(op.imm))
    return " ".join(parts)


def _arg(a: Arg) -> str:
    return f"{_quote(a.name)} {a.kind.name.lower()} {a.elem.name.lower()} {a.access.name.lower()}"


def _quote(text: str) -> str:
    return json.dumps(text)
