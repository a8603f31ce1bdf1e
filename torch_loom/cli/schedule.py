"""``loom schedule``: compile a KTIR file down to SpyreCode and look at every step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import write_text

app = typer.Typer(help="Compile a KTIR file down to SpyreCode.", add_completion=False)


@app.command()
def schedule(
    file: Annotated[Path, typer.Argument(help="KTIR file.")],
    function: Annotated[str, typer.Option("--function", "-f", help="Function; default: the only one.")] = "",
    chip: Annotated[str, typer.Option("--chip", help="Preset name or path of a TOML file.")] = "spyre",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a SpyreCode directory with the IR texts.")
    ] = None,
    print_after: Annotated[str, typer.Option("--print-after", help="Print the result of a pass, or of all.")] = "",
    draw: Annotated[
        Path | None, typer.Option("--draw", help="Write an SVG of the pipeline and of LX over time.")
    ] = None,
    bound: Annotated[list[str] | None, typer.Option("--bound", help="NAME=N: upper bound of a size argument.")] = None,
    buffers: Annotated[
        int, typer.Option("--buffers", min=1, max=8, help="Copies of a block that units share inside a loop.")
    ] = 2,
    no_double_buffering: Annotated[
        bool, typer.Option("--no-double-buffering", help="One copy of each block: the same as --buffers 1.")
    ] = False,
    no_fusion: Annotated[bool, typer.Option("--no-fusion", help="Every operation in a segment of its own.")] = False,
    no_tiling: Annotated[
        bool, typer.Option("--no-tiling", help="Cut bodies only if they do not fit LX, not to overlap.")
    ] = False,
    tile: Annotated[
        int | None, typer.Option("--tile", min=1, help="Cut every body to pieces of N indices instead of choosing.")
    ] = None,
    no_multicast: Annotated[
        bool, typer.Option("--no-multicast", help="Every core fetches for itself what others fetch, too.")
    ] = False,
    corelets: Annotated[int | None, typer.Option("--corelets", min=1, help="Corelets to use; default: all.")] = None,
    ieee: Annotated[
        bool | None, typer.Option("--ieee/--df16", help="Storage of 16-bit floats; default: TORCH_LOOM_NUMERICS.")
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Skip the static checks.")] = False,
    address_unit: Annotated[
        str | None, typer.Option("--address-unit", help="What addresses count: elements, bytes or sticks.")
    ] = None,
    times: Annotated[bool, typer.Option("--times", help="Print the seconds of each pass.")] = False,
) -> None:
    """Without -o, --draw, --print-after or --times the DataflowIR is printed."""
    from torch_loom import arch, ktir, scheduler
    from torch_loom.ktir.engines import UNITS
    from torch_loom.scheduler.draw import draw as picture
    from torch_loom.scheduler.dump import describe
    from torch_loom.scheduler.pipeline import PASSES
    from torch_loom.spyrecode.model import ArgKind

    if print_after and print_after != "all" and print_after not in PASSES:
        raise Usage(f"no pass is called '{print_after}'; passes: {', '.join(PASSES)}, all")
    if address_unit not in (None, *UNITS):
        raise Usage(f"--address-unit is {', '.join(UNITS)}, not '{address_unit}'")
    options = scheduler.Options(
        buffers=1 if no_double_buffering else buffers,
        fuse=not no_fusion,
        overlap=not no_tiling,
        tile=tile,
        corelets=corelets,
        ieee=ieee,
        check=not no_check,
        multicast=not no_multicast,
        address_unit=address_unit,
        bounds=_bounds(bound or []),
    )

    def watch(name: str, result: Any) -> None:
        if print_after in (name, "all"):
            typer.echo(f"// after {name}\n{describe(name, result)}\n")

    try:
        program = ktir.load(_readable(file))
        name = function or _only(program.functions)
        if name not in program.functions:
            raise Usage(f"no function '{name}' in {file}; functions: {', '.join(program.functions)}")
        compiled = scheduler.compile(program, name, arch.load(chip), options, watch)
        numbers = [arg.name for arg in compiled.program.args if arg.kind is ArgKind.INT]
        if unknown := sorted(options.bounds.keys() - set(numbers)):
            raise Usage(f"{name} has no size {', '.join(unknown)}; its sizes are: {', '.join(numbers) or 'none'}")
        if output is not None:
            compiled.save(output, debug={"kernel.ktir": str(program)})
        if draw is not None:
            write_text(draw, picture(compiled.schedule_ir))
    except (scheduler.ScheduleError, ktir.KtirError, arch.ArchError) as error:
        raise Usage(error) from None
    except OSError as error:
        raise Usage(f"cannot write {output}: {error.strerror}") from None
    if times:
        for step, seconds in compiled.seconds.items():
            typer.echo(f"{step:<12} {seconds * 1e3:8.2f} ms")
        typer.echo(f"{'total':<12} {sum(compiled.seconds.values()) * 1e3:8.2f} ms")
    if not (output or draw or print_after or times):
        typer.echo(compiled.dataflow_ir, nl=False)


def _readable(file: Path) -> Path:
    if not os.path.isfile(file):
        raise Usage(f"{file}: no such file")
    return file


def _only(functions: list[str]) -> str:
    if len(functions) != 1:
        raise Usage(f"the file has functions {', '.join(functions) or 'none'}; name one with --function")
    return functions[0]


def _bounds(texts: list[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value.isdecimal() or int(value) == 0:
            raise Usage(f"--bound takes NAME=N with a positive N, got '{text}'")
        if name in found:
            raise Usage(f"--bound gives {name} twice")
        found[name] = int(value)
    return found
