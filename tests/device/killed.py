"""Kill processes that compile and launch, at random moments, and look at what they leave.

One process holds the imports and forks a child for each run, with caches of its own. A child compiles a function that
no other run has, launches it over and over, and dies by SIGKILL: while it compiles or while it launches. Then every
function runs once more, to the end, in the same caches.
Run: ``python tests/device/killed.py [--kills 100] [--seed 0]``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from torch_loom.spyrecode.staging import SUFFIX

CHILD = """
import os, sys, time
import torch, torch_loom
import torch._dynamo, torch._inductor.compile_fx

def work(n, launches):
    generator = torch.Generator().manual_seed(n)
    x, w = (torch.randint(-1, 2, (70, 65), generator=generator).half() for _ in range(2))
    a, b = x.to("spyre"), w.t().to("spyre")
    f = torch.compile(lambda a, b: torch.relu(a @ b) + n, fullgraph=True)
    print("compile", flush=True)
    y = f(a, b)
    print("launch", flush=True)
    for _ in range(launches):
        y = f(a, b)
        y.mul_(1)
    assert torch.equal(y.cpu().float(), torch.relu(x.float() @ w.t().float()) + n), "wrong values"

for line in sys.stdin:
    n, launches = map(int, line.split())
    child = os.fork()
    if child == 0:
        try:
            work(n, launches)
        except BaseException as error:
            print("failed", repr(error), flush=True)
            os._exit(1)
        print("done", flush=True)
        os._exit(0)
    print("child", child, flush=True)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runs:
    """The process that forks the children; ``folder`` holds all their caches."""

    def __init__(self, folder: Path) -> None:
        self.caches = folder / "loom"
        places = {"TORCH_LOOM_CACHE_DIR": self.caches, "TORCHINDUCTOR_CACHE_DIR": folder / "inductor"}
        environment = {**os.environ, **{k: str(v) for k, v in places.items()}, "TORCH_LOOM_FALLBACK": "error"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def _word(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split(maxsplit=1)

    def run(self, n: int, launches: int = 20, kill_in: str = "", after: float = 0.0) -> tuple[int, list[str]]:
        """Exit code of a child and what it said; killed ``after`` seconds in a phase when one is named."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{n} {launches}\n")
        self.process.stdin.flush()
        said, child = [], 0
        while (word := self._word())[0] != "status":
            if word[0] == "child":
                child = int(word[1])
            else:
                said.append(" ".join(word).strip())
            if child and kill_in in said:
                time.sleep(after)
                os.kill(child, signal.SIGKILL)
                kill_in = "-"
        return int(word[1]), said

    def leftovers(self) -> list[Path]:
        """Temporary files and folders in the caches."""
        return [p for p in self.caches.rglob(".*") if p.name.endswith(SUFFIX)]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def kill_and_recover(folder: Path, kills: int, seed: int, compile_seconds: float) -> Counter[str]:
    """Kill ``kills`` children, half of them while compiling, then run each function to its end.

    Returns how many were killed in which phase and how much they left. Raises AssertionError for a child that fails
    afterwards and for leftovers that its run does not remove."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    runs = Runs(folder)
    try:
        for n in range(kills):
            phase = ("compile", "launch")[n % 2]
            code, said = runs.run(n, 10**6, phase, rng.uniform(0, compile_seconds if n % 2 == 0 else 0.3))
            assert code == -signal.SIGKILL, said
            counts[f"killed in {said[-1]}"] += 1
        for left in runs.leftovers():
            counts["leftovers"] += 1
            os.utime(left, (0, 0))  # old enough for the next writer to remove it
        for n in range(kills):
            code, said = runs.run(n)
            assert code == 0, said
        assert runs.leftovers() == []
    finally:
        runs.end()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile-seconds", type=float, default=3.0, help="latest moment of a kill while compiling")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = kill_and_recover(Path(folder), options.kills, options.seed, options.compile_seconds)
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) + "; all ran afterwards")


if __name__ == "__main__":
    main()
