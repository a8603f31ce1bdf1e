"""Run PyTorch's samples of all operators on ``spyre`` and hold the results to the record, or write them into it.

``python tests/opinfo/sweep.py [--mode eager] [--dtype float16 float32] [--match REGEX]`` keeps what it has run below
``build/opinfo`` and goes on from there when started again; ``--again wrong crash`` runs operators with these results
once more, ``--fresh`` all of them. An operator runs with as many of its samples as the record was made with, unless
``--samples`` says how many. At the end it prints what differs from the record in either direction and
fails if anything does; ``--record`` writes the record and ``docs/ops.md`` instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from queue import Empty, SimpleQueue

from opinfo_record import KINDS, ROOT, SAMPLES, UNTRIED, differences, jobs, keep, key, load, spread
from opinfo_workers import Row, Worker

DTYPES = ("float16", "float32", "int64", "bool")


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line per operator that does not pass."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self.counts: Counter[str] = Counter()
        self.started = time.monotonic()

    def note(self, name: str, rows: list[Row]) -> None:
        """An operator has been run."""
        self.done += 1
        self.counts.update(r[0] for r in rows)
        for part, row in zip(("", " backward"), rows, strict=False):
            if row[0] not in ("pass", "skip"):
                self._print(f"{row[0]:8}{name + part:45}{row[1]}", lasting=True)
        spent = time.monotonic() - self.started
        left = spent / self.done * (self.total - self.done)
        found = ", ".join(f"{k} {n}" for k in KINDS if (n := self.counts[k]))
        self._print(f"{self.title}: {self.done}/{self.total}, {found}; {left / 60:.0f} min left", lasting=False)

    def _print(self, text: str, lasting: bool) -> None:
        if sys.stderr.isatty():
            print(
                f"\r\x1b[K{text if lasting else text[:110]}", end="\n" if lasting else "", file=sys.stderr, flush=True
            )
        elif lasting or self.done % 20 == 0 or self.done == self.total:
            print(text, file=sys.stderr, flush=True)


class Kept:
    """Results of one mode and dtype, in a file that survives the run."""

    def __init__(self, mode: str, dtype: str, samples: int) -> None:
        self.path = ROOT / "build" / "opinfo" / f"{mode}-{dtype}-{samples or 'recorded'}.json"
        self.rows: dict[str, list[Row]] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.lock = threading.Lock()

    def note(self, name: str, rows: list[Row]) -> None:
        """Keep the rows of an operator."""
        with self.lock:
            self.rows[name] = rows
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps(self.rows, indent=0))
            fresh.replace(self.path)


def run(kept: Kept, todo: list[tuple[str, str]], samples: dict[str, int], workers: int, mode: str, dtype: str) -> None:
    """Run operators, each with so many ``samples`` at most, in so many processes."""
    waiting: SimpleQueue[tuple[str, str]] = SimpleQueue()
    for job in todo:
        waiting.put(job)
    progress = Progress(f"{mode} {dtype}", len(todo))
    lock = threading.Lock()

    def work() -> None:
        worker = Worker()
        try:
            while True:
                job = waiting.get_nowait()
                rows = worker.run(*job, dtype, samples[key(*job)], mode)
                kept.note(key(*job), rows)
                with lock:
                    progress.note(key(*job), rows)
        except Empty:
            worker.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(todo)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """Command line; the exit status is 1 when results differ from the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", nargs="+", choices=("eager", "compile"), default=["eager"])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["float16", "float32"])
    parser.add_argument("--match", default="", help="only operators whose name this expression finds")
    parser.add_argument("--samples", type=int, default=0, help="samples of an operator, at most (as recorded)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", nargs="*", default=[], choices=KINDS, help="run operators with these results again")
    parser.add_argument("--fresh", action="store_true", help="run all operators again")
    parser.add_argument("--record", action="store_true", help="write the results into the record and docs/ops.md")
    args = parser.parse_args()
    differ: list[str] = []
    for mode in args.mode:
        for dtype in args.dtype:
            kept = Kept(mode, dtype, args.samples)
            every = jobs(dtype, args.match)

            def due(job: tuple[str, str], kept: Kept = kept) -> bool:
                rows = kept.rows.get(key(*job))
                return args.fresh or rows is None or any(r[0] in args.again for r in rows)

            listed = load().get(f"{mode} {dtype}", {})
            samples = {n: args.samples or listed.get(n, UNTRIED)[3] or SAMPLES for n in (key(*j) for j in every)}
            run(kept, [j for j in every if due(j)], samples, args.workers, mode, dtype)
            fresh = {key(*j): kept.rows[key(*j)] for j in every}
            if args.record:
                keep(mode, dtype, samples, fresh)
                continue
            record = load()
            for section, rows in spread(mode, dtype, fresh).items():
                differ += differences(record, section, rows)
                print(f"{section}: " + ", ".join(f"{k} {n}" for k, n in Counter(r[0] for r in rows.values()).items()))
    for line in differ:
        print(line)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
