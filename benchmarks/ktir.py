"""Times of loading, checking and running KTIR kernels of a size that counts.

    python benchmarks/ktir.py [--engine reference|chip] [--repeat 3] [--only NAME]

Prints one row per kernel: lines of text, milliseconds to load and to check, seconds of the run (best of ``repeat``
after one warm-up call), the target of the chip engine, and the largest error against NumPy.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]


def best(repeat: int, call: object) -> float:
    """Smallest time of several calls, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Print the table."""
    from ktir_kernels import KERNELS

    from torch_loom.ktir import load
    from torch_loom.ktir.engines import engine_names

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.engine not in engine_names():
        print(f"no engine '{options.engine}'; there are {', '.join(engine_names())}", file=sys.stderr)
        return 2
    print(f"{'kernel':22}{'lines':>6}{'load ms':>9}{'check ms':>9}{'run s':>9}{'target s':>9}{'max error':>11}")
    for name, make in KERNELS.items():
        if options.only not in name:
            continue
        kernel = make(np.random.default_rng(0))
        program = load(kernel.text)
        program.check()
        loading = best(options.repeat, lambda text=kernel.text: load(text))
        checking = best(options.repeat, program.check)
        arguments = {"engine": options.engine, **({"lx_bytes": None} if options.engine == "reference" else {})}
        result = program.run(**kernel.arrays, **arguments)
        running = best(options.repeat, lambda p=program, k=kernel, a=arguments: p.run(**k.arrays, **a))
        error = float(np.max(np.abs(result["z"].astype(np.float64) - kernel.expected)))
        lines = kernel.text.count("\n")
        print(
            f"{name:22}{lines:6}{loading * 1e3:9.1f}{checking * 1e3:9.1f}{running:9.3f}"
            f"{kernel.target_seconds:9.2f}{error:11.2e}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
