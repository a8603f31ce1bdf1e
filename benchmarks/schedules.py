"""Quality of schedules on the clock: share of the chip model's own roofline, and what each choice gives.

    python benchmarks/schedules.py [NAME ...] [--chip spyre]

First table, per kernel: modelled time, the roofline (the larger of contraction time at the array's sustained rate and
the time DDR needs for every tensor once, bus turnaround included), their ratio, utilisations, and the share that the
goal names: of the array's sustained rate for "PT", of the DDR time for "DDR". A goal beyond the roofline is marked: the
weights of the gated MLP alone take longer to fetch than the array needs to work. (A kernel that reads first and
writes last can beat the DDR side by a little: at its ends the bus does not turn around.) Second table: the same kernels
without double buffering, without the choice of tile sizes (pieces of one index wherever a body may be cut), without
cutting for overlap, without multicast, without fusion, one at a time, as multiples of the time with all. Third table:
the seconds of each compiler pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from torch_loom import arch, ktir, scheduler
from torch_loom.ktir.builder import KernelBuilder, Tensor


@dataclass(frozen=True)
class Goal:
    """The share a kernel should reach: of the roofline, or of one of its two sides."""

    percent: int
    of: str  # "", "PT" or "DDR"

    def reached(self, pt_us: float, ddr_us: float, us: float) -> tuple[float, float]:
        """The share that was reached, and the most that the roofline allows."""
        best = max(pt_us, ddr_us)
        wanted = {"PT": pt_us, "DDR": ddr_us, "": best}[self.of]
        return wanted / us, wanted / best


@dataclass(frozen=True)
class Work:
    """What a kernel has to do at least: multiply-accumulates, bytes read and written once."""

    macs: float
    read: float
    write: float
    goal: Goal


@dataclass(frozen=True)
class Benchmark:
    """A kernel's text and its work."""

    name: str
    text: str
    work: Work


BENCHMARKS: list[Callable[[], Benchmark]] = []


def benchmark(make: Callable[[], Benchmark]) -> Callable[[], Benchmark]:
    """Register a benchmark."""
    BENCHMARKS.append(make)
    return make


def up(b: KernelBuilder, t: Tensor) -> Tensor:
    """f16 -> f32"""
    return b.op("arith.extf", t, result="f32")


def down(b: KernelBuilder, t: Tensor) -> Tensor:
    """f32 -> f16"""
    return b.op("arith.truncf", t, result="f16")


def full(b: KernelBuilder, value: float, shape: list[int]) -> Tensor:
    """A constant tensor."""
    return b.splat(b.constant(value, "f32"), shape)


def matmul(
    name: str,
    m: int,
    k: int,
    n: int,
    grid_m: int,
    tile_n: int,
    goal: Goal,
    first_n: int = 0,
    parts: tuple[int, ...] = (),
) -> Benchmark:
    """c = a @ w.T: cores split m by ``grid_m`` and n by the rest; a core keeps its rows of a and streams weights
    in tiles of ``tile_n`` columns; w and c lie in the default layout. The rows of a come in pieces that the array
    just fills with; with ``first_n`` the first columns are done while the later pieces still arrive. Weights come in
    ``parts`` of so many sticks along k: one part arrives while the array works on the other."""
    b = KernelBuilder("matmul", 32)
    a, w, c = b.buffer("a"), b.buffer("w"), b.buffer("c")
    grid_n = 32 // grid_m
    rows, columns = m // grid_m, n // grid_n
    piece = min(rows, 64)
    va, vw = b.view(a, [m, k], [k, 1], "f16"), b.view(w, [k // 64, n, 64], [n * 64, 64, 1], "f16")
    vc = b.view(c, [n // 64, m, 64], [m * 64, 64, 1], "f16")
    core = b.tile_id()
    row0 = b.mul(b.floordiv(core, grid_n), rows)
    column0 = b.mul(b.mod(core, grid_n), columns)

    def weights(at, wide: int, sticks: tuple[int, ...]) -> list[Tensor]:
        found, first = [], 0
        for count in sticks:
            t = b.load(vw, [first, at, 0], [count, wide, 64], [1, 0, 2])
            found.append(b.transpose(b.collapse(t, [[0], [1, 2]], [wide, count * 64]), [1, 0]))
            first += count
        return found

    def products(kept: list[Tensor], wide: int, sticks: tuple[int, ...], right: list[Tensor]) -> list[Tensor]:
        """Per piece of rows and stick of columns one block of the result; narrow tiles fill a part of a stick."""
        width = min(wide, 64)
        depths = [64 * count for count in sticks]
        found = []
        for rows_i in kept:
            left = [b.slice(rows_i, [0, sum(depths[:p])], [piece, d]) for p, d in enumerate(depths)]
            for s in range(0, wide, width):
                column = [b.slice(t, [0, s], [d, width]) for t, d in zip(right, depths, strict=True)]
                terms = [b.matmul(x, t) for x, t in zip(left, column, strict=True)]
                total = terms.pop()
                while terms:
                    total = b.op("arith.addf", total, terms.pop())
                found.append(down(b, total))
        return found

    def store(blocks: list[Tensor], at, wide: int) -> None:
        width = min(wide, 64)
        for number, block in enumerate(blocks):
            i, s = divmod(number, wide // width)
            column = b.add(at, s * width)
            box = b.transpose(b.expand(block, [[0], [1, 2]], [piece, 1, width]), [1, 0, 2])
            lane = b.mod(column, 64) if width < 64 else 0
            b.store(box, vc, [b.floordiv(column, 64), b.add(row0, i * piece), lane], [1, piece, width])

    whole = (k // 64,)
    head = weights(column0, first_n, whole) if first_n else None
    kept = [b.load(va, [b.add(row0, i), 0], [piece, k]) for i in range(0, rows, piece)]
    early = products(kept, first_n, whole, head) if head is not None else []
    with b.loop(first_n, columns, tile_n) as j:
        at = b.add(column0, j)
        store(products(kept, tile_n, parts or whole, weights(at, tile_n, parts or whole)), at, tile_n)
        if early:  # stored once, when the memory no longer has rows to bring
            with b.loop(j, first_n + 1, tile_n):
                store(early, column0, first_n)
    return Benchmark(name, b.text(), Work(m * k * n, 2 * (m * k + k * n), 2 * m * n, goal))


@benchmark
def matmul_square() -> Benchmark:
    """2048 x 2048 x 2048"""
    return matmul("matmul 2048^3", 2048, 2048, 2048, 8, 64, Goal(85, ""), 128, (20, 12))


@benchmark
def matmul_wide() -> Benchmark:
    """512 x 4096 x 4096"""
    return matmul("matmul 512x4096x4096", 512, 4096, 4096, 8, 64, Goal(85, ""))


@benchmark
def matvec() -> Benchmark:
    """1 x 4096 x 4096: a core's columns in runs of 128 sticks, since shorter ones open a page of DDR for every few."""
    return matmul("matvec 1x4096x4096", 1, 4096, 4096, 1, 128, Goal(90, "DDR"), parts=(16,) * 4)


@benchmark
def softmax() -> Benchmark:
    """Rows of 1024."""
    rows, columns, tile = 4096, 1024, 16
    b = KernelBuilder("softmax", 32)
    x, y = b.buffer("x"), b.buffer("y")
    vx, vy = b.view(x, [rows, columns], [columns, 1], "f16"), b.view(y, [rows, columns], [columns, 1], "f16")
    first = b.mul(b.tile_id(), rows // 32)
    shape = [tile, columns]
    with b.loop(0, rows // 32, tile) as i:
        r = b.add(first, i)
        f = up(b, b.load(vx, [r, 0], shape))
        e = b.op("math.exp", b.op("arith.subf", f, b.broadcast(b.reduce("arith.maximumf", f, [1]), shape, [1])))
        s = b.reduce("arith.addf", e, [1])
        b.store(down(b, b.op("arith.divf", e, b.broadcast(s, shape, [1]))), vy, [r, 0], shape)
    size = 2 * rows * columns
    return Benchmark("softmax 4096x1024", b.text(), Work(0, size, size, Goal(90, "DDR")))


@benchmark
def rmsnorm() -> Benchmark:
    """Rows of 4096."""
    rows, columns, tile = 4096, 4096, 8
    b = KernelBuilder("rmsnorm", 32)
    x, w, y = b.buffer("x"), b.buffer("w"), b.buffer("y")
    vx, vy = b.view(x, [rows, columns], [columns, 1], "f16"), b.view(y, [rows, columns], [columns, 1], "f16")
    vw = b.view(w, [columns], [1], "f16")
    first = b.mul(b.tile_id(), rows // 32)
    shape = [tile, columns]
    weight = up(b, b.load(vw, [0], [columns]))
    with b.loop(0, rows // 32, tile) as i:
        r = b.add(first, i)
        f = up(b, b.load(vx, [r, 0], shape))
        mean = b.op("arith.mulf", b.reduce("arith.addf", b.op("arith.mulf", f, f), [1]), full(b, 1 / columns, [tile]))
        scale = b.op("math.rsqrt", b.op("arith.addf", mean, full(b, 1e-6, [tile])))
        z = b.op("arith.mulf", f, b.broadcast(scale, shape, [1]))
        b.store(down(b, b.op("arith.mulf", z, b.broadcast(weight, shape, [0]))), vy, [r, 0], shape)
    size = 2 * rows * columns
    return Benchmark("rmsnorm 4096x4096", b.text(), Work(0, size + 2 * columns, size, Goal(90, "DDR")))


@benchmark
def mlp() -> Benchmark:
    """h = silu(x @ w1.T) * (x @ w3.T), the first half of a gated MLP: 128 x 4096 x 11008."""
    m, k, n, tile_n = 128, 4096, 11008, 16
    b = KernelBuilder("mlp", 32)
    x, w1, w3, y = (b.buffer(s) for s in ("x", "w1", "w3", "y"))
    vx, vy = b.view(x, [m, k], [k, 1], "f16"), b.view(y, [m, n], [n, 1], "f16")
    views = [b.view(w, [k // 64, n, 64], [n * 64, 64, 1], "f16") for w in (w1, w3)]
    shape = [m, tile_n]
    rows = b.load(vx, [0, 0], [m, k])
    tiles = n // tile_n
    per = -(-tiles // 32)
    first = b.mul(b.tile_id(), per)
    with b.loop(first, b.min(b.add(first, per), tiles)) as j:
        at = b.mul(j, tile_n)
        halves = []
        for v in views:
            t = b.load(v, [0, at, 0], [k // 64, tile_n, 64], [1, 0, 2])
            t = b.transpose(b.collapse(t, [[0], [1, 2]], [tile_n, k]), [1, 0])
            halves.append(b.matmul(rows, t))
        gate = b.op(
            "arith.divf",
            halves[0],
            b.op("arith.addf", b.op("math.exp", b.op("arith.negf", halves[0])), full(b, 1.0, shape)),
        )
        b.store(down(b, b.op("arith.mulf", gate, halves[1])), vy, [0, at], shape)
    work = Work(2 * m * k * n, 2 * (m * k + 2 * k * n), 2 * m * n, Goal(80, "PT"))
    return Benchmark("gated MLP 128x4096x11008", b.text(), work)


@benchmark
def attention() -> Benchmark:
    """32 heads x 1024 x 128: eight cores share the keys and values of a head, each with its rows of queries."""
    heads, seq, width, tile, team = 32, 1024, 128, 64, 8
    rows = seq // team
    b = KernelBuilder("attention", 32)
    q, k, v, y = (b.buffer(s) for s in "qkvy")
    vq, vk, vv, vy = (b.view(s, [heads * seq, width], [width, 1], "f16") for s in (q, k, v, y))
    core = b.tile_id()
    shape = [tile, seq]
    with b.loop(0, heads, 32 // team) as h:
        base = b.mul(b.add(h, b.floordiv(core, team)), seq)
        first = b.add(base, b.mul(b.mod(core, team), rows))
        keys = b.transpose(b.load(vk, [base, 0], [seq, width]), [1, 0])
        values = b.load(vv, [base, 0], [seq, width])
        with b.loop(0, rows, tile) as i:
            r = b.add(first, i)
            s = b.op("arith.mulf", b.matmul(b.load(vq, [r, 0], [tile, width]), keys), full(b, width**-0.5, shape))
            e = b.op("math.exp", b.op("arith.subf", s, b.broadcast(b.reduce("arith.maximumf", s, [1]), shape, [1])))
            total = b.reduce("arith.addf", e, [1])
            o = b.matmul(down(b, e), values)
            o = b.op("arith.divf", o, b.broadcast(total, [tile, width], [1]))
            b.store(down(b, o), vy, [r, 0], [tile, width])
    size = 2 * heads * seq * width
    return Benchmark(
        "attention 32x1024x128", b.text(), Work(2 * heads * seq * seq * width, 3 * size, size, Goal(70, "PT"))
    )


def roofline_us(chip: arch.Chip, w: Work) -> tuple[float, float]:
    """(contraction time, DDR time) in microseconds at the rates of the chip model."""
    pt = 2 * w.macs / chip.matmul_flops()
    ddr = chip.ddr_seconds(w.read, w.write)
    return pt * 1e6, ddr * 1e6


#: What is turned off, one at a time.
ABLATIONS: dict[str, dict[str, object]] = {
    "double buffering": {"buffers": 1},
    "tile sizes": {"tile": 1},
    "overlap": {"overlap": False},
    "multicast": {"multicast": False},
    "fusion": {"fuse": False},
}


def measure(chip: arch.Chip, names: list[str]) -> None:
    """Print the tables."""
    quality = Table(title=f"schedules on chip {chip.name} (modelled)")
    for head in ("kernel", "us", "roofline us", "share", "goal", "reached", "PT", "SFU", "bottleneck"):
        quality.add_column(head, justify="left" if head in ("kernel", "bottleneck") else "right")
    ablation = Table(title="time without one choice, as a multiple of the time with all")
    for head in ("kernel", "us", *ABLATIONS):
        ablation.add_column(head, justify="left" if head == "kernel" else "right")
    passes = Table(title="compile time, ms per pass")
    columns: list[str] = []
    for make in BENCHMARKS:
        case = make()
        if names and not any(n in case.name for n in names):
            continue
        base = scheduler.Options()
        start = time.perf_counter()
        program = ktir.load(case.text)
        loaded = time.perf_counter() - start
        compiled = scheduler.compile(program, program.functions[0], chip, base)
        timing = compiled.time(chip)
        pt_us, ddr_us = roofline_us(chip, case.work)
        best, us = max(pt_us, ddr_us), timing.ns / 1e3
        reached, most = case.work.goal.reached(pt_us, ddr_us, us)
        out_of_reach = most * 100 < case.work.goal.percent
        quality.add_row(
            case.name,
            f"{us:.1f}",
            f"{best:.1f} ({'PT' if pt_us > ddr_us else 'DDR'})",
            f"{best / us:.0%}",
            f"{case.work.goal.percent} % {case.work.goal.of}".strip(),
            f"{reached:.0%}" + (f" (at most {most:.0%})" if out_of_reach else ""),
            f"{timing.pt_util:.0%}",
            f"{timing.sfu_util:.0%}",
            timing.bottleneck,
        )
        ablation.add_row(
            case.name, f"{us:.1f}", *(_slower(case, chip, replace(base, **o), us) for o in ABLATIONS.values())
        )
        steps = {"load": loaded, **compiled.seconds}
        if not columns:
            columns = list(steps)
            for head in ("kernel", *columns, "total"):
                passes.add_column(head, justify="left" if head == "kernel" else "right")
        cells = [f"{steps.get(c, 0.0) * 1e3:.1f}" for c in columns]
        passes.add_row(case.name, *cells, f"{sum(steps.values()) * 1e3:.1f}")
    console = Console(width=180)
    for table in (quality, ablation, passes):
        console.print(table)


def _slower(case: Benchmark, chip: arch.Chip, options: scheduler.Options, us: float) -> str:
    """How many times longer a kernel takes with other options, "LX" when it no longer fits."""
    program = ktir.load(case.text)
    try:
        ns = scheduler.compile(program, program.functions[0], chip, options).time(chip).ns
    except scheduler.ScheduleError as error:
        if "LX" not in str(error):
            raise
        return "LX"
    return f"{ns / 1e3 / us:.2f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="parts of benchmark names; default: all")
    parser.add_argument("--chip", default="spyre")
    args = parser.parse_args()
    measure(arch.load(args.chip), args.names)


if __name__ == "__main__":
    main()
