"""The program of one kernel as plain data: what the binary encodes and the chip runs.

This is the meeting point of three rooms: the scheduler lowers DataflowIR to it, the codec turns it
into bytes and back, the assembler into text and back. It holds no behaviour beyond small queries.

Execution model. Every core runs one instruction stream per unit kind. MNILU moves DDR -> LX, MNISU
moves LX -> DDR. L1LU, PT, SFU and L1SU work on *segments*: for a segment id, L1LU streams operands
from LX into queues, PT (optionally) contracts two of them, SFU maps or reduces what arrives, L1SU
writes the results to LX. The four streams of the compute group have the same loops in the same order
and hold the parts of the same segments; the loader checks that and runs a segment as one step.

Synchronisation. A *channel* guards a set of LX blocks that advance together. It has two counters per
core, ``empty`` (starts at ``phases``) and ``full`` (starts at 0). The producer acquires empty, writes,
releases full; the consumer acquires full, reads, releases empty. ``ACQUIRE`` blocks at zero. A release
happens after all earlier transfers of that unit have completed. The phase of a channel at a unit is
(number of releases that this unit has done on the channel) mod phases: it selects which copy of the
channel's blocks the unit addresses. No instruction computes a phase.

Between cores. MNISU also copies LX to the LX of other cores over the ring (``RingCopy``). A *ring channel*
guards the blocks that such copies fill: for every ordered pair of cores it has a counter ``empty`` (starts at
1, kept by the sender) and a counter ``full`` (starts at 0, kept by the receiver). The sender acquires empty of
a receiver, copies, releases full to it; the receiver acquires full of a sender, reads, releases empty to it.
The other core is an operand; a negative one means nobody, and the instruction does nothing. That is how cores
that run one program take part or not.

Numbers that depend on a launch never stand in an instruction: they are slots of the value table.
All addresses and offsets are bytes, all values are signed 64-bit, overflow is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Unit(IntEnum):
    """Unit kinds that own an instruction stream."""

    MNILU = 0  # DDR -> LX transfers
    MNISU = 1  # LX -> DDR transfers
    L1LU = 2  # LX -> queues
    PT = 3  # matrix unit
    SFU = 4  # vector unit
    L1SU = 5  # queues -> LX


COMPUTE_UNITS = (Unit.L1LU, Unit.PT, Unit.SFU, Unit.L1SU)


class Elem(IntEnum):
    """Element formats of data in DDR and LX. Registers are 32 bits wide (float or integer)."""

    DF16 = 0
    F32 = 1
    I32 = 2
    F16 = 3  # IEEE half, only under TORCH_LOOM_NUMERICS=ieee
    BF16 = 4
    I16 = 5
    I8 = 6
    U8 = 7
    I64 = 8  # read and written as the low 32 bits would be wrong: refused by the engine unless in range

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return {Elem.F32: 4, Elem.I32: 4, Elem.I8: 1, Elem.U8: 1, Elem.I64: 8}.get(self, 2)


class ExprOp(IntEnum):
    """Tokens of a postfix integer expression (spyrecode page, 10.3)."""

    CONST = 0  # + value
    SYM = 1  # + symbol id       (slot expressions only)
    CORE = 2  # core number      (slot expressions of scope CORE only)
    SLOT = 3  # + slot id        (let expressions only)
    REG = 4  # + register id     (let expressions only)
    ADD = 5
    SUB = 6
    MUL = 7
    FLOORDIV = 8  # divisor must be > 0, else an error
    CEILDIV = 9
    MOD = 10  # result in [0, divisor)
    MIN = 11
    MAX = 12


@dataclass(frozen=True)
class Expr:
    """Postfix tokens: ``(op, value)``; value is 0 for operators without one."""

    tokens: tuple[tuple[ExprOp, int], ...]


class OperandKind(IntEnum):
    IMM = 0
    SLOT = 1
    REG = 2


@dataclass(frozen=True)
class Operand:
    """A 64-bit number: an immediate, a slot of the value table, or a scalar register of the stream."""

    kind: OperandKind
    value: int


def imm(value: int) -> Operand:
    """An immediate operand."""
    return Operand(OperandKind.IMM, value)


def slot(index: int) -> Operand:
    """An operand read from the value table."""
    return Operand(OperandKind.SLOT, index)


def reg(index: int) -> Operand:
    """An operand read from a scalar register (set by ``Loop`` or ``Let`` of the same stream)."""
    return Operand(OperandKind.REG, index)


class Side(IntEnum):
    EMPTY = 0
    FULL = 1


@dataclass(frozen=True)
class Loop:
    """Run ``body`` for reg = 0 .. count-1. A count of zero or less runs nothing."""

    reg: int
    count: Operand
    body: tuple[Instr, ...]


@dataclass(frozen=True)
class Let:
    """reg := expressions[expr] evaluated now (it may read slots and registers)."""

    reg: int
    expr: int


@dataclass(frozen=True)
class Acquire:
    channel: int
    side: Side


@dataclass(frozen=True)
class Release:
    channel: int
    side: Side


@dataclass(frozen=True)
class LxRef:
    """Byte address in LX: block start + phase(channel at this unit) * block bytes + offset.

    ``channel`` is -1 for a block that belongs to no channel (phase 0)."""

    block: int
    channel: int
    offset: Operand


@dataclass(frozen=True)
class DmaDim:
    """One loop of a transfer. Indices run 0 .. extent-1; those outside [lo, hi) are not transferred
    (they are zero-filled in LX when the transfer says so). Strides are bytes per index."""

    extent: Operand
    lo: Operand
    hi: Operand
    ddr_stride: Operand
    lx_stride: Operand


@dataclass(frozen=True)
class Gather:
    """An index read from LX (int32) that moves the DDR side of a transfer.

    index value v = i32 at LX[index + sum_d strides[d] * i_d]; it must satisfy 0 <= v < bound.
    It adds v * scale bytes to the DDR address, or, if ``lane`` is set, v to the lane coordinate."""

    index: LxRef
    strides: tuple[Operand, ...]  # bytes per transfer dim
    scale: Operand
    bound: Operand
    lane: bool = False


@dataclass(frozen=True)
class LaneSplit:
    """Element-granular addressing of a stick dim: lane coordinate x = start + sum_d strides[d] * i_d
    (+ gathers with ``lane``) lands at floor(x / elems) * tile_stride + (x mod elems) * leaf bytes."""

    start: Operand
    strides: tuple[Operand, ...]  # elements per transfer dim
    elems: int
    tile_stride: Operand  # bytes


@dataclass(frozen=True)
class Dma:
    """A transfer DDR -> LX (in stream MNILU) or LX -> DDR (in stream MNISU) over a nest of dims.

    Leaf: ``leaf`` contiguous bytes at (ddr + ...) and (lx + ...): 128 = a stick, 1/2/4 = one element.
    ``byte_lo``/``byte_hi`` (stores with stick leaves): along the innermost dim only the bytes
    [byte_lo, byte_hi) counted from the start of index 0 are written, the rest of DDR keeps its value.
    ``arg`` is the argument whose allocation bounds the DDR side (checked). ``scatter`` order: ascending
    index order, last writer wins.

    ``sharers`` > 1 (loads): that many cores, those with the same number ``group``, execute this transfer equally
    often and each time fetch the same bytes; the memory is read once for all of them."""

    arg: int
    ddr: Operand
    lx: LxRef
    dims: tuple[DmaDim, ...]
    leaf: int = 128
    zero_fill: bool = False
    gathers: tuple[Gather, ...] = ()
    lanes: LaneSplit | None = None
    byte_lo: Operand = imm(0)
    byte_hi: Operand = imm(1 << 40)
    group: Operand = imm(0)
    sharers: Operand = imm(1)


@dataclass(frozen=True)
class RingDim:
    """One loop of a copy between cores: index 0 .. extent-1, strides in bytes."""

    extent: Operand
    source_stride: Operand
    target_stride: Operand


@dataclass(frozen=True)
class RingCopy:
    """MNISU: LX of this core -> LX of core ``core`` (which may be this one). ``target`` lies in a block of a
    ring channel that the sender holds empty of. A copy moves ``leaf`` bytes per point of the nest."""

    core: Operand
    source: LxRef
    target: LxRef
    dims: tuple[RingDim, ...]
    leaf: int = 128


@dataclass(frozen=True)
class RingAcquire:
    """Take this core's credit of a ring channel towards (or from) core ``core``."""

    channel: int
    side: Side
    core: Operand


@dataclass(frozen=True)
class RingRelease:
    """Give core ``core`` a credit of a ring channel, after all earlier copies of the unit have arrived."""

    channel: int
    side: Side
    core: Operand


@dataclass(frozen=True)
class SegLoad:
    """L1LU: stream elements of an LX block into a queue. Address of point (i_d) of the segment nest =
    lx + sum_d strides[d] * i_d * element bytes (strides in elements, 0 = splat). For the operands of a
    PT contraction the dims are (b, m, k) for A and (b, k, n) for B instead of the segment nest."""

    seg: int
    queue: int
    lx: LxRef
    elem: Elem
    strides: tuple[Operand, ...]


@dataclass(frozen=True)
class SegPt:
    """PT: C[b, m, n] = sum_k A[b, m, k] * B[b, k, n], products of the operand format, fp32 accumulation.
    C arrives at the SFU in queue ``out`` over the segment nest, whose dims must be (b, m, n)."""

    seg: int
    a: int  # queue
    b: int  # queue
    out: int  # queue
    k: Operand


class VecOp(IntEnum):
    """Lane operations. f: float32 in, float32 out; i: int32; mask values are float 0.0 / 1.0.
    ``a b c`` are register numbers. New operations are appended, numbers never change."""

    CONST_F = 0  # imm (float)
    CONST_I = 1  # imm (int)
    SCALAR_F = 2  # imm = slot id; low 32 bits of the slot are the bits of a float
    SCALAR_I = 3  # imm = slot id, or -1 - register id of the SFU stream
    IOTA = 4  # imm = dim of the segment nest; int32 index along it
    ADD_F = 5
    SUB_F = 6
    MUL_F = 7
    DIV_F = 8
    MAX_F = 9  # propagates NaN
    MIN_F = 10
    MAXNUM_F = 11  # ignores NaN
    MINNUM_F = 12
    NEG_F = 13
    ABS_F = 14
    FMA_F = 15  # a * b + c, one rounding
    EXP = 16
    EXP2 = 17
    EXPM1 = 18
    LOG = 19
    LOG2 = 20
    LOG1P = 21
    SQRT = 22
    RSQRT = 23
    RECIP = 24
    TANH = 25
    ERF = 26
    SIGMOID = 27
    SILU = 28
    GELU = 29
    SIN = 30
    COS = 31
    POW = 32
    FLOOR = 33
    CEIL = 34
    ROUND = 35  # half to even
    TRUNC = 36
    EQ_F = 37
    NE_F = 38
    LT_F = 39
    LE_F = 40
    GT_F = 41
    GE_F = 42
    SELECT = 43  # a != 0 ? b : c, bits of either type
    AND_M = 44  # masks
    OR_M = 45
    XOR_M = 46
    NOT_M = 47
    ADD_I = 48
    SUB_I = 49
    MUL_I = 50
    MIN_I = 51
    MAX_I = 52
    FLOORDIV_I = 53
    DIV_I = 54  # toward zero
    REM_I = 55  # sign of the dividend
    AND_I = 56
    OR_I = 57
    XOR_I = 58
    SHL_I = 59
    SHR_I = 60  # arithmetic
    EQ_I = 61
    NE_I = 62
    LT_I = 63
    LE_I = 64
    GT_I = 65
    GE_I = 66
    F_TO_I = 67  # toward zero, saturating
    I_TO_F = 68
    ROUND_DF16 = 69  # float -> nearest df16 value, kept as float
    ROUND_F16 = 70
    ROUND_BF16 = 71
    COPY = 72
    REM_F = 73  # C fmod: sign of the dividend
    TAN = 74
    ASIN = 75
    ACOS = 76
    ATAN = 77
    ATAN2 = 78
    SINH = 79
    COSH = 80
    ASINH = 81
    ACOSH = 82
    ATANH = 83
    ISNAN = 84
    ISINF = 85
    ERFC = 86
    LGAMMA = 87
    SOFTPLUS = 88  # a = x, b = beta, c = threshold
    U_TO_F = 89  # unsigned int32 bits -> float
    SHRU_I = 90
    UDIV_I = 91
    UREM_I = 92
    ULT_I = 93
    ULE_I = 94
    MULHI_I = 95
    CHECK = 96  # b; an error where a != 0: b is then an int64 beyond 32 bits


@dataclass(frozen=True)
class VOp:
    """One lane operation: register dst := op(a, b, c, imm)."""

    op: VecOp
    dst: int
    a: int = 0
    b: int = 0
    c: int = 0
    imm: float | int = 0


class Reduce(IntEnum):
    """How an output of a segment combines over its reduced dims. Accumulation is fp32 (or int32)."""

    NONE = 0
    ADD = 1
    MUL = 2
    MAX = 3
    MIN = 4
    ADD_I = 5
    MUL_I = 6
    MAX_I = 7
    MIN_I = 8
    OR_M = 9
    AND_M = 10


@dataclass(frozen=True)
class VecOut:
    """Register ``reg`` goes to ``queue``; with a reduction it is first folded over ``dims`` (ascending
    index order up to the usual reassociation into lanes)."""

    reg: int
    queue: int
    reduce: Reduce = Reduce.NONE
    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class SegVec:
    """SFU: for every point of the nest run ``ops`` on the registers filled from ``inputs`` (input i is
    queue inputs[i] and lands in register i) and emit ``outputs``. ``corelet_dim`` is the nest dim whose
    index range is cut into contiguous halves for the two corelets (-1: one corelet does all); both join
    at the end of the segment."""

    seg: int
    extents: tuple[Operand, ...]
    inputs: tuple[int, ...]
    ops: tuple[VOp, ...]
    outputs: tuple[VecOut, ...]
    corelet_dim: int = -1


@dataclass(frozen=True)
class SegStore:
    """L1SU: write what arrives in ``queue`` to LX. Reduced dims must have stride 0. Values are rounded
    to ``elem`` here (df16: to nearest, ties away from zero)."""

    seg: int
    queue: int
    lx: LxRef
    elem: Elem
    strides: tuple[Operand, ...]


Instr = (
    Loop | Let | Acquire | Release | Dma | SegLoad | SegPt | SegVec | SegStore | RingCopy | RingAcquire | RingRelease
)


class SymbolKind(IntEnum):
    ADDRESS = 0  # device byte address of a buffer argument
    DIM = 1  # an extent passed as an integer argument
    SCALAR = 2  # integer or float bits


@dataclass(frozen=True)
class Symbol:
    """A launch-time number. Symbol ids are positions in ``Program.symbols``."""

    name: str
    kind: SymbolKind
    arg: int
    minimum: int = 0
    maximum: int = 1 << 62
    granularity: int = 1


class Scope(IntEnum):
    LAUNCH = 0
    CORE = 1


@dataclass(frozen=True)
class Slot:
    """One number of the value table (LAUNCH) or one per core (CORE)."""

    expr: Expr
    scope: Scope


class ArgKind(IntEnum):
    BUFFER = 0
    INT = 1
    FLOAT = 2


class Access(IntEnum):
    READ = 1
    WRITE = 2
    BOTH = 3


@dataclass(frozen=True)
class Arg:
    """A kernel argument, in call order. ``elem`` is meaningless for scalars."""

    name: str
    kind: ArgKind
    elem: Elem = Elem.DF16
    access: Access = Access.READ


@dataclass(frozen=True)
class Block:
    """``phases`` copies of ``bytes`` (a multiple of 128) at ``address`` (128-aligned), one after another."""

    name: str
    address: int
    bytes: int
    phases: int = 1


@dataclass(frozen=True)
class Channel:
    """Credits between two units over blocks that advance together (all with ``phases`` copies).

    ``ring``: the producer is MNISU of every core, the consumer a compute unit of every core, one phase."""

    name: str
    producer: Unit
    consumer: Unit
    phases: int
    blocks: tuple[int, ...] = ()
    ring: bool = False


class Relation(IntEnum):
    GE = 0  # expr >= 0
    EQ = 1  # expr == 0


@dataclass(frozen=True)
class Guard:
    """A precondition checked at launch; ``message`` is shown when it fails."""

    expr: Expr
    relation: Relation
    message: str


@dataclass(frozen=True)
class Profile:
    """What the program needs of a chip. A chip that differs refuses to load it."""

    chip: str
    cores: int
    corelets: int
    lx_bytes: int
    stick_bytes: int = 128


@dataclass(frozen=True)
class Program:
    """One kernel. ``cores`` <= profile.cores is the number of cores that run it."""

    name: str
    profile: Profile
    cores: int
    args: tuple[Arg, ...]
    symbols: tuple[Symbol, ...]
    slots: tuple[Slot, ...]
    exprs: tuple[Expr, ...]  # let expressions
    blocks: tuple[Block, ...]
    channels: tuple[Channel, ...]
    streams: dict[Unit, tuple[Instr, ...]]
    guards: tuple[Guard, ...] = ()
    meta: dict[str, str] = field(default_factory=dict)
