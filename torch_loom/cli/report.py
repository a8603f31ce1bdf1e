"""``loom report``: a page about one or several programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage

app = typer.Typer(add_completion=False)


@app.command("report")
def report(
    paths: Annotated[list[Path], typer.Argument(help="KTIR files, SpyreCode directories or binary files.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="HTML file to write; without it the report is printed.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option("--size", help="Value of a number argument, NAME=NUMBER; repeatable.")
    ] = None,
    function: Annotated[str, typer.Option("--function", "-f", help="Function of a KTIR file.")] = "",
    chip: Annotated[str, typer.Option("--chip", help="Preset name or path of a TOML file.")] = "spyre",
    max_spans: Annotated[int, typer.Option("--max-spans", min=1, max=2**31, help="Spans to keep at most.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report on programs, launched one after another: a page with timeline, roofline, LX map and tables, or a table."""
    from contextlib import nullcontext

    from torch_loom.cli.files import PendingFile
    from torch_loom.cli.subject import read_subject, usable_chip
    from torch_loom.profiler import ClockError, html_page, report_console, report_of, timeline
    from torch_loom.profiler.tables import report_view

    described = usable_chip(chip)
    subjects = [read_subject(path, size or [], function, described, shared=len(paths) > 1) for path in paths]
    with PendingFile(output) if output else nullcontext() as pending:
        try:
            result = report_of(subjects, described)
            if pending is not None:
                found = timeline(subjects, described, max_spans)
                pending.commit(html_page(result, found))
                if found.notice:
                    typer.echo(f"loom report: timeline {found.notice}", err=True)
        except ClockError as error:
            raise Usage(error) from None
    if as_json:
        typer.echo(result.json())
    elif output is None:
        report_console().print(report_view(result), highlight=False, soft_wrap=True)
