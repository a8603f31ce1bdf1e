"""Engines that run a program. A row per engine; other rooms add theirs with :func:`register`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import StringAttr

from torch_loom.ktir.reference.machine import Options

if TYPE_CHECKING:
    from torch_loom.ktir.program import Program

#: (program, function, chip, options, memory, arguments) -> arrays afterwards
Engine = Callable[["Program", str | None, str, Options, Mapping[int, Any], Mapping[str, Any]], dict[Any, Any]]

UNITS = ("elements", "bytes", "sticks")

#: Module attribute that records the unit of addresses of an imported text.
UNIT_ATTRIBUTE = "torch_loom.address_unit"


def _reference(
    program: Program,
    fn: str | None,
    chip: str,
    options: Options,
    memory: Mapping[int, Any],
    arguments: Mapping[str, Any],
) -> dict[Any, Any]:
    from torch_loom.ktir.reference.run import run as run_reference

    return run_reference(program, fn, arguments, options, memory)


ENGINES: dict[str, Engine] = {"reference": _reference}

#: Engines of later rooms, by the module that registers them when it is loaded.
PROVIDERS = {"chip": "torch_loom.scheduler.engine"}


def register(name: str, engine: Engine) -> None:
    """Add an engine."""
    ENGINES[name] = engine


def engine_names() -> list[str]:
    """Every engine that can be asked for."""
    return sorted({*ENGINES, *PROVIDERS})


def recorded_unit(program: Program) -> str:
    """The address unit that the module says its text uses, elements by default."""
    found = program.module.attributes.get(UNIT_ATTRIBUTE)
    return found.data if isinstance(found, StringAttr) else "elements"


def run(
    program: Program,
    fn: str | None,
    engine: str,
    chip: str,
    address_unit: str | None,
    memory: Mapping[int, Any],
    arguments: Mapping[str, Any],
) -> dict[Any, Any]:
    """Split options from kernel arguments and run."""
    if engine not in ENGINES and engine in PROVIDERS:
        importlib.import_module(PROVIDERS[engine])
    if engine not in ENGINES:
        raise ValueError(f"no engine '{engine}'; there are {', '.join(engine_names())}")
    unit = address_unit or recorded_unit(program)
    if unit not in UNITS:
        raise ValueError(f"address_unit is one of {', '.join(UNITS)}, got '{unit}'")
    function = program.function(fn)
    names = {a.name for a in program.arguments(function.sym_name.data)}
    options = Options(address_unit=unit)
    known = {f.name for f in fields(Options)}
    chosen = {k: v for k, v in arguments.items() if k in known and k not in names}
    rest = {k: v for k, v in arguments.items() if k not in chosen}
    return ENGINES[engine](program, function.sym_name.data, chip, replace(options, **chosen), memory, rest)
