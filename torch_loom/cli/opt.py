"""``loom opt``: run passes on a KTIR file and print the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import write_text

app = typer.Typer(add_completion=False)


@app.command("opt")
def opt(
    file: Annotated[Path | None, typer.Argument(help="A KTIR file.")] = None,
    passes: Annotated[str, typer.Option("--passes", help="Comma-separated pass names.")] = "",
    list_passes: Annotated[bool, typer.Option("--list", help="List the passes.")] = False,
    generic: Annotated[bool, typer.Option("--generic", help="Print upstream's generic form.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write instead of printing.")] = None,
) -> None:
    """Run passes on a KTIR file and print the result."""
    from torch_loom.cli.ktir import load_program
    from torch_loom.ktir.passes import PASSES, run_passes

    if list_passes:
        for name, function in PASSES.items():
            typer.echo(f"{name:12} {(function.__doc__ or '').splitlines()[0]}")
        return
    if file is None:
        raise Usage("name a file, or --list")
    names = [n for n in (part.strip() for part in passes.split(",")) if n]
    unknown = [n for n in names if n not in PASSES]
    if unknown:
        raise Usage(f"no pass '{unknown[0]}'; there are {', '.join(PASSES)}")
    program = load_program(file, None, False)
    try:
        run_passes(program.module, names)
    except ValueError as error:
        raise Usage(error) from None
    text = program.print(generic=generic)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
