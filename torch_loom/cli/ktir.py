"""``loom ktir``: check, run, print, compare and draw KTIR files.

Exit status: 0 clean, 1 diagnostics (or a difference), 2 usage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import write_text

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Check, run, print and draw KTIR files.")

_UNITS = {"element": "elements", "byte": "bytes", "stick": "sticks"}

Files = Annotated[list[Path], typer.Argument(help="KTIR files (.ktir, .mlir).")]
File = Annotated[Path, typer.Argument(help="A KTIR file (.ktir, .mlir).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for tools.")]
AssumeSpace = Annotated[
    str | None, typer.Option("--assume-memory-space", help="Memory space of views that name none: global or ct_local.")
]
AllowL0 = Annotated[bool, typer.Option("--allow-l0", help="Accept the register space L0.")]
Unit = Annotated[str | None, typer.Option("--address-unit", help="What addresses count: element, byte or stick.")]


def _unit(name: str | None) -> str | None:
    if name is None:
        return None
    found = _UNITS.get(name) or (name if name in _UNITS.values() else None)
    if found is None:
        raise Usage(f"--address-unit is element, byte or stick, not '{name}'")
    return found


def _space(name: str | None) -> str | None:
    if name not in (None, "global", "ct_local"):
        raise Usage(f"--assume-memory-space is global or ct_local, not '{name}'")
    return name


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Usage(f"{path} is not UTF-8 text (byte {error.start})") from None


def _pairs(option: str, entries: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in entries:
        name, equal, value = entry.partition("=")
        if not equal or not name or not value:
            raise Usage(f"{option} takes NAME=VALUE, got '{entry}'")
        if name in found:
            raise Usage(f"{option} names '{name}' twice")
        found[name] = value
    return found


def load_program(path: Path, space: str | None, l0: bool) -> Any:
    """The program, or its diagnostics printed and status 1."""
    from torch_loom.ktir import KtirError, load

    text = _read(path)
    try:
        return load(text, file=str(path), assume_memory_space=_space(space), allow_l0=l0)
    except KtirError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


@app.command()
def check(
    files: Files,
    as_json: AsJson = False,
    strict: Annotated[bool, typer.Option("--strict", help="Report old spellings.")] = False,
    assume_memory_space: AssumeSpace = None,
    allow_l0: AllowL0 = False,
    assume_bound: Annotated[
        list[str] | None, typer.Option("--assume-bound", help="NAME=N: upper bound of an argument.")
    ] = None,
    address_unit: Unit = None,
    chip: Annotated[str, typer.Option("--chip", help="Chip preset or description file.")] = "spyre",
    compat: Annotated[bool, typer.Option("--compat", help="One id on a multi-dim grid is the first.")] = False,
    split_input: Annotated[bool, typer.Option("--split-input", help="'// -----' separates programs.")] = False,
) -> None:
    """Check files: syntax, every rule of the IR, and what runs wrongly without a complaint elsewhere."""
    from torch_loom import arch
    from torch_loom.ktir.checks import CheckOptions
    from torch_loom.ktir.checks import check as check_text
    from torch_loom.ktir.diagnostics import ERROR, WARNING

    try:
        target = arch.load(chip)
    except (ValueError, OSError) as error:
        raise Usage(f"chip '{chip}': {error}") from None
    bounds = {}
    for name, value in _pairs("--assume-bound", assume_bound or []).items():
        if not value.isdecimal():
            raise Usage(f"--assume-bound {name} takes a number, got '{value}'")
        bounds[name] = int(value)
    options = CheckOptions(
        cores=target.cores,
        lx_bytes=target.lx_bytes,
        bounds=bounds,
        strict=strict,
        compat=compat,
        address_unit=_unit(address_unit),
    )
    found = []
    for path in files:
        text = _read(path)
        for part in _parts(text) if split_input else [text]:
            found += check_text(
                part, str(path), options, assume_memory_space=_space(assume_memory_space), allow_l0=allow_l0
            )
    errors = sum(d.severity == ERROR for d in found)
    warnings = sum(d.severity == WARNING for d in found)
    if as_json:
        report = {"errors": errors, "warnings": warnings, "diagnostics": [d.as_dict() for d in found]}
        typer.echo(json.dumps(report, indent=2))
    else:
        for diagnostic in found:
            typer.echo(diagnostic.format())
        if errors or warnings:
            typer.echo(f"{errors} errors, {warnings} warnings", err=True)
    if errors or warnings:
        raise typer.Exit(1)


def _parts(text: str) -> list[str]:
    """Programs separated by '// -----'; blank lines keep the line numbers right."""
    parts: list[list[str]] = [[]]
    for number, line in enumerate(text.split("\n")):
        if line.strip().startswith("// -----"):
            parts.append([""] * (number + 1))
        else:
            parts[-1].append(line)
    joined = ["\n".join(p) for p in parts]
    return [p for p in joined if p.strip()]


@app.command()
def run(
    file: File,
    fn: Annotated[str | None, typer.Option("--fn", help="Function to run; needed when there are several.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", help="NAME=VALUE: a number, a .npy file, or zeros:64x128xf16, randn:.., arange:.."),
    ] = None,
    memory: Annotated[
        list[str] | None, typer.Option("--memory", help="ADDRESS=FILE.npy: contents of a fixed address.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for NAME.npy files, or one .npz file.")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="reference or chip.")] = "reference",
    chip: Annotated[str, typer.Option("--chip", help="Chip preset for engine chip.")] = "spyre",
    numerics: Annotated[str, typer.Option("--numerics", help="ieee, or df16 for the chip's format.")] = "ieee",
    accumulate: Annotated[str, typer.Option("--accumulate", help="f32 or storage.")] = "f32",
    address_unit: Unit = None,
    strict_bounds: Annotated[bool, typer.Option("--strict-bounds", help="Points outside a view are errors.")] = False,
    check_collisions: Annotated[bool, typer.Option("--check-collisions", help="Report colliding scatters.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of randn arguments.")] = 0,
    as_json: AsJson = False,
    assume_memory_space: AssumeSpace = None,
    allow_l0: AllowL0 = False,
) -> None:
    """Run a function and report (or write) every array as it is afterwards."""
    from torch_loom.cli.ktir_arrays import read_array, read_value, write_arrays
    from torch_loom.ktir import KtirError

    for option, value, allowed in (
        ("--numerics", numerics, ("ieee", "df16")),
        ("--accumulate", accumulate, ("f32", "storage")),
    ):
        if value not in allowed:
            raise Usage(f"{option} is {' or '.join(allowed)}, not '{value}'")
    program = load_program(file, assume_memory_space, allow_l0)
    values = {n: read_value(n, v, seed) for n, v in _pairs("--arg", arg or []).items()}
    seeded = {}
    for address, source in _pairs("--memory", memory or []).items():
        if not address.lstrip("-").isdecimal():
            raise Usage(f"--memory takes ADDRESS=FILE.npy, got '{address}'")
        seeded[int(address)] = read_array(Path(source))
    try:
        results = program.run(
            fn,
            engine=engine,
            chip=chip,
            address_unit=_unit(address_unit),
            memory=seeded,
            numerics=numerics,
            accumulate=accumulate,
            strict_bounds=strict_bounds,
            check_collisions=check_collisions,
            **values,
        )
    except KtirError as error:
        if as_json:
            typer.echo(json.dumps({"diagnostics": [d.as_dict() for d in error.diagnostics]}, indent=2))
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except (TypeError, ValueError) as error:
        raise Usage(error) from None
    paths = write_arrays(output, results) if output is not None else {}
    if as_json:
        arrays = {
            str(name): {"shape": list(a.shape), "dtype": str(a.dtype), "file": paths.get(str(name))}
            for name, a in results.items()
        }
        typer.echo(json.dumps({"arrays": arrays, "diagnostics": []}, indent=2))
        return
    for name, array in results.items():
        place = f" -> {paths[str(name)]}" if str(name) in paths else ""
        typer.echo(f"{name}: {array.dtype}{list(array.shape)}{place}")


@app.command("print")
def print_(
    file: File,
    generic: Annotated[bool, typer.Option("--generic", help="Upstream's generic form.")] = False,
    print_locs: Annotated[bool, typer.Option("--print-locs", help="Keep source locations.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write instead of printing.")] = None,
    assume_memory_space: AssumeSpace = None,
    allow_l0: AllowL0 = False,
) -> None:
    """Print the canonical text."""
    program = load_program(file, assume_memory_space, allow_l0)
    text = program.print(generic=generic, locations=print_locs)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


@app.command()
def diff(
    old: File,
    new: Annotated[Path, typer.Argument(help="The other KTIR file.")],
    assume_memory_space: AssumeSpace = None,
    allow_l0: AllowL0 = False,
) -> None:
    """Compare two files by meaning of the text: spelling, aliases and value names do not count."""
    from difflib import unified_diff

    a, b = (load_program(path, assume_memory_space, allow_l0) for path in (old, new))
    if a.module.is_structurally_equivalent(b.module):
        return
    lines = unified_diff(str(a).splitlines(), str(b).splitlines(), str(old), str(new), lineterm="")
    typer.echo("\n".join(lines))
    raise typer.Exit(1)


@app.command()
def draw(
    file: File,
    view: Annotated[str | None, typer.Option("--view", help="View to draw; by default the first one.")] = None,
    fn: Annotated[str | None, typer.Option("--fn", help="Function; needed when there are several.")] = None,
    size: Annotated[list[str] | None, typer.Option("--size", help="NAME=N: value of a scalar argument.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="SVG file to write instead of printing.")
    ] = None,
    assume_memory_space: AssumeSpace = None,
    allow_l0: AllowL0 = False,
) -> None:
    """Draw which compute tile touches which part of a view, as SVG."""
    from torch_loom.ktir.draw import draw_tiles

    program = load_program(file, assume_memory_space, allow_l0)
    sizes = {}
    for name, value in _pairs("--size", size or []).items():
        if not value.isdecimal():
            raise Usage(f"--size {name} takes a number, got '{value}'")
        sizes[name] = int(value)
    try:
        text = draw_tiles(program, fn, view, sizes)
    except ValueError as error:
        raise Usage(error) from None
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
