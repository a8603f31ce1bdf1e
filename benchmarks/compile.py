"""Compile speed: first call of ``torch.compile``d models, with empty caches and with full ones.

Each row is a process of its own, timed from after its imports to the end of the first forward. Wall seconds depend on
what else the machine does; CPU seconds (of the process and all it started) less so. Targets: MiniLM cold on spyre at
most 1.0 x Inductor's own CPU compile; 32 equal layers compile as many kernels as two; warm at most
3 s, nothing compiled. "Precompiled" starts from what PyTorch itself saves when `TORCH_CACHING_PRECOMPILE=1`: Dynamo
does not trace the Python code of the model again, which is most of a warm start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

WARM_TARGET_S = 3.0


@dataclass(frozen=True)
class Case:
    """A model on a device; rows of one ``folder`` share their caches, the first of them starts empty."""

    title: str
    model: str
    device: str
    folder: str
    environment: dict[str, str] = field(default_factory=dict)


# Dynamo logs every guard that it leaves out of a saved program; the table is enough here.
PRECOMPILING = {"TORCH_CACHING_PRECOMPILE": "1", "TORCH_LOGS": "-dynamo"}
CASES = (
    Case("MiniLM, CPU Inductor, cold", "minilm", "cpu", "cpu"),
    Case("MiniLM, CPU Inductor, warm", "minilm", "cpu", "cpu"),
    Case("MiniLM, spyre, cold", "minilm", "spyre", "spyre"),
    Case("MiniLM, spyre, warm", "minilm", "spyre", "spyre"),
    Case("MiniLM, spyre, cold, precompiling", "minilm", "spyre", "ahead", PRECOMPILING),
    Case("MiniLM, spyre, precompiled", "minilm", "spyre", "ahead", PRECOMPILING),
    Case("MiniLM, spyre, cold, one process", "minilm", "spyre", "one", {"TORCH_LOOM_COMPILE_WORKERS": "0"}),
    Case("2 equal layers, spyre, cold", "layers2", "spyre", "two"),
    Case("32 equal layers, spyre, cold", "layers32", "spyre", "many"),
    Case("32 equal layers, spyre, warm", "layers32", "spyre", "many"),
)


def model_of(name: str) -> tuple[Any, list[Any]]:
    """A model in float32 on the CPU and its inputs."""
    import torch

    torch.manual_seed(0)
    if name == "minilm":
        from torch_loom.integrations.huggingface import load_minilm

        mask = torch.ones(8, 64, dtype=torch.int64)
        mask[1::2, 48:] = 0
        return load_minilm().encoder, [torch.randint(1000, 30000, (8, 64)), mask]
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=int(name.removeprefix("layers")),
        num_attention_heads=4,
        intermediate_size=512,
    )
    return BertModel(config, add_pooling_layer=False).eval(), [torch.randint(0, 512, (4, 64))]


def child(name: str, device: str) -> None:
    """Compile and run once; print the figures as JSON."""
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx

    torch.set_num_threads(2)
    model, inputs = model_of(name)
    if device == "spyre":
        model = model.half()
        inputs = [x.half() if x.is_floating_point() else x for x in inputs]
    model, inputs = model.to(device), [x.to(device) for x in inputs]
    started, cpu = time.perf_counter(), os.times()
    with torch.no_grad():
        torch.compile(model)(*inputs)
    if device == "spyre":
        torch.accelerator.synchronize()
    wall, after = time.perf_counter() - started, os.times()
    if torch._dynamo.config.caching_precompile:
        torch.compiler.save_cache_artifacts()
    found = torch._dynamo.utils.counters["inductor"]
    out: dict[str, Any] = {
        "wall": wall,
        "cpu": sum(after[:4]) - sum(cpu[:4]),
        "traced": sum(torch._dynamo.utils.compilation_time_metrics.get("bytecode_tracing", [])),
        "graphs": found["fxgraph_cache_hit"] + torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"],
    }
    if device == "spyre":
        from torch_loom.inductor import runtime

        out |= {"compiled": runtime.counters["kernels_compiled"], "kernels": len(runtime.kernels())}
    print(json.dumps(out))


def measure(case: Case, folder: str) -> dict[str, Any]:
    """Figures of one row."""
    own = {
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, case.folder, "inductor"),
        "TORCH_LOOM_CACHE_DIR": os.path.join(folder, case.folder, "loom"),
    }
    command = [sys.executable, __file__, "--child", case.model, case.device]
    done = subprocess.run(command, env={**os.environ, **own, **case.environment}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{case.title}: the process ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure all rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "DEVICE"), help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="rows whose title contains this text")
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="first call after imports")
    for column in ("", "wall s", "CPU s", "graphs from cache", "kernels", "compiled"):
        table.add_column(column, justify="right" if column else "left")
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in (c for c in CASES if options.only in c.title):
            print(case.title, file=sys.stderr)
            rows[case.title] = row = measure(case, folder)
            counts = [str(row.get(k, "")) for k in ("graphs", "kernels", "compiled")]
            table.add_row(case.title, f"{row['wall']:.2f}", f"{row['cpu']:.2f}", *counts)
    console = Console()
    console.print(table)
    ours, theirs = rows.get("MiniLM, spyre, cold"), rows.get("MiniLM, CPU Inductor, cold")
    if ours and theirs:
        ratios = [ours[k] / theirs[k] for k in ("wall", "cpu")]
        console.print(f"spyre cold / CPU cold: {ratios[0]:.2f} wall, {ratios[1]:.2f} CPU time (target 1.0)")
    for title in ("MiniLM, spyre, warm", "MiniLM, spyre, precompiled"):
        if row := rows.get(title):
            found = f"{row['wall']:.2f} s (target {WARM_TARGET_S:.0f}), Dynamo traced for {row['traced']:.2f} s"
            console.print(f"{title}: {found}, {row['compiled']} kernels compiled")


if __name__ == "__main__":
    main()
