"""What this process compiled, taken from the Inductor room."""

from __future__ import annotations

from torch_loom.profiler.artifacts import Kernel, kernel_names


def compiled_kernels() -> dict[str, Kernel]:
    """Kernels of this process by the name that launches carry, each with a folder name of its own."""
    from torch_loom.inductor import runtime

    records = runtime.kernels()
    names = kernel_names([r.name for r in records], [r.key for r in records])
    return {
        record.name: Kernel(name, record.ktir, record.schedule_ir, record.dataflow_ir, record.spyrecode_dir)
        for record, name in zip(records, names, strict=True)
    }
