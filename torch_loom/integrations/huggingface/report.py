"""The comparison of a sentence encoder on CPU and device: run it, print it, give its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torch_loom import arch
from torch_loom.integrations.huggingface.compare import (
    Encoding,
    batches,
    cosines,
    encode,
    similarity,
)
from torch_loom.integrations.huggingface.sentence import SentenceModel
from torch_loom.profiler import (
    Kernel,
    KernelPaths,
    LaunchRow,
    compile_progress,
    compiled_kernels,
    launch_rows,
    launch_table,
    matrix_table,
    recorded_launches,
)


class NoDevice(RuntimeError):
    """PyTorch has no spyre device in this process."""


# Public names of a launch's figures in the demo's JSON.
KERNEL_FIGURES = ("name", "modelled_us", "pt_util", "sfu_util", "ddr_bytes", "bottleneck")


@dataclass(frozen=True)
class Comparison:
    """Both encodings of the sentences and what the device did for its one.

    ``rows`` are the launches of one pass over all sentences, ``kernels`` all that the process has prepared.
    """

    sentences: list[str]
    cpu: Encoding
    device: Encoding
    fallbacks: dict[str, int]
    kernels_compiled: int
    rows: list[LaunchRow]
    kernels: list[Kernel]

    def figures(self, paths: Mapping[str, KernelPaths]) -> dict[str, Any]:
        """The figures by their public names; ``paths`` says where each kernel's levels lie."""
        return {
            "cosine_min": float(cosines(self.device.embeddings, self.cpu.embeddings).min()),
            "max_abs_err": float((self.device.embeddings - self.cpu.embeddings).abs().max()),
            "fallback_ops": sum(self.fallbacks.values()),
            "kernels": [
                {
                    **{name: getattr(row, name) for name in KERNEL_FIGURES},
                    "ktir": str(paths[row.name].ktir),
                    "dataflow": str(paths[row.name].dataflow),
                    "spyrecode": str(paths[row.name].spyrecode),
                }
                for row in self.rows
            ],
            "modelled_us_total": sum(row.modelled_us for row in self.rows),
            "wall_s_compile": self.device.wall_s_first,
            "wall_s_run": self.device.wall_s,
            "wall_s_cpu_fp32": self.cpu.wall_s,
            "kernels_compiled": self.kernels_compiled,
        }

    def print(self, console: Console) -> None:
        """The report for people."""
        table = Table(title="embeddings on spyre against CPU fp32")
        table.add_column("#", justify="right", min_width=2)
        table.add_column("cosine", justify="right", min_width=8)
        table.add_column("sentence", overflow="ellipsis", no_wrap=True, max_width=100)
        values = cosines(self.device.embeddings, self.cpu.embeddings).tolist()
        for number, (cosine, sentence) in enumerate(zip(values, self.sentences, strict=True)):
            table.add_row(str(number), f"{cosine:.6f}", sentence)
        console.print(table)
        console.print(matrix_table(similarity(self.device.embeddings).tolist(), "similarity, from spyre"))
        console.print(launch_table(self.rows))
        console.print(
            f"modelled time {sum(row.modelled_us for row in self.rows):.2f} us in {len(self.rows)} launches, "
            f"{self.kernels_compiled} kernels compiled, CPU fallbacks {sum(self.fallbacks.values())}"
        )
        for op, count in sorted(self.fallbacks.items()):
            console.print(f"  ran on the CPU: {op} x {count}")
        console.print(
            f"wall time: compile and first run {self.device.wall_s_first:.2f} s, "
            f"run {self.device.wall_s:.3f} s, CPU fp32 {self.cpu.wall_s:.3f} s"
        )


def compare(model: SentenceModel, sentences: list[str], batch: int, dtype: torch.dtype, console: Console) -> Comparison:
    """Encode on the CPU in fp32, then move the model to the device in ``dtype`` and encode there.

    The model stays on the device. Raises :class:`NoDevice` where torch has no spyre device.
    """
    spyre = getattr(torch, "spyre", None)
    if spyre is None:
        raise NoDevice("torch has no spyre device: torch-loom is not installed or its start-up is switched off")
    from torch_loom.inductor import runtime

    parts = batches(model.tokenize(sentences), batch)
    cpu_device = torch.device("cpu")
    _, warm_up = encode(model.encoder, parts, cpu_device)
    cpu = Encoding(*encode(model.encoder, parts, cpu_device), wall_s_first=warm_up)
    before = dict(spyre.fallbacks())
    compiled_before = runtime.counters["kernels_compiled"]
    encoder = model.encoder.to(dtype).to("spyre")
    compiled, spyre_device = torch.compile(encoder), torch.device("spyre")
    with compile_progress(console, "compiling for spyre"):
        _, first = encode(compiled, parts, spyre_device)
    with recorded_launches() as launches:
        vectors, second = encode(compiled, parts, spyre_device)
    device = Encoding(vectors, second, wall_s_first=first)
    after = dict(spyre.fallbacks())
    fallbacks = {op: count - before.get(op, 0) for op, count in after.items() if count > before.get(op, 0)}
    rows = launch_rows(launches, arch.load(runtime.chip_name()))
    count = runtime.counters["kernels_compiled"] - compiled_before
    return Comparison(sentences, cpu, device, fallbacks, count, rows, compiled_kernels())
