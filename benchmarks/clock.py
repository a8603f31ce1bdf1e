"""How fast the clock is: events per second of host time, per kernel, on one core.

    python benchmarks/clock.py [--chip spyre] [--seconds 1]

An event is a step of the simulation: an instruction of a unit's stream, or the end of a wait or of a transfer.
"""

from __future__ import annotations

import argparse
import time

import schedules
from rich.console import Console
from rich.table import Table

from torch_loom import arch, ktir, scheduler
from torch_loom.scheduler.compiled import native_chip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--chip", default="spyre")
    parser.add_argument("--seconds", type=float, default=1.0, help="per kernel")
    args = parser.parse_args()
    chip = arch.load(args.chip)
    native = native_chip()
    table = Table(title="speed of the clock (goal: 2 million events/s)")
    for head in ("kernel", "modelled us", "events", "host us", "million events/s"):
        table.add_column(head, justify="left" if head == "kernel" else "right")
    for make in schedules.BENCHMARKS:
        case = make()
        program = ktir.load(case.text)
        compiled = scheduler.compile(program, program.functions[0], chip)
        loaded = native.decode(compiled.binary)
        buffers = [(i << 33, 1 << 33) for i in range(len(loaded.args))]
        params = chip.clock_params()
        calls, spent = 0, 0.0
        while spent < args.seconds:
            start = time.process_time()
            timing = native.time(loaded, buffers, params)
            spent += time.process_time() - start
            calls += 1
        host = spent / calls
        cells = (f"{timing.ns / 1e3:.1f}", str(timing.events), f"{host * 1e6:.0f}", f"{timing.events / host / 1e6:.1f}")
        table.add_row(case.name, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
