"""Processes that run operators, so that none can take the sweep with it: each has a limit of processor time."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
import warnings
from pathlib import Path
from typing import Any

SECONDS = 60  # of processor time per sample: a busy machine does not make a hang
WAITS = 20  # times as long on the clock, for a process that waits for ever
Row = list[Any]  # status, reason, aten operators; in the record also how many samples


def _worker(pipe: Any) -> None:
    os.environ["TORCH_LOOM_FALLBACK"] = "error"
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ["TORCH_LOOM_COMPILE_WORKERS"] = "0"  # what takes too long is killed with this process
    warnings.simplefilter("ignore")
    import opinfo_samples
    import torch
    import torch._inductor.config
    from torch.testing._internal import common_methods_invocations as invocations

    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # seeding cannot be traced
    torch.set_num_threads(1)
    torch._inductor.config.fx_graph_cache = False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while (job := pipe.recv()) is not None:
        try:
            outcomes = opinfo_samples.run_op(*job)
        except Exception as e:  # a sample that cannot be made
            outcomes = [opinfo_samples.Outcome("skip", f"{type(e).__name__}: {e}"[:200])]
        pipe.send([[o.status, o.reason, sorted(o.atens)] for o in outcomes])


class Worker:
    """A process that runs operators; replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the process."""
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_worker, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def close(self) -> None:
        """End the process after its work."""
        self.pipe.send(None)
        self.process.join()

    def _spent(self) -> float:
        """Processor time of the worker in seconds (user and system, proc(5))."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _answers(self, seconds: float) -> bool:
        """Does an answer come within ``seconds`` of processor time?"""
        limit, latest = self._spent() + seconds, time.monotonic() + WAITS * seconds
        while not self.pipe.poll(2):
            if self._spent() > limit or time.monotonic() > latest:
                return False
        return True

    def run(self, name: str, variant: str, dtype: str, samples: int, mode: str) -> list[Row]:
        """Rows of an operator, as of ``opinfo_samples.run_op``; one row when the process fails."""
        self.pipe.send((name, variant, dtype, samples, mode))
        try:
            if self._answers(SECONDS * samples):
                return self.pipe.recv()
            row: Row = ["hang", f"no result within {SECONDS * samples} s", []]
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            row = ["crash", f"process died with exit code {self.process.exitcode}", []]
        self.process.kill()
        self.process.join()
        self.start()
        return [row]
