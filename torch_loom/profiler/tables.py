"""Tables for people, drawn with rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torch_loom.profiler.figures import ddr_bytes_saved, lx_hit_rate
from torch_loom.profiler.launches import LaunchRow
from torch_loom.profiler.reports import Entry, Report
from torch_loom.profiler.roofline import Position
from torch_loom.profiler.units import rate_text, size_text, time_text


def report_console() -> Console:
    """A console on stdout: as wide as the terminal, and wide enough for kernel names in a pipe or file."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def launch_table(rows: Sequence[LaunchRow]) -> Table:
    """One line per launch and the total."""
    total = sum(row.modelled_us for row in rows)
    table = Table(title="kernel launches, modelled", show_footer=True)
    table.add_column("#", justify="right")
    table.add_column("kernel", footer=f"total of {len(rows)} launches", overflow="fold")
    table.add_column("time us", justify="right", footer=f"{total:.2f}")
    table.add_column("PT", justify="right")
    table.add_column("SFU", justify="right")
    table.add_column("DDR", justify="right", footer=size_text(sum(row.ddr_bytes for row in rows)))
    table.add_column("bottleneck")
    for number, row in enumerate(rows):
        table.add_row(
            str(number),
            row.name,
            f"{row.modelled_us:.2f}",
            f"{row.pt_util:.1%}",
            f"{row.sfu_util:.1%}",
            size_text(row.ddr_bytes),
            row.bottleneck,
        )
    return table


def report_table(report: Report, count: int | None = None) -> Table:
    """One line per kernel by the time it costs (the first ``count``), and the total."""
    shown = report.entries[:count]
    title = "kernels by time, modelled"
    if len(shown) < len(report.entries):
        title += f" ({len(shown)} of {len(report.entries)})"
    table = Table(title=title, show_footer=True)
    table.add_column("kernel", footer="total", overflow="fold")
    table.add_column("launches", justify="right", footer=str(report.launches))
    table.add_column("time", justify="right", footer=time_text(report.ns))
    table.add_column("share", justify="right")
    table.add_column("PT", justify="right", footer=f"{report.mean('utilisation').get('PT', 0.0):.1%}")
    table.add_column("SFU", justify="right", footer=f"{report.mean('utilisation').get('SFU', 0.0):.1%}")
    links = report.total("link_bytes")
    table.add_column("DDR", justify="right", footer=size_text(links.get("DDR read", 0) + links.get("DDR write", 0)))
    between = report.total("between_bytes")
    table.add_column("LX hit", justify="right", footer=_hit(between))
    table.add_column("DDR saved", justify="right", footer=size_text(ddr_bytes_saved(between)))
    table.add_column("energy", justify="right", footer=_energy(sum(report.total("energy_pj").values())))
    table.add_column("of roof", justify="right")
    table.add_column("critical")
    for entry in shown:
        figures = entry.figures
        table.add_row(
            figures.name,
            str(entry.launches),
            time_text(entry.total_ns),
            f"{entry.total_ns / (report.ns or 1):.1%}",
            f"{figures.pt_util:.1%}",
            f"{figures.sfu_util:.1%}",
            size_text(figures.ddr_bytes * entry.launches),
            _hit(figures.between_bytes),
            size_text(ddr_bytes_saved(figures.between_bytes) * entry.launches),
            _energy(figures.energy_uj * 1e6 * entry.launches),
            f"{entry.position.share:.0%}",
            figures.bottleneck,
        )
    return table


def entry_lines(entry: Entry) -> list[str]:
    """A kernel in words: time, reason, use of units and links, energy, roofline, and what would help."""
    figures = entry.figures
    lines = [
        f"{figures.name}: {time_text(figures.ns)} ({figures.cycles:.0f} cycles on {figures.cores} cores)",
        f"  critical    {entry.why}",
        f"  shares      {_shares(figures.shares)}",
        f"  units       {_shares(figures.utilisation)}",
        f"  links       {', '.join(f'{k} {size_text(v)}' for k, v in figures.link_bytes.items() if v) or 'nothing'}",
        f"  between     {_between(figures.between_bytes)}",
        f"  energy      {_energy(figures.energy_uj * 1e6)}: {_parts(figures.energy_pj)}",
        f"  roofline    {_roof(entry.position)}",
    ]
    if entry.origin:
        lines.insert(1, f"  launched    {entry.origin}")
    for number, change in enumerate(entry.changes):
        lines.append(f"  {'try' if not number else '':<12}{number + 1}. {change}")
    return lines


def report_view(report: Report, *, details: int = 3) -> RenderableType:
    """The table of all kernels, the sums, and the ``details`` costliest kernels in words."""
    parts: list[RenderableType] = []
    if len(report.entries) != 1:
        parts.append(report_table(report))
    if report.ns and len(report.entries) > 1:
        critical = ", ".join(f"{part} {ns / report.ns:.0%}" for part, ns in report.by_bottleneck.items())
        parts.append(Text(f"critical: {critical} of {time_text(report.ns)}"))
        watts = sum(report.total("energy_pj").values()) / 1000 / report.ns
        parts.append(Text(f"energy: {_parts(report.total('energy_pj'))}; mean power {watts:.1f} W"))
    for entry in report.entries[:details]:
        parts.append(Text("\n".join(["", *entry_lines(entry)] if len(report.entries) > 1 else entry_lines(entry))))
    return Group(*parts)


def energy_lines(report: Report) -> list[str]:
    """Where the energy figures come from."""
    return [f"energy of {part}: {source}" for part, source in report.energy_sources().items()]


def report_text(report: Report) -> str:
    """The report as text, 140 columns wide."""
    console = Console(width=140)
    with console.capture() as capture:
        console.print(report_view(report))
    return capture.get().rstrip("\n")


def matrix_table(values: Sequence[Sequence[float]], title: str) -> Table:
    """A square matrix with numbered rows and columns, two decimals."""
    table = Table(title=title, min_width=len(title) + 2)
    table.add_column("", justify="right", style="bold")
    for number in range(len(values)):
        table.add_column(str(number), justify="right")
    for number, row in enumerate(values):
        table.add_row(str(number), *(f"{value:.2f}" for value in row))
    return table


def _between(between_bytes: Mapping[str, float]) -> str:
    moved = ", ".join(f"{k} {size_text(v)}" for k, v in between_bytes.items() if v)
    return f"{moved} of buffers that programs of a job pass on" if moved else "no buffers passed on by programs"


def _hit(between_bytes: Mapping[str, float]) -> str:
    rate = lx_hit_rate(between_bytes)
    return "-" if rate is None else f"{rate:.0%}"


def _shares(values: Mapping[str, float]) -> str:
    return ", ".join(f"{k} {v:.1%}" for k, v in values.items())


def _parts(values: Mapping[str, float]) -> str:
    total = sum(values.values()) or 1.0
    return ", ".join(f"{k} {v / total:.0%}" for k, v in sorted(values.items(), key=lambda i: -i[1]) if v)


def _energy(pj: float) -> str:
    for unit, factor in (("J", 1e12), ("mJ", 1e9), ("uJ", 1e6), ("nJ", 1e3)):
        if pj >= factor:
            return f"{pj / factor:.3g} {unit}"
    return f"{pj:.3g} pJ"


def _roof(where: Position) -> str:
    ends = "op/s" if where.unit == "SFU" else "FLOP/s"
    kind = "op" if where.unit == "SFU" else "FLOP"
    at = "no DDR traffic" if where.intensity is None else f"{where.intensity:.3g} {kind}/B"
    reached, attainable = rate_text(where.reached, ends), rate_text(where.attainable, ends)
    return f"{at}, {reached} of {attainable} under the {where.side} roof ({where.share:.0%})"
