"""Small programs written by hand; tests of the codec and of the chip share them."""

from __future__ import annotations

from collections.abc import Sequence

from torch_loom.spyrecode.model import (
    Access,
    Acquire,
    Arg,
    ArgKind,
    Block,
    Channel,
    Dma,
    DmaDim,
    Elem,
    Expr,
    ExprOp,
    Gather,
    Guard,
    Instr,
    LaneSplit,
    Let,
    Loop,
    LxRef,
    Operand,
    Profile,
    Program,
    Reduce,
    Relation,
    Release,
    RingAcquire,
    RingCopy,
    RingDim,
    RingRelease,
    Scope,
    SegLoad,
    SegPt,
    SegStore,
    SegVec,
    Side,
    Slot,
    Symbol,
    SymbolKind,
    Unit,
    VecOp,
    VecOut,
    VOp,
    imm,
    reg,
    slot,
)

MINI = Profile("spyre-mini", 4, 2, 65536)
BIG = Profile("spyre", 32, 2, 2 << 20)
OPS = {"+": ExprOp.ADD, "-": ExprOp.SUB, "*": ExprOp.MUL, "//": ExprOp.FLOORDIV, "%": ExprOp.MOD}


def ex(*tokens: int | str) -> Expr:
    """A postfix expression: numbers, ``s0`` ``$0`` ``r0`` ``core`` and operators."""
    named = {"min": ExprOp.MIN, "max": ExprOp.MAX, "cdiv": ExprOp.CEILDIV, "core": ExprOp.CORE, **OPS}
    leaf = {"s": ExprOp.SYM, "$": ExprOp.SLOT, "r": ExprOp.REG}
    out = []
    for token in tokens:
        if isinstance(token, int):
            out.append((ExprOp.CONST, token))
        elif token in named:
            out.append((named[token], 0))
        else:
            out.append((leaf[token[0]], int(token[1:])))
    return Expr(tuple(out))


def dim(extent: int | Operand, ddr: int | Operand, lx: int | Operand, clip: tuple | None = None) -> DmaDim:
    """A transfer dim from plain numbers."""
    e = _op(extent)
    lo, hi = (imm(0), e) if clip is None else (_op(clip[0]), _op(clip[1]))
    return DmaDim(e, lo, hi, _op(ddr), _op(lx))


def _op(value: int | Operand) -> Operand:
    return imm(value) if isinstance(value, int) else value


def lx(block: int, channel: int = -1, offset: int | Operand = 0) -> LxRef:
    return LxRef(block, channel, _op(offset))


def nums(*values: int | Operand) -> tuple[Operand, ...]:
    return tuple(_op(v) for v in values)


def buffer(name: str, elem: Elem = Elem.DF16, access: Access = Access.READ) -> Arg:
    return Arg(name, ArgKind.BUFFER, elem, access)


def address(arg: int, name: str) -> Symbol:
    return Symbol(name, SymbolKind.ADDRESS, arg, granularity=128)


def add_rows() -> Program:
    """C = A + B, [80, 192] df16 on 4 cores x 20 rows, double buffered in tiles of 4 rows (1536 bytes)."""
    acquire, release = Acquire, Release
    e, f = Side.EMPTY, Side.FULL

    def move(arg: int, block: int, channel: int) -> Dma:
        return Dma(arg, reg(1 + arg), lx(block, channel), (dim(12, 128, 128),))

    lets = tuple(Let(1 + i, i) for i in range(3))
    return Program(
        name="add_rows",
        profile=MINI,
        cores=4,
        args=(buffer("a"), buffer("b"), buffer("c", access=Access.WRITE)),
        symbols=tuple(address(i, n) for i, n in enumerate("abc")),
        slots=tuple(Slot(ex(f"s{i}", "core", 7680, "*", "+"), Scope.CORE) for i in range(3)),
        exprs=tuple(ex(f"${i}", "r0", 1536, "*", "+") for i in range(3)),
        blocks=(Block("bA", 0, 1536, 2), Block("bB", 3072, 1536, 2), Block("bC", 6144, 1536, 2)),
        channels=(
            Channel("in0", Unit.MNILU, Unit.L1LU, 2, (0,)),
            Channel("in1", Unit.MNILU, Unit.L1LU, 2, (1,)),
            Channel("out", Unit.L1SU, Unit.MNISU, 2, (2,)),
        ),
        streams={
            Unit.MNILU: (
                Loop(
                    0,
                    imm(5),
                    (
                        *lets[:2],
                        *(acquire(0, e), acquire(1, e), move(0, 0, 0), move(1, 1, 1)),
                        *(release(0, f), release(1, f)),
                    ),
                ),
            ),
            Unit.MNISU: (Loop(0, imm(5), (lets[2], acquire(2, f), move(2, 2, 2), release(2, e))),),
            Unit.L1LU: (
                Loop(
                    0,
                    imm(5),
                    (
                        *(acquire(0, f), acquire(1, f)),
                        SegLoad(0, 0, lx(0, 0), Elem.DF16, nums(192, 1)),
                        SegLoad(0, 1, lx(1, 1), Elem.DF16, nums(192, 1)),
                        *(release(0, e), release(1, e)),
                    ),
                ),
            ),
            Unit.SFU: (
                Loop(
                    0,
                    imm(5),
                    (SegVec(0, nums(4, 192), (0, 1), (VOp(VecOp.ADD_F, 2, 0, 1),), (VecOut(2, 2),), 0),),
                ),
            ),
            Unit.L1SU: (
                Loop(
                    0,
                    imm(5),
                    (acquire(2, e), SegStore(0, 2, lx(2, 2), Elem.DF16, nums(192, 1)), release(2, f)),
                ),
            ),
        },
        meta={"compiler": "by hand"},
    )


def one_shot(
    loads: Sequence[Instr],
    parts: dict[Unit, Sequence[Instr]],
    stores: Sequence[Instr],
    args: Sequence[Arg],
    blocks: Sequence[Block],
    *,
    profile: Profile = MINI,
    cores: int = 1,
    symbols: Sequence[Symbol] = (),
    slots: Sequence[Slot] = (),
    **extra: object,
) -> Program:
    """All loads, then the segments, then all stores. Slot i of the first buffers is the address of arg i."""
    buffers = [i for i, a in enumerate(args) if a.kind is ArgKind.BUFFER]
    ids = tuple(range(len(blocks)))
    channels = (
        Channel("in", Unit.MNILU, Unit.L1LU, 1, tuple(i for i in ids if blocks[i].phases == 1)),
        Channel("out", Unit.L1SU, Unit.MNISU, 1, tuple(i for i in ids if blocks[i].phases == 1)),
    )
    e, f = Side.EMPTY, Side.FULL
    streams: dict[Unit, tuple[Instr, ...]] = {
        Unit.MNILU: (Acquire(0, e), *loads, Release(0, f)),
        Unit.MNISU: (Acquire(1, f), *stores, Release(1, e)),
        Unit.L1LU: (Acquire(0, f), *parts.get(Unit.L1LU, ()), Release(0, e)),
        Unit.SFU: tuple(parts[Unit.SFU]),
        Unit.L1SU: (Acquire(1, e), *parts[Unit.L1SU], Release(1, f)),
    }
    if Unit.PT in parts:
        streams[Unit.PT] = tuple(parts[Unit.PT])
    return Program(
        name="one_shot",
        profile=profile,
        cores=cores,
        args=tuple(args),
        symbols=(*(Symbol(args[i].name, SymbolKind.ADDRESS, i, granularity=128) for i in buffers), *symbols),
        slots=(*(Slot(ex(f"s{n}"), Scope.LAUNCH) for n in range(len(buffers))), *slots),
        exprs=(),
        blocks=tuple(blocks),
        channels=channels,
        streams=dict(sorted(streams.items())),
        **extra,  # type: ignore[arg-type]
    )


ELEM_ARRAY_BYTES = 8192


def map_program(
    ops: Sequence[VOp],
    inputs: Sequence[Elem],
    output: Elem,
    count: int,
    *,
    reg_out: int | None = None,
    slots: Sequence[Slot] = (),
    symbols: Sequence[Symbol] = (),
    extra_args: Sequence[Arg] = (),
) -> Program:
    """out[i] = ops(in0[i], in1[i], ..) over ``count`` elements held in one block each (<= 8 KiB)."""
    n = len(inputs)
    args = [buffer(f"in{i}", e) for i, e in enumerate(inputs)]
    args += [buffer("out", output, Access.WRITE), *extra_args]
    blocks = [Block(f"b{i}", i * ELEM_ARRAY_BYTES, ELEM_ARRAY_BYTES) for i in range(n + 1)]

    def sticks(elem: Elem) -> int:
        return -(-count * elem.bytes // 128)

    loads = [Dma(i, slot(i), lx(i, 0), (dim(sticks(e), 128, 128),)) for i, e in enumerate(inputs)]
    stores = [
        Dma(
            n,
            slot(n),
            lx(n, 1),
            (dim(sticks(output), 128, 128),),
            byte_hi=imm(count * output.bytes),
        )
    ]
    dst = ops[-1].dst if reg_out is None else reg_out
    parts: dict[Unit, Sequence[Instr]] = {
        Unit.L1LU: [SegLoad(0, i, lx(i, 0), e, nums(1)) for i, e in enumerate(inputs)],
        Unit.SFU: [SegVec(0, nums(count), tuple(range(n)), tuple(ops), (VecOut(dst, n),))],
        Unit.L1SU: [SegStore(0, n, lx(n, 1), output, nums(1))],
    }
    return one_shot(loads, parts, stores, args, blocks, slots=slots, symbols=symbols)


def matmul(b: int, m: int, n: int, k: int, *, transpose_b: bool = False, profile: Profile = BIG) -> Program:
    """C[b, m, n] = A[b, m, k] @ B[b, k, n], all row-major df16 with rows of whole sticks, C as f32."""

    def up(count: int, size: int) -> int:
        return -(-count * size // 128) * 128

    pa, pb, pc = up(k, 2), up(k if transpose_b else n, 2), up(n, 4)
    rows_b = n if transpose_b else k
    sizes = [b * m * pa, b * rows_b * pb, b * m * pc]
    starts = [0, sizes[0], sizes[0] + sizes[1]]
    blocks = [Block(f"b{i}", starts[i], sizes[i]) for i in range(3)]
    args = [buffer("a"), buffer("b"), buffer("c", Elem.F32, Access.WRITE)]
    moves = [Dma(i, slot(i), lx(i, int(i == 2)), (dim(sizes[i] // 128, 128, 128),)) for i in range(3)]
    stride_b = (rows_b * pb // 2, 1, pb // 2) if transpose_b else (rows_b * pb // 2, pb // 2, 1)
    parts: dict[Unit, Sequence[Instr]] = {
        Unit.L1LU: [
            SegLoad(0, 0, lx(0, 0), Elem.DF16, nums(m * pa // 2, pa // 2, 1)),
            SegLoad(0, 1, lx(1, 0), Elem.DF16, nums(*stride_b)),
        ],
        Unit.PT: [SegPt(0, 0, 1, 2, imm(k))],
        Unit.SFU: [SegVec(0, nums(b, m, n), (2,), (), (VecOut(0, 3),), 1)],
        Unit.L1SU: [SegStore(0, 3, lx(2, 1), Elem.F32, nums(m * pc // 4, pc // 4, 1))],
    }
    return one_shot(moves[:2], parts, moves[2:], args, blocks, profile=profile)


def row_sum(rows: int, columns: int, reduce: Reduce = Reduce.ADD, dims: tuple[int, ...] = (1,)) -> Program:
    """f32 reduction of an [rows, columns] f32 array (rows of whole sticks); the result is dense f32."""
    pitch = -(-columns * 4 // 128) * 128
    points = 1
    for d, extent in enumerate((rows, columns)):
        points *= 1 if d in dims else extent
    out_bytes = -(-points * 4 // 128) * 128
    blocks = [Block("in", 0, rows * pitch), Block("out", rows * pitch, out_bytes)]
    strides = {(1,): (1, 0), (0,): (0, 1), (0, 1): (0, 0)}[dims]
    loads = [Dma(0, slot(0), lx(0, 0), (dim(rows * pitch // 128, 128, 128),))]
    stores = [Dma(1, slot(1), lx(1, 1), (dim(out_bytes // 128, 128, 128),))]
    parts: dict[Unit, Sequence[Instr]] = {
        Unit.L1LU: [SegLoad(0, 0, lx(0, 0), Elem.F32, nums(pitch // 4, 1))],
        Unit.SFU: [SegVec(0, nums(rows, columns), (0,), (), (VecOut(0, 1, reduce, dims),))],
        Unit.L1SU: [SegStore(0, 1, lx(1, 1), Elem.F32, nums(*strides))],
    }
    args = [buffer("x", Elem.F32), buffer("y", Elem.F32, Access.WRITE)]
    return one_shot(loads, parts, stores, args, blocks, profile=BIG)


def gather_rows(count: int, row_sticks: int, table_rows: int) -> Program:
    """out[i, :] = table[index[i], :] through an index block in LX; identity segment copies it out."""
    row = row_sticks * 128
    index_bytes = -(-count * 4 // 128) * 128
    size = count * row
    blocks = [
        Block("idx", 0, index_bytes),
        Block("rows", index_bytes, size),
        Block("o", index_bytes + size, size),
    ]
    args = [buffer("index", Elem.I32), buffer("table"), buffer("out", access=Access.WRITE)]
    loads = [
        Dma(0, slot(0), lx(0), (dim(index_bytes // 128, 128, 128),)),
        Dma(
            1,
            slot(1),
            lx(1, 0),
            (dim(count, 0, row), dim(row_sticks, 128, 128)),
            gathers=(Gather(lx(0), nums(4, 0), imm(row), imm(table_rows)),),
        ),
    ]
    parts: dict[Unit, Sequence[Instr]] = {
        Unit.L1LU: [SegLoad(0, 0, lx(1, 0), Elem.DF16, nums(1))],
        Unit.SFU: [SegVec(0, nums(size // 2), (0,), (), (VecOut(0, 1),))],
        Unit.L1SU: [SegStore(0, 1, lx(2, 1), Elem.DF16, nums(1))],
    }
    stores = [Dma(2, slot(2), lx(2, 1), (dim(size // 128, 128, 128),))]
    return one_shot(loads, parts, stores, args, blocks)


def ring_shift(cores: int, step: int, sticks: int = 1, repeat: int = 1, profile: Profile = MINI) -> Program:
    """y[(core + step) mod cores] = x[core] * 2, passed over the ring ``repeat`` times; step 0: nobody sends."""
    e, f, size = Side.EMPTY, Side.FULL, 128 * sticks
    peer = ex("core", step, "+", cores, "%") if step else ex(-1)
    source = ex("core", cores - step, "+", cores, "%") if step else ex(-1)
    own = Scope.CORE
    move = (dim(sticks, 128, 128),)
    count = size // 4

    def segment(number: int, block: int, into: int, channels: tuple[int, int]) -> dict[Unit, Instr]:
        return {
            Unit.L1LU: SegLoad(number, 0, lx(block, channels[0]), Elem.F32, nums(1)),
            Unit.L1SU: SegStore(number, 1, lx(into, channels[1]), Elem.F32, nums(1)),
        }

    first, second = segment(0, 0, 1, (0, 1)), segment(1, 2, 3, (2, 3))
    bodies: dict[Unit, tuple[Instr, ...]] = {
        Unit.MNILU: (Acquire(0, e), Dma(0, slot(0), lx(0, 0), move), Release(0, f)),
        Unit.MNISU: (
            Acquire(1, f),
            RingAcquire(2, e, slot(2)),
            RingCopy(slot(2), lx(1, 1), lx(2, 2), (RingDim(imm(sticks), imm(128), imm(128)),)),
            RingRelease(2, f, slot(2)),
            *(Release(1, e), Acquire(3, f), Dma(1, slot(1), lx(3, 3), move), Release(3, e)),
        ),
        Unit.L1LU: (
            *(Acquire(0, f), first[Unit.L1LU], Release(0, e)),
            *(RingAcquire(2, f, slot(3)), second[Unit.L1LU], RingRelease(2, e, slot(3))),
        ),
        Unit.SFU: (
            SegVec(0, nums(count), (0,), (VOp(VecOp.ADD_F, 1, 0, 0),), (VecOut(1, 1),)),
            SegVec(1, nums(count), (0,), (), (VecOut(0, 1),)),
        ),
        Unit.L1SU: (
            *(Acquire(1, e), first[Unit.L1SU], Release(1, f)),
            *(Acquire(3, e), second[Unit.L1SU], Release(3, f)),
        ),
    }
    return Program(
        name="ring_shift",
        profile=profile,
        cores=cores,
        args=(buffer("x", Elem.F32), buffer("y", Elem.F32, Access.WRITE)),
        symbols=(address(0, "x"), address(1, "y")),
        slots=(
            *(Slot(ex(f"s{i}", "core", size, "*", "+"), own) for i in range(2)),
            *(Slot(peer, own), Slot(source, own)),
        ),
        exprs=(),
        blocks=tuple(Block(n, i * size, size) for i, n in enumerate(("in", "send", "land", "out"))),
        channels=(
            Channel("c_in", Unit.MNILU, Unit.L1LU, 1, (0,)),
            Channel("c_send", Unit.L1SU, Unit.MNISU, 1, (1,)),
            Channel("c_land", Unit.MNISU, Unit.L1LU, 1, (2,), ring=True),
            Channel("c_out", Unit.L1SU, Unit.MNISU, 1, (3,)),
        ),
        streams={unit: (Loop(0, imm(repeat), body),) for unit, body in bodies.items()},
    )


def everything() -> Program:
    """One program with every instruction, operand kind and table filled; made to encode, not to run."""
    base = gather_rows(4, 2, 100)
    lanes = LaneSplit(reg(0), nums(1, 0), 64, slot(3))
    odd = Dma(
        *(1, reg(1), lx(1, 0, reg(1)), (dim(slot(3), 1 << 40, 128, (imm(-1), reg(0))), dim(2, -128, 2))),
        leaf=2,
        zero_fill=True,
        gathers=(Gather(lx(0), nums(0, 4), imm(0), slot(3), lane=True),),
        lanes=lanes,
        group=slot(3),
        sharers=imm(3),
    )
    loop = Loop(0, slot(3), (Let(1, 0), odd))
    streams = dict(base.streams)
    streams[Unit.MNILU] = (*base.streams[Unit.MNILU], loop)
    vec = base.streams[Unit.SFU][0]
    assert isinstance(vec, SegVec)
    ops = (
        VOp(VecOp.CONST_F, 1, imm=-0.1),
        VOp(VecOp.CONST_F, 2, imm=float("inf")),
        VOp(VecOp.SCALAR_F, 3, imm=4),
        VOp(VecOp.IOTA, 4, imm=0),
        VOp(VecOp.I_TO_F, 5, 4),
        VOp(VecOp.FMA_F, 6, 0, 1, 5),
        VOp(VecOp.CONST_I, 7, imm=-7),
        VOp(VecOp.SELECT, 8, 6, 4, 7),
    )
    out = (VecOut(6, 1), VecOut(8, 2, Reduce.MAX_I, (0,)))
    streams[Unit.SFU] = (SegVec(0, vec.extents, (0,), ops, out, 0),)
    last = streams[Unit.L1SU]
    streams[Unit.L1SU] = (*last[:-1], SegStore(0, 2, lx(0, -1, 64), Elem.I32, nums(0)), last[-1])
    return Program(
        name='quote " and \\ ; é',
        profile=base.profile,
        cores=3,
        args=(*base.args, Arg("n", ArgKind.INT), Arg("scale", ArgKind.FLOAT)),
        symbols=(
            *base.symbols,
            Symbol("n", SymbolKind.DIM, 3, 1, 4096, 16),
            Symbol("scale", SymbolKind.SCALAR, 4, -(1 << 62), 1 << 62),
        ),
        slots=(
            *base.slots,
            Slot(ex("s3", "core", 4, "*", "-", 16, "//", 1, "max"), Scope.CORE),
            Slot(ex("s4"), Scope.LAUNCH),
        ),
        exprs=(ex("r0", "$3", 7, "%", "+", "r0", -5, "min", 3, "cdiv", "*"),),
        blocks=base.blocks,
        channels=base.channels,
        streams=streams,
        guards=(Guard(ex("s3", 16, "-"), Relation.GE, "n must be 16 or more; really"),),
        meta={"b": "2", "a": "1"},
    )


SAMPLES = {
    "add_rows": add_rows,
    "matmul": lambda: matmul(2, 5, 70, 65),
    "row_sum": lambda: row_sum(6, 40),
    "gather_rows": lambda: gather_rows(4, 2, 100),
    "everything": everything,
    "ring_shift": lambda: ring_shift(4, 1, 2, 3),
    "map": lambda: map_program([VOp(VecOp.EXP, 1, 0)], [Elem.F32], Elem.DF16, 100),
}
