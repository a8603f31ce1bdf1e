"""The public measurements beside the clock: each is a real kernel, compiled by the scheduler and timed.

    python benchmarks/calibration.py [--chip spyre] [--json]

Rates are payload over the time of the launch without its fixed part. Where the public fit adds the bus turnaround to a
rate (C9), the same is taken off here. Parameters and mechanisms: docs/clock.md. Published ablations (C13, C15 to C17
in other words): benchmarks/ablations.py.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import calibration_kernels as kernels
import schedules
from rich.console import Console
from rich.table import Table

from torch_loom import arch, ktir, scheduler

CARD = 32  # cores
LARGE = 1 << 25  # elements, 64 MiB
# Bytes per parameter, parameters of the layers and of the output matrix: Granite 3.3 8B (40 layers, width 4096, MLP
# 12800, 8 key and value heads of 128, vocabulary 49159), batch 1, prompt of 1024.
WIDTH, MLP, LAYERS, KV, VOCABULARY, PROMPT = 4096, 12800, 40, 1024, 49159, 1024
LAYER_WEIGHTS = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KV + 3 * WIDTH * MLP)
# Host time of one pass through the model, in ns: building its graph on the way of the data, and again at each dispatch.
# Two numbers for the four figures C18 and C19; prefill and decode launch the same kernels.
HOST_DATA_PATH, HOST_DISPATCH = 43e6, 160.5e6


@dataclass(frozen=True)
class Row:
    """One figure: published and modelled value in ``unit``."""

    number: str
    what: str
    unit: str
    published: float
    model: float

    @property
    def error(self) -> float:
        return self.model / self.published - 1


@cache
def timed(chip: arch.Chip, text: str) -> Any:
    """Timing of a kernel's text."""
    program = ktir.load(text)
    return scheduler.compile(program, program.functions[0], chip).time(chip)


class Model:
    """Kernels on one chip."""

    def __init__(self, chip: arch.Chip) -> None:
        self.chip = chip

    def time(self, text: str) -> Any:
        return timed(self.chip, text)

    def ns(self, t: Any) -> float:
        """Time without the launch."""
        return (t.cycles - t.launch_cycles) * 1e9 / self.chip.clock_hz

    def rate(self, text: str) -> float:
        """Bytes per ns."""
        t = self.time(text)
        return (t.ddr_read_bytes + t.ddr_write_bytes) / self.ns(t)

    def turnaround(self) -> float:
        """ns per byte of the smaller direction, from a copy against a read of the same bytes (C4)."""
        t = self.time(kernels.elementwise(LARGE, 1))
        total = t.ddr_read_bytes + t.ddr_write_bytes
        return (self.ns(t) - total / self.rate(kernels.read_only(LARGE))) / min(t.ddr_read_bytes, t.ddr_write_bytes)

    def strided(self) -> float:
        """Rate of runs of one stick, without turnaround (C9)."""
        t = self.time(kernels.restickify(64, 64, 64))
        smaller = min(t.ddr_read_bytes, t.ddr_write_bytes)
        return (t.ddr_read_bytes + t.ddr_write_bytes) / (self.ns(t) - self.turnaround() * smaller)

    def products(self, rows: int) -> float:
        """MAC per ns and core of the array at so many rows, the operands in LX."""
        short, long = (self.time(kernels.products(rows, 512, 512, n)) for n in (50, 250))
        return (long.macs - short.macs) / (long.ns - short.ns) / CARD

    def matmul(self) -> float:
        """MAC per ns and core of a whole matrix product, DDR included."""
        t = self.time(schedules.matmul("matmul", 4096, 2048, 8192, 16, 64, "").text)
        return t.macs / self.ns(t) / CARD

    def relayout(self, elements: int = 1 << 21) -> float:
        """ns of handing 4 MiB to the neighbours over the ring: one shift more of the same graph."""
        once, twice = (self.time(kernels.neighbour_shift(elements, n)) for n in (1, 2))
        return twice.ns - once.ns

    def ring(self) -> float:
        """Bytes per cycle of a link while it carries something."""
        t = self.time(kernels.neighbour_shift(1 << 21, 2))
        return t.link_bytes["ring"] / t.units["ring"].busy_cycles

    def device(self) -> dict[str, float]:
        """ns of one pass of Granite 3.3 8B on the device: contractions at the rates of a large product (prefill) and of
        a product with one row (decode)."""
        vector = self.time(schedules.matvec().text)
        decode = 2 * (LAYER_WEIGHTS + WIDTH * VOCABULARY) / (vector.ddr_read_bytes / self.ns(vector))
        return {"prefill": PROMPT * LAYER_WEIGHTS / (self.matmul() * CARD), "decode": decode}


def few_rows(rows: int) -> float:
    return min(1.0, (rows / 64) ** 0.35)


def row_rate(rows: int) -> float:
    return min(150.0, 114 + 61 * math.exp(-rows / 3700))


def rows(m: Model) -> Iterator[Row]:
    """Every public figure that is a measurement or a rate."""
    chip = m.chip
    yield Row("C1", "DDR peak of the controller", "GB/s", 204.8, chip.ddr.peak_bytes_per_s.value / 1e9)
    yield Row("C2", "one direction", "GB/s", 150, m.rate(kernels.read_only(LARGE)))
    yield Row("C3", "copy, equal bytes each way", "GB/s", 105, m.rate(kernels.elementwise(LARGE, 1)))
    yield Row("C4", "turnaround per byte of the smaller direction", "ns/B", 0.00574, m.turnaround())
    add = m.time(kernels.elementwise(LARGE, 2))
    yield Row("C2-4", "addition of two tensors", "us", LARGE * (6 / 150 + 2 * 0.00574) / 1e3, m.ns(add) / 1e3)
    yield Row("C6", "df16 peak of a core", "MAC/ns", 1536, chip.peak_flops / 2e9 / chip.cores)
    yield Row("C7", "large matrix product, per core", "MAC/ns", 1140, m.matmul())
    for r in (1, 2, 4, 8, 16, 32, 64, 128):
        yield Row("C8", f"array at {r} rows, per core", "MAC/ns", 1140 * few_rows(r), m.products(r))
    yield Row("C9", "restickify, runs of one stick", "GB/s", 116, m.strided())
    yield Row("C10", "reduction across rows", "GB/s", 113, m.rate(kernels.column_reduction(16384, 4096)))
    for r in (1024, 2048, 4096, 8192, 16384):
        yield Row("C11", f"row reduction, {r} rows", "GB/s", row_rate(r), m.rate(kernels.row_reduction(r, 2048)))
    base = m.rate(kernels.row_reduction(1024, 2048))
    for cores, factor in ((1, 0.11), (2, 0.22), (4, 0.43), (8, 0.54), (16, 0.54), (32, 1.0)):
        rate = m.rate(kernels.row_reduction(1024, 2048, cores))
        yield Row("C12", f"row reduction on {cores} cores", "of C11", factor, rate / base)
    for in_ddr, published in ((True, 32.5), (False, 23.7)):
        place = "intermediates in DDR" if in_ddr else "all in LX"
        yield Row(
            "C13", f"softmax 512 x 1024, {place}", "us", published, m.time(kernels.softmax(512, 1024, in_ddr)).ns / 1e3
        )
    yield Row("C14", "link of the ring, one direction", "B/cycle", 128, m.ring())
    yield Row("C17", "relayout of 4 MiB on the chip", "us", 1.1, m.relayout() / 1e3)
    yield Row("C17", "the same through DDR", "us", 80, m.time(kernels.elementwise(1 << 21, 1)).ns / 1e3)
    device = m.device()
    for phase, less, factor in (("prefill", 9.9, 1.7), ("decode", 13.6, 2.4)):
        ns = device[phase]
        before = ns + HOST_DATA_PATH + HOST_DISPATCH
        yield Row("C18", f"{phase}: graph built off the data path", "% less", less, 100 * HOST_DATA_PATH / before)
        yield Row("C19", f"{phase}: and out of dispatch", "x", factor, (ns + HOST_DISPATCH) / ns)


def report(found: list[Row]) -> None:
    table = Table(title="public measurements and the clock")
    for head in ("", "figure", "unit", "published", "model", "error"):
        table.add_column(head, justify="left" if head in ("", "figure", "unit") else "right")
    for r in found:
        table.add_row(r.number, r.what, r.unit, f"{r.published:.4g}", f"{r.model:.4g}", f"{r.error:+.1%}")
    console = Console(width=120)
    console.print(table)
    errors = [r.error for r in found]
    rms = math.sqrt(sum(e * e for e in errors) / len(errors))
    console.print(f"{len(found)} figures, RMS {rms:.1%}, largest {max(errors, key=abs):+.1%}")
    console.print("C5 (no fill, free LX) is a choice of the public fit; C15 and C16: benchmarks/ablations.py")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--chip", default="spyre")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = list(rows(Model(arch.load(args.chip))))
    if args.json:
        print(json.dumps([{**asdict(r), "error": r.error} for r in found]))
    else:
        report(found)


if __name__ == "__main__":
    main()
