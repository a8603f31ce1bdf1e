"""How a contraction is divided over cores, batches, rows, columns: every way is timed, the fastest wins.

The time of a way comes from the rates of the chip description, as the clock uses them (``csrc/chip/clock_cost.cpp``):
products in PT by rows of a tile, the epilogue in the SFU, DDR by bytes read and written. Cores that need the same tile
fetch it once, provided that their loops run equally often. What must arrive before the first product is not
overlapped by anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from ..arch import Chip, load

log = logging.getLogger(__name__)

# Rows and columns of a tile that are tried besides what a core owns.
ROWS = (16, 32, 64, 128)
COLUMNS = (64, 128, 192, 256, 384, 512)
GRID = (1, 2, 4, 8, 16, 32)
# Elements of K in a tile when a tile cannot hold all of it: wide enough for long runs of the accumulation.
K_BLOCK = 1024
# Bytes of LX that the tiles of a contraction may take.
LX_BUDGET = 1_600_000
# Cycles of control around one tile: descriptors and credits of its transfers.
TILE_CYCLES = 60.0


@dataclass(frozen=True)
class Contraction:
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n] as the kernel sees it; sizes in elements.

    ``n`` counts blocks along the outermost column dim, each ``inner`` columns wide. K goes in ``steps`` tiles of ``k``.
    ``fixed`` dims have known extents. ``shared`` says that B is the same for all batches, ``epilogue`` is the number of
    SFU operations and ``extra`` the number of operands read by them per result. With ``whole_rows`` a tile has all
    columns."""

    batch: int
    m: int
    n: int
    k: int
    inner: int = 1
    steps: int = 1
    fixed: tuple[bool, bool, bool] = (True, True, True)
    shared: bool = False
    epilogue: int = 0
    extra: int = 0
    bytes: int = 2
    whole_rows: bool = False


@dataclass(frozen=True)
class Division:
    """One way: cores along (batch, m, n), tile sizes, loop order, and what it is expected to cost."""

    cycles: float
    grid: tuple[int, int, int]
    m_block: int
    n_block: int
    rows_outer: bool
    compute: float
    read: float
    written: float
    lx_bytes: int

    def __str__(self) -> str:
        gb, gm, gn = self.grid
        order = "rows, then columns" if self.rows_outer else "columns, then rows"
        return (
            f"{gb} x {gm} x {gn} cores, tiles {self.m_block} x {self.n_block}, {order}: {self.cycles:.0f} cycles "
            f"(compute {self.compute:.0f}, DDR {self.read / 1e3:.0f} kB read {self.written / 1e3:.0f} kB written, "
            f"LX {self.lx_bytes / 1024:.0f} KiB)"
        )


def ceil(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def even(extent: int, block: int, parts: int, fixed: bool) -> bool:
    """Do all ``parts`` get equally many blocks of ``extent``, as far as is known when the kernel is written?"""
    return parts == 1 or (fixed and ceil(extent, block) % parts == 0)


def ddr_cycles(read: float, written: float, chip: Chip, cores: int | None = None) -> float:
    """Cycles in which DDR moves these bytes for so many cores (None: all)."""
    return chip.ddr_seconds(read, written, cores) * chip.clock_hz


def tile_cycles(c: Contraction, rows: int, columns: int, chip: Chip) -> float:
    """Cycles of the compute group for one tile of the result."""
    share = 1.0 / chip.corelets
    rate = chip.matmul_flops(max(rows, 1)) / 2 / (chip.cores * chip.corelets * chip.clock_hz)
    pt = rows * columns * c.k * share * (1 if c.bytes == 2 else 4) / rate
    load = (rows + columns) * c.k * c.bytes * share / chip.lx.read_bytes_per_cycle.value
    sfu = rows * columns * share / chip.lanes() * max(c.epilogue, 1)
    start = chip.sfu.start_cycles.value + chip.lx.latency_cycles.value
    return c.steps * (max(pt, load) + start + TILE_CYCLES) + max(0.0, sfu - max(pt, load))


def _ways(c: Contraction, cores: int) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    unit = ceil(64, c.inner)  # blocks along n that fill a stick

    def whole(blocks: int) -> int:
        return min(ceil(blocks, unit) * unit, c.n)

    for gb in sorted({min(g, c.batch, cores) for g in (*GRID, c.batch)}):
        for gm in GRID:
            for gn in GRID:
                if gb * gm * gn > cores or gm > max(c.m, 1) or gn > (1 if c.whole_rows else ceil(c.n, unit)):
                    continue
                own, wide = ceil(c.m, gm), whole(ceil(c.n, gn))
                rows = {min(r, c.m) for r in ROWS} | ({own} if own <= ROWS[-1] else set())
                if c.whole_rows:
                    yield from ((((gb, gm, gn), mb, c.n)) for mb in sorted(rows))
                    continue
                columns = {whole(ceil(w, c.inner)) for w in COLUMNS}
                columns |= {wide} if wide * c.inner <= COLUMNS[-1] else set()
                for mb in sorted(rows):
                    for nb in sorted(columns):
                        yield (gb, gm, gn), mb, nb


def timed(c: Contraction, grid: tuple[int, int, int], mb: int, nb: int, rows_outer: bool, chip: Chip) -> Division:
    """One way with its cost."""
    gb, gm, gn = grid
    wide = nb * c.inner
    b_per, m_per, n_per = ceil(c.batch, gb), ceil(ceil(c.m, mb), gm), ceil(ceil(c.n, nb), gn)
    alike = even(c.batch, 1, gb, c.fixed[0]) and even(c.m, mb, gm, c.fixed[1]) and even(c.n, nb, gn, c.fixed[2])
    # How often a core fetches its part of A and of B, and how many cores share a fetch.
    a_times = 1 if c.steps == 1 and (rows_outer or m_per == 1) else n_per
    b_times = 1 if c.steps == 1 and (not rows_outer or n_per == 1) else m_per
    if not c.shared or c.steps > 1 or n_per > 1:
        b_times *= b_per
    depth = c.k * c.steps
    a_bytes = b_per * m_per * mb * depth * c.bytes * a_times * gb * gm * (1 if alike else gn)
    b_sharers = (gm * gb if c.shared else gm) if alike else 1
    b_bytes = n_per * wide * depth * c.bytes * b_times * gb * gm * gn / b_sharers
    c_bytes = float(c.batch * c.m * c.n * c.inner * c.bytes)
    read, written = a_bytes + b_bytes + c.extra * c_bytes, c_bytes
    tiles = b_per * m_per * n_per
    compute = tiles * tile_cycles(c, mb, wide, chip)
    first_a = mb * c.k * c.bytes * gb * gm * (1 if alike else gn)
    first_b = wide * c.k * c.bytes * gb * gm * gn / b_sharers
    first = ddr_cycles(first_a + first_b, 0, chip, gb * gm * gn)
    memory = ddr_cycles(read, written, chip, gb * gm * gn)
    last = (
        mb * wide * c.bytes / chip.dma.write_bytes_per_cycle.value
        if tiles > 1
        else ddr_cycles(0, c_bytes, chip, gb * gm * gn)
    )
    once_a = a_times == 1 and m_per * b_per == 1
    once_b = b_times == 1 and n_per == 1
    lx = mb * c.k * c.bytes * (1 if once_a else 2) + wide * c.k * c.bytes * (1 if once_b else 2)
    lx += mb * wide * (8 + 4 * c.extra + (4 if c.steps > 1 else 0))
    cycles = first + max(compute, memory - first) + last
    return Division(cycles, grid, mb, nb, rows_outer, compute, read, written, lx)


@cache
def chip_of(name: str) -> Chip:
    """A chip description, read once."""
    return load(name)


@lru_cache(maxsize=4096)
def divide(c: Contraction, cores: int, budget: int, chip_name: str, search: bool = True) -> tuple[Division, ...]:
    """The fastest way first, then the best of the other core grids. Tiles take at most ``budget`` bytes of LX, unless
    even the smallest are larger. Without ``search`` rows (or batches) go over the cores, in tiles of 64 x 64."""
    best: dict[tuple[int, int, int], Division] = {}
    smallest: Division | None = None
    fixed = _fixed(c, cores)
    chip = chip_of(chip_name)
    for grid, mb, nb in _ways(c, cores):
        if not search and grid != fixed:
            continue
        for rows_outer in (False, True):
            way = timed(c, grid, mb, nb, rows_outer, chip)
            if smallest is None or (way.lx_bytes, way.cycles) < (smallest.lx_bytes, smallest.cycles):
                smallest = way
            known = best.get(grid)
            if way.lx_bytes <= budget and (known is None or way.cycles < known.cycles):
                best[grid] = way
    found = sorted(best.values(), key=lambda w: w.cycles + w.compute / 64)  # of equals the one with more room
    assert smallest is not None
    return tuple(found[:6]) or (smallest,)


def k_tile(k: int, columns: int, whole_rows: bool, budget: int) -> int:
    """Elements of K in a tile: all of it unless LX cannot hold the smallest operand tiles then (16 rows of A twice,
    and B twice, or once where it may stay)."""
    if k <= max(64, budget // (64 + (2 if whole_rows else 4) * columns)):
        return k
    return max(64, min(K_BLOCK, budget // 3 // (4 * columns) if whole_rows else K_BLOCK) // 64 * 64)


def rows_pay(m: int, n: int, k: int, extra: int, cores: int, budget: int, chip_name: str) -> bool:
    """Is a product with a reduction over its columns in the epilogue faster than a product and a kernel after it?"""
    step = k_tile(k, n, True, budget)
    joined = divide(
        Contraction(1, m, n, step, 1, ceil(k, step), extra=extra, whole_rows=True), cores, budget, chip_name
    )[0]
    step = k_tile(k, 64, False, budget)
    apart = divide(Contraction(1, m, n, step, 1, ceil(k, step)), cores, budget, chip_name)[0]
    chip = chip_of(chip_name)
    result = 2.0 * m * n
    after = ddr_cycles((1 + extra) * result, result, chip) + chip.launch.fixed_ns.value * 1e-9 * chip.clock_hz
    log.debug(
        "m %d, n %d, k %d: with its row reductions %.0f cycles, apart %.0f + %.0f",
        m,
        n,
        k,
        joined.cycles,
        apart.cycles,
        after,
    )
    return joined.lx_bytes <= budget and joined.cycles < apart.cycles + after


@dataclass(frozen=True)
class Chained:
    """Two products as one kernel: cores along the rows, rows of a tile, hidden columns of a block."""

    cycles: float
    rows: int
    m_block: int
    h_block: int
    lx_bytes: int


@lru_cache(maxsize=4096)
def chained(
    m: int, k: int, h: int, n: int, extra: int, fixed: bool, operations: int, cores: int, budget: int, chip_name: str
) -> Chained | None:
    """The fastest way to compute [m, k] x [k, h] -> f -> x [h, n] block by block of h; None if LX is too small."""
    chip, best = chip_of(chip_name), None
    for rows in (g for g in GRID if g <= min(cores, m)):
        for mb in sorted({min(r, m) for r in ROWS} | {ceil(m, rows)} if ceil(m, rows) <= ROWS[-1] else {*ROWS}):
            for hb in (w for w in COLUMNS if h % w == 0):
                m_per = ceil(ceil(m, mb), rows)
                fetches = m_per * (1 if even(m, mb, rows, fixed) else rows)
                one = Contraction(1, m, hb, k, epilogue=operations)
                two = Contraction(1, m, n, hb, steps=h // hb)
                compute = m_per * (h // hb * tile_cycles(one, mb, hb, chip) + tile_cycles(two, mb, n, chip))
                result = 2.0 * m * n
                read = 2.0 * m * k + 2.0 * fetches * (k * h + h * n) + extra * result
                first = ddr_cycles(2.0 * mb * k * rows + 2.0 * hb * (k + n), 0, chip, rows)
                last = ddr_cycles(0, 2.0 * mb * n * rows, chip, rows)
                cycles = first + max(compute, ddr_cycles(read, result, chip, rows) - first) + last
                lx = 2 * mb * k * (1 if m_per == 1 else 2) + 4 * hb * (k + n) + 6 * mb * hb + mb * n * (12 + 4 * extra)
                if lx <= budget and (best is None or cycles < best.cycles):
                    best = Chained(cycles, rows, mb, hb, lx)
    return best


def chain_pays(m: int, k: int, h: int, n: int, way: Chained | None, cores: int, budget: int, chip_name: str) -> bool:
    """Is the chain faster than its two products as kernels?"""
    if way is None:
        return False
    apart = 0.0
    for columns, depth in ((h, k), (n, h)):
        step = k_tile(depth, 64, False, budget)
        apart += divide(Contraction(1, m, columns, step, 1, ceil(depth, step)), cores, budget, chip_name)[0].cycles
    log.debug("m %d, k %d, h %d, n %d: chained %.0f cycles, apart %.0f", m, k, h, n, way.cycles, apart)
    return way.cycles < apart


def explain(what: str, c: Contraction, ways: tuple[Division, ...]) -> None:
    """Log the choice and what it was chosen over (``TORCH_LOGS="+loom"``)."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    log.debug("%s: batch %d, m %d, n %d, k %d", what, c.batch, c.m, c.n * c.inner, c.k * c.steps)
    for place, way in enumerate(ways):
        log.debug("  %s %s", "chosen" if place == 0 else "      ", way)


def _fixed(c: Contraction, cores: int) -> tuple[int, int, int]:
    """The grid without a search: batches if there are enough of them, else rows."""
    if c.batch >= cores:
        return cores, 1, 1
    return 1, max(g for g in GRID if g <= min(cores, max(c.m, 1))), 1
