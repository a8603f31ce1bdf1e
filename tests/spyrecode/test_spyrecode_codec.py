"""The binary and the text form: round trips, determinism, damage, and every rule a program must keep."""

import dataclasses
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spyrecode_samples import (
    MINI,
    SAMPLES,
    add_rows,
    buffer,
    dim,
    everything,
    ex,
    lx,
    map_program,
    matmul,
    nums,
    ring_shift,
    row_sum,
)

from torch_loom.spyrecode import SpyreCodeError, assemble, decode, disassemble, encode
from torch_loom.spyrecode.model import (
    Acquire,
    Arg,
    ArgKind,
    Block,
    Channel,
    Dma,
    Elem,
    Guard,
    Let,
    Loop,
    LxRef,
    Operand,
    OperandKind,
    Profile,
    Program,
    Reduce,
    Relation,
    Release,
    RingAcquire,
    RingCopy,
    Scope,
    SegLoad,
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
from torch_loom.spyrecode.ops import FLOAT_IMM, INT_IMM, SIGNATURE


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_and_text_give_the_program_back(name):
    program = SAMPLES[name]()
    image = encode(program)
    assert decode(image) == program
    assert encode(decode(image)) == image
    text = disassemble(program)
    assert assemble(text) == program
    assert encode(assemble(text)) == image
    assert disassemble(assemble(text)) == text


def test_bytes_do_not_depend_on_the_hash_seed_or_on_the_order_of_metadata():
    code = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1])\n"
        "from spyrecode_samples import SAMPLES\n"
        "from torch_loom.spyrecode import encode\n"
        "print(hashlib.sha256(b''.join(encode(make()) for make in SAMPLES.values())).hexdigest())\n"
    )
    here = Path(__file__).parent
    found = set()
    for seed in ("0", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(here.parent.parent)}
        run = [sys.executable, "-c", code, str(here)]
        found.add(subprocess.run(run, env=env, check=True, capture_output=True, text=True).stdout)
    assert len(found) == 1
    program = everything()
    shuffled = dataclasses.replace(program, meta=dict(reversed(program.meta.items())))
    assert encode(shuffled) == encode(program)


def test_metadata_changes_no_other_section():
    """Apart from META and STRS the sections of a program stay the same."""
    plain = encode(add_rows())
    noted = encode(dataclasses.replace(add_rows(), meta={"compiler": "by hand", "note": "x"}))
    assert sections(plain).keys() == sections(noted).keys()
    for key, body in sections(plain).items():
        if key[0] == b"UNIT":
            assert body == sections(noted)[key]


def sections(image: bytes) -> dict[tuple[bytes, int], bytes]:
    (count,) = struct.unpack_from("<I", image, 24)
    found: dict[tuple[bytes, int], bytes] = {}
    for i in range(count):
        tag, _, offset, size = struct.unpack_from("<4sIQQ", image, 64 + 32 * i)
        found[tag, i] = image[offset : offset + size]
    return found


def test_header_as_documented():
    image = encode(add_rows())
    assert image[:8] == bytes.fromhex("894c53500d0a1a0a")
    major, minor, header, size, count = struct.unpack_from("<HHIQI", image, 8)
    assert (major, minor, header, size) == (1, 0, 64, len(image))
    tags = [tag.decode() for tag, _ in sections(image)]
    assert tags[:10] == ["STRS", "META", "DEVP", "ARGS", "SYMS", "EXPR", "VALT", "GRDS", "LXMP", "CHAN"]
    assert count == len(tags) == 10 + 5  # five units have a stream


def test_instruction_words_as_documented():
    """The MNISU stream of add_rows, word by word from docs/spyrecode.md."""
    unit = next(b for (t, _), b in sections(encode(add_rows())).items() if t == b"UNIT" and b[0] == Unit.MNISU)
    words = struct.unpack(f"<{len(unit) // 4}I", unit)

    def op(kind: int, payload: int) -> int:
        return kind | payload << 4

    assert words == (
        *(1, len(words) - 2),  # unit MNISU, number of words
        *(1 | 3 << 16, op(2, 0), op(0, 5)),  # LOOP r0 5
        *(3 | 3 << 16, op(2, 3), op(8, 2)),  # LET r3 e2
        *(4 | 2 << 16, op(6, 2 << 1 | 1)),  # ACQUIRE out.full
        *(6 | 17 << 16, op(7, 0), op(9, 2), op(2, 3)),  # DMA sticks, argument 2, ddr r3
        *(op(4, 2 | 3 << 14), op(0, 0)),  # block 2, channel 2, offset 0
        *(op(7, 1), op(0, 12), op(0, 0), op(0, 12), op(0, 128), op(0, 128)),  # one dim
        *(op(0, 0), 3, 0, 256, op(7, 0)),  # byte_lo 0, byte_hi 2^40 (wide), no gathers
        *(5 | 2 << 16, op(6, 2 << 1)),  # RELEASE out.empty
        2 | 1 << 16,  # END_LOOP
        11 | 1 << 16,  # END
    )


@pytest.mark.parametrize("name", ["add_rows", "everything"])
def test_damage_of_any_byte_is_detected(name):
    image = encode(SAMPLES[name]())
    for at in range(0, len(image), 3):
        damaged = bytearray(image)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(SpyreCodeError) as error:
            decode(bytes(damaged))
        assert error.value.code in ("SC-E15", "SC-E16", "SC-E17")


def test_other_files_and_versions_are_named():
    image = encode(add_rows())
    for data in (b"", b"\x7fELF" + bytes(200), image[:90]):
        with pytest.raises(SpyreCodeError) as error:
            decode(data)
        assert error.value.code in ("SC-E15", "SC-E16")
    import zlib

    newer = bytearray(image)
    newer[8] = 2
    newer[44:48] = struct.pack("<I", zlib.crc32(newer[:44]))
    with pytest.raises(SpyreCodeError, match=r"format 2.0 is not supported") as error:
        decode(bytes(newer))
    assert error.value.code == "SC-E15"


NUMBERS = st.one_of(
    st.integers(-300, 300),
    st.sampled_from([(1 << 27) - 1, 1 << 27, -(1 << 27), -(1 << 27) - 1, (1 << 63) - 1, -(1 << 63)]),
)
OPERANDS = st.one_of(NUMBERS.map(imm), st.integers(0, 2).map(slot), st.just(reg(0)))
FLOATS = st.floats(allow_nan=False)


@st.composite
def lane_programs(draw):
    """Random operations whose operands have the right types."""
    types = {0: "f", 1: "i"}
    ops = []
    for dst in range(2, 2 + draw(st.integers(1, 12))):
        op = draw(st.sampled_from(list(VecOp)))
        wants, result = SIGNATURE[op]
        free = draw(st.sampled_from("fi"))
        regs = []
        for want in wants:
            fitting = [r for r, t in types.items() if t == (free if want == "?" else want)]
            regs.append(draw(st.sampled_from(fitting)))
        number: float | int = 0
        if op in FLOAT_IMM:
            number = draw(FLOATS)
        elif op is VecOp.CONST_I:
            number = draw(st.integers(-(2**31), 2**31 - 1))
        elif op in INT_IMM:
            number = draw(st.integers(0, 1))
        a, b, c = (*regs, 0, 0, 0)[:3]
        ops.append(VOp(op, dst, a, b, c, number))
        types[dst] = free if result == "?" else result
    return tuple(ops), types


@st.composite
def programs(draw):
    ops, types = draw(lane_programs())
    last = max(types)
    elem = Elem.I32 if types[last] == "i" else Elem.DF16
    base = map_program(ops, [Elem.F32, Elem.I32], elem, 10, reg_out=last)
    vec = base.streams[Unit.SFU][0]
    assert isinstance(vec, SegVec)
    vec = dataclasses.replace(vec, extents=nums(4, 10))
    rank = draw(st.integers(0, 3))
    dims = tuple(
        dataclasses.replace(dim(1, 1, 1), extent=e, lo=a, hi=b, ddr_stride=c, lx_stride=d)
        for e, a, b, c, d in draw(st.lists(st.tuples(*[OPERANDS] * 5), min_size=rank, max_size=rank))
    )
    dma = Dma(0, draw(OPERANDS), lx(0, 0, draw(OPERANDS)), dims, draw(st.sampled_from([1, 2, 4, 128])))
    loop = Loop(0, draw(NUMBERS.map(imm)), (dma, Loop(3, reg(0), (dma,))))
    streams = dict(base.streams)
    streams[Unit.MNILU] = (*streams[Unit.MNILU], loop)
    streams[Unit.SFU] = (vec,)
    for unit in (Unit.L1LU, Unit.L1SU):
        streams[unit] = tuple(
            dataclasses.replace(i, strides=nums(10, 1)) if isinstance(i, SegLoad | SegStore) else i
            for i in streams[unit]
        )
    text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
    return dataclasses.replace(base, name=draw(text), streams=streams, meta={draw(text): draw(text)})


@given(programs())
@settings(max_examples=120, deadline=None)
def test_random_programs_round_trip(program):
    image = encode(program)
    assert decode(image) == program
    assert assemble(disassemble(program)) == program


# ---- rules -----------------------------------------------------------------------------------------------


def change(program: Program, unit: Unit, at: int, **fields: object) -> Program:
    """Replace fields of instruction ``at`` of a unit (inside the unit's loop if it has one)."""
    stream = list(program.streams[unit])
    if isinstance(stream[0], Loop):
        body = list(stream[0].body)
        body[at] = dataclasses.replace(body[at], **fields)  # type: ignore[type-var]
        stream[0] = dataclasses.replace(stream[0], body=tuple(body))
    else:
        stream[at] = dataclasses.replace(stream[at], **fields)  # type: ignore[type-var]
    return with_stream(program, unit, *stream)


def with_stream(program: Program, unit: Unit, *instrs: object) -> Program:
    return dataclasses.replace(program, streams={**program.streams, unit: tuple(instrs)})  # type: ignore[dict-item]


ROWS = add_rows()
MAP = map_program([VOp(VecOp.ADD_F, 1, 0, 0)], [Elem.F32], Elem.F32, 8)
MM = matmul(1, 4, 64, 64)
SUM = row_sum(4, 32)
MNILU_LOOP = ROWS.streams[Unit.MNILU][0]
assert isinstance(MNILU_LOOP, Loop)


def vec_of(program: Program) -> SegVec:
    vec = program.streams[Unit.SFU][0]
    assert isinstance(vec, SegVec)
    return vec


def vec_change(program: Program, **fields: object) -> Program:
    return change(program, Unit.SFU, 0, **fields)


def replace(program: Program, **fields: object) -> Program:
    return dataclasses.replace(program, **fields)  # type: ignore[arg-type]


RING = ring_shift(4, 1)
SEND, LAND = lx(1, 1), lx(2, 2)


BROKEN = {
    "a ring channel of another unit": (
        lambda: replace(RING, channels=(*RING.channels, Channel("r", Unit.MNILU, Unit.L1LU, 1, (), True))),
        "leads from MNISU to a compute unit",
    ),
    "a ring channel with two phases": (
        lambda: replace(RING, channels=(*RING.channels, Channel("r", Unit.MNISU, Unit.L1LU, 2, (), True))),
        "with one phase",
    ),
    "a local credit of a ring channel": (
        lambda: with_stream(RING, Unit.MNISU, Acquire(2, Side.EMPTY)),
        "is a ring channel",
    ),
    "a ring credit of a local channel": (
        lambda: with_stream(RING, Unit.MNISU, RingAcquire(1, Side.FULL, imm(0))),
        "is not a ring channel",
    ),
    "a copy between cores by another unit": (
        lambda: with_stream(RING, Unit.MNILU, RingCopy(imm(0), SEND, LAND, ())),
        "does not belong to this unit",
    ),
    "a copy into a local block": (
        lambda: with_stream(RING, Unit.MNISU, RingCopy(imm(0), SEND, lx(3, 3), ())),
        "the target must lie in a block of a ring channel",
    ),
    "a copy out of a landing block": (
        lambda: with_stream(RING, Unit.MNISU, RingCopy(imm(0), LAND, LAND, ())),
        "the source must not lie",
    ),
    "a shared store": (
        lambda: with_stream(RING, Unit.MNISU, Dma(1, slot(1), lx(3, 3), (), sharers=imm(4))),
        "only loads can be shared",
    ),
    "cores beyond the profile": (lambda: replace(ROWS, cores=5), "5 cores used of 4"),
    "no cores": (lambda: replace(ROWS, cores=0), "0 cores used"),
    "symbol of a missing argument": (
        lambda: replace(ROWS, symbols=(Symbol("x", SymbolKind.ADDRESS, 3),)),
        "argument 3 of 3",
    ),
    "dimension of a buffer": (
        lambda: replace(ROWS, symbols=(*ROWS.symbols, Symbol("x", SymbolKind.DIM, 0))),
        "DIM of an argument of kind BUFFER",
    ),
    "empty range": (
        lambda: replace(ROWS, symbols=(dataclasses.replace(ROWS.symbols[0], minimum=5, maximum=4),)),
        "symbol 0",
    ),
    "granularity 0": (
        lambda: replace(ROWS, symbols=(dataclasses.replace(ROWS.symbols[0], granularity=0),)),
        "granularity 0",
    ),
    "core number in a launch slot": (
        lambda: replace(ROWS, slots=(*ROWS.slots, Slot(ex("core"), Scope.LAUNCH))),
        "slot 3: CORE is not allowed here",
    ),
    "unknown symbol": (
        lambda: replace(ROWS, slots=(*ROWS.slots, Slot(ex("s9"), Scope.LAUNCH))),
        "SYM 9 of 3",
    ),
    "operator without operands": (
        lambda: replace(ROWS, slots=(*ROWS.slots, Slot(ex(1, "+"), Scope.LAUNCH))),
        "ADD lacks an operand",
    ),
    "two values": (
        lambda: replace(ROWS, guards=(Guard(ex(1, 2), Relation.GE, ""),)),
        "guard 0: 2 values left",
    ),
    "deep expression": (
        lambda: replace(ROWS, guards=(Guard(ex(*[1] * 33, *["+"] * 32), Relation.GE, ""),)),
        "deeper than 32",
    ),
    "long expression": (
        lambda: replace(ROWS, guards=(Guard(ex(1, *[1, "+"] * 128), Relation.GE, ""),)),
        "257 tokens",
    ),
    "unaligned block": (lambda: replace(ROWS, blocks=(Block("x", 64, 128), *ROWS.blocks[1:])), "address 64"),
    "block outside LX": (
        lambda: replace(ROWS, blocks=(*ROWS.blocks, Block("x", 65408, 256))),
        "ends at 65664, LX has 65536",
    ),
    "block of odd size": (lambda: replace(ROWS, blocks=(*ROWS.blocks, Block("x", 0, 100))), "100 bytes"),
    "channel with other phases than its block": (
        lambda: replace(ROWS, channels=(dataclasses.replace(ROWS.channels[0], phases=3), *ROWS.channels[1:])),
        "block bA has 2 phases, not 3",
    ),
    "channel to itself": (
        lambda: replace(ROWS, channels=(*ROWS.channels, Channel("x", Unit.PT, Unit.PT, 1))),
        "both ends are PT",
    ),
    "transfer in a compute stream": (
        lambda: with_stream(MAP, Unit.L1LU, MAP.streams[Unit.MNILU][1]),
        "L1LU Dma 1: does not belong to this unit",
    ),
    "register read before it is set": (
        lambda: change(ROWS, Unit.MNILU, 4, ddr=reg(7)),
        "register 7 is read before it is set",
    ),
    "register of a loop read after it": (
        lambda: with_stream(ROWS, Unit.MNILU, MNILU_LOOP, Loop(1, reg(0), ())),
        "register 0 is read before it is set",
    ),
    "let of a register never set": (
        lambda: with_stream(ROWS, Unit.MNILU, Let(1, 0)),
        "register 0 is read before it is set",
    ),
    "missing let expression": (lambda: change(ROWS, Unit.MNILU, 0, expr=3), "expression 3 of 3"),
    "missing slot": (lambda: change(MAP, Unit.MNILU, 1, ddr=slot(2)), "slot 2 of 2"),
    "consumer's credit taken by the producer": (
        lambda: with_stream(MAP, Unit.MNILU, Acquire(0, Side.FULL)),
        "MNILU is not its consumer",
    ),
    "release by a third unit": (
        lambda: with_stream(MAP, Unit.MNISU, Release(0, Side.EMPTY)),
        "MNISU is not its consumer",
    ),
    "block of another channel": (
        lambda: change(ROWS, Unit.L1LU, 2, lx=lx(1, 0)),
        "block bB is not of channel in0",
    ),
    "channel of other units": (
        lambda: change(ROWS, Unit.MNISU, 2, lx=lx(0, 0)),
        "channel in0 has no end at MNISU",
    ),
    "reading a write-only argument": (
        lambda: change(ROWS, Unit.MNILU, 4, arg=2),
        "argument c is not read",
    ),
    "writing a read-only argument": (
        lambda: change(ROWS, Unit.MNISU, 2, arg=0),
        "argument a is not written",
    ),
    "transfer of a scalar": (
        lambda: change(replace(ROWS, args=(*ROWS.args, Arg("n", ArgKind.INT))), Unit.MNILU, 4, arg=3),
        "argument 3 is no buffer",
    ),
    "odd leaf": (lambda: change(ROWS, Unit.MNILU, 4, leaf=64), "leaf of 64 bytes"),
    "mask on a load": (lambda: change(ROWS, Unit.MNILU, 4, byte_hi=imm(3)), "belong to stores"),
    "zero fill on a store": (lambda: change(ROWS, Unit.MNISU, 2, zero_fill=True), "belongs to loads"),
    "nine dims": (lambda: change(ROWS, Unit.MNILU, 4, dims=(dim(1, 1, 1),) * 9), "9 dims"),
    "loops differ": (
        lambda: with_stream(ROWS, Unit.SFU, dataclasses.replace(ROWS.streams[Unit.SFU][0], count=imm(6))),
        "compute streams differ in loop 0",
    ),
    "a stream without the loop": (
        lambda: with_stream(ROWS, Unit.SFU, vec_of(MAP)),
        "compute streams differ in loops",
    ),
    "part of an unknown segment": (lambda: change(MAP, Unit.L1LU, 1, seg=4), "L1LU has a part, SFU has none"),
    "segment twice": (
        lambda: with_stream(MAP, Unit.SFU, vec_of(MAP), vec_of(MAP)),
        "number used twice",
    ),
    "queue read twice": (lambda: vec_change(MAP, inputs=(0, 0)), "a queue is read twice"),
    "queue not filled": (lambda: vec_change(MAP, inputs=(5,)), r"SFU reads queues \[5\], filled are \[0\]"),
    "output not stored": (
        lambda: vec_change(MAP, outputs=(VecOut(1, 9),)),
        r"SFU writes \[9\], stored are \[1\]",
    ),
    "no output": (lambda: vec_change(MAP, outputs=()), "no output"),
    "rank of a load": (lambda: change(MAP, Unit.L1LU, 1, strides=nums(1, 1)), "has 2 strides"),
    "rank of a store": (lambda: change(MAP, Unit.L1SU, 1, strides=nums()), "has 0 strides"),
    "vector register never set": (
        lambda: vec_change(MAP, ops=(VOp(VecOp.ADD_F, 1, 0, 3),)),
        "reads register 3 before it is set",
    ),
    "float used as integer": (
        lambda: vec_change(MAP, ops=(VOp(VecOp.ADD_I, 1, 0, 0),)),
        "register 0 holds the other type",
    ),
    "select of mixed types": (
        lambda: vec_change(MAP, ops=(VOp(VecOp.IOTA, 2, imm=0), VOp(VecOp.SELECT, 1, 0, 0, 2))),
        "mixes float and integer",
    ),
    "spare operand": (lambda: vec_change(MAP, ops=(VOp(VecOp.EXP, 1, 0, 5),)), "takes 1 operands"),
    "index along a missing dim": (
        lambda: vec_change(MAP, ops=(VOp(VecOp.IOTA, 2, imm=1), VOp(VecOp.COPY, 1, 0))),
        "IOTA along dim 1 of rank 1",
    ),
    "integer stored as float": (
        lambda: vec_change(MAP, ops=(VOp(VecOp.IOTA, 1, imm=0),)),
        "holds the other type",
    ),
    "reduction without dims": (
        lambda: vec_change(MAP, outputs=(VecOut(1, 1, Reduce.ADD),)),
        "a reduction needs dims",
    ),
    "reduced dim with a stride": (
        lambda: change(SUM, Unit.L1SU, 1, strides=nums(1, 1)),
        "must have stride 0",
    ),
    "integer fold of a float": (
        lambda: vec_change(SUM, outputs=(VecOut(0, 1, Reduce.ADD_I, (1,)),)),
        "ADD_I of a register of the other type",
    ),
    "PT over a nest of rank 2": (lambda: vec_change(MM, extents=nums(4, 64)), "PT needs a nest of rank 3"),
    "PT with one queue": (lambda: change(MM, Unit.PT, 0, b=0), "PT operands must be two loaded queues"),
    "PT on integers": (lambda: change(MM, Unit.L1LU, 1, elem=Elem.I16), "PT multiplies floats only"),
    "missing slot of a scalar": (
        lambda: vec_change(MAP, ops=(VOp(VecOp.SCALAR_F, 1, imm=2),)),
        "slot 2 of 2",
    ),
    "corelet dim": (lambda: vec_change(MAP, corelet_dim=1), "corelet dim 1"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rules_are_refused_by_name(rule):
    make, words = BROKEN[rule]
    with pytest.raises(SpyreCodeError, match=words) as error:
        encode(make())
    assert error.value.code == "SC-E17"


@pytest.mark.parametrize("profile", [Profile("x", 0, 2, 65536), Profile("x", 4, 9, 65536), Profile("x", 4, 2, 100)])
def test_impossible_profiles_are_refused(profile):
    with pytest.raises(SpyreCodeError) as error:
        encode(dataclasses.replace(ROWS, profile=profile, cores=1))
    assert error.value.code == "SC-E15"


def test_a_compute_unit_beside_the_channel_follows_the_end_in_its_group():
    """A segment may read back what L1SU writes for MNISU: the phase is that of L1SU."""
    program = change(ROWS, Unit.L1LU, 2, lx=lx(2, 2))
    assert decode(encode(program)) == program


# ---- text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".spyrecode 1", ".spyrecode 2", "must start with .spyrecode 1"),
        ("add_f v0 v1", "frobnicate v0 v1", "line 58: 'frobnicate' is no VecOp"),
        ("acquire in0.empty", "acquire in7.empty", "a channel is expected, found 'in7'"),
        ("lx[@bA.in0]", "lx[@bZ.in0]", "an LX block is expected"),
        ("loop r0 5", "loop r0", "ends early"),
        (".arg 0", ".arg 1", "arg number 0 is expected next"),
        ("copy ddr[0 r1]", "teleport ddr[0 r1]", "unknown instruction 'teleport'"),
        ("leaf 128", "leaf 128 128", "'128' is too much"),
        (".unit MNISU", ".unit MNILU", "second .unit MNILU"),
        ('.kernel "add_rows" cores 4', "; nothing", "lacks .kernel"),
    ],
)
def test_bad_text_names_the_line(old, new, words):
    text = disassemble(add_rows())
    assert old in text
    with pytest.raises(SpyreCodeError, match=words) as error:
        assemble(text.replace(old, new, 1))
    assert error.value.code == "SC-E17"


def test_an_unclosed_loop_is_named():
    text = disassemble(add_rows())
    cut = text[: text.rindex("  end")]
    with pytest.raises(SpyreCodeError, match="this loop has no end"):
        assemble(cut)


def test_operators_keep_their_grouping():
    program = dataclasses.replace(
        add_rows(),
        guards=(
            Guard(ex("s0", "s1", "-", "s2", "-"), Relation.GE, "left"),
            Guard(ex("s0", "s1", "s2", "-", "-"), Relation.EQ, "right"),
        ),
    )
    text = disassemble(program)
    assert ".guard (s0 - s1) - s2 >= 0" in text
    assert ".guard s0 - (s1 - s2) == 0" in text
    assert assemble(text) == program
    loose = text.replace("(s0 - s1) - s2", "s0 - s1 - s2").replace("s0 - (s1 - s2) == 0", "s0 - (s1 - s2) + 2 * 3 == 0")
    assert assemble(loose).guards[0] == program.guards[0]
    assert assemble(loose).guards[1].expr == ex("s0", "s1", "s2", "-", "-", 2, 3, "*", "+")


def test_names_that_are_no_identifiers_are_written_by_number():
    program = add_rows()
    blocks = (
        Block("same", 0, 1536, 2),
        Block("same", 3072, 1536, 2),
        Block("with space", 6144, 1536, 2),
    )
    program = dataclasses.replace(program, blocks=blocks)
    text = disassemble(program)
    assert "lx[@#1.in1]" in text
    assert assemble(text) == program


def test_operand_helpers():
    assert imm(3) == Operand(OperandKind.IMM, 3)
    assert LxRef(0, -1, imm(0)) == lx(0)
    assert buffer("a").elem is Elem.DF16
    assert MINI.cores == 4
