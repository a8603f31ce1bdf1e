"""Reports on what the chip did: launch rows, tables, and the folder of artifacts."""

from torch_loom.profiler.artifacts import Artifacts, ArtifactsError, Kernel, KernelPaths, kernel_names
from torch_loom.profiler.kernels import compiled_kernels
from torch_loom.profiler.launches import (
    ClockError,
    LaunchRecord,
    LaunchRow,
    launch_rows,
    recorded_launches,
    time_program,
)
from torch_loom.profiler.progress import CompileLine, compile_progress
from torch_loom.profiler.tables import launch_table, matrix_table, report_console, size_text

__all__ = [
    "Artifacts",
    "ArtifactsError",
    "ClockError",
    "CompileLine",
    "Kernel",
    "KernelPaths",
    "LaunchRecord",
    "LaunchRow",
    "compile_progress",
    "compiled_kernels",
    "kernel_names",
    "launch_rows",
    "launch_table",
    "matrix_table",
    "recorded_launches",
    "report_console",
    "size_text",
    "time_program",
]
