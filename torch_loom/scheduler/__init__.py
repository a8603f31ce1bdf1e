"""From KTIR to a program per unit.

compiled = compile(program, "kernel", chip)     # program: torch_loom.ktir.Program, chip: torch_loom.arch.Chip
compiled.schedule_ir, compiled.dataflow_ir      # texts
compiled.program, compiled.binary               # spyrecode.model.Program, SpyreCode image
compiled.save(dir); Compiled.load(dir)
compiled.run(x=array, n=5); compiled.time(n=5)
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_loom.arch import Chip
from torch_loom.ktir.program import Program
from torch_loom.scheduler.check import check
from torch_loom.scheduler.compiled import Compiled
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.lower import lower
from torch_loom.scheduler.materialise_dataflow import materialise as materialise_dataflow
from torch_loom.scheduler.materialise_schedule import materialise as materialise_schedule
from torch_loom.scheduler.pipeline import Options, Trace, plan_kernel
from torch_loom.scheduler.text import parse_module, print_module

__all__ = ["Compiled", "Options", "ScheduleError", "check", "compile", "lower", "parse_module", "print_module"]


def compile(
    program: Program,
    fn: str,
    chip: Chip,
    options: Options | None = None,
    watch: Callable[[str, object], None] | None = None,
) -> Compiled:
    """Schedule one function for a chip. ``watch(pass, result)`` is called after every pass.

    Raises ``ScheduleError`` with the KTIR location, the operation and a way out."""
    options = options or Options()
    trace = Trace(watch=watch)
    with _paused_gc():
        plan = plan_kernel(program, fn, chip, options, trace)
        start = time.perf_counter()
        schedule = print_module(materialise_schedule(plan))
        trace.step("schedule-ir", start, schedule)
        start = time.perf_counter()
        module = materialise_dataflow(plan, chip)
        text = print_module(module)
        trace.step("dataflow-ir", start, text)
        start = time.perf_counter()
        broken = check(module) if options.check else []
        trace.step("check", start, broken)
        if broken:
            raise ScheduleError(f"the schedule breaks {broken[0]}", op="func.func", where=f"@{fn}")
        start = time.perf_counter()
        lowered = lower(module)
        trace.step("lower", start, lowered)
    return Compiled(schedule, text, lowered, trace.seconds, module)


@contextmanager
def _paused_gc() -> Iterator[None]:
    """No collection while many small objects are made that all stay alive."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
