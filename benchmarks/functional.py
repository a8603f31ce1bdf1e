"""Functional speed: all-MiniLM-L6-v2, 32 sentences of 128 tokens, on spyre against the CPU.

Prints wall seconds, best of the repeats, of one forward from tokens on the device to vectors on the device:
the simulated chip under torch.compile, torch CPU eager in fp32 and in fp16. All run in this process, one
repeat of each in turn, so that all see the same machine. Targets: spyre at most 5 x CPU fp32, and faster
than CPU fp16.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Before torch is imported: idle OpenMP threads must not take the cores from the next candidate.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console
from rich.table import Table

from torch_loom.integrations.huggingface import SentenceEncoder, cosines, load_minilm

BATCH, TOKENS, THREADS, REPEATS = 32, 128, 2, 3


@dataclass
class Candidate:
    """A way to run the encoder: ``run`` returns its vectors; ``wait`` ends its work."""

    name: str
    run: Callable[[], torch.Tensor]
    wait: Callable[[], None]
    seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """One timed run."""
        started = time.perf_counter()
        self.run()
        self.wait()
        self.seconds.append(time.perf_counter() - started)


def candidate(
    name: str, encoder: SentenceEncoder, tokens: list[torch.Tensor], device: str, compiled: bool
) -> Candidate:
    """The encoder on a device; its first run, with all compilation, is made here."""
    encoder = encoder.to(device)
    run = torch.compile(encoder) if compiled else encoder
    moved = [t.to(device) for t in tokens]
    wait = torch.accelerator.synchronize if device == "spyre" else (lambda: None)
    started = time.perf_counter()
    made = Candidate(name, lambda: run(*moved), wait)
    made.run()
    wait()
    print(f"{name}: first run {time.perf_counter() - started:.2f} s", file=sys.stderr)
    return made


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-only", action="store_true", help="leave the simulated chip out")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = load_minilm().encoder
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    mask[1::2, TOKENS * 3 // 4 :] = 0
    tokens = [torch.randint(1000, 30000, (BATCH, TOKENS)), mask]
    half = copy.deepcopy(model).half()
    with torch.no_grad():
        found = [
            candidate("CPU fp32 eager", model, tokens, "cpu", False),
            candidate("CPU fp16 eager", half, tokens, "cpu", False),
        ]
        if not options.cpu_only:
            found.append(candidate("spyre, torch.compile", copy.deepcopy(half), tokens, "spyre", True))
        for _ in range(options.repeats):
            for one in found:
                one.measure()
        reference = found[0].run()
        table = Table(title=f"MiniLM forward, {BATCH} x {TOKENS} tokens, {THREADS} threads, best of {options.repeats}")
        for column in ("", "best s", "median s", "x CPU fp32", "x CPU fp16", "cosine min"):
            table.add_column(column, justify="right" if column else "left")
        best = {one.name: min(one.seconds) for one in found}
        for one in found:
            cosine = float(cosines(one.run().cpu().float(), reference).min())
            table.add_row(
                one.name,
                f"{best[one.name]:.3f}",
                f"{statistics.median(one.seconds):.3f}",
                f"{best[one.name] / best['CPU fp32 eager']:.2f}",
                f"{best[one.name] / best['CPU fp16 eager']:.2f}",
                f"{cosine:.6f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
