"""``loom chip``: look at chip descriptions."""

from __future__ import annotations

from typing import Annotated

import typer

from torch_loom.cli.errors import Usage

app = typer.Typer(help="Show chip descriptions.", add_completion=False, no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("show")
def show(
    chip: Annotated[str, typer.Argument(help="Preset name or path of a TOML file.")] = "spyre",
    drawing: Annotated[bool, typer.Option("--drawing", help="Only the drawing, without the parameter table.")] = False,
) -> None:
    """Draw a chip and list its parameters with where each number comes from."""
    from torch_loom import arch

    try:
        found = arch.load(chip)
    except (arch.ArchError, OSError) as error:
        raise Usage(error) from None
    typer.echo(arch.draw(found) if drawing else arch.describe(found))


@app.command("list")
def names() -> None:
    """Names of the chips that ship with the package."""
    from torch_loom import arch

    typer.echo("\n".join(arch.presets()))
