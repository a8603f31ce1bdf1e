"""Tables for people, drawn with rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from torch_loom.profiler.launches import LaunchRow


def size_text(count: float) -> str:
    """A byte count in binary units, three digits."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.3g} GiB"


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


def matrix_table(values: Sequence[Sequence[float]], title: str) -> Table:
    """A square matrix with numbered rows and columns, two decimals."""
    table = Table(title=title, min_width=len(title) + 2)
    table.add_column("", justify="right", style="bold")
    for number in range(len(values)):
        table.add_column(str(number), justify="right")
    for number, row in enumerate(values):
        table.add_row(str(number), *(f"{value:.2f}" for value in row))
    return table
