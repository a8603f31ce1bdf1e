"""What this process compiled, taken from the Inductor room."""

from __future__ import annotations

from torch_loom.profiler.artifacts import Kernel, kernel_names


def compiled_kernels() -> list[Kernel]:
    """Kernels of this process in order of preparation, each with a folder name of its own."""
    from torch_loom.inductor import runtime

    records = runtime.kernels()
    folders = kernel_names([r.name for r in records], [r.key for r in records])
    return [
        Kernel(r.name, folder, r.ktir, r.schedule_ir, r.dataflow_ir, r.spyrecode_dir)
        for r, folder in zip(records, folders, strict=True)
    ]
