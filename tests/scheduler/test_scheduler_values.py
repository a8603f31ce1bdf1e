"""Compiled kernels compute what NumPy computes, for sizes that do not divide by sticks, tiles or cores."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import scheduler_kernels as kernels
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_loom import arch, ktir, scheduler, spyrecode
from torch_loom.numerics import df16
from torch_loom.scheduler.compiled import pad_rows
from torch_loom.scheduler.interpret import DataflowError

CHIP = arch.load("spyre")
HALF_STEP = 2.0**-10  # of df16, relative


def engines() -> list[str]:
    """The executors of this machine: the interpreter, and the chip when it is built."""
    return ["dataflow", "chip"] if find_spec("torch_loom._chip") else ["dataflow"]


def build(text: str, chip: arch.Chip = CHIP, **options) -> scheduler.Compiled:
    program = ktir.load(text)
    return scheduler.compile(program, program.functions[0], chip, scheduler.Options(**options))


def run_all(compiled: scheduler.Compiled, atol: float = 1e-6, **args) -> dict[str, np.ndarray]:
    """Results of every engine, which must agree; interleavings of the interpreter, too."""
    results = [compiled.run(engine=e, **args) for e in engines()]
    results.append(compiled.run(engine="dataflow", seed=7, **args))
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_allclose(other[name], value, rtol=2 * HALF_STEP, atol=atol)
    return results[0]


def data(shape: tuple[int, ...], seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Values that df16 holds exactly."""
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32) * np.float32(scale)
    return df16.round_f32(values)


def close(actual: np.ndarray, expected: np.ndarray, steps: float = 1.0, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(actual, expected, rtol=steps * HALF_STEP * 1.01, atol=atol)


ODD = st.sampled_from([1, 2, 31, 32, 63, 64, 65, 100, 130])


@settings(max_examples=16, deadline=None)
@given(
    columns=ODD,
    rows=st.integers(0, 40),
    tile=st.sampled_from([1, 3, 8]),
    cores=st.sampled_from([1, 2, 4, 32]),
    buffers=st.sampled_from([1, 2, 3]),
    corelets=st.sampled_from([1, 2]),
    overlap=st.booleans(),
)
def test_elementwise_rows(
    columns: int, rows: int, tile: int, cores: int, buffers: int, corelets: int, overlap: bool
) -> None:
    c = build(kernels.add(columns, tile, cores), buffers=buffers, corelets=corelets, overlap=overlap)
    x, z = data((rows, columns)), data((rows, columns), 1)
    y = np.zeros((rows, kernels.pitch(columns)), np.float32)
    out = run_all(c, x=pad_rows(x, 64), z=pad_rows(z, 64), y=y, n=rows)
    close(out["y"][:, :columns], x * np.float32(0.5) + z)


def test_static_rows_need_no_size_argument() -> None:
    c = build(kernels.add(96, 4, n=10))
    x, z = data((10, 96)), data((10, 96), 1)
    out = run_all(c, x=pad_rows(x, 64), z=pad_rows(z, 64), y=np.zeros((10, 128), np.float32))
    close(out["y"][:, :96], x * np.float32(0.5) + z)


@settings(max_examples=10, deadline=None)
@given(columns=ODD, rows=st.integers(1, 30), tile=st.sampled_from([1, 4, 8]), fuse=st.booleans())
def test_softmax(columns: int, rows: int, tile: int, fuse: bool) -> None:
    c = build(kernels.softmax(columns, tile), fuse=fuse)
    x = data((rows, columns))
    out = run_all(c, x=pad_rows(x, 64), y=np.zeros((rows, kernels.pitch(columns)), np.float32), n=rows)
    e = np.exp(x - x.max(1, keepdims=True))
    close(out["y"][:, :columns], e / e.sum(1, keepdims=True), 1.1)


@settings(max_examples=10, deadline=None)
@given(columns=st.sampled_from([32, 65, 100, 384]), rows=st.integers(1, 30), tile=st.sampled_from([1, 8]))
def test_layernorm(columns: int, rows: int, tile: int) -> None:
    c = build(kernels.layernorm(columns, tile))
    x, g, s = data((rows, columns)), data((columns,), 1), data((columns,), 2)
    out = run_all(
        c,
        x=pad_rows(x, 64),
        g=pad_rows(g, 64),
        c=pad_rows(s, 64),
        y=np.zeros((rows, kernels.pitch(columns)), np.float32),
        n=rows,
    )
    d = x - x.mean(1, keepdims=True)
    expected = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * g + s
    close(out["y"][:, :columns], expected, 1.1, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(
    m=st.integers(1, 70),
    k=st.sampled_from([64, 100, 192]),
    n=st.sampled_from([64, 128]),
    tile=st.sampled_from([8, 16]),
    out_default=st.booleans(),
)
def test_linear_with_gelu(m: int, k: int, n: int, tile: int, out_default: bool) -> None:
    c = build(kernels.linear(k, n, tile, 64, out_default=out_default))
    x, w, bias = data((m, k)), data((n, k), 1, 0.1), data((n,), 2)
    wide = pad_rows(w, 64)
    layout = np.ascontiguousarray(wide.reshape(n, -1, 64).transpose(1, 0, 2))
    shape = (n // 64, m, 64) if out_default else (m, n)
    out = run_all(c, x=pad_rows(x, 64), w=layout, bias=bias, y=np.zeros(shape, np.float32), m=m)["y"]
    if out_default:
        out = out.transpose(1, 0, 2).reshape(m, n)
    z = x @ w.T + bias
    expected = 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    close(out, expected, 1.1, atol=1e-4)


def test_a_product_waits_for_the_product_in_its_operand() -> None:
    rows, heads, n = 16, 3, 64
    q, k = data((heads, rows, n)), data((n, n), seed=1, scale=0.1)
    compiled = build(kernels.chained_products(rows, heads, n))
    out = run_all(compiled, atol=1e-2, q=q, k=k, z=np.zeros((rows, heads, n), np.float32))["z"]
    middle = df16.round_f32(2 * q.transpose(1, 0, 2) @ k.T)
    close(out.reshape(rows, heads, n), middle @ k, atol=1e-2)


def test_contraction_and_epilogue_share_a_segment() -> None:
    program = build(kernels.linear(128, 64, 8, 64)).program
    from torch_loom.spyrecode.model import Loop, SegVec, Unit

    def count(body) -> int:
        return sum(count(i.body) if isinstance(i, Loop) else isinstance(i, SegVec) for i in body)

    assert count(program.streams[Unit.SFU]) == 1


@settings(max_examples=10, deadline=None)
@given(
    columns=st.sampled_from([32, 64, 100]),
    rows=st.integers(1, 40),
    tile=st.sampled_from([1, 7, 8]),
    computed=st.booleans(),
)
def test_embedding(columns: int, rows: int, tile: int, computed: bool) -> None:
    c = build(kernels.embedding(50, columns, tile, computed=computed))
    table = data((50, columns))
    index = np.random.default_rng(rows).integers(0, 24, size=rows).astype(np.int32)
    out = run_all(c, i=index, t=pad_rows(table, 64), y=np.zeros((rows, kernels.pitch(columns)), np.float32), n=rows)
    close(out["y"][:, :columns], table[2 * index + 1 if computed else index])


def test_an_index_outside_the_table_is_refused() -> None:
    c = build(kernels.embedding(50, 64, 8))
    index = np.array([1, 50], np.int32)
    for engine in engines():
        with pytest.raises(Exception, match="50"):
            c.run(engine=engine, i=index, t=data((50, 64)), y=np.zeros((2, 64), np.float32), n=2)


@settings(max_examples=20, deadline=None)
@given(
    width=st.sampled_from([1, 5, 32, 64, 100]),
    start=st.sampled_from([0, 1, 32, 63, 70]),
    target=st.sampled_from([0, 3, 32, 64, 90]),
    rows=st.integers(1, 12),
    tile=st.sampled_from([1, 4]),
)
def test_columns_at_any_lane_offset(width: int, start: int, target: int, rows: int, tile: int) -> None:
    c = build(kernels.columns_out(width, start, 200, target, 200, tile))
    x, y = data((rows, 200)), data((rows, 200), 1)
    out = run_all(c, x=pad_rows(x, 64), y=pad_rows(y, 64), n=rows)["y"][:, :200]
    expected = y.copy()
    expected[:, target : target + width] = -x[:, start : start + width]
    np.testing.assert_array_equal(out, expected)


@settings(max_examples=12, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.sampled_from([1, 3, 12]),
    seq=st.sampled_from([1, 5, 33]),
    width=st.sampled_from([32, 20, 64]),
)
def test_heads_are_merged(batch: int, heads: int, seq: int, width: int) -> None:
    c = build(kernels.merge_heads(batch, heads, seq, width))
    x = data((batch, heads, seq, width))
    y = np.zeros((batch, seq, kernels.pitch(heads * width)), np.float32)
    out = run_all(c, x=x, y=y)["y"][:, :, : heads * width]
    np.testing.assert_array_equal(out, x.transpose(0, 2, 1, 3).reshape(batch, seq, heads * width))


@settings(max_examples=8, deadline=None)
@given(seq=st.sampled_from([1, 16, 50, 70]), width=st.sampled_from([32, 64]), heads=st.sampled_from([1, 3]))
def test_attention(seq: int, width: int, heads: int) -> None:
    c = build(kernels.attention(seq, width, heads))
    q, k, v = (data((heads * seq, width), s) for s in range(3))
    mask = np.where(np.arange(seq) < max(seq - 3, 1), 0.0, -1e4).astype(np.float32)[None]
    out = run_all(
        c,
        atol=1e-3,
        **{n: pad_rows(a, 64) for n, a in {"q": q, "k": k, "v": v, "m": mask}.items()},
        y=np.zeros((heads * seq, 64), np.float32),
    )["y"][:, :width]
    q, k, v = (a.reshape(heads, seq, width) for a in (q, k, v))
    s = np.einsum("hmd,hnd->hmn", q, k) * width**-0.5 + df16.round_f32(mask)
    e = np.exp(s - s.max(-1, keepdims=True))
    w = df16.round_f32(e / e.sum(-1, keepdims=True))
    expected = np.einsum("hmn,hnd->hmd", w, v).reshape(heads * seq, width)
    close(out, expected, 2.5, atol=2e-3)


@settings(max_examples=8, deadline=None)
@given(columns=st.sampled_from([10, 64, 100]), rows=st.integers(1, 12))
def test_elements_beyond_the_view_count_as_zero(columns: int, rows: int) -> None:
    garbage = data((16, kernels.pitch(columns) + 64), 3)
    x = data((rows, columns))
    buffer = np.full((16, kernels.pitch(columns)), 7.0, np.float32)
    buffer[:rows, :columns] = x
    out = run_all(build(kernels.column_sum(columns, 16)), x=buffer, y=garbage[0].copy(), n=rows)["y"]
    np.testing.assert_allclose(out[:columns], x.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[columns:], garbage[0, columns:])
    out = run_all(build(kernels.row_total(columns, 4)), x=buffer, y=np.zeros(rows, np.float32), n=rows)["y"]
    expected = np.exp(x).sum(1) + kernels.pitch(columns) - columns
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(5, 70), (64, 64), (33, 1), (1, 65)])
def test_transposed_load(rows: int, columns: int) -> None:
    x = data((rows, columns))
    y = np.zeros((columns, kernels.pitch(rows)), np.float32)
    out = run_all(build(kernels.transpose_out(rows, columns)), x=pad_rows(x, 64), y=y)["y"]
    np.testing.assert_array_equal(out[:, :rows], x.T)


@pytest.mark.parametrize(("columns", "step"), [(100, 2), (100, 7), (200, 64), (130, 65)])
def test_strided_view(columns: int, step: int) -> None:
    x = data((5, columns))
    width = -(-columns // step)
    y = np.zeros((5, kernels.pitch(width)), np.float32)
    out = run_all(build(kernels.strided(columns, step, 2)), x=pad_rows(x, 64), y=y, n=5)["y"]
    np.testing.assert_array_equal(out[:, :width], x[:, ::step])


@pytest.mark.parametrize(("columns", "rows", "tile"), [(40, 40, 8), (70, 65, 16)])
def test_indices_as_values(columns: int, rows: int, tile: int) -> None:
    x = data((rows, columns))
    y = np.zeros((rows, kernels.pitch(columns)), np.float32)
    out = run_all(build(kernels.causal(columns, tile)), x=pad_rows(x, 64), y=y, n=rows)["y"][:, :columns]
    keep = np.arange(columns)[None] <= np.arange(rows)[:, None]
    np.testing.assert_array_equal(out, np.where(keep, x, np.float32(-1)))


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 50])
def test_tiles_of_dynamic_extent(rows: int) -> None:
    x = data((rows, 70))
    out = run_all(build(kernels.dynamic_tiles(70, 8)), x=pad_rows(x, 64), y=np.zeros((rows, 128), np.float32), n=rows)
    close(out["y"][:, :70], x + 1)


@pytest.mark.parametrize(("columns", "start", "width"), [(128, 0, 128), (200, 0, 200), (128, 64, 64), (200, 30, 100)])
def test_gather_from_the_default_layout(columns: int, start: int, width: int) -> None:
    table = data((20, columns))
    wide = pad_rows(table, 64)
    layout = np.ascontiguousarray(wide.reshape(20, -1, 64).transpose(1, 0, 2))
    index = np.array([3, 19, 0, 7, 7], np.int32)
    y = np.zeros((5, kernels.pitch(width)), np.float32)
    out = run_all(build(kernels.default_gather(20, columns, start, width, 2)), i=index, t=layout, y=y, n=5)["y"]
    np.testing.assert_array_equal(out[:, :width], table[index, start : start + width])


@pytest.mark.parametrize("columns", [5, 64, 70])
def test_gather_whose_index_varies_along_the_sticks(columns: int) -> None:
    table = data((9, columns))
    index = np.random.default_rng(0).integers(0, 9, (9, columns)).astype(np.int32)
    y = np.zeros((9, kernels.pitch(columns)), np.float32)
    out = run_all(build(kernels.lane_gather(9, columns)), i=pad_rows(index, 64), t=pad_rows(table, 64), y=y)["y"]
    np.testing.assert_array_equal(out[:, :columns], np.take_along_axis(table, index, 0))


def test_a_second_pass_sees_what_the_first_stored() -> None:
    x = data((10, 64))
    out = run_all(build(kernels.in_place(64, 4)), x=x, n=10)["x"]
    close(out, df16.round_f32(x + 1) * 2)


LENGTHS = [0, 1, 63, 64, 65, 1000]


def softmax_case(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = data((rows, 100))
    e = np.exp(x - x.max(1, keepdims=True))
    wide = np.zeros((rows, 128), np.float32)
    wide[:, :100] = e / e.sum(1, keepdims=True)
    return {"x": pad_rows(x, 64), "y": np.zeros((rows, 128), np.float32)}, wide


def sum_case(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x, z = data((rows, 128)), data((rows, 128), 1)
    return {"x": x, "z": z, "y": np.zeros((rows, 128), np.float32)}, x * np.float32(0.5) + z


def gather_case(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    table, index = data((50, 128)), np.random.default_rng(3).integers(0, 50, rows).astype(np.int32)
    return {"i": index, "t": table, "y": np.zeros((rows, 128), np.float32)}, table[index]


@pytest.mark.parametrize(
    ("text", "case"),
    [
        (kernels.softmax(100, 8), softmax_case),
        (kernels.add(128, 8), sum_case),
        (kernels.embedding(50, 128, 8), gather_case),
    ],
    ids=["softmax", "add", "embedding"],
)
def test_one_binary_serves_every_size(text: str, case) -> None:
    """One compilation, one image: only the table that the host computes differs from length to length."""
    from torch_loom import _chip

    c = build(text)
    image = c.binary
    program = _chip.decode(image)
    tables = set()
    for rows in LENGTHS:
        args, expected = case(rows)
        close(run_all(c, **args, n=rows)["y"], expected, 1.1)
        places = [rows if a.kind else (128 << 20, 1 << 20) for a in program.args]
        tables.add(_chip.table(program, places).tobytes())
    assert c.binary == image == spyrecode.encode(c.program)
    assert len(tables) == len(LENGTHS)


def test_every_engine_stops_at_a_value_that_a_check_refuses() -> None:
    from torch_loom import _chip

    c = build((Path(__file__).parents[1] / "ktir" / "programs" / "checked_sum.ktir").read_text())
    x = np.full((4, 32), 2**30, np.int32)
    for engine, error in (("dataflow", DataflowError), ("chip", _chip.ChipError)):
        with pytest.raises(error, match="does not fit in .*low 32 bits are -2147483648"):
            c.run(engine=engine, x=x, y=x, z=np.zeros_like(x))


@pytest.mark.parametrize("rows", [-1, 4097, 5000, 1 << 40])
def test_a_size_beyond_its_bound_is_refused_by_name(rows: int) -> None:
    from torch_loom import _chip

    c = build(kernels.softmax(64, 8))
    args = {"x": np.zeros((1, 64)), "y": np.zeros((1, 64)), "n": rows}
    with pytest.raises(DataflowError, match=rf"argument 'n' = {rows} .*0\.\.4096"):
        c.run(engine="dataflow", **args)
    with pytest.raises(_chip.ChipError, match=rf"\bn\b.*{rows}.*4096") as error:
        c.run(engine="chip", **args)
    assert error.value.code == "SC-E12"


@pytest.mark.parametrize(
    ("text", "tile"),
    [(kernels.softmax(300, 64), 64), (kernels.layernorm(300, 64), 64), (kernels.causal(700, 64), 64)],
)
def test_tiles_too_large_for_lx_are_cut(text: str, tile: int) -> None:
    small = arch.load("spyre-mini")
    c, whole = build(text, chip=small), build(text)
    assert max(b.address + b.bytes * b.phases for b in c.program.blocks) <= small.lx_bytes
    columns = 700 if "causal" in text else 300
    args = {"x": pad_rows(data((50, columns)), 64), "y": np.zeros((50, kernels.pitch(columns)), np.float32)}
    if "layernorm" in text:
        args |= {"g": pad_rows(data((300,), 1), 64), "c": pad_rows(data((300,), 2), 64)}
    np.testing.assert_allclose(run_all(c, **args, n=50)["y"], run_all(whole, **args, n=50)["y"], rtol=1e-6)


def test_what_cannot_be_cut_reports_the_live_set() -> None:
    with pytest.raises(
        scheduler.ScheduleError, match=r"do not fit into LX: \d+ bytes live, 65536 available: .*load of x"
    ):
        build(kernels.row_total(200000, 1), chip=arch.load("spyre-mini"))


def test_a_value_takes_the_place_of_the_last_one_it_is_computed_from() -> None:
    c = build(kernels.attention(64, 64, 1))
    scores = [b for b in c.program.blocks if b.name.startswith("t") and b.bytes == 64 * 64 * 4]
    assert len(scores) == 2 and scores[0].address == scores[1].address


def big_softmax(rows: int) -> str:
    """Softmax of a whole tile of rows, without a loop."""
    b = kernels.KernelBuilder("big", 2)
    x, y = b.buffer("x"), b.buffer("y")
    vx, vy = (b.view(v, [2 * rows, 256], [256, 1], "f16") for v in (x, y))
    at, shape = [b.mul(b.tile_id(), rows), 0], [rows, 256]
    f = kernels.up(b, b.load(vx, at, shape))
    e = b.op("math.exp", b.op("arith.subf", f, b.broadcast(b.reduce("arith.maximumf", f, [1]), shape, [1])))
    s = b.broadcast(b.reduce("arith.addf", e, [1]), shape, [1])
    b.store(kernels.down(b, b.op("arith.divf", e, s)), vy, at, shape)
    return b.text()


def test_a_body_that_runs_once_is_cut_to_overlap() -> None:
    text = big_softmax(128)
    x = data((256, 256))
    e = np.exp(x - x.max(1, keepdims=True))
    compiled = {o: build(text, overlap=o) for o in (True, False)}
    for c in compiled.values():
        close(run_all(c, x=x, y=np.zeros_like(x))["y"], e / e.sum(1, keepdims=True), 1.1)
    phases = {o: {b.name[0]: b.phases for b in c.program.blocks} for o, c in compiled.items()}
    assert (phases[True]["b"], phases[False]["b"]) == (2, 1)
    assert compiled[True].time().ns < compiled[False].time().ns


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "abs", "trunc", "ceildiv", "unsigned"])
def test_narrow_integers_wrap_wherever_their_steps_are_kept(name: str, fuse: bool) -> None:
    """Every pair of extreme 8-bit values; what a row computes in several steps may lie in LX between them."""
    extremes = np.array([-128, -127, -64, -1, 1, 2, 63, 64, 127, 100], np.int8)
    a, c = (v.ravel() for v in np.meshgrid(extremes, extremes))
    if name == "ceildiv":
        a, c = a[c > 0], c[c > 0]
    wide, other = a.astype(np.int64), c.astype(np.int64)
    n = len(a)
    b = kernels.KernelBuilder("narrow", 1)
    x, z, y = (b.buffer(k) for k in "xzy")
    vx, vz = (b.view(v, [n], [1], "i8") for v in (x, z))
    kind = "i32" if name == "unsigned" else "i8"
    left, right = b.load(vx, [0], [n]), b.load(vz, [0], [n])
    if name == "trunc":
        value = b.op(
            "arith.trunci",
            b.op("arith.muli", *(b.op("arith.extsi", t, result="i32") for t in (left, right))),
            result="i8",
        )
        expected = wide * other
    elif name == "abs":
        value, expected = b.op("math.absi", left), np.abs(wide)
    elif name == "unsigned":
        value, expected = b.op("arith.extui", left, result="i32"), wide & 0xFF
    else:
        op = {"add": "addi", "sub": "subi", "mul": "muli", "ceildiv": "ceildivsi"}[name]
        value = b.op(f"arith.{op}", left, right)
        expected = {"add": wide + other, "sub": wide - other, "mul": wide * other, "ceildiv": -(-wide // other)}[name]
    b.store(value, b.view(y, [n], [1], kind), [0], [n])
    result = np.int32 if kind == "i32" else np.int8
    out = run_all(build(b.text(), fuse=fuse), x=a, z=c, y=np.zeros(n, result))["y"]
    np.testing.assert_array_equal(out, expected.astype(result))
