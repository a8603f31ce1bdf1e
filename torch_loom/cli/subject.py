"""What ``time``, ``trace`` and ``report`` look at: a KTIR file, a SpyreCode directory or a binary, with sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import read_program

if TYPE_CHECKING:
    from torch_loom.arch import Chip
    from torch_loom.profiler import Subject
    from torch_loom.scheduler import Options
    from torch_loom.spyrecode.model import Program


def numbers(pairs: list[str]) -> dict[str, int | float]:
    """Numbers of ``NAME=NUMBER`` options."""
    out: dict[str, int | float] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in out:
            raise Usage(f"--size gives {name} twice")
        if name and value.isdecimal():
            out[name] = int(value)
            continue
        try:
            out[name] = float(value)
        except ValueError:
            out[name] = -1
        if not name or not out[name] >= 0:
            raise Usage(f"--size {pair!r} is not NAME=NUMBER")
    return out


def usable_chip(name: str) -> Chip:
    """The chip of ``--chip``."""
    from torch_loom import arch

    try:
        return arch.load(name)
    except arch.ArchError as error:
        raise Usage(error) from None


def read_subject(path: Path, pairs: list[str], function: str, chip: Chip, *, shared: bool = False) -> Subject:
    """The launch that the arguments of a command describe. A KTIR file is scheduled for ``chip`` here.

    ``shared``: the numbers are for several programs, each takes those that it knows."""
    from torch_loom.profiler import ClockError, Subject

    given = numbers(pairs)
    if not _is_text(path):
        if function:
            raise Usage(f"{path} is no KTIR file; --function has no meaning")
        program = read_program(path)
        try:
            return Subject.of(program, _known(program, given) if shared else given)
        except ClockError as error:
            raise Usage(error) from None
    return _scheduled(path, given, function, chip, shared)


def _known(program: Program, given: dict[str, int | float]) -> dict[str, int | float]:
    names = {arg.name for arg in program.args}
    return {name: value for name, value in given.items() if name in names}


def _scheduled(path: Path, given: dict[str, int | float], function: str, chip: Chip, shared: bool) -> Subject:
    from dataclasses import replace

    from torch_loom import ktir, scheduler
    from torch_loom.profiler import ClockError, Subject

    # LX is planned for the sizes that are timed where the text gives no bound.
    bounds = {name: value for name, value in given.items() if isinstance(value, int) and value}
    try:
        program = ktir.load(path)
        name = function or only_function(path, program.functions)
        if name not in program.functions:
            raise Usage(f"no function '{name}' in {path}; functions: {', '.join(program.functions)}")
        compiled = scheduler.compile(program, name, chip, scheduler.Options(bounds=bounds))
    except (scheduler.ScheduleError, ktir.KtirError, OSError) as error:
        raise Usage(error) from None

    def reschedule(options: Options) -> bytes:
        return scheduler.compile(program, name, chip, replace(options, bounds=bounds)).binary

    try:
        sizes = _known(compiled.program, given) if shared else given
        return Subject.of(compiled.program, sizes, reschedule)
    except ClockError as error:
        raise Usage(error) from None


def only_function(path: Path, functions: list[str]) -> str:
    """The function of a file that has one."""
    if len(functions) != 1:
        raise Usage(f"{path} has functions {', '.join(functions) or 'none'}; name one with --function")
    return functions[0]


def _is_text(path: Path) -> bool:
    """Is a file KTIR rather than a SpyreCode binary, which starts with bytes that are not text?"""
    return path.suffix in (".ktir", ".mlir") and not path.is_dir()
