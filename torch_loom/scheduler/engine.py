"""The engine ``chip`` of KTIR programs: schedule, encode, and run the bytes on the functional engine."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_loom import arch
from torch_loom.ktir import engines
from torch_loom.ktir.reference.machine import Options as RunOptions

if TYPE_CHECKING:
    from torch_loom.ktir.program import Program
    from torch_loom.scheduler import Compiled, Options

# What the chip does by design; an option that asks for something else is refused, not ignored.
FIXED = ("accumulate", "fold", "strict_bounds", "check_collisions")


def run(
    program: Program,
    fn: str | None,
    chip: str,
    options: RunOptions,
    memory: Mapping[int, Any],
    arguments: Mapping[str, Any],
) -> dict[Any, Any]:
    """Arrays after the run, under the names (or fixed addresses) by which they were given."""
    from torch_loom import scheduler

    plain = RunOptions()
    for name in FIXED:
        if getattr(options, name) != getattr(plain, name):
            raise ValueError(f"engine 'chip' has no option {name}={getattr(options, name)!r}")
    function = program.function(fn).sym_name.data
    # LX is planned for the sizes of this run where the text gives no bound.
    sizes = {k: int(v) for k, v in arguments.items() if isinstance(v, int | np.integer)}
    chosen = scheduler.Options(ieee=options.numerics != "df16", address_unit=options.address_unit, bounds=sizes)
    compiled = _compiled(program, function, chip, chosen)
    given = {name: _array(value) for name, value in arguments.items()}
    fixed = {f"at{address}": _array(value) for address, value in memory.items()}
    results = compiled.run(**given, **fixed)
    places = {f"at{address}": address for address in memory}
    return {places.get(name, name): value for name, value in results.items()}


_known: dict[tuple[int, str, str, str], tuple[weakref.ref[Program], Compiled]] = {}


def _compiled(program: Program, function: str, chip: str, options: Options) -> Compiled:
    """The compiled function; kept as long as the program object lives."""
    from torch_loom import scheduler

    key = (id(program), function, chip, repr(options))
    found = _known.get(key)
    if found is not None and found[0]() is program:
        return found[1]
    for stale in [k for k, (alive, _) in _known.items() if alive() is None]:
        del _known[stale]
    compiled = scheduler.compile(program, function, arch.load(chip), options)
    _known[key] = (weakref.ref(program), compiled)
    return compiled


def _array(value: Any) -> Any:
    """A NumPy view of an array argument (torch tensors included); numbers as they are."""
    if isinstance(value, np.ndarray | int | float | np.generic):
        return value
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


engines.register("chip", run)
