"""The rules a program must keep so that a chip may run it without looking again.

Checked here: every number against its table, the shape of expressions, registers set before they are
read, credits used by the right side, LX blocks inside LX, and the compute group: the four streams have
the same loops and hold the parts of the same segments, with every queue written once and read once.
The C++ decoder checks the same rules (csrc/chip/validate.cpp). What depends on launch numbers is
checked when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_loom.spyrecode import expr as expressions
from torch_loom.spyrecode import limits
from torch_loom.spyrecode.compute_group import check_compute_group
from torch_loom.spyrecode.errors import SpyreCodeError, malformed
from torch_loom.spyrecode.model import (
    COMPUTE_UNITS,
    Acquire,
    ArgKind,
    Channel,
    Dma,
    Expr,
    ExprOp,
    Instr,
    Let,
    Loop,
    LxRef,
    Operand,
    OperandKind,
    Program,
    Release,
    RingAcquire,
    RingCopy,
    RingRelease,
    Scope,
    SegLoad,
    SegPt,
    SegStore,
    SegVec,
    Side,
    Unit,
    VecOp,
)

_STREAM_OF: dict[type, tuple[Unit, ...]] = {
    Dma: (Unit.MNILU, Unit.MNISU),
    SegLoad: (Unit.L1LU,),
    SegPt: (Unit.PT,),
    SegVec: (Unit.SFU,),
    SegStore: (Unit.L1SU,),
    RingCopy: (Unit.MNISU,),
}
_MAX_MODEL_INT = (1 << 63) - 1


def validate(program: Program) -> None:
    """Check every rule. Raises SC-E15 (profile) or SC-E17."""
    _check_profile(program)
    _check_tables(program)
    for unit, stream in sorted(program.streams.items()):
        _Stream(program, Unit(unit)).body(stream, frozenset(), 0)
    check_compute_group(program)


def phase_unit(channel: Channel, unit: Unit) -> Unit | None:
    """The unit whose releases select the phase when ``unit`` addresses a block of the channel.

    An end of the channel counts its own releases. Another unit of the compute group follows the end
    that lies in the group (the group runs a segment as one step). None: the unit has no business there."""
    if unit in (channel.producer, channel.consumer):
        return unit
    if unit in COMPUTE_UNITS:
        for end in (channel.consumer, channel.producer):
            if end in COMPUTE_UNITS:
                return end
    return None


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise malformed(message)


def _check_profile(p: Program) -> None:
    f = p.profile
    for ok, message in (
        (1 <= f.cores <= limits.CORES, f"profile with {f.cores} cores"),
        (1 <= f.corelets <= limits.CORELETS, f"profile with {f.corelets} corelets"),
        (f.stick_bytes == 128, f"sticks of {f.stick_bytes} bytes; 128 is the only size"),
        (0 < f.lx_bytes <= limits.LX_BYTES and f.lx_bytes % 128 == 0, f"profile with {f.lx_bytes} LX bytes"),
    ):
        if not ok:
            raise SpyreCodeError("SC-E15", message)
    _require(1 <= p.cores <= f.cores, f"{p.cores} cores used of {f.cores}")


def _check_tables(p: Program) -> None:
    for what, table, limit in (
        ("arguments", p.args, limits.ARGS),
        ("symbols", p.symbols, limits.SYMBOLS),
        ("slots", p.slots, limits.SLOTS),
        ("let expressions", p.exprs, limits.EXPRS - limits.SLOTS - limits.GUARDS),
        ("guards", p.guards, limits.GUARDS),
        ("LX blocks", p.blocks, limits.BLOCKS),
        ("channels", p.channels, limits.CHANNELS),
    ):
        _require(len(table) <= limit, f"{len(table)} {what}, at most {limit} allowed")
    for i, s in enumerate(p.symbols):
        where = f"symbol {i} ({s.name})"
        _require(0 <= s.arg < len(p.args), f"{where}: argument {s.arg} of {len(p.args)}")
        kind = p.args[s.arg].kind
        _require(
            expressions.kinds_match(s.kind, kind),
            f"{where}: {s.kind.name} of an argument of kind {kind.name}",
        )
        _require(-_MAX_MODEL_INT <= s.minimum <= s.maximum <= _MAX_MODEL_INT, f"{where}: {s.minimum}..{s.maximum}")
        _require(1 <= s.granularity <= _MAX_MODEL_INT, f"{where}: granularity {s.granularity}")
    base = frozenset({ExprOp.CONST, ExprOp.SYM})
    for i, slot in enumerate(p.slots):
        leaves = base | {ExprOp.CORE} if slot.scope is Scope.CORE else base
        _check_expr(p, slot.expr, leaves, f"slot {i}")
    for i, guard in enumerate(p.guards):
        _check_expr(p, guard.expr, base, f"guard {i}")
    for i, expr in enumerate(p.exprs):
        _check_expr(p, expr, frozenset({ExprOp.CONST, ExprOp.SLOT, ExprOp.REG}), f"let expression {i}")
    for i, block in enumerate(p.blocks):
        where = f"LX block {i} ({block.name})"
        _require(1 <= block.phases <= limits.PHASES, f"{where}: {block.phases} phases")
        _require(block.address >= 0 and block.address % 128 == 0, f"{where}: address {block.address}")
        _require(0 < block.bytes <= limits.LX_BYTES and block.bytes % 128 == 0, f"{where}: {block.bytes} bytes")
        end = block.address + block.bytes * block.phases
        _require(end <= p.profile.lx_bytes, f"{where}: ends at {end}, LX has {p.profile.lx_bytes} bytes")
    for i, channel in enumerate(p.channels):
        where = f"channel {i} ({channel.name})"
        _require(1 <= channel.phases <= limits.PHASES, f"{where}: {channel.phases} phases")
        _require(channel.producer != channel.consumer, f"{where}: both ends are {channel.producer.name}")
        _require(
            not channel.ring
            or (channel.producer is Unit.MNISU and channel.consumer in COMPUTE_UNITS and channel.phases == 1),
            f"{where}: a ring channel leads from MNISU to a compute unit with one phase",
        )
        for b in channel.blocks:
            _require(0 <= b < len(p.blocks), f"{where}: block {b} of {len(p.blocks)}")
            _require(
                p.blocks[b].phases == channel.phases,
                f"{where}: block {p.blocks[b].name} has {p.blocks[b].phases} phases, not {channel.phases}",
            )
    rings = sum(c.ring for c in p.channels)
    _require(rings * p.cores <= limits.RING_COUNTERS, f"{rings} ring channels between {p.cores} cores")


def _check_expr(p: Program, expr: Expr, leaves: frozenset[ExprOp], where: str) -> None:
    expressions.check(expr, leaves, where)
    bound = {
        ExprOp.SYM: len(p.symbols),
        ExprOp.SLOT: len(p.slots),
        ExprOp.REG: limits.REGISTERS,
    }
    for op, value in expr.tokens:
        if op in bound:
            _require(value < bound[op], f"{where}: {op.name} {value} of {bound[op]}")


class _Stream:
    """Checks of one unit's stream."""

    def __init__(self, program: Program, unit: Unit) -> None:
        self.p, self.unit, self.count = program, unit, 0

    def fail(self, instr: Instr, message: str) -> Exception:
        return malformed(f"{self.unit.name} {type(instr).__name__} {self.count}: {message}")

    def body(self, body: Sequence[Instr], regs: frozenset[int], depth: int) -> None:
        if depth > limits.NESTING:
            raise malformed(f"{self.unit.name}: loops nested deeper than {limits.NESTING}")
        for instr in body:
            self.count += 1
            if self.count > limits.INSTRUCTIONS:
                raise malformed(f"{self.unit.name}: more than {limits.INSTRUCTIONS} instructions")
            units = _STREAM_OF.get(type(instr), tuple(Unit))
            if self.unit not in units:
                raise self.fail(instr, "does not belong to this unit")
            if isinstance(instr, Loop):
                self.register(instr, instr.reg)
                self.number(instr, instr.count, regs)
                self.body(instr.body, regs | {instr.reg}, depth + 1)
                self.count += 1  # its end
            elif isinstance(instr, Let):
                self.register(instr, instr.reg)
                if not 0 <= instr.expr < len(self.p.exprs):
                    raise self.fail(instr, f"expression {instr.expr} of {len(self.p.exprs)}")
                for op, value in self.p.exprs[instr.expr].tokens:
                    if op is ExprOp.REG and value not in regs:
                        raise self.fail(instr, f"register {value} is read before it is set")
                regs = regs | {instr.reg}
            elif isinstance(instr, Acquire | Release):
                self.credit(instr)
            elif isinstance(instr, RingAcquire | RingRelease):
                self.number(instr, instr.core, regs)
                self.credit(instr)
            elif isinstance(instr, RingCopy):
                self.ring_copy(instr, regs)
            elif isinstance(instr, Dma):
                self.dma(instr, regs)
            elif isinstance(instr, SegPt):
                self.number(instr, instr.k, regs)
            elif isinstance(instr, SegLoad | SegStore):
                self.lx(instr, instr.lx, regs)
                self.numbers(instr, instr.strides, regs)
            elif isinstance(instr, SegVec):
                self.numbers(instr, instr.extents, regs)
                self.scalars(instr, regs)
            else:
                raise malformed(f"{self.unit.name}: {type(instr).__name__} is no instruction")

    def register(self, instr: Instr, number: int) -> None:
        if not 0 <= number < limits.REGISTERS:
            raise self.fail(instr, f"register {number} outside 0..{limits.REGISTERS - 1}")

    def number(self, instr: Instr, operand: Operand, regs: frozenset[int]) -> None:
        value = operand.value
        if operand.kind is OperandKind.SLOT and not 0 <= value < len(self.p.slots):
            raise self.fail(instr, f"slot {value} of {len(self.p.slots)}")
        if operand.kind is OperandKind.REG and value not in regs:
            raise self.fail(instr, f"register {value} is read before it is set")

    def numbers(self, instr: Instr, operands: Sequence[Operand], regs: frozenset[int]) -> None:
        if len(operands) > limits.RANK:
            raise self.fail(instr, f"rank {len(operands)}, at most {limits.RANK} allowed")
        for operand in operands:
            self.number(instr, operand, regs)

    def scalars(self, vec: SegVec, regs: frozenset[int]) -> None:
        """Slots and registers named by immediates of lane operations."""
        for op in vec.ops:
            if op.op not in (VecOp.SCALAR_F, VecOp.SCALAR_I):
                continue
            value = int(op.imm)
            if value >= 0 and value >= len(self.p.slots):
                raise self.fail(vec, f"slot {value} of {len(self.p.slots)}")
            if value < 0 and (op.op is VecOp.SCALAR_F or -1 - value not in regs):
                raise self.fail(vec, f"scalar register {-1 - value} is read before it is set")

    def credit(self, instr: Acquire | Release | RingAcquire | RingRelease) -> None:
        if not 0 <= instr.channel < len(self.p.channels):
            raise self.fail(instr, f"channel {instr.channel} of {len(self.p.channels)}")
        channel = self.p.channels[instr.channel]
        if channel.ring != isinstance(instr, RingAcquire | RingRelease):
            raise self.fail(instr, f"channel {channel.name} is {'' if channel.ring else 'not '}a ring channel")
        producing = isinstance(instr, Acquire | RingAcquire) == (instr.side is Side.EMPTY)
        if self.unit is not (channel.producer if producing else channel.consumer):
            role = "producer" if producing else "consumer"
            raise self.fail(instr, f"{instr.side.name} of channel {channel.name}: {self.unit.name} is not its {role}")

    def lx(self, instr: Instr, ref: LxRef, regs: frozenset[int]) -> None:
        if not 0 <= ref.block < len(self.p.blocks):
            raise self.fail(instr, f"LX block {ref.block} of {len(self.p.blocks)}")
        self.number(instr, ref.offset, regs)
        if ref.channel == -1:
            return
        if not 0 <= ref.channel < len(self.p.channels):
            raise self.fail(instr, f"channel {ref.channel} of {len(self.p.channels)}")
        channel = self.p.channels[ref.channel]
        if ref.block not in channel.blocks:
            raise self.fail(instr, f"block {self.p.blocks[ref.block].name} is not of channel {channel.name}")
        if phase_unit(channel, self.unit) is None:
            raise self.fail(instr, f"channel {channel.name} has no end at {self.unit.name}")

    def ring_copy(self, copy: RingCopy, regs: frozenset[int]) -> None:
        if copy.leaf not in (128, 1, 2, 4):
            raise self.fail(copy, f"a leaf of {copy.leaf} bytes: 128, 4, 2 or 1 allowed")
        self.number(copy, copy.core, regs)
        self.lx(copy, copy.source, regs)
        self.lx(copy, copy.target, regs)
        if copy.target.channel < 0 or not self.p.channels[copy.target.channel].ring:
            raise self.fail(copy, "the target must lie in a block of a ring channel")
        if copy.source.channel >= 0 and self.p.channels[copy.source.channel].ring:
            raise self.fail(copy, "the source must not lie in a block of a ring channel")
        if len(copy.dims) > limits.RANK:
            raise self.fail(copy, f"rank {len(copy.dims)}, at most {limits.RANK} allowed")
        for dim in copy.dims:
            self.numbers(copy, (dim.extent, dim.source_stride, dim.target_stride), regs)

    def dma(self, dma: Dma, regs: frozenset[int]) -> None:
        storing = self.unit is Unit.MNISU
        args = self.p.args
        if not 0 <= dma.arg < len(args) or args[dma.arg].kind is not ArgKind.BUFFER:
            raise self.fail(dma, f"argument {dma.arg} is no buffer")
        if not args[dma.arg].access & (2 if storing else 1):
            raise self.fail(dma, f"argument {args[dma.arg].name} is not {'written' if storing else 'read'}")
        if dma.leaf not in (128, 1, 2, 4):
            raise self.fail(dma, f"a leaf of {dma.leaf} bytes: 128, 4, 2 or 1 allowed")
        self.number(dma, dma.ddr, regs)
        self.lx(dma, dma.lx, regs)
        if len(dma.dims) > limits.RANK or len(dma.gathers) > limits.GATHERS:
            raise self.fail(dma, f"{len(dma.dims)} dims and {len(dma.gathers)} gathers")
        for dim in dma.dims:
            self.numbers(dma, (dim.extent, dim.lo, dim.hi, dim.ddr_stride, dim.lx_stride), regs)
        self.numbers(dma, (dma.byte_lo, dma.byte_hi), regs)
        self.numbers(dma, (dma.group, dma.sharers), regs)
        if storing and (dma.group, dma.sharers) != (Operand(OperandKind.IMM, 0), Operand(OperandKind.IMM, 1)):
            raise self.fail(dma, "only loads can be shared")
        masked = dma.byte_lo != Operand(OperandKind.IMM, 0) or dma.byte_hi != Operand(OperandKind.IMM, 1 << 40)
        if masked and (not storing or dma.leaf != 128 or not dma.dims or dma.lanes):
            raise self.fail(dma, "byte_lo/byte_hi belong to stores of sticks with at least one dim")
        if dma.zero_fill and storing:
            raise self.fail(dma, "zero_fill belongs to loads")
        for gather in dma.gathers:
            self.lx(dma, gather.index, regs)
            if len(gather.strides) != len(dma.dims):
                raise self.fail(dma, f"a gather with {len(gather.strides)} strides over {len(dma.dims)} dims")
            self.numbers(dma, gather.strides, regs)
            self.numbers(dma, (gather.scale, gather.bound), regs)
            if gather.lane and dma.lanes is None:
                raise self.fail(dma, "a gather of lanes needs a lane split")
        if dma.lanes is not None:
            if not 1 <= dma.lanes.elems <= 1 << 16:
                raise self.fail(dma, f"{dma.lanes.elems} elements per stick")
            if len(dma.lanes.strides) != len(dma.dims):
                raise self.fail(dma, f"a lane split over {len(dma.lanes.strides)} of {len(dma.dims)} dims")
            self.numbers(dma, (*dma.lanes.strides,), regs)
            self.numbers(dma, (dma.lanes.start, dma.lanes.tile_stride), regs)
