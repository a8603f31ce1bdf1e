"""``loom time``: the clock on one program, without data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import read_program

app = typer.Typer(add_completion=False)


@app.command("time")
def time(
    path: Annotated[Path, typer.Argument(help="SpyreCode directory or binary file.")],
    size: Annotated[
        list[str] | None, typer.Option("--size", help="Value of a size argument, NAME=NUMBER; repeatable.")
    ] = None,
    chip: Annotated[str, typer.Option("--chip", help="Preset name or path of a TOML file.")] = "spyre",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Modelled time of a SpyreCode directory for given sizes."""
    from torch_loom import arch
    from torch_loom.profiler import ClockError, time_program

    program = read_program(path)
    try:
        row = time_program(program, sizes(size or []), arch.load(chip))
    except (ClockError, arch.ArchError) as error:
        raise Usage(error) from None
    if as_json:
        typer.echo(json.dumps(row.as_dict()))
        return
    typer.echo(
        f"{row.name}: {row.modelled_us:.3f} us, PT {row.pt_util:.1%}, SFU {row.sfu_util:.1%}, "
        f"DDR {row.ddr_bytes} B, bottleneck {row.bottleneck}"
    )


def sizes(pairs: list[str]) -> dict[str, int]:
    """Numbers of ``NAME=NUMBER`` options."""
    out = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value.isdecimal():
            raise Usage(f"--size {pair!r} is not NAME=NUMBER")
        out[name] = int(value)
    return out
