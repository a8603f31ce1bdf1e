"""How a contraction is divided over cores, batches, rows, columns and K: every way is timed, the fastest wins.

The time of a way comes from the rates that the clock uses (``rates.py``): products in PT by rows of a tile, the
epilogue in the SFU, DDR by bytes read and written. Cores that need the same tile fetch it once. What must arrive
before the first product is not overlapped by anything. Cores that share K add their sums over the ring and keep a part
of the tile each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..arch import Chip
from .rates import EXCHANGE_LAUNCH_CYCLES, ceil, chip_of, ddr_cycles, exchange_cycles, latency, log_ways, tile_cycles

log = logging.getLogger(__name__)

# Rows and columns of a tile that are tried besides what a core owns.
ROWS = (16, 32, 64, 128)
COLUMNS = (64, 128, 192, 256, 384, 512)
# Elements of K in a tile when a tile cannot hold all of it: wide enough for long runs of the accumulation.
K_BLOCK = 1024
# Bytes of LX that the tiles of a contraction may take.
LX_BUDGET = 1_600_000

Grid = tuple[int, int, int, int]


@dataclass(frozen=True)
class Sticks:
    """How the tiles of an operand lie in sticks: their last axis has ``lanes`` elements for each index of the block
    ``along`` ("m", "n" or "k"; "": none), is padded to whole sticks and is ``loose`` where it may begin at any lane.
    ``beside`` are bytes in LX next to an element's own, as parts of them. ``packed`` tiles are copied once more in LX,
    since the array takes whole rows at even distances."""

    lanes: int = 1
    along: str = ""
    loose: bool = False
    per_stick: int = 1
    beside: float = 0.0
    packed: bool = False

    def factor(self, blocks: Mapping[str, Any]) -> Any:
        """Bytes that such a tile takes by those of its elements; ``blocks`` are the indices of each block."""
        run = self.lanes * blocks.get(self.along, 1)
        return (ceil(run, self.per_stick) + self.loose) * self.per_stick / run + self.beside


@dataclass(frozen=True)
class Contraction:
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n] as the kernel sees it; sizes in elements.

    ``n`` counts blocks along the outermost column dim, each ``inner`` columns wide; LX must have room for ``held`` of
    them (0: as many), the bound of ``inner`` where it is open. K goes in ``steps`` tiles of ``k``,
    which are ``k_inner`` elements for each index of its outermost dim; the last one may have ``rest`` elements.
    ``shared`` and ``a_shared`` say that B and A are the same for all batches, ``epilogue`` are the cycles of the SFU
    per vector and ``extra`` the number of operands read by it per result. ``products`` of these sizes share A,
    ``written`` of their results go to memory. With ``whole_rows`` a tile has all columns. Cores may share K in parts of
    ``k_unit`` elements (0: they may not). ``a_sticks``, ``b_sticks`` and ``c_sticks`` tell how tiles of the operands
    and of what has the size of the result are padded."""

    batch: int
    m: int
    n: int
    k: int
    inner: int = 1
    held: int = 0
    steps: int = 1
    shared: bool = False
    epilogue: float = 1.0
    extra: int = 0
    bytes: int = 2
    products: int = 1
    written: int = 1
    whole_rows: bool = False
    k_unit: int = 0
    k_inner: int = 1
    rest: int = 0
    a_shared: bool = False
    a_sticks: Sticks = Sticks()
    b_sticks: Sticks = Sticks()
    c_sticks: Sticks = Sticks()


@dataclass(frozen=True)
class Division:
    """One way: cores along (batch, m, n, k), tile sizes, loop order, and what it is expected to cost.

    A core goes over its part of K in ``steps`` tiles of ``k_block``."""

    cycles: float
    grid: Grid
    m_block: int
    n_block: int
    k_block: int
    steps: int
    rows_outer: bool
    compute: float
    read: float
    written: float
    lx_bytes: int

    def __str__(self) -> str:
        order = "rows, then columns" if self.rows_outer else "columns, then rows"
        gb, gm, gn, gk = self.grid
        return (
            f"{gb} x {gm} x {gn} x {gk} cores, tiles {self.m_block} x {self.n_block} over {self.k_block}, {order}: "
            f"{self.cycles:.0f} cycles (compute {self.compute:.0f}, DDR {self.read / 1e3:.0f} kB read "
            f"{self.written / 1e3:.0f} kB written, LX {self.lx_bytes / 1024:.0f} KiB)"
        )


def share_axis(m_block: int, n_block: int, inner: int, parts: int) -> int | None:
    """The axis of a tile (0 rows, 1 columns) that ``parts`` cores divide when they have added it up; None: each keeps
    all of it. Shares of columns are whole sticks, or equal parts of one."""
    share = n_block // parts * inner
    if n_block % parts == 0 and (share % 64 == 0 or 64 % share == 0):
        return 1
    return 0 if m_block % parts == 0 else None


@dataclass(frozen=True)
class _Costs:
    """Cost of many ways at once, an entry per way."""

    cycles: Any
    k_block: Any
    steps: Any
    compute: Any
    read: Any
    written: Any
    lx_bytes: Any


def _costs(c: Contraction, grid: Any, mb: Any, nb: Any, rows_outer: Any, chip: Chip) -> _Costs:
    """Cost of ways: ``grid`` holds cores along (batch, m, n, k)."""
    gb, gm, gn, gk = grid
    wide = nb * c.inner
    b_per, m_per, n_per = ceil(c.batch, gb), ceil(ceil(c.m, mb), gm), ceil(ceil(c.n, nb), gn)
    depth = c.k * c.steps
    unit = max(c.k_unit, 1)
    own = np.where(gk > 1, ceil(ceil(depth, unit), gk) * unit, depth)
    steps = np.where(gk > 1, ceil(own, c.k), c.steps)
    k = np.where(gk > 1, ceil(ceil(own, steps), unit) * unit, c.k)
    whole = steps == 1
    # How often a core fetches its part of A and of B; cores that need the same part fetch it once.
    a_times = np.where(whole & (rows_outer | (m_per == 1)), 1, n_per)
    a_times = np.where((not c.a_shared) | ~whole | (m_per > 1), a_times * b_per, a_times)
    b_times = np.where(whole & (~rows_outer | (n_per == 1)), 1, m_per)
    b_times = np.where((not c.shared) | ~whole | (n_per > 1), b_times * b_per, b_times)
    blocks = {"m": mb, "n": nb, "k": k // c.k_inner}
    a_pad, b_pad, c_pad = (s.factor(blocks) for s in (c.a_sticks, c.b_sticks, c.c_sticks))
    fetchers = gm * gk if c.a_shared else gb * gm * gk
    a_bytes = m_per * mb * own * c.bytes * a_pad * a_times * fetchers
    sharers = gm * gb if c.shared else gm
    b_bytes = c.products * n_per * wide * own * c.bytes * b_pad * b_times * gb * gm * gn * gk / sharers
    c_bytes = c.batch * c.m * c.n * c.inner * c.bytes * c_pad
    read, written = a_bytes + b_bytes + c.extra * c_bytes, c.written * c_bytes
    tiles = b_per * m_per * n_per
    tile = mb * wide
    columns = (nb % gk == 0) & (((nb // gk * c.inner) % 64 == 0) | (64 % np.maximum(nb // gk * c.inner, 1) == 0))
    share = np.where((gk > 1) & (columns | (mb % gk == 0)), tile // gk, tile)
    one = tile_cycles(mb, wide, k, steps, c.epilogue, c.bytes, chip, c.products)
    one = one + c.products * exchange_cycles(tile, gk, share, chip)
    compute = tiles * one
    cores = gb * gm * gn * gk
    first_a = mb * k * c.bytes * a_pad * fetchers
    first_b = c.products * wide * k * c.bytes * b_pad * cores / sharers
    first = ddr_cycles(first_a + first_b, 0.0, chip, cores) + latency(chip)
    memory = ddr_cycles(read, written, chip, cores)
    last = np.where(
        tiles > 1,
        c.written * share * c.bytes * c_pad / chip.dma.write_bytes_per_cycle.value,
        ddr_cycles(0.0, written, chip, cores),
    )
    once_a = (a_times == 1) & (m_per * np.where(c.a_shared, 1, b_per) == 1)
    once_b = (b_times == 1) & (n_per == 1)
    rest = (c.rest / c.k if c.rest else 0.0) * (gk == 1)  # the shorter tile at the end of K has its own place
    a_lx = np.where(once_a, 1, 2) * a_pad * (1 + rest) + c.a_sticks.packed
    b_lx = np.where(once_b, 1, 2) * b_pad * (1 + rest) + c.b_sticks.packed
    room = nb * (c.held or c.inner)
    lx = mb * k * c.bytes * a_lx + c.products * room * k * c.bytes * b_lx
    lx = lx + mb * room * (4 * c.products + c_pad * (4 * c.written + 4 * c.extra))
    lx = lx + np.where(steps > 1, 4 * mb * room * c.products, 0)
    lx = lx + np.where(gk > 1, 8 * mb * room * c.products, 0)
    cycles = first + np.maximum(compute, memory - first) + last + np.where(gk > 1, EXCHANGE_LAUNCH_CYCLES, 0.0)
    return _Costs(cycles, k, steps, compute, read, np.broadcast_to(written, np.shape(cycles)), lx)


def timed(c: Contraction, grid: Grid, mb: int, nb: int, rows_outer: bool, chip: Chip) -> Division:
    """One way with its cost."""
    cores, order = tuple(np.array([g]) for g in grid), np.array([rows_outer])
    return _division(_costs(c, cores, np.array([mb]), np.array([nb]), order, chip), 0, grid, mb, nb, rows_outer)


def _division(cost: _Costs, i: int, grid: Grid, mb: int, nb: int, rows_outer: bool) -> Division:
    return Division(
        float(cost.cycles[i]),
        grid,
        mb,
        nb,
        int(cost.k_block[i]),
        int(cost.steps[i]),
        rows_outer,
        float(cost.compute[i]),
        float(cost.read[i]),
        float(cost.written[i]),
        int(cost.lx_bytes[i]),
    )


@cache
def _grids(cores: int) -> Any:
    """All (batch, m, n, k) with a product of at most ``cores``, one row each."""
    found = [
        (gb, gm, gn, gk)
        for gb in range(1, cores + 1)
        for gm in range(1, cores // gb + 1)
        for gn in range(1, cores // gb // gm + 1)
        for gk in range(1, cores // gb // gm // gn + 1)
    ]
    return np.array(found)


def _all_busy(extent: int, block: Any, parts: Any) -> Any:
    """Has each of ``parts`` cores tiles, where they share those of an extent in equal runs?"""
    tiles = ceil(extent, block)
    return ceil(tiles, ceil(tiles, parts)) == parts


def _ways(c: Contraction, cores: int, search: bool) -> tuple[Any, ...]:
    """Grids, rows, columns, orders and validity of all ways; arrays over [grid, rows, columns, order]."""
    unit = ceil(64, c.inner)  # blocks along n that fill a stick
    grids = _grids(cores) if search else np.array([_fixed(c, cores)])
    top = np.array(
        [
            c.batch,
            max(c.m, 1),
            1 if c.whole_rows else ceil(c.n, unit),
            max(1, c.k * c.steps // (2 * c.k_unit)) if c.k_unit and not c.whole_rows else 1,
        ]
    )
    grids = grids[(grids <= top).all(axis=1)]
    gb, gm, gn, gk = (grids[:, i].reshape(-1, 1, 1, 1) for i in range(4))

    def whole(blocks: Any) -> Any:
        return np.minimum(ceil(blocks, unit) * unit, c.n)

    own = ceil(c.m, gm)
    rows = np.concatenate([np.minimum(np.array(ROWS).reshape(1, -1, 1, 1) + 0 * gm, c.m), own], axis=1)
    valid = rows <= ROWS[-1]
    if c.whole_rows:
        columns = np.full((len(grids), 1, 1, 1), c.n)
    else:
        some = whole(ceil(np.array(COLUMNS), c.inner)).reshape(1, 1, -1, 1)
        wide = whole(ceil(c.n, gn))
        columns = np.concatenate([some + 0 * gn, wide], axis=2)
        limit = max(COLUMNS[-1], int(whole(1)) * c.inner)
        valid = valid & (columns * c.inner <= limit)
    if search:  # every core has tiles; a grid without search is as it is
        valid = valid & _all_busy(c.batch, 1, gb) & _all_busy(c.m, rows, gm) & _all_busy(c.n, columns, gn)
    order = np.array([False, True]).reshape(1, 1, 1, 2)
    shape = np.broadcast_shapes(rows.shape, columns.shape, order.shape)
    spread = [np.broadcast_to(x, shape).reshape(len(grids), -1) for x in (rows, columns, order, valid)]
    return grids, *spread


@lru_cache(maxsize=4096)
def divide(c: Contraction, cores: int, budget: int, chip_name: str, search: bool = True) -> tuple[Division, ...]:
    """The fastest way first, then the best of the other core grids. Tiles take at most ``budget`` bytes of LX, unless
    even the smallest are larger. Without ``search`` rows (or batches) go over the cores."""
    grids, rows, columns, order, valid = _ways(c, cores, search)
    grid = tuple(np.repeat(grids[:, i], rows.shape[1]) for i in range(4))
    flat = rows.ravel(), columns.ravel(), order.ravel()
    cost = _costs(c, grid, *flat, chip_of(chip_name))
    # Of equals the one with more room for the products, and with fewer cores that exchange.
    score = np.where(valid.ravel(), cost.cycles + cost.compute / 64, np.inf)
    fits = np.where(cost.lx_bytes <= budget, score, np.inf).reshape(rows.shape)
    best = fits.argmin(axis=1)
    by_grid = fits[np.arange(len(grids)), best]

    def way(g: int, at: int) -> Division:
        i = g * rows.shape[1] + at
        sizes = int(flat[0][i]), int(flat[1][i]), bool(flat[2][i])
        return _division(cost, i, tuple(map(int, grids[g])), *sizes)  # type: ignore[arg-type]

    chosen = [g for g in np.argsort(by_grid, kind="stable")[:6] if np.isfinite(by_grid[g])]
    if chosen:
        return tuple(way(int(g), int(best[g])) for g in chosen)
    least = np.where(valid.ravel(), cost.lx_bytes.astype(float), np.inf)
    least = np.lexsort((cost.cycles, least))[0]
    return (way(int(least) // rows.shape[1], int(least) % rows.shape[1]),)


def k_tile(k: int, columns: int, whole_rows: bool, budget: int) -> int:
    """Elements of K in a tile: all of it unless LX cannot hold the smallest operand tiles then (16 rows of A twice,
    and B twice, or once where it may stay)."""
    if k <= max(64, budget // (64 + (2 if whole_rows else 4) * columns)):
        return k
    return max(64, min(K_BLOCK, budget // 3 // (4 * columns) if whole_rows else K_BLOCK) // 64 * 64)


def product_of(m: int, n: int, k: int, budget: int, **fields: Any) -> Contraction:
    """A plain product of these sizes as a kernel sees it; ``fields`` are further ones of ``Contraction``."""
    step = k_tile(k, n if fields.get("whole_rows") else 64, fields.get("whole_rows", False), budget)
    unit = 0 if k % 64 or fields.get("whole_rows") else 64
    return Contraction(m=m, n=n, k=step, steps=ceil(k, step), k_unit=unit, **{"batch": 1, **fields})


def product_alone(m: int, n: int, k: int, cores: int, budget: int, chip_name: str) -> Division:
    """The fastest way of a product that is a kernel of its own."""
    return divide(product_of(m, n, k, budget), cores, budget, chip_name)[0]


def launch_cycles(chip: Chip) -> float:
    """Cycles of a launch before its first instruction, at least."""
    return chip.launch.fixed_ns.value * 1e-9 * chip.clock_hz


def rows_pay(m: int, n: int, k: int, extra: int, cores: int, budget: int, chip_name: str, kept: bool) -> bool:
    """Is a product with a reduction over its columns in the epilogue faster than a product and a kernel after it?

    Apart, they meet in DDR, or, where buffers are ``kept`` between kernels (``residency.py``), in LX: if the result and
    the ``extra`` operands of its size fit beside the product, the second kernel has to write its own result only."""
    joined = divide(product_of(m, n, k, budget, extra=extra, whole_rows=True), cores, budget, chip_name)[0]
    apart = product_alone(m, n, k, cores, budget, chip_name)
    chip = chip_of(chip_name)
    result = 2.0 * m * n
    if kept and (1 + extra) * result / cores + apart.lx_bytes <= chip.lx_plan_bytes:
        after = 0.0  # what is not written to DDR first is what is written at last
    else:
        after = float(ddr_cycles((1 + extra) * result, result, chip))
    after += launch_cycles(chip) + latency(chip)
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


@lru_cache(maxsize=4096)
def joint_pays(
    batch: int, m: int, n: int, k: int, products: int, written: int, cores: int, budget: int, chip_name: str
) -> bool:
    """Are ``products`` products of one left operand, of which ``written`` results are stored, faster as one kernel than
    one after another?"""
    shape = product_of(m, n, k, budget, batch=batch, shared=batch == 1)
    together = replace(shape, products=products, written=written)
    joint, alone = (divide(c, cores, budget, chip_name)[0] for c in (together, shape))
    apart = products * (alone.cycles + launch_cycles(chip_of(chip_name)))
    log.debug("%d products, m %d, n %d, k %d: joint %.0f cycles, apart %.0f", products, m, n, k, joint.cycles, apart)
    return joint.lx_bytes <= budget and joint.cycles < apart


def explain(what: str, c: Contraction, ways: tuple[Division, ...]) -> None:
    """Log the choice and what it was chosen over (``TORCH_LOGS="+loom"``)."""
    log.debug("%s: batch %d, m %d, n %d, k %d", what, c.batch, c.m, c.n * c.inner, c.k * c.steps)
    log_ways(log, ways)


def _fixed(c: Contraction, cores: int) -> Grid:
    """The grid without a search: batches if there are enough of them, else rows."""
    if c.batch >= cores:
        return cores, 1, 1, 1
    rows = min(cores, max(c.m, 1))
    return 1, 1 << (rows.bit_length() - 1), 1, 1
