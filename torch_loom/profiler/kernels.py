"""What this process compiled, taken from the Inductor room."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch_loom.profiler.artifacts import Kernel, kernel_names

if TYPE_CHECKING:
    from torch_loom.scheduler import Options


def compiled_kernels() -> list[Kernel]:
    """Kernels of this process in order of preparation, each with a folder name of its own."""
    from torch_loom.inductor import runtime

    records = runtime.kernels()
    folders = kernel_names([r.name for r in records], [r.key for r in records])
    return [
        Kernel(r.name, folder, r.ktir, r.schedule_ir, r.dataflow_ir, r.spyrecode_dir)
        for r, folder in zip(records, folders, strict=True)
    ]


def rescheduler(name: str) -> Callable[[Options], bytes] | None:
    """How to schedule a compiled kernel again under other options; None when its KTIR is not known."""
    from torch_loom.inductor import runtime

    text = next((r.ktir for r in runtime.kernels() if r.name == name), None)
    if text is None:
        return None

    def reschedule(options: Options) -> bytes:
        from torch_loom import arch, ktir, scheduler

        return scheduler.compile(ktir.load(text), "kernel", arch.load(runtime.chip_name()), options).binary

    return reschedule
