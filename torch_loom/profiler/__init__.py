"""Reports on what the chip did: figures, rooflines, advice, traces, pages, and the folder of artifacts.

``report()`` tells about everything that the process launched. The chip's clock needs no data, so all of it
works on programs alone.
"""

from torch_loom.profiler.advice import Change, advise
from torch_loom.profiler.artifacts import Artifacts, ArtifactsError, Kernel, KernelPaths, kernel_names
from torch_loom.profiler.figures import Figures
from torch_loom.profiler.kernels import compiled_kernels
from torch_loom.profiler.launches import LaunchRecord, LaunchRow, launch_rows, recorded_launches
from torch_loom.profiler.lxmap import Use, lx_uses
from torch_loom.profiler.page import html_page
from torch_loom.profiler.perfetto import chrome_text, chrome_trace
from torch_loom.profiler.progress import CompileLine, compile_progress
from torch_loom.profiler.reports import Entry, Report, launched, report, report_of, reset
from torch_loom.profiler.roofline import Position, Roofs, position
from torch_loom.profiler.subject import ClockError, Subject, call_of
from torch_loom.profiler.tables import launch_table, matrix_table, report_console
from torch_loom.profiler.trace import Timeline, launch_subjects, timeline
from torch_loom.profiler.units import size_text

__all__ = [
    "timeline",
    "lx_uses",
    "launch_subjects",
    "html_page",
    "chrome_trace",
    "chrome_text",
    "Use",
    "Timeline",
    "Artifacts",
    "ArtifactsError",
    "Change",
    "ClockError",
    "CompileLine",
    "Entry",
    "Figures",
    "Kernel",
    "KernelPaths",
    "LaunchRecord",
    "LaunchRow",
    "Position",
    "Report",
    "Roofs",
    "Subject",
    "advise",
    "call_of",
    "compile_progress",
    "compiled_kernels",
    "kernel_names",
    "launch_rows",
    "launch_table",
    "launched",
    "matrix_table",
    "position",
    "recorded_launches",
    "report",
    "report_console",
    "report_of",
    "reset",
    "size_text",
]
