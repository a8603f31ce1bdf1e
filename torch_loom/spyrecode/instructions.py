"""Each instruction as words: one writer and one reader per opcode, kept side by side."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import malformed
from torch_loom.spyrecode.model import (
    Acquire,
    Dma,
    DmaDim,
    Elem,
    Gather,
    Instr,
    LaneSplit,
    Let,
    Loop,
    Reduce,
    Release,
    RingAcquire,
    RingCopy,
    RingDim,
    RingRelease,
    SegLoad,
    SegPt,
    SegStore,
    SegVec,
    Side,
    VecOp,
    VecOut,
    VOp,
    imm,
)
from torch_loom.spyrecode.ops import FLOAT_IMM, INT_IMM
from torch_loom.spyrecode.words import Kind, Opcode, Reader, Writer

_LEAVES = (128, 1, 2, 4)  # bytes; the encoded value is the position
_ZERO_FILL, _LANES, _SHARED = 4, 8, 16  # flags above the two leaf bits


def write_stream(stream: Sequence[Instr]) -> bytes:
    """The words of one unit's stream, END included."""
    out = Writer()
    _write_body(out, stream)
    out.begin(Opcode.END)
    out.end()
    return out.bytes()


def read_stream(data: bytes, where: str) -> tuple[Instr, ...]:
    """Inverse of ``write_stream``. Raises SC-E17."""
    reader = Reader(struct.unpack(f"<{len(data) // 4}I", data), where)
    stack: list[list[Instr]] = [[]]
    heads: list[Loop] = []
    count = 0
    while True:
        opcode = reader.begin()
        count += 1
        if count > limits.INSTRUCTIONS:
            raise reader.fail(f"more than {limits.INSTRUCTIONS} instructions")
        if opcode is Opcode.LOOP:
            heads.append(Loop(reader.tagged(Kind.REG), reader.operand(), ()))
            stack.append([])
            if len(heads) > limits.NESTING:
                raise reader.fail(f"loops nested deeper than {limits.NESTING}")
        elif opcode is Opcode.END_LOOP:
            if not heads:
                raise reader.fail("END_LOOP without LOOP")
            body, head = tuple(stack.pop()), heads.pop()
            stack[-1].append(Loop(head.reg, head.count, body))
        elif opcode is not Opcode.END:
            stack[-1].append(_READ[opcode](reader))
        reader.end()
        if opcode is Opcode.END:
            break
    if heads:
        raise reader.fail("END inside a loop")
    if reader.at != len(reader.words):
        raise reader.fail("words after END")
    return tuple(stack[0])


def _write_body(out: Writer, body: Sequence[Instr], depth: int = 0) -> None:
    if depth > limits.NESTING:
        raise malformed(f"loops nested deeper than {limits.NESTING}")
    for instr in body:
        if isinstance(instr, Loop):
            out.begin(Opcode.LOOP)
            out.tagged(Kind.REG, instr.reg)
            out.operand(instr.count)
            out.end()
            _write_body(out, instr.body, depth + 1)
            out.begin(Opcode.END_LOOP)
        else:
            opcode, write = _WRITE[type(instr)]
            out.begin(opcode)
            write(out, instr)
        out.end()


def _write_let(out: Writer, instr: Let) -> None:
    out.tagged(Kind.REG, instr.reg)
    out.tagged(Kind.EXPR, instr.expr)


def _read_let(r: Reader) -> Let:
    return Let(r.tagged(Kind.REG), r.tagged(Kind.EXPR))


def _write_credit(out: Writer, instr: Acquire | Release) -> None:
    out.tagged(Kind.CHANNEL, instr.channel << 1 | instr.side)


def _read_acquire(r: Reader) -> Acquire:
    payload = r.tagged(Kind.CHANNEL)
    return Acquire(payload >> 1, Side(payload & 1))


def _read_release(r: Reader) -> Release:
    payload = r.tagged(Kind.CHANNEL)
    return Release(payload >> 1, Side(payload & 1))


def _write_dma(out: Writer, dma: Dma) -> None:
    if dma.leaf not in _LEAVES:
        raise malformed(f"a transfer leaf of {dma.leaf} bytes: 128, 4, 2 or 1 allowed")
    flags = _LEAVES.index(dma.leaf) | (_ZERO_FILL if dma.zero_fill else 0) | (_LANES if dma.lanes else 0)
    shared = (dma.group, dma.sharers) != (imm(0), imm(1))
    flags |= _SHARED if shared else 0
    out.raw(flags)
    out.tagged(Kind.ARG, dma.arg)
    out.operand(dma.ddr)
    out.lx(dma.lx)
    out.raw(len(dma.dims))
    for dim in dma.dims:
        out.operands((dim.extent, dim.lo, dim.hi, dim.ddr_stride, dim.lx_stride))
    out.operand(dma.byte_lo)
    out.operand(dma.byte_hi)
    out.raw(len(dma.gathers))
    for gather in dma.gathers:
        if len(gather.strides) != len(dma.dims):
            raise malformed(f"a gather with {len(gather.strides)} strides over {len(dma.dims)} dims")
        out.raw(int(gather.lane))
        out.lx(gather.index)
        out.operands((*gather.strides, gather.scale, gather.bound))
    if dma.lanes:
        if len(dma.lanes.strides) != len(dma.dims):
            raise malformed(f"a lane split with {len(dma.lanes.strides)} strides over {len(dma.dims)} dims")
        out.raw(dma.lanes.elems)
        out.operands((dma.lanes.start, dma.lanes.tile_stride, *dma.lanes.strides))
    if shared:
        out.operands((dma.group, dma.sharers))


def _read_dma(r: Reader) -> Dma:
    flags = r.raw(31, "transfer flags")
    arg, ddr, lx = r.tagged(Kind.ARG), r.operand(), r.lx()
    rank = r.raw(limits.RANK, "transfer rank")
    dims = tuple(DmaDim(*r.operands(5)) for _ in range(rank))
    byte_lo, byte_hi = r.operand(), r.operand()
    gathers = []
    for _ in range(r.raw(limits.GATHERS, "gather count")):
        lane = bool(r.raw(1, "lane flag"))
        gathers.append(Gather(r.lx(), r.operands(rank), r.operand(), r.operand(), lane))
    lanes = None
    if flags & _LANES:
        elems = r.raw(1 << 16, "elements per stick")
        start, tile_stride = r.operands(2)
        lanes = LaneSplit(start, r.operands(rank), elems, tile_stride)
    shared = (imm(0), imm(1))
    if flags & _SHARED:
        group, sharers = r.operands(2)
        if (group, sharers) == shared:
            raise r.fail("a transfer shared by one core")
        shared = (group, sharers)
    leaf = _LEAVES[flags & 3]
    return Dma(arg, ddr, lx, dims, leaf, bool(flags & _ZERO_FILL), tuple(gathers), lanes, byte_lo, byte_hi, *shared)


def _write_ring_copy(out: Writer, copy: RingCopy) -> None:
    if copy.leaf not in _LEAVES:
        raise malformed(f"a ring leaf of {copy.leaf} bytes: 128, 4, 2 or 1 allowed")
    out.raw(_LEAVES.index(copy.leaf))
    out.operand(copy.core)
    out.lx(copy.source)
    out.lx(copy.target)
    out.raw(len(copy.dims))
    for dim in copy.dims:
        out.operands((dim.extent, dim.source_stride, dim.target_stride))


def _read_ring_copy(r: Reader) -> RingCopy:
    leaf, core, source, target = _LEAVES[r.raw(3, "leaf")], r.operand(), r.lx(), r.lx()
    rank = r.raw(limits.RANK, "ring copy rank")
    return RingCopy(core, source, target, tuple(RingDim(*r.operands(3)) for _ in range(rank)), leaf)


def _write_ring_credit(out: Writer, instr: RingAcquire | RingRelease) -> None:
    out.tagged(Kind.CHANNEL, instr.channel << 1 | instr.side)
    out.operand(instr.core)


def _read_ring_acquire(r: Reader) -> RingAcquire:
    payload = r.tagged(Kind.CHANNEL)
    return RingAcquire(payload >> 1, Side(payload & 1), r.operand())


def _read_ring_release(r: Reader) -> RingRelease:
    payload = r.tagged(Kind.CHANNEL)
    return RingRelease(payload >> 1, Side(payload & 1), r.operand())


def _write_port(out: Writer, instr: SegLoad | SegStore) -> None:
    out.tagged(Kind.SEGMENT, instr.seg)
    out.tagged(Kind.QUEUE, instr.queue)
    out.lx(instr.lx)
    out.raw(instr.elem)
    out.raw(len(instr.strides))
    out.operands(instr.strides)


def _read_load(r: Reader) -> SegLoad:
    seg, queue, lx, elem = r.tagged(Kind.SEGMENT), r.tagged(Kind.QUEUE), r.lx(), r.raw(max(Elem), "element")
    return SegLoad(seg, queue, lx, Elem(elem), r.operands(r.raw(limits.RANK, "rank")))


def _read_store(r: Reader) -> SegStore:
    seg, queue, lx, elem = r.tagged(Kind.SEGMENT), r.tagged(Kind.QUEUE), r.lx(), r.raw(max(Elem), "element")
    return SegStore(seg, queue, lx, Elem(elem), r.operands(r.raw(limits.RANK, "rank")))


def _write_pt(out: Writer, instr: SegPt) -> None:
    out.tagged(Kind.SEGMENT, instr.seg)
    for queue in (instr.a, instr.b, instr.out):
        out.tagged(Kind.QUEUE, queue)
    out.operand(instr.k)


def _read_pt(r: Reader) -> SegPt:
    seg = r.tagged(Kind.SEGMENT)
    return SegPt(seg, r.tagged(Kind.QUEUE), r.tagged(Kind.QUEUE), r.tagged(Kind.QUEUE), r.operand())


def _write_vec(out: Writer, vec: SegVec) -> None:
    out.tagged(Kind.SEGMENT, vec.seg)
    out.raw(len(vec.extents))
    out.operands(vec.extents)
    out.raw(vec.corelet_dim + 1)
    out.raw(len(vec.inputs))
    for queue in vec.inputs:
        out.tagged(Kind.QUEUE, queue)
    out.raw(len(vec.ops))
    for op in vec.ops:
        _write_op(out, op)
    out.raw(len(vec.outputs))
    for output in vec.outputs:
        if any(not 0 <= dim < len(vec.extents) for dim in output.dims) or list(output.dims) != sorted(set(output.dims)):
            raise malformed(f"segment {vec.seg}: reduced dims {output.dims} must be ascending")
        out.raw(output.reg)
        out.tagged(Kind.QUEUE, output.queue)
        out.raw(output.reduce)
        out.raw(sum(1 << dim for dim in output.dims))


def _read_vec(r: Reader) -> SegVec:
    seg = r.tagged(Kind.SEGMENT)
    rank = r.raw(limits.RANK, "rank")
    extents = r.operands(rank)
    corelet_dim = r.raw(rank, "corelet dim") - 1
    inputs = tuple(r.tagged(Kind.QUEUE) for _ in range(r.raw(limits.VEC_PORTS, "inputs")))
    ops = tuple(_read_op(r) for _ in range(r.raw(limits.VEC_OPS, "operations")))
    outputs = []
    for _ in range(r.raw(limits.VEC_PORTS, "outputs")):
        reg, queue = r.raw(limits.VEC_REGISTERS - 1, "register"), r.tagged(Kind.QUEUE)
        reduce = Reduce(r.raw(max(Reduce), "reduction"))
        mask = r.raw((1 << rank) - 1, "reduced dims")
        outputs.append(VecOut(reg, queue, reduce, tuple(d for d in range(rank) if mask >> d & 1)))
    return SegVec(seg, extents, inputs, ops, tuple(outputs), corelet_dim)


def _write_op(out: Writer, op: VOp) -> None:
    for reg in (op.dst, op.a, op.b, op.c):
        if not 0 <= reg < limits.VEC_REGISTERS:
            raise malformed(f"{op.op.name}: vector register {reg} outside 0..{limits.VEC_REGISTERS - 1}")
    out.tagged(Kind.VOP, op.op | op.dst << 12)
    out.words += [op.a | op.b << 16, op.c]
    if op.op in FLOAT_IMM:
        out.words += struct.unpack("<II", struct.pack("<d", op.imm))
    elif op.op in INT_IMM:
        if not isinstance(op.imm, int):
            raise malformed(f"{op.op.name}: immediate {op.imm!r} must be an integer")
        out.wide(op.imm)
    elif op.imm != 0:
        raise malformed(f"{op.op.name} takes no immediate")


def _read_op(r: Reader) -> VOp:
    payload = r.tagged(Kind.VOP)
    try:
        op = VecOp(payload & 0xFFF)
    except ValueError:
        raise r.fail(f"unknown lane operation {payload & 0xFFF}") from None
    ab, c = r.word(), r.word()
    imm: float | int = 0
    if op in FLOAT_IMM:
        imm = struct.unpack("<d", struct.pack("<II", r.word(), r.word()))[0]
    elif op in INT_IMM:
        imm = r.wide()
    return VOp(op, payload >> 12, ab & 0xFFFF, ab >> 16, c, imm)


_WRITE: dict[type, tuple[Opcode, Callable]] = {
    Let: (Opcode.LET, _write_let),
    Acquire: (Opcode.ACQUIRE, _write_credit),
    Release: (Opcode.RELEASE, _write_credit),
    Dma: (Opcode.DMA, _write_dma),
    SegLoad: (Opcode.SEG_LOAD, _write_port),
    SegPt: (Opcode.SEG_PT, _write_pt),
    SegVec: (Opcode.SEG_VEC, _write_vec),
    SegStore: (Opcode.SEG_STORE, _write_port),
    RingCopy: (Opcode.RING_COPY, _write_ring_copy),
    RingAcquire: (Opcode.RING_ACQUIRE, _write_ring_credit),
    RingRelease: (Opcode.RING_RELEASE, _write_ring_credit),
}

_READ: dict[Opcode, Callable[[Reader], Instr]] = {
    Opcode.LET: _read_let,
    Opcode.ACQUIRE: _read_acquire,
    Opcode.RELEASE: _read_release,
    Opcode.DMA: _read_dma,
    Opcode.SEG_LOAD: _read_load,
    Opcode.SEG_PT: _read_pt,
    Opcode.SEG_VEC: _read_vec,
    Opcode.SEG_STORE: _read_store,
    Opcode.RING_COPY: _read_ring_copy,
    Opcode.RING_ACQUIRE: _read_ring_acquire,
    Opcode.RING_RELEASE: _read_ring_release,
}
