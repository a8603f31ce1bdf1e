"""Compile kernels beside the process that generates them.

While Inductor still writes the host program, kernels that no cache holds are handed to worker processes. Threads
would not help: compilation is Python. A process that then needs a kernel takes it from the queue if no worker has
begun it, so nobody waits for a worker that is still starting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A worker takes as long to start as about ten kernels to compile: fewer are compiled here.
WORTH = 8
IDLE_SECONDS = 20.0


@dataclass
class Job:
    """One kernel to compile. ``state`` is queued, running, done or failed."""

    key: str
    request: dict[str, str]
    started: Callable[[], None]
    state: str = "queued"
    finished: threading.Event = field(default_factory=threading.Event)


class Pool:
    """Worker processes and the queue in front of them."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._jobs: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._alive = 0

    def submit(self, job: Job) -> None:
        """Queue a job; workers start when enough is waiting."""
        if not self.processes:
            return
        with self._changed:
            if job.key in self._jobs:
                return
            self._jobs[job.key] = job
            waiting = sum(j.state == "queued" for j in self._jobs.values())
            wanted = min(self.processes, waiting // WORTH)
            for _ in range(self._alive, wanted):
                self._alive += 1
                threading.Thread(target=self._work, name="loom-compile", daemon=True).start()
            self._changed.notify()

    def take(self, key: str) -> bool:
        """Has a worker compiled the kernel? Waits for one at work on it; takes it back from the queue
        otherwise."""
        with self._changed:
            job = self._jobs.pop(key, None)
        if job is None or job.state == "queued":
            return False
        job.finished.wait()
        return job.state == "done"

    def _next(self) -> Job | None:
        with self._changed:
            found: list[Job] = []

            def ready() -> bool:
                found[:] = [j for j in self._jobs.values() if j.state == "queued"]
                return bool(found)

            if not self._changed.wait_for(ready, IDLE_SECONDS):
                self._alive -= 1
                return None
            found[0].state = "running"
            return found[0]

    def _work(self) -> None:
        process = _start()
        while (job := self._next()) is not None:
            job.started()
            answer = _ask(process, job.request)
            job.state = "done" if answer else "failed"
            job.finished.set()
            if not answer:
                with self._changed:
                    self._alive -= 1
                break
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _start() -> subprocess.Popen[str]:
    home = str(Path(__file__).parents[2])
    paths = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
    return subprocess.Popen(
        [sys.executable, "-m", "torch_loom.inductor.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=paths),
        text=True,
    )


def _ask(process: subprocess.Popen[str], request: dict[str, str]) -> Any:
    """The answer to a request, None from a worker that has ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        print(json.dumps(request), file=process.stdin, flush=True)
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None


def pool_size(asked: int | None) -> int:
    """Worker processes for a setting; None means one less than the processors of this process, at most 8."""
    if asked is not None:
        if asked < 0:
            raise ValueError(f"compile_workers must not be negative, got {asked}")
        return asked
    return min(8, len(os.sched_getaffinity(0)) - 1)
