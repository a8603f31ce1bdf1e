"""``loom trace``: the timeline of one program for the Perfetto viewer, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage

app = typer.Typer(add_completion=False)


@app.command("trace")
def trace(
    path: Annotated[Path, typer.Argument(help="KTIR file, SpyreCode directory or binary file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    size: Annotated[
        list[str] | None, typer.Option("--size", help="Value of a number argument, NAME=NUMBER; repeatable.")
    ] = None,
    function: Annotated[str, typer.Option("--function", "-f", help="Function of a KTIR file.")] = "",
    chip: Annotated[str, typer.Option("--chip", help="Preset name or path of a TOML file.")] = "spyre",
    launches: Annotated[int, typer.Option("--launches", min=1, max=2**31, help="Launches one after another.")] = 1,
    max_spans: Annotated[int, typer.Option("--max-spans", min=1, max=2**31, help="Spans to keep at most.")] = 100_000,
    html: Annotated[bool, typer.Option("--html", help="Write a page instead of a trace.")] = False,
) -> None:
    """Write what every unit does when: JSON for the Perfetto viewer (ui.perfetto.dev), one track per unit."""
    from dataclasses import replace

    from torch_loom.cli.files import PendingFile
    from torch_loom.cli.subject import read_subject, usable_chip
    from torch_loom.profiler import ClockError, chrome_text, html_page, report_of, timeline

    described = usable_chip(chip)
    subject = replace(read_subject(path, size or [], function, described), launches=launches)
    with PendingFile(output) as pending:
        try:
            found = timeline([subject], described, max_spans)
            text = html_page(report_of([subject], described), found) if html else chrome_text(found)
        except ClockError as error:
            raise Usage(error) from None
        pending.commit(text)
    if found.notice:
        typer.echo(f"loom trace: {found.notice}", err=True)
