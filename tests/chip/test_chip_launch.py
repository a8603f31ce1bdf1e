"""Launches: the value table, refusals, synchronisation errors, and programs that never end."""

import dataclasses

import numpy as np
import pytest
from chip_run import df16, machine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from spyrecode_samples import MINI, add_rows, everything, ex, map_program, ring_shift

from torch_loom import _chip
from torch_loom.spyrecode import SpyreCodeError, encode
from torch_loom.spyrecode.expr import correct
from torch_loom.spyrecode.model import (
    Acquire,
    Arg,
    ArgKind,
    Channel,
    Dma,
    Elem,
    Expr,
    ExprOp,
    Guard,
    Let,
    Loop,
    Profile,
    Program,
    Relation,
    Release,
    RingCopy,
    RingDim,
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
    VOp,
    imm,
    reg,
)


def code_of(error: pytest.ExceptionInfo) -> str:
    return error.value.code


BINARY = [op for op in ExprOp if op >= ExprOp.ADD]


@st.composite
def expressions(draw):
    """Random postfix over two symbols, the core and constants that reach the ends of the range."""
    tokens: list[tuple[ExprOp, int]] = []
    depth = 0
    for _ in range(draw(st.integers(1, 12))):
        if depth >= 2 and draw(st.booleans()):
            tokens.append((draw(st.sampled_from(BINARY)), 0))
            depth -= 1
        else:
            kind = draw(st.sampled_from(["const", "big", "sym", "core"]))
            if kind == "core":
                tokens.append((ExprOp.CORE, 0))
            elif kind == "sym":
                tokens.append((ExprOp.SYM, draw(st.integers(0, 1))))
            else:
                limit = 20 if kind == "const" else (1 << 63) - 1
                tokens.append((ExprOp.CONST, draw(st.integers(-limit - 1, limit))))
            depth += 1
    tokens += [(draw(st.sampled_from(BINARY)), 0) for _ in range(depth - 1)]
    return Expr(tuple(tokens))


def scalar_program(exprs: list[Expr]) -> Program:
    return Program(
        name="scalars",
        profile=MINI,
        cores=3,
        args=(Arg("a", ArgKind.INT), Arg("b", ArgKind.INT)),
        symbols=tuple(Symbol(n, SymbolKind.SCALAR, i, -(1 << 62), 1 << 62) for i, n in enumerate("ab")),
        slots=tuple(Slot(e, Scope.CORE) for e in exprs),
        exprs=(),
        blocks=(),
        channels=(),
        streams={},
    )


@given(expressions(), st.integers(-(1 << 62), 1 << 62), st.integers(-50, 50))
@settings(max_examples=300, deadline=None)
def test_python_and_the_chip_evaluate_expressions_equally(expr, a, b):
    program = scalar_program([expr])
    loaded = _chip.decode(encode(program))
    try:
        expected = correct(program, [a, b])
    except SpyreCodeError as refusal:
        with pytest.raises(_chip.ChipError) as error:
            _chip.table(loaded, [a, b])
        assert code_of(error) == refusal.code == "SC-E17"
        return
    assert _chip.table(loaded, [a, b]).tolist() == expected


def addressed(exprs: list[Expr], guards: list[Expr]) -> Program:
    """Slots and guards over the addresses of two buffers (symbols 0 and 1) and two numbers (2 and 3)."""
    args = (Arg("p", ArgKind.BUFFER), Arg("q", ArgKind.BUFFER), Arg("m", ArgKind.INT), Arg("n", ArgKind.INT))
    addresses = [Symbol(a.name, SymbolKind.ADDRESS, i, 0, 1 << 37, 128) for i, a in enumerate(args[:2])]
    numbers = [Symbol(a.name, SymbolKind.SCALAR, i, -1000, 1000) for i, a in enumerate(args[2:], 2)]
    return dataclasses.replace(
        scalar_program([]),
        args=args,
        symbols=tuple(addresses + numbers),
        slots=tuple(Slot(e, Scope.CORE if (ExprOp.CORE, 0) in e.tokens else Scope.LAUNCH) for e in exprs),
        guards=tuple(Guard(e, Relation.GE, "a guard") for e in guards),
    )


@st.composite
def of_addresses(draw, core=True):
    """A random expression over four symbols, small constants and, if allowed, the core."""
    leaves = [
        st.tuples(st.just(ExprOp.CONST), st.integers(-9, 9)),
        st.tuples(st.just(ExprOp.SYM), st.integers(0, 3)),
        st.just((ExprOp.CORE, 0)),
    ]
    leaf = st.one_of(leaves if core else leaves[:2])
    tokens = [draw(leaf)]
    for _ in range(draw(st.integers(0, 6))):
        other = draw(leaf)
        tokens = [other, *tokens] if draw(st.booleans()) else [*tokens, other]
        likely = (ExprOp.ADD, ExprOp.SUB, ExprOp.MUL)
        tokens.append((draw(st.sampled_from(likely if draw(st.booleans()) else BINARY)), 0))
    return Expr(tuple(tokens))


LAUNCHES = st.tuples(
    st.integers(0, 1 << 30).map(lambda n: n * 128),
    st.integers(0, 1 << 30).map(lambda n: n * 128),
    st.sampled_from([-3, 0, 4, 1000]),
    st.sampled_from([0, 7]),
)


@given(
    st.lists(of_addresses(), min_size=1, max_size=5),
    st.lists(of_addresses(core=False), max_size=1),
    st.lists(LAUNCHES, min_size=2, max_size=14),
)
@settings(max_examples=300, deadline=None)
def test_repeated_launches_get_the_table_of_a_first_one(exprs, guards, launches):
    program = addressed(exprs, guards)
    loaded = _chip.decode(encode(program))
    for launch in launches:
        args = [(launch[0], 1), (launch[1], 1), *launch[2:]]
        try:
            expected = correct(program, list(launch))
        except SpyreCodeError as refusal:
            with pytest.raises(_chip.ChipError) as error:
                _chip.table(loaded, args)
            assert code_of(error) == refusal.code
            continue
        assert _chip.table(loaded, args).tolist() == expected


def test_a_repeated_launch_whose_sum_leaves_64_bits_is_refused():
    big = (1 << 63) - 1 - 1024
    loaded = _chip.decode(encode(addressed([Expr(((ExprOp.SYM, 0), (ExprOp.CONST, big), (ExprOp.ADD, 0)))], [])))
    for address, value in ((0, big), (1024, big + 1024), (128, big + 128)):
        assert _chip.table(loaded, [(address, 1), (0, 1), 1, 1])[0] == value
    with pytest.raises(_chip.ChipError, match="overflows 64 bits"):
        _chip.table(loaded, [(1152, 1), (0, 1), 1, 1])
    assert _chip.table(loaded, [(256, 1), (0, 1), 1, 1])[0] == big + 256


@pytest.mark.parametrize(
    ("op", "a", "b", "value"),
    [
        ("//", -7, 2, -4),
        ("//", 7, 2, 3),
        ("cdiv", -7, 2, -3),
        ("cdiv", 7, 2, 4),
        ("%", -7, 4, 1),
        ("min", -7, 4, -7),
        ("max", -7, 4, 4),
        ("-", -(1 << 63), -1, -(1 << 63) + 1),
    ],
)
def test_operators_round_down_and_modulo_is_not_negative(op, a, b, value):
    assert _chip.table(_chip.decode(encode(scalar_program([ex(a, b, op)]))), [0, 0])[0] == value


@pytest.mark.parametrize("tokens", [(5, 0, "//"), (5, -3, "%"), ((1 << 62), 2, "*"), (-(1 << 63), 1, "-")])
def test_bad_divisors_and_overflow_are_errors(tokens):
    loaded = _chip.decode(encode(scalar_program([ex(*tokens)])))
    with pytest.raises(_chip.ChipError) as error:
        _chip.table(loaded, [0, 0])
    assert code_of(error) == "SC-E17"


def test_table_of_a_program_with_every_kind_of_symbol():
    program = everything()
    bits = int(np.float32(1.5).view(np.uint32))
    expected = correct(program, [128, 256, 384, 64, bits])
    got = _chip.table(_chip.decode(encode(program)), [(128, 1), (256, 1), (384, 1), 64, 1.5])
    assert got.tolist() == expected == [128, 256, 384, 4, 3, 3, bits]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([(0, 1)] * 3, "SC-E11", "3 arguments, takes 5"),
        ([(0, 1)] * 3 + [4097, 1.0], "SC-E12", "argument n = 4097, must be in 1..4096"),
        ([(0, 1)] * 3 + [0, 1.0], "SC-E12", "argument n = 0"),
        ([(0, 1)] * 3 + [24, 1.0], "SC-E12", "must be a multiple of 16"),
        ([(0, 1), (64, 1), (0, 1), 16, 1.0], "SC-E13", "argument table = 64, must be a multiple of 128"),
        ([(0, 1)] * 3 + [(1, 2), 1.0], "SC-E11", "argument n must be an int"),
        ([7, (0, 1), (0, 1), 16, 1.0], "SC-E11", "argument index must be"),
        ([(0, 1)] * 3 + [16, "x"], "SC-E11", "argument scale must be a float"),
    ],
)
def test_refused_arguments_are_named(args, code, words):
    loaded = _chip.decode(encode(everything()))
    with pytest.raises(_chip.ChipError, match=words) as error:
        _chip.table(loaded, args)
    assert code_of(error) == code


def test_guards_speak_for_themselves():
    program = dataclasses.replace(
        scalar_program([ex(0)]), guards=(Guard(ex("s0", "s1", "-"), Relation.EQ, "a and b must be equal"),)
    )
    loaded = _chip.decode(encode(program))
    _chip.table(loaded, [3, 3])
    with pytest.raises(_chip.ChipError, match="a and b must be equal") as error:
        _chip.table(loaded, [3, 4])
    assert code_of(error) == "SC-E12"


def test_relocation_changes_the_table_and_nothing_else():
    program = add_rows()
    image = encode(program)
    loaded = _chip.decode(image)
    chip = machine(program)
    size = 80 * 192 * 2
    for bases in ((0, 65536, 131072), (1 << 20, 1 << 21, 3 << 20)):
        arrays = [df16(np.arange(80 * 192) % 61 / 4 + k) for k in range(2)]
        for base, array in zip(bases, arrays, strict=False):
            chip.ddr[base : base + size] = array.view(np.uint8)
        chip.run(loaded, [(b, size) for b in bases])
        got = chip.ddr[bases[2] : bases[2] + size].view(np.uint16)
        a, b = (_chip.df16_to_f32(x) for x in arrays)
        np.testing.assert_array_equal(got, _chip.f32_to_df16(a + b))
    assert encode(program) == image


def swap(program: Program, unit: Unit, instrs: tuple) -> Program:
    return dataclasses.replace(program, streams={**program.streams, unit: instrs})


def test_a_deadlock_names_units_channels_and_counters():
    program = add_rows()
    mnilu = program.streams[Unit.MNILU][0]
    program = swap(program, Unit.MNILU, (dataclasses.replace(mnilu, body=mnilu.body[:-1]),))  # in1.full is lost
    zeros = np.zeros(80 * 192, np.uint16)
    with pytest.raises(_chip.ChipError) as error:
        run(program, [zeros] * 3)
    assert code_of(error) == "DEV-04"
    text = str(error.value)
    assert "core 0" in text
    assert "L1LU waits for in1.full (empty 0, full 0, phases 2)" in text
    assert "MNILU waits for in0.empty (empty 0, full 1, phases 2)" in text
    assert "MNISU waits for out.full (empty 2, full 0, phases 2)" in text


def test_after_a_failed_launch_the_machine_works():
    program = add_rows()
    chip = machine(program)
    loaded = _chip.decode(encode(program))
    size = 80 * 192 * 2
    with pytest.raises(_chip.ChipError):
        chip.run(loaded, [(0, size), (size, size), (1 << 20, 128)])
    run(program, [np.zeros(size // 2, np.uint16)] * 3, on=chip)


def test_too_many_credits_are_an_error():
    program = add_rows()
    extra = Loop(0, imm(3), (Release(2, Side.EMPTY),))
    program = swap(program, Unit.MNISU, (extra, *program.streams[Unit.MNISU]))
    with pytest.raises(_chip.ChipError, match="out.empty gets more credits") as error:
        run(program, [np.zeros(80 * 192, np.uint16)] * 3)
    assert code_of(error) == "DEV-05"


def test_an_endless_loop_hits_the_step_limit():
    program = dataclasses.replace(
        scalar_program([ex(0)]),
        exprs=(ex("r0", 1, "+"),),
        streams={Unit.MNILU: (Loop(0, imm(1 << 62), (Let(1, 0),)),)},
    )
    with pytest.raises(_chip.ChipError, match="step limit") as error:
        run(program, [0, 0], on=machine(program, max_steps=10_000))
    assert code_of(error) == "DEV-07"


MANY = 1 << 39


def repeated(instr):
    """The instruction over a nest of many indices that all name the same bytes."""
    if isinstance(instr, Dma):
        d = instr.dims[0]
        return dataclasses.replace(instr, dims=(dataclasses.replace(d, **ENDLESS),), byte_hi=imm(1 << 40))
    if isinstance(instr, RingCopy):
        return dataclasses.replace(instr, dims=(RingDim(imm(MANY), imm(0), imm(0)),))
    if isinstance(instr, SegVec):
        return dataclasses.replace(instr, extents=(imm(MANY),))
    if isinstance(instr, SegLoad | SegStore):
        return dataclasses.replace(instr, strides=(imm(0),))
    if isinstance(instr, Loop):
        return dataclasses.replace(instr, body=tuple(map(repeated, instr.body)))
    return instr


ENDLESS = {"extent": imm(MANY), "lo": imm(0), "hi": imm(MANY), "ddr_stride": imm(0), "lx_stride": imm(0)}
NO_POINT = ENDLESS | {"hi": imm(1)}  # only the zero fill covers the box


@pytest.mark.parametrize("what", ["load", "store", "zero fill", "segment", "ring copy"])
def test_one_instruction_does_not_run_beyond_the_step_limit(what):
    """Work is paid for before it is done: 2^39 indices on the same bytes are refused at once."""
    map_ = map_program([VOp(VecOp.ADD_F, 1, 0, 0)], [Elem.F32], Elem.F32, 32)
    program = ring_shift(2, 1) if what == "ring copy" else map_
    units = {"load": [Unit.MNILU], "store": [Unit.MNISU], "zero fill": [Unit.MNILU], "ring copy": [Unit.MNISU]}
    streams = dict(program.streams)
    for unit in units.get(what, [Unit.L1LU, Unit.SFU, Unit.L1SU]):
        streams[unit] = tuple(map(repeated, streams[unit]))
    if what == "zero fill":
        first, move, last = streams[Unit.MNILU]
        dims = (dataclasses.replace(move.dims[0], **NO_POINT),)
        streams[Unit.MNILU] = (first, dataclasses.replace(move, dims=dims, zero_fill=True), last)
    program = dataclasses.replace(program, streams=streams)
    with pytest.raises(_chip.ChipError, match="step limit") as error:
        run(program, [np.zeros(64, np.float32)] * 2, on=machine(program, max_steps=10_000))
    assert code_of(error) == "DEV-07"


@pytest.mark.parametrize(("elem", "offset"), [(Elem.DF16, 1), (Elem.F32, 2), (Elem.I32, 127)])
@pytest.mark.parametrize("unit", [Unit.L1LU, Unit.L1SU])
def test_elements_lie_at_multiples_of_their_size(elem, offset, unit):
    op = VecOp.ADD_I if elem is Elem.I32 else VecOp.ADD_F
    program = map_program([VOp(op, 1, 0, 0)], [elem], elem, 32)
    streams = dict(program.streams)
    first, part, last = streams[unit]
    moved = dataclasses.replace(part.lx, offset=imm(offset))
    streams[unit] = (first, dataclasses.replace(part, lx=moved), last)
    with pytest.raises(_chip.ChipError, match=f"LX address {offset} .* is not a multiple of the element") as error:
        run(dataclasses.replace(program, streams=streams), [np.zeros(64, np.float32)] * 2)
    assert code_of(error) == "DEV-02"


def test_loop_counts_may_come_from_registers_and_be_zero_or_negative():
    """The SFU group runs a segment r times in an inner loop whose count is the outer register."""
    program = map_program([VOp(VecOp.ADD_F, 1, 0, 0)], [Elem.F32], Elem.F32, 32)

    def nest(body):
        return Loop(0, imm(3), (Loop(1, reg(0), (Loop(2, imm(-4), body), *body)),))

    streams = dict(program.streams)
    for unit in (Unit.L1LU, Unit.L1SU):
        first, part, last = streams[unit]
        streams[unit] = (first, nest((part,)), last)
    streams[Unit.SFU] = (nest(streams[Unit.SFU]),)
    x = np.arange(32, dtype=np.float32)
    got = run(dataclasses.replace(program, streams=streams), [x, np.zeros_like(x)])[1]
    np.testing.assert_array_equal(got, 2 * x)


def test_a_program_for_a_larger_chip_is_refused():
    program = add_rows()
    loaded = _chip.decode(encode(program))
    size = 80 * 192 * 2
    for cores, lx_bytes in ((3, 65536), (4, 32768)):
        chip = _chip.Machine(cores, lx_bytes, 1, 1 << 20)
        with pytest.raises(_chip.ChipError, match="made for 4 cores") as error:
            chip.run(loaded, [(i * size, size) for i in range(3)])
        assert code_of(error) == "SC-E15"


def test_an_argument_outside_ddr_is_refused():
    program = add_rows()
    chip = machine(program, ddr_bytes=1 << 16)
    size = 80 * 192 * 2
    with pytest.raises(_chip.ChipError, match="argument c lies outside DDR") as error:
        chip.run(_chip.decode(encode(program)), [(0, size), (0, size), (1 << 62, size)])
    assert code_of(error) == "DEV-01"


@pytest.mark.parametrize(("cores", "lx_bytes"), [(0, 65536), (5000, 65536), (1, 100), (1, 0)])
def test_impossible_machines_are_refused(cores, lx_bytes):
    with pytest.raises(_chip.ChipError):
        _chip.Machine(cores, lx_bytes, 1, 1 << 16)


def test_phase_follows_the_releases_of_each_end():
    """Five tiles through channels with two phases, with a third channel end that never rotates."""
    program = add_rows()
    channel = Channel("spare", Unit.MNILU, Unit.L1LU, 2, (0,))
    program = dataclasses.replace(program, channels=(*program.channels, channel))
    mnilu = (Acquire(3, Side.EMPTY), Release(3, Side.FULL), *program.streams[Unit.MNILU])
    program = swap(program, Unit.MNILU, mnilu)
    a = df16(np.arange(80 * 192) % 31)
    got = run(program, [a, a, np.zeros_like(a)])[2]
    np.testing.assert_array_equal(got, df16(np.arange(80 * 192) % 31 * 2))


def test_profile_with_foreign_stick_is_refused():
    program = dataclasses.replace(add_rows(), profile=Profile("odd", 4, 2, 65536, 64))
    with pytest.raises(SpyreCodeError) as error:
        encode(program)
    assert error.value.code == "SC-E15"
