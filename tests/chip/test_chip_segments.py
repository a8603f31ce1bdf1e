"""Nests, strides, reductions and contractions against NumPy."""

import dataclasses

import numpy as np
import pytest
from chip_run import df16, df16_value, machine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from spyrecode_samples import (
    BIG,
    add_rows,
    buffer,
    dim,
    lx,
    map_program,
    matmul,
    nums,
    one_shot,
    row_sum,
)

from torch_loom import _chip
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import (
    Access,
    Block,
    Dma,
    Elem,
    Reduce,
    SegLoad,
    SegStore,
    SegVec,
    Unit,
    VecOp,
    VecOut,
    VOp,
    imm,
    slot,
)

rng = np.random.default_rng(0)


def values(codes: np.ndarray) -> np.ndarray:
    return _chip.df16_to_f32(codes).reshape(codes.shape)


def test_add_rows_over_four_cores():
    a, b = (df16(rng.standard_normal((80, 192))) for _ in range(2))
    got = run(add_rows(), [a, b, np.zeros((80, 192), np.uint16)])[2]
    np.testing.assert_array_equal(got, df16(values(a) + values(b)))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_host_threads_does_not_matter(threads):
    a, b = (df16(np.arange(80 * 192).reshape(80, 192) % 97 / 8 - k) for k in (3, 5))
    program = add_rows()
    got = run(program, [a, b, np.zeros_like(a)], on=machine(program, threads=threads))[2]
    np.testing.assert_array_equal(got, df16(values(a) + values(b)))


def test_a_wrong_instruction_changes_the_result():
    program = add_rows()
    streams = dict(program.streams)
    loop = streams[Unit.SFU][0]
    vec = dataclasses.replace(loop.body[0], ops=(VOp(VecOp.SUB_F, 2, 0, 1),))
    streams[Unit.SFU] = (dataclasses.replace(loop, body=(vec,)),)
    a, b = (df16(rng.standard_normal((80, 192))) for _ in range(2))
    got = run(dataclasses.replace(program, streams=streams), [a, b, np.zeros_like(a)])[2]
    np.testing.assert_array_equal(got, df16(values(a) - values(b)))


REDUCTIONS = {
    Reduce.ADD: np.sum,
    Reduce.MUL: np.prod,
    Reduce.MAX: np.max,
    Reduce.MIN: np.min,
}


@pytest.mark.parametrize("reduce", REDUCTIONS, ids=lambda r: r.name)
@pytest.mark.parametrize("dims", [(1,), (0,), (0, 1)])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (40, 32), (7, 1000), (5, 2500), (300, 3)])
def test_float_reductions(reduce, dims, rows, columns):
    x = (1 + rng.standard_normal((rows, columns)) * 0.01).astype(np.float32)
    pitch = -(-columns // 32) * 32
    padded = np.full((rows, pitch), 1e9, np.float32)  # never to be read
    padded[:, :columns] = x
    exact = np.asarray(REDUCTIONS[reduce](x.astype(np.float64), axis=dims)).ravel()
    got = run(row_sum(rows, columns, reduce, dims), [padded, np.zeros(len(exact), np.float32)])[1]
    folded = x.size // exact.size
    # Rounding errors of a fold in lanes: a few ulps growing with the square root of its length.
    tolerance = 0 if reduce in (Reduce.MAX, Reduce.MIN) else 6e-8 * (4 + 2 * folded**0.5)
    np.testing.assert_allclose(got, exact, rtol=max(tolerance, 1e-7 if tolerance else 0))


def test_max_and_min_reductions_propagate_nan():
    x = np.zeros((3, 64), np.float32)
    x[1, 40] = np.nan
    for reduce in (Reduce.MAX, Reduce.MIN):
        got = run(row_sum(3, 64, reduce), [x, np.zeros(3, np.float32)])[1]
        np.testing.assert_array_equal(got, np.array([0, np.nan, 0], np.float32))


INT_REDUCTIONS = {
    Reduce.ADD_I: np.add.reduce,
    Reduce.MUL_I: np.multiply.reduce,
    Reduce.MAX_I: np.maximum.reduce,
    Reduce.MIN_I: np.minimum.reduce,
    Reduce.OR_M: lambda x, axis: (x != 0).any(axis) * np.int32(1),
    Reduce.AND_M: lambda x, axis: (x != 0).all(axis) * np.int32(1),
}


@pytest.mark.parametrize("reduce", INT_REDUCTIONS, ids=lambda r: r.name)
@pytest.mark.parametrize("axis", [0, 1])
def test_integer_and_mask_reductions(reduce, axis):
    rows, columns = 9, 70
    masks = reduce in (Reduce.OR_M, Reduce.AND_M)
    x = rng.integers(0, 2, (rows, columns)) if masks else rng.integers(-(2**31), 2**31, (rows, columns))
    x = x.astype(np.int32)
    if masks:
        x[:, 3], x[4, :] = reduce is Reduce.AND_M, reduce is Reduce.AND_M
    with np.errstate(over="ignore"):
        expected = INT_REDUCTIONS[reduce](x, axis=axis).astype(np.int32)
    points = rows if axis == 1 else columns
    strides = nums(1, 0) if axis == 1 else nums(0, 1)
    convert = (VOp(VecOp.I_TO_F, 1, 0),) if masks else ()
    out_elem = Elem.F32 if masks else Elem.I32
    program = one_shot(
        [Dma(0, slot(0), lx(0, 0), (dim(rows * 3, 128, 128),))],
        {
            Unit.L1LU: [SegLoad(0, 0, lx(0, 0), Elem.I32, nums(96, 1))],
            Unit.SFU: [SegVec(0, nums(rows, columns), (0,), convert, (VecOut(len(convert), 1, reduce, (axis,)),))],
            Unit.L1SU: [SegStore(0, 1, lx(1, 1), out_elem, strides)],
        },
        [Dma(1, slot(1), lx(1, 1), (dim(3, 128, 128),))],
        [buffer("x", Elem.I32), buffer("y", out_elem, Access.WRITE)],
        [Block("x", 0, rows * 384), Block("y", rows * 384, 384)],
    )
    padded = np.zeros((rows, 96), np.int32)
    padded[:, :columns] = x
    got = run(program, [padded, np.zeros(96, np.float32 if masks else np.int32)])[1][:points]
    np.testing.assert_array_equal(got, expected)


def test_an_empty_reduction_gives_the_neutral_element():
    program = row_sum(4, 32, Reduce.MAX)
    vec = dataclasses.replace(program.streams[Unit.SFU][0], extents=nums(4, 0))
    program = dataclasses.replace(program, streams={**program.streams, Unit.SFU: (vec,)})
    got = run(program, [np.ones((4, 32), np.float32), np.zeros(4, np.float32)])[1]
    assert (got == -np.inf).all()


@st.composite
def nests(draw):
    rank = draw(st.integers(1, 4))
    extents = tuple(draw(st.sampled_from([1, 2, 3, 7, 16, 33, 64, 65])) for _ in range(rank))
    while np.prod(extents) > 6000:
        extents = extents[:-1]
    rank = len(extents)
    order_in, order_out = draw(st.permutations(range(rank))), draw(st.permutations(range(rank)))
    broadcast = draw(st.sets(st.integers(0, rank - 1), max_size=rank))
    reduced = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), max_size=rank))))
    return extents, order_in, order_out, broadcast, reduced


def strides_of(extents, order, skip=()):
    """Dense strides with ``order`` from outermost to innermost; skipped dims have stride 0."""
    found, step = [0] * len(extents), 1
    for d in reversed(order):
        if d in skip:
            continue
        found[d] = step
        step *= extents[d]
    return found, step


@given(nests())
@settings(max_examples=60, deadline=None)
def test_any_nest_with_permuted_broadcast_and_reduced_dims(nest):
    extents, order_in, order_out, broadcast, reduced = nest
    rank = len(extents)
    sa, na = strides_of(extents, order_in)
    sb, nb = strides_of(extents, range(rank), broadcast)
    sc, nc = strides_of(extents, order_out, reduced)
    a = rng.integers(-8, 8, na).astype(np.float32)
    b = rng.integers(-8, 8, nb).astype(np.float32)
    grid = np.indices(extents).reshape(rank, -1)
    at = [np.tensordot(np.array(s), grid, 1) for s in (sa, sb, sc)]
    exact = np.zeros(nc)
    np.add.at(exact, at[2], (a[at[0]] * b[at[1]]).astype(np.float64))
    sizes = [-(-n * 4 // 128) * 128 for n in (na, nb, nc)]
    starts = [0, sizes[0], sizes[0] + sizes[1]]
    reduce = Reduce.ADD if reduced else Reduce.NONE
    program = one_shot(
        [Dma(i, slot(i), lx(i, 0), (dim(sizes[i] // 128, 128, 128),)) for i in range(2)],
        {
            Unit.L1LU: [SegLoad(0, i, lx(i, 0), Elem.F32, nums(*s)) for i, s in ((0, sa), (1, sb))],
            Unit.SFU: [
                SegVec(0, nums(*extents), (0, 1), (VOp(VecOp.MUL_F, 2, 0, 1),), (VecOut(2, 2, reduce, reduced),))
            ],
            Unit.L1SU: [SegStore(0, 2, lx(2, 1), Elem.F32, nums(*sc))],
        },
        [Dma(2, slot(2), lx(2, 1), (dim(sizes[2] // 128, 128, 128),))],
        [buffer("a", Elem.F32), buffer("b", Elem.F32), buffer("c", Elem.F32, Access.WRITE)],
        [Block(f"b{i}", starts[i], sizes[i]) for i in range(3)],
        profile=BIG,
    )
    got = run(program, [a, b, np.zeros(nc, np.float32)])[2]
    np.testing.assert_array_equal(got, exact)  # small integers: every order of additions is exact


def test_index_along_inner_middle_and_single_dims():
    extents = (3, 1, 5, 40)
    dims = {1: 0, 2: 1, 3: 2, 4: 3}
    weights = (10000, 5, 100, 1)
    ops = []
    for register, d in dims.items():
        ops += [VOp(VecOp.IOTA, register, imm=d), VOp(VecOp.CONST_I, 10, imm=weights[d])]
        ops += [VOp(VecOp.MUL_I, register, register, 10)]
    ops += [VOp(VecOp.ADD_I, 1, 1, 2), VOp(VecOp.ADD_I, 1, 1, 3), VOp(VecOp.ADD_I, 1, 1, 4)]
    n = int(np.prod(extents))
    program = map_program(ops, [Elem.I32], Elem.I32, n, reg_out=1)
    streams = dict(program.streams)
    strides, _ = strides_of(extents, range(4))
    vec = dataclasses.replace(streams[Unit.SFU][0], extents=nums(*extents))
    streams[Unit.SFU] = (vec,)
    for unit in (Unit.L1LU, Unit.L1SU):
        first, part, last = streams[unit]
        streams[unit] = (first, dataclasses.replace(part, strides=nums(*strides)), last)
    got = run(dataclasses.replace(program, streams=streams), [np.zeros(n, np.int32), np.zeros(n, np.int32)])[1]
    i = np.indices(extents).reshape(4, -1)
    np.testing.assert_array_equal(got, i[0] * 10000 + i[2] * 100 + i[3])


def test_long_programs_share_buffers_without_mixing_values():
    """A chain whose early values are read late, against the same chain in NumPy."""
    ops = [VOp(VecOp.ADD_F, 1, 0, 0)]
    for i in range(2, 60):
        ops.append(VOp(VecOp.SUB_F if i % 3 else VecOp.ADD_F, i, i - 1, (i * 7) % i))
    x = rng.integers(-3, 3, 500).astype(np.float32)
    regs = {0: x}
    for op in ops:
        a, b = regs[op.a], regs[op.b]
        regs[op.dst] = a - b if op.op is VecOp.SUB_F else a + b
    got = run(map_program(ops, [Elem.F32], Elem.F32, 500), [x, np.zeros(500, np.float32)])[1]
    np.testing.assert_array_equal(got, regs[59])


@pytest.mark.parametrize("blas", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    ("b", "m", "n", "k"), [(1, 1, 1, 1), (2, 5, 70, 65), (1, 33, 17, 300), (3, 7, 64, 64), (1, 100, 130, 7)]
)
def test_contractions(b, m, n, k, transpose_b, blas):
    program = matmul(b, m, n, k, transpose_b=transpose_b)

    def padded(rows: int, columns: int, elems: int) -> np.ndarray:
        return np.zeros((b, rows, -(-columns // elems) * elems))

    x, y = padded(m, k, 64), padded(n if transpose_b else k, k if transpose_b else n, 64)
    x[..., :k] = rng.standard_normal((b, m, k))
    y[..., : k if transpose_b else n] = rng.standard_normal((b, n if transpose_b else k, k if transpose_b else n))
    x, y = df16(x), df16(y)
    got = run(program, [x, y, padded(m, n, 32).astype(np.float32)], on=machine(program, blas=blas))[2]
    left = values(x)[..., :k].astype(np.float64)
    right = values(y)[..., : k if transpose_b else n].astype(np.float64)
    right = right.swapaxes(1, 2) if transpose_b else right
    bound = np.abs(left) @ np.abs(right) * 6e-8 * (2 + k**0.5)
    assert (np.abs(got[..., :n] - left @ right) <= bound).all()


def test_a_product_of_zero_depth_is_zero():
    program = matmul(1, 3, 32, 64)
    pt = dataclasses.replace(program.streams[Unit.PT][0], k=imm(0))
    program = dataclasses.replace(program, streams={**program.streams, Unit.PT: (pt,)})
    ones = df16(np.ones((1, 64, 64)))
    got = run(program, [ones[:, :3], ones, np.full((1, 3, 32), 7, np.float32)])[2]
    assert (got == 0).all()


def test_lx_keeps_its_contents_between_programs():
    program = add_rows()
    chip = machine(program)
    a = df16(np.ones((80, 192)))
    run(program, [a, a, np.zeros_like(a)], on=chip)
    kept = chip.lx(3)[6144 : 6144 + 1536].view(np.uint16)
    assert (kept == df16_code_of(2.0)).all()
    chip.run(
        _chip.decode(encode(map_program([VOp(VecOp.COPY, 1, 0)], [Elem.F32], Elem.F32, 8))),
        [(0, 128), (256, 128)],
    )
    assert (kept == df16_code_of(2.0)).all()


def df16_code_of(value: float) -> int:
    code = int(df16(np.array([value]))[0])
    assert df16_value(code) == value
    return code
