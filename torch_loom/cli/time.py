"""``loom time``: the clock on one program, without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage

app = typer.Typer(add_completion=False)


@app.command("time")
def time(
    path: Annotated[Path, typer.Argument(help="KTIR file, SpyreCode directory or binary file.")],
    size: Annotated[
        list[str] | None, typer.Option("--size", help="Value of a number argument, NAME=NUMBER; repeatable.")
    ] = None,
    function: Annotated[str, typer.Option("--function", "-f", help="Function of a KTIR file.")] = "",
    chip: Annotated[str, typer.Option("--chip", help="Preset name or path of a TOML file.")] = "spyre",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Modelled time of a program for given sizes: critical unit, use of units and links, energy, what would help."""
    from torch_loom.cli.subject import read_subject, usable_chip
    from torch_loom.profiler import ClockError, report_console, report_of
    from torch_loom.profiler.tables import energy_lines, report_view

    described = usable_chip(chip)
    try:
        report = report_of([read_subject(path, size or [], function, described)], described, advice=-1)
    except ClockError as error:
        raise Usage(error) from None
    if as_json:
        typer.echo(report.json())
        return
    console = report_console()
    console.print(report_view(report), highlight=False, soft_wrap=True)
    for line in energy_lines(report):
        console.print(f"  {line}", style="dim", highlight=False, soft_wrap=True)
