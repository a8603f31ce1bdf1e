"""``loom asm`` and ``loom disasm``: SpyreCode between text and binary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import read_program, write_text

asm_app = typer.Typer(add_completion=False)
disasm_app = typer.Typer(add_completion=False)


@asm_app.command("asm")
def assemble(
    source: Annotated[Path, typer.Argument(help="Text as printed by 'loom disasm'.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="SpyreCode directory to write.")],
) -> None:
    """Assemble text into a SpyreCode directory."""
    from torch_loom import spyrecode

    try:
        program = spyrecode.assemble(source.read_text("utf-8"))
    except (spyrecode.SpyreCodeError, UnicodeDecodeError) as error:
        raise Usage(f"{source}: {error}") from None
    except OSError as error:
        raise Usage(f"cannot read {source}: {error.strerror}") from None
    try:
        spyrecode.write_dir(output, program)
    except OSError as error:
        raise Usage(f"cannot write {output}: {error.strerror}") from None


@disasm_app.command("disasm")
def disassemble(
    path: Annotated[Path, typer.Argument(help="SpyreCode directory or binary file.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write instead of printing.")] = None,
) -> None:
    """Print a SpyreCode directory or binary as text that 'loom asm' reads back."""
    from torch_loom import spyrecode

    text = spyrecode.disassemble(read_program(path))
    if output is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        write_text(output, text)
