"""The clock as judge of layouts: the kernels that a choice touches are compiled both ways and timed as a job.

Costs of ``layout_cost.py`` know neither the tiles that a kernel gets nor what LX has room for, so they only propose. A
kernel compiled here goes to the kernel cache; the winner is found there when the graph needs it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..scheduler import ScheduleError
from .compat import SchedulerNode, host_scalar, number_kind
from .domain import hint
from .errors import Unsupported
from .generate import Written, write_kernel
from .homes import Homes, dividing, way_of
from .job import LoomJob
from .jobs import device_bytes
from .layouts import Run, using
from .options import lx_between_kernels
from .plan import touched_buffers
from .runtime import timed_plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kernel:
    """What a job asks of its kernels, without a place among those of the process."""

    written: Written
    plan: Any
    key: str
    name: str = "trial"
    kinds: tuple[str, ...] = ()
    runs: Mapping[int, Run] = field(default_factory=dict)
    bounds: tuple[Any, ...] = ()

    @property
    def access(self) -> tuple[str, ...]:
        return self.written.access

    @property
    def record(self) -> _Kernel:
        return self

    def numbers(self) -> list[float]:
        """Sizes and scalars of a call at the sizes seen when compiling."""
        sizes = [1.0 if number_kind(s) == "f32" else hint(s) for s in self.written.sizes]
        kinds = [host_scalar(s) for s in self.written.scalars]
        return [*sizes, *(1.0 if k is not None and k.is_floating_point else 1 for k in kinds)]


class Trial:
    """Kernels of a graph under choices of layouts; ``private`` buffers may lie in LX between them."""

    def __init__(self, kernels: Sequence[tuple[list[SchedulerNode], set[str]]], private: set[str], cores: int) -> None:
        self.kernels, self.private, self.cores = kernels, private, cores
        self.written: dict[tuple[Any, ...], Written] = {}
        self.compiled: dict[tuple[Any, ...], _Kernel] = {}  # of those that were timed
        self.chains: dict[tuple[str | None, ...], bool | None] = {}  # see chain_trial.py

    def text(self, step: int, choice: Mapping[str, Run], homes: Homes) -> str | None:
        """A kernel under a choice of layouts and of products divided over rows (``homes.py``); None if it cannot be
        built."""
        with using(choice), dividing(homes):
            try:
                return self._written(step, choice, homes).text
            except Unsupported:
                return None

    def ns(self, steps: Sequence[int], choice: Mapping[str, Run], homes: Homes = frozenset()) -> float:
        """Modelled time of the kernels ``steps`` in a row; infinite if one cannot be built."""
        with using(choice), dividing(homes):
            try:
                found = [self._kernel(s, choice, homes) for s in steps]
            except (ScheduleError, Unsupported) as reason:
                log.debug("layouts %s: %s", dict(choice), reason)
                return math.inf
            return self._ns(found)

    def chain_ns(self, step: int, removed: set[str], ring: bool, choice: Mapping[str, Run], homes: Homes) -> float:
        """Modelled time of kernels ``step`` and the next one as a chain (``chain.py``), between their neighbours;
        infinite if it cannot be built. ``removed`` are the buffers that live only inside of it."""
        with using(choice), dividing(homes):
            try:
                parts = [self.kernels[s][0] for s in (step, step + 1)]
                written = write_kernel(parts, removed, self.cores, ring)
                if written is None:
                    return math.inf
                before = [self._kernel(s, choice, homes) for s in self.around(step) if s < step]
                after = [self._kernel(s, choice, homes) for s in self.around(step) if s > step + 1]
                found = [*before, _Kernel(written, *timed_plan(written.text)), *after]
            except (ScheduleError, Unsupported) as reason:
                log.debug("chain of kernels %d and %d: %s", step, step + 1, reason)
                return math.inf
            return self._ns(found)

    def around(self, step: int) -> range:
        """Kernel ``step``, the next one and what stands beside them."""
        return range(max(step - 1, 0), min(step + 3, len(self.kernels)))

    def _ns(self, found: Sequence[_Kernel]) -> float:
        made = {b for k in found for b, a in zip(k.written.buffers, k.access, strict=True) if a != "r"} & self.private
        own: dict[str, int] = {}
        numbers: list[float] = []
        calls: list[Any] = []
        for kernel in found:
            arguments: list[tuple[str, int]] = []
            for b in kernel.written.buffers:
                arguments.append(("own", own.setdefault(b, len(own))) if b in made else ("external", 0))
            for n in kernel.numbers():
                arguments.append(("number", len(numbers)))
                numbers.append(n)
            calls.append((kernel, arguments))
        return LoomJob("trial", calls, lx_between_kernels()).modelled_ns(
            numbers, tuple(hint(device_bytes(b)) for b in own)
        )

    def _kernel(self, step: int, choice: Mapping[str, Run], homes: Homes) -> _Kernel:
        written, key = self._written(step, choice, homes), self._key(step, choice, homes)
        if key not in self.compiled:
            self.compiled[key] = _Kernel(written, *timed_plan(written.text))
        return self.compiled[key]

    def _written(self, step: int, choice: Mapping[str, Run], homes: Homes) -> Written:
        key = self._key(step, choice, homes)
        if key not in self.written:
            nodes, removed = self.kernels[step]
            written = write_kernel([nodes], removed, self.cores)
            assert written is not None
            self.written[key] = written
        return self.written[key]

    def _key(self, step: int, choice: Mapping[str, Run], homes: Homes) -> tuple[Any, ...]:
        """What the text of a kernel depends on."""
        nodes, _ = self.kernels[step]
        used = touched_buffers(nodes)
        return (step, way_of(nodes, homes), *sorted((b, run) for b, run in choice.items() if b in used))
