"""When two products are faster as one kernel than as two: the cost of every way to run the chain."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .division import COLUMNS, ROWS, divide, launch_cycles, product_alone, product_of
from .rates import EXCHANGE_LAUNCH_CYCLES, ceil, chip_of, ddr_cycles, exchange_cycles, latency, tile_cycles

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chained:
    """Two layers as one kernel: cores along the rows and along the hidden layer, rows of a tile, hidden columns of a
    block."""

    cycles: float
    rows: int
    parts: int
    m_block: int
    h_block: int
    lx_bytes: int


@dataclass(frozen=True)
class Layers:
    """[m, k] x [k, h] -> f -> x [h, n]: ``products`` of the first kind make the hidden layer (2 if it is gated), ``f``
    costs ``epilogue`` SFU cycles per vector, what follows reads ``extra`` operands per result."""

    m: int
    k: int
    h: int
    n: int
    products: int
    epilogue: float
    extra: int


@lru_cache(maxsize=4096)
def chained(c: Layers, cores: int, budget: int, chip_name: str, ring: bool = True) -> Chained | None:
    """The fastest way to compute the layers block by block of h; None if LX is too small. Without
    ``ring`` no core shares its rows."""
    chip = chip_of(chip_name)
    ways = [
        (rows, parts, mb, hb)
        for rows in range(1, min(cores, c.m) + 1)
        for mb in sorted({min(r, c.m) for r in ROWS} | ({ceil(c.m, rows)} if ceil(c.m, rows) <= ROWS[-1] else set()))
        for parts in range(1, (cores // rows if ring else 1) + 1)
        if mb % parts == 0
        for hb in COLUMNS
        if c.h % (hb * parts) == 0
    ]
    if not ways:
        return None
    rows, parts, mb, hb = (np.array(x) for x in zip(*ways, strict=True))
    used = rows * parts
    m_per = ceil(ceil(c.m, mb), rows)
    one = tile_cycles(mb, hb, c.k, 1, c.epilogue, 2, chip, c.products)
    blocks = c.h // hb // parts
    two = tile_cycles(mb, c.n, hb, blocks, 1.0, 2, chip) + exchange_cycles(mb * c.n, parts, mb * c.n // parts, chip)
    compute = m_per * (blocks * one + two)
    result = 2.0 * c.m * c.n
    weights = 2.0 * m_per * (c.products * c.k * c.h + c.h * c.n)
    read = 2.0 * c.m * c.k + weights + c.extra * result
    start = 2.0 * mb * c.k * rows + 2.0 * hb * parts * (c.products * c.k + c.n)
    first = ddr_cycles(start, 0.0, chip, used) + latency(chip)
    last = ddr_cycles(0.0, 2.0 * mb * c.n * rows, chip, used) + np.where(parts > 1, EXCHANGE_LAUNCH_CYCLES, 0.0)
    cycles = first + np.maximum(compute, ddr_cycles(read, result, chip, used) - first) + last
    lx = 2 * mb * c.k * np.where(m_per == 1, 1, 2) + 4 * hb * (c.products * c.k + c.n)
    lx = lx + (2 + 4 * c.products) * mb * hb + mb * c.n * (12 + 4 * c.extra + np.where(parts > 1, 8, 0))
    score = np.where(lx <= budget, cycles, np.inf)
    best = int(score.argmin())
    if not np.isfinite(score[best]):
        return None
    return Chained(float(cycles[best]), *ways[best], int(lx[best]))


def chain_pays(c: Layers, way: Chained | None, cores: int, budget: int, chip_name: str) -> bool:
    """Is the chain faster than its layers as kernels?"""
    if way is None:
        return False
    shape = product_of(c.m, c.h, c.k, budget, epilogue=c.epilogue, products=c.products)
    apart = divide(shape, cores, budget, chip_name)[0].cycles
    apart += product_alone(c.m, c.n, c.h, cores, budget, chip_name).cycles + launch_cycles(chip_of(chip_name))
    log.debug("m %d, k %d, h %d, n %d: chained %.0f cycles, apart %.0f", c.m, c.k, c.h, c.n, way.cycles, apart)
    return way.cycles < apart
