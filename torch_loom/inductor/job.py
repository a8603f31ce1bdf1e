"""A run of kernels as one job at run time: one call, one pool, buffers kept in LX between its kernels.

The generated host program names a job's kernels and says which of their arguments come from outside, which are buffers
of the job, and which are numbers. Places of the buffers are worked out once for each set of sizes (``residency.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from .. import _device
from .relaid import relaid
from .residency import Between, Layout, choose, lay_out
from .runtime import LoomKernel, chip_name, in_layout

log = logging.getLogger(__name__)

# An argument of a step: ("external", i), ("own", i) or ("number", i).
Argument = tuple[str, int]
# Sets of sizes whose places are remembered.
MAX_KNOWN = 1024


@cache
def _clock() -> tuple[dict[str, float], int]:
    """Rates of the chip and bytes of a core's LX."""
    from .. import arch

    chip = arch.load(chip_name())
    return chip.clock_params(), chip.lx.bytes.value


class LoomJob:
    """A callable job: ``job(tensors, numbers, bytes of its buffers)``."""

    def __init__(self, name: str, steps: Sequence[tuple[LoomKernel, Sequence[Argument]]], lx: bool) -> None:
        self.name, self.steps, self.lx = name, list(steps), lx
        self.kinds: dict[int, tuple[str, bool, str]] = {}  # by external: layout, is it written, kernel and argument
        self.runs = {arguments[at][1]: run for kernel, arguments in steps for at, run in kernel.runs.items()}
        self.bounds = self._bounds()
        for kernel, arguments in steps:
            for at, kind in enumerate(kernel.kinds):
                where, i = arguments[at]
                if where != "external":
                    continue
                written = kernel.access[at] != "r" or (i in self.kinds and self.kinds[i][1])
                self.kinds[i] = (kind, written, f"{kernel.name}: argument {at}")
        self.known: dict[tuple[int, ...], tuple[Any, int]] = {}
        self.lasting: dict[tuple[Any, ...], float] = {}  # ns of a step by what it depends on

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[Any], sizes: tuple[int, ...]) -> None:
        for kernel, arguments, i, top in self.bounds:
            if numbers[i] > top:
                self._grow(kernel, arguments, numbers)
        ready, back = list(tensors), []
        for i, run in self.runs.items():
            ready[i] = relaid(ready[i], run)
        for i, (kind, written, what) in self.kinds.items():
            if not _device.expect(ready[i], kind):
                ready[i] = in_layout(ready[i], kind, written, what)
                if written:
                    back.append(i)
        found = self.known.get(sizes)
        if found is None:
            found = self._prepare(numbers, sizes)
        job, pool_bytes = found
        pool = None
        if pool_bytes:
            pool = _device.empty_strided((pool_bytes // 2,), (1,), torch.float16, ready[0].device.index, "row_major")
        job.launch(ready, numbers, pool)
        for i in back:
            tensors[i].copy_(ready[i])

    def _grow(self, kernel: LoomKernel, arguments: Sequence[Argument], numbers: Sequence[Any]) -> None:
        kernel.grow([numbers[i] if where == "number" else 0 for where, i in arguments])
        self.bounds = self._bounds()
        self.known.clear()

    def _bounds(self) -> list[tuple[LoomKernel, Sequence[Argument], int, int]]:
        """Numbers that kernels are planned up to: kernel, its arguments, which number, the largest value."""
        return [(k, a, a[at][1], top) for k, a in self.steps for at, _, top in k.bounds]

    def _prepare(self, numbers: Sequence[Any], sizes: tuple[int, ...]) -> tuple[Any, int]:
        layout, _ = self._placed(numbers, sizes)
        steps = [(kernel.plan, list(arguments)) for kernel, arguments in self.steps]
        job = _device.Job(steps, list(layout.places), layout.pool_bytes)
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known[sizes] = (job, layout.pool_bytes)
        return self.known[sizes]

    def modelled_ns(self, numbers: Sequence[Any], sizes: tuple[int, ...]) -> float:
        """Modelled time of the job's kernels with the places of buffers that it would choose."""
        layout, time = self._placed(numbers, sizes)
        return sum(time(s, layout) for s in range(len(self.steps)))

    def _placed(self, numbers: Sequence[Any], sizes: tuple[int, ...]) -> tuple[Layout, Callable[[int, Layout], float]]:
        """Places of the job's buffers, and ns of a step under a layout."""
        buffers, users = self._buffers(sizes)
        used = [kernel.plan.lx_used for kernel, _ in self.steps]
        params, lx_bytes = _clock()

        def time(step: int, layout: Layout) -> float:
            kernel, arguments = self.steps[step]
            call: list[Any] = []
            for (where, i), (_, kind, _, _) in zip(arguments, kernel.plan.args, strict=True):
                if kind == 0:
                    place = layout.places[i] if where == "own" else None
                    call.append(place if place is not None and place[2] else (0, 1 << 33))
                else:
                    call.append(numbers[i])
            key = (kernel.record.key, *(x[1:] if isinstance(x, tuple) else x for x in call))  # places take no time
            if key not in self.lasting:
                self.lasting[key] = kernel.plan.time(call, params).ns
            return self.lasting[key]

        if self.lx and buffers:
            log.debug("job %s: %d kernels, %d buffers between them", self.name, len(self.steps), len(buffers))
            return choose(buffers, used, lx_bytes, users, time), time
        return lay_out(buffers, used, lx_bytes, [False] * len(buffers)), time

    def _buffers(self, sizes: tuple[int, ...]) -> tuple[list[Between], list[list[int]]]:
        """The job's buffers with their lives, and the steps that use each."""
        users: list[list[int]] = [[] for _ in sizes]
        reads, cores = [0] * len(sizes), [0] * len(sizes)
        for s, (kernel, arguments) in enumerate(self.steps):
            for at, (where, i) in enumerate(arguments):
                if where != "own":
                    continue
                users[i].append(s)
                reads[i] += kernel.access[at] != "w"
                if kernel.access[at] != "r":
                    cores[i] = max(cores[i], kernel.plan.cores)
        buffers = [Between(size, min(users[i]), max(users[i]), reads[i], cores[i]) for i, size in enumerate(sizes)]
        return buffers, users


def loom_job(name: str, steps: Sequence[tuple[LoomKernel, Sequence[Argument]]], lx: bool) -> LoomJob:
    """Entry point of generated wrappers."""
    return LoomJob(name, steps, lx)
