"""Results do not depend on scheduling: random kernels at random options equal the KTIR reference on every engine.

Shapes do not divide by sticks, cores or tiles; layouts, grids, tile sizes, corelets, buffer depths and every switch of
the compiler are drawn. Tolerances are those of the format: one rounding of the 16-bit result, and fp32 sums in
another order, bounded by the number of terms times the sum of their magnitudes.
"""

from __future__ import annotations

import numpy as np
import scheduler_kernels as kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler_exchange import Exchange
from test_scheduler_exchange import arguments as exchange_arguments
from test_scheduler_values import engines

from torch_loom import arch, ktir, scheduler
from torch_loom.ktir.builder import Dim, Index, KernelBuilder, Tensor, View
from torch_loom.scheduler.check import check

HALF, SINGLE = 2.0**-10, 2.0**-23  # steps of the two formats
CHIPS = {name: arch.load(name) for name in ("spyre", "spyre-mini")}
MOST = 128  # rows of a kernel with symbolic rows
SIZES = st.sampled_from([1, 2, 31, 32, 33, 63, 64, 65, 97, 128, 130])
ROWS = st.integers(0, 40) | st.sampled_from([63, 64, 65, 127, 128])
TILES = st.sampled_from([1, 2, 3, 5, 8, 16])
GRIDS = st.sampled_from([1, 2, 3, 4])
LAYOUTS = st.sampled_from(["rows", "sticks", "columns"])
CHOICES = st.fixed_dictionaries(
    {
        "buffers": st.integers(1, 4),
        "corelets": st.sampled_from([1, 2]),
        "fuse": st.booleans(),
        "overlap": st.booleans(),
        "multicast": st.booleans(),
    }
)
CHIP = st.sampled_from(sorted(CHIPS))
few = settings(max_examples=8, deadline=None)

Arrays = dict[str, np.ndarray]
Slack = dict[str, "np.ndarray | float"]


def half(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normal float16 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float16)


def agree(text: str, arguments: dict, slack: Slack, chip: str, choices: dict, bounds: dict | None = None) -> None:
    """Reference, DataflowIR interpreter and chip give the outputs ``slack`` names, within one step of the output
    format and the absolute slack given per output."""
    program = ktir.load(text)
    reference = program.run(program.functions[0], **arguments)
    options = scheduler.Options(ieee=True, bounds=bounds or {}, **choices)
    compiled = scheduler.compile(program, program.functions[0], CHIPS[chip], options)
    assert check(compiled.module) == []
    for engine in engines():
        found = compiled.run(engine=engine, **arguments)
        for name, absolute in slack.items():
            a, b = (np.asarray(x[name]) for x in (reference, found))
            step = HALF if b.dtype == np.float16 else 4 * SINGLE
            wide, other = a.astype(np.float64), b.astype(np.float64)
            bound = step * np.maximum(np.abs(wide), np.abs(other)) + absolute
            assert a.shape == b.shape
            assert (np.abs(wide - other) <= bound).all(), (engine, name, np.abs(wide - other).max())


class Matrix:
    """A buffer of n x columns elements in one of three layouts, read and written in tiles of rows."""

    def __init__(self, b: KernelBuilder, name: str, layout: str, n: Index, columns: int) -> None:
        self.b, self.layout, self.columns = b, layout, columns
        self.sticks = -(-columns // 64)
        base = b.buffer(name)
        self.view: View
        if layout == "rows":
            self.view = b.view(base, [n, columns], [kernels.pitch(columns), 1], "f16")
        elif layout == "columns":
            self.view = b.view(base, [columns, n], [MOST, 1], "f16")
        else:
            self.view = b.view(base, [self.sticks, n, 64], [b.mul(n, 64), 64, 1], "f16")

    def load(self, r: Dim, tile: int) -> Tensor:
        """[tile, columns]"""
        b = self.b
        if self.layout == "rows":
            return b.load(self.view, [r, 0], [tile, self.columns])
        if self.layout == "columns":
            return b.transpose(b.load(self.view, [0, r], [self.columns, tile]), [1, 0])
        t = b.load(self.view, [0, r, 0], [self.sticks, tile, 64], [1, 0, 2])
        t = b.collapse(t, [[0], [1, 2]], [tile, self.sticks * 64])
        return b.slice(t, [0, 0], [tile, self.columns])

    def store(self, value: Tensor, r: Dim, tile: int) -> None:
        """Write [tile, columns]."""
        b = self.b
        if self.layout == "rows":
            b.store(value, self.view, [r, 0], [tile, self.columns])
        elif self.layout == "columns":
            b.store(b.transpose(value, [1, 0]), self.view, [0, r], [self.columns, tile])
        else:
            whole, rest = divmod(self.columns, 64)
            for first, sticks, wide in ((0, whole, 64), (whole, 1, rest)):
                if not sticks * wide:
                    continue
                part = b.slice(value, [0, first * 64], [tile, sticks * wide])
                box = b.transpose(b.expand(part, [[0], [1, 2]], [tile, sticks, wide]), [1, 0, 2])
                b.store(box, self.view, [first, r, 0], [sticks, tile, wide])

    def array(self, rows: int, seed: int | None = None) -> np.ndarray:
        """Contents of the buffer; zeros without a seed."""
        shape = {
            "rows": (rows, kernels.pitch(self.columns)),
            "columns": (self.columns, MOST),
            "sticks": (self.sticks, rows, 64),
        }[self.layout]
        return np.zeros(shape, np.float16) if seed is None else half(*shape, seed=seed)


@few
@given(SIZES, ROWS, TILES, GRIDS, LAYOUTS, LAYOUTS, LAYOUTS, CHIP, CHOICES)
def test_pointwise_and_relayout(
    columns: int, rows: int, tile: int, cores: int, a: str, c: str, y: str, chip: str, choices: dict
) -> None:
    """y = 2 a + c over any three layouts: nothing is accumulated, so all agree to the bit."""
    b = KernelBuilder("pointwise", cores)
    n = b.size("n", MOST)
    left, right, out = (Matrix(b, s, layout, n, columns) for s, layout in (("a", a), ("c", c), ("y", y)))
    shape = [tile, columns]
    with kernels.rows_of(b, n, cores, tile) as r:
        twice = b.op("arith.mulf", kernels.up(b, left.load(r, tile)), kernels.full(b, 2.0, shape))
        out.store(kernels.down(b, b.op("arith.addf", twice, kernels.up(b, right.load(r, tile)))), r, tile)
    arguments = {"a": left.array(rows, 1), "c": right.array(rows, 2), "y": out.array(rows), "n": rows}
    agree(b.text(), arguments, {"y": 0.0}, chip, choices)


@few
@given(SIZES, ROWS, TILES, GRIDS, LAYOUTS, LAYOUTS, CHIP, CHOICES)
def test_row_reductions(
    columns: int, rows: int, tile: int, cores: int, x: str, y: str, chip: str, choices: dict
) -> None:
    """y = (x - max x) / sum |x| along rows, in any two layouts."""
    b = KernelBuilder("reduction", cores)
    n = b.size("n", MOST)
    source, out = Matrix(b, "x", x, n, columns), Matrix(b, "y", y, n, columns)
    shape = [tile, columns]
    with kernels.rows_of(b, n, cores, tile) as r:
        f = kernels.up(b, source.load(r, tile))
        peak = b.broadcast(b.reduce("arith.maximumf", f, [1]), shape, [1])
        size = b.op("arith.addf", b.op("math.absf", f), kernels.full(b, 1.0, shape))
        total = b.broadcast(b.reduce("arith.addf", size, [1]), shape, [1])
        out.store(kernels.down(b, b.op("arith.divf", b.op("arith.subf", f, peak), total)), r, tile)
    arguments = {"x": source.array(rows, 1), "y": out.array(rows), "n": rows}
    agree(b.text(), arguments, {"y": HALF * 2.0**-14}, chip, choices)


@few
@given(
    ROWS, SIZES, SIZES, st.sampled_from([1, 4, 7, 16]), st.sampled_from([8, 32, 64, 100]), GRIDS, LAYOUTS, CHIP, CHOICES
)
def test_products(
    m: int, k: int, n: int, tile: int, tile_n: int, cores: int, layout: str, chip: str, choices: dict
) -> None:
    """y = a @ w by tiles that divide neither extent, rows over cores."""
    b = KernelBuilder("product", cores)
    rows = b.size("n", MOST)
    a, w, y = Matrix(b, "a", layout, rows, k), b.buffer("w"), b.buffer("y")
    vw, vy = b.view(w, [k, n], [kernels.pitch(n), 1], "f16"), b.view(y, [rows, n], [kernels.pitch(n), 1], "f16")
    with kernels.rows_of(b, rows, cores, tile) as r:
        left = a.load(r, tile)
        with b.loop(0, n, tile_n) as j:
            b.store(kernels.down(b, b.matmul(left, b.load(vw, [0, j], [k, tile_n]))), vy, [r, j], [tile, tile_n])
    weights = half(k, kernels.pitch(n), seed=2)
    arguments = {"a": a.array(m, 1), "w": weights, "y": np.zeros((m, kernels.pitch(n)), np.float16), "n": m}
    largest = float(np.abs(arguments["a"]).max(initial=0)) * np.abs(weights.astype(np.float64)).sum(0)
    agree(b.text(), arguments, {"y": 2 * k * SINGLE * largest}, chip, choices)


@few
@given(
    columns=SIZES,
    rows=st.integers(0, 40),
    tile=st.sampled_from([1, 3, 8]),
    cores=GRIDS,
    computed=st.booleans(),
    chip=CHIP,
    choices=CHOICES,
)
def test_gathers(columns: int, rows: int, tile: int, cores: int, computed: bool, chip: str, choices: dict) -> None:
    """Rows of a table by index, to the bit."""
    index = np.random.default_rng(3).integers(0, 24, rows).astype(np.int32)
    wide = kernels.pitch(columns)
    arguments = {"i": index, "t": half(50, wide, seed=1), "y": np.zeros((rows, wide), np.float16), "n": rows}
    agree(kernels.embedding(50, columns, tile, cores, computed), arguments, {"y": 0.0}, chip, choices)


@few
@given(
    delivery=st.sampled_from(["reduce", "reduce_scatter"]),
    size=st.sampled_from([2, 4]),
    groups=st.sampled_from([1, 2]),
    rows=st.sampled_from([4, 8, 12]),
    columns=SIZES,
    trips=st.integers(1, 3),
    choices=CHOICES,
)
def test_partial_sums_of_several_cores(
    delivery: str, size: int, groups: int, rows: int, columns: int, trips: int, choices: dict
) -> None:
    """Every core of a group contributes a tile; the sum arrives whole or in parts, folded in one order."""
    e = Exchange(delivery, size * groups, size, rows, columns, trips)
    given_ = exchange_arguments(e)
    largest = max(float(np.abs(v).max(initial=0)) for v in given_.values())
    agree(e.text(), given_, {"z": size * SINGLE * size * largest}, "spyre", choices)
