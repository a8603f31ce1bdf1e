"""Fuzz the KTIR loader and verifier: every mutated text loads or gives a diagnostic, quickly and in bounded memory.

    python benchmarks/ktir_fuzz.py [--count 10000] [--seed 0] [--limit-seconds 5] [--limit-mb 1500]

Prints counts, the slowest text and the peak memory; exit status 1 when any text did something else. A failing text is
identified by its number: the same number makes the same text.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/ktir")]


def main() -> int:
    """Run the fuzz."""
    from ktir_mutate import mutate, outcome

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-seconds", type=float, default=5.0)
    parser.add_argument("--limit-mb", type=float, default=1500.0)
    options = parser.parse_args()

    pool = [p.read_text("utf-8") for p in sorted((ROOT / "tests/ktir/programs").glob("*.ktir"))]
    counts: Counter[str] = Counter()
    failures: list[str] = []
    slowest = (0.0, -1)
    outcome(pool[0])  # imports and first-use tables are not the cost of a text
    start = time.perf_counter()
    for number in range(options.seed, options.seed + options.count):
        text = mutate(random.Random(number), pool)
        began = time.perf_counter()
        try:
            counts[outcome(text)] += 1
        except Exception as error:  # finding these is the purpose
            frame = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(
                f"{number}: {type(error).__name__}: {str(error)[:80]} ({Path(frame.filename).name}:{frame.lineno})"
            )
        slowest = max(slowest, (time.perf_counter() - began, number))
        if sys.stderr.isatty() and number % 500 == 0:
            print(f"\r{number - options.seed}/{options.count}", end="", file=sys.stderr)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"texts            {options.count}")
    for name, count in sorted(counts.items()):
        print(f"{name:16} {count}")
    print(f"exceptions       {len(failures)}")
    print(f"slowest text     {slowest[0]:.2f} s (number {slowest[1]})")
    print(f"peak memory      {peak:.0f} MB")
    print(f"total            {seconds:.0f} s")
    for line in failures[:20]:
        print("  " + line)
    return int(bool(failures) or slowest[0] > options.limit_seconds or peak > options.limit_mb)


if __name__ == "__main__":
    sys.exit(main())
