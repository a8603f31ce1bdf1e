"""An estimate for people."""

from __future__ import annotations

from rich.console import Console

from torch_loom.integrations.huggingface.estimate.result import Estimate, Step
from torch_loom.profiler import Roofs, size_text
from torch_loom.profiler.tables import entry_lines, report_table
from torch_loom.profiler.units import rate_text, time_text


def show(estimate: Estimate, console: Console, kernels: int = 8) -> None:
    """Print times, rates, use of the chip, memory, and the ``kernels`` that cost most in each step."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, soft_wrap=True)

    sequences = f"{estimate.batch} sequence{'s' if estimate.batch > 1 else ''}"
    line(
        f"{estimate.model}: {estimate.parameters / 1e9:.2f} G parameters, {estimate.layers} layers, on chip "
        f"{estimate.prefill.report.chip.name}; {sequences} of {estimate.prompt} tokens, {estimate.generate} generated",
        "bold",
    )
    line(f"  prefill      {time_text(estimate.prefill.ns)}   {_use(estimate.prefill)}")
    if estimate.decode:
        line(f"  per token    {time_text(estimate.decode.ns)}   {_use(estimate.decode)}")
        line(f"  throughput   {estimate.tokens_per_s:.1f} tokens/s; all {time_text(estimate.total_ns)}")
    memory = estimate.footprint
    line(
        f"  memory       {memory.total / 1e9:.2f} of {memory.limit / 1e9:.0f} GB: weights {memory.weights / 1e9:.2f}, "
        f"cache {memory.cache / 1e9:.3f}, activations {memory.activations / 1e9:.3f}"
    )
    steps = [step for step in (estimate.prefill, estimate.decode) if step]
    compiling, timing = (sum(getattr(step, part) for step in steps) for part in ("compile_s", "timing_s"))
    line(f"  spent here   {compiling:.1f} s to compile or load kernels, {timing:.1f} s to time them", "dim")
    for name, step in (("prefill", estimate.prefill), ("one generated token", estimate.decode)):
        if step is None:
            continue
        _warn(name, step, line)
        table = report_table(step.report, kernels)
        table.title = f"{name}: {table.title}"
        console.print(table)
        for entry in step.report.entries[:1]:
            for text in entry_lines(entry):
                line(text)


def _use(step: Step) -> str:
    report = step.report
    roofs = Roofs.of(report.chip)
    links = report.total("link_bytes")
    moved = links.get("DDR read", 0) + links.get("DDR write", 0)
    seconds = (report.ns or 1.0) / 1e9
    part, _ = next(iter(report.by_bottleneck.items()), ("nothing", 0.0))
    return (
        f"{report.launches} launches, PT {2 * step.macs / seconds / roofs.pt:.1%} of peak, "
        f"DDR {rate_text(moved / seconds, 'B/s')} ({size_text(moved)}), mostly {part}"
    )


def _warn(name: str, step: Step, line: object) -> None:
    assert callable(line)
    for op, count in sorted(step.fallbacks.items()):
        line(f"  not timed in {name}: {op} x {count} runs on the host", "yellow")
    if step.copies:
        line(
            f"  not timed in {name}: {step.copies} copies of {size_text(step.copied_bytes)} inside the device", "yellow"
        )
