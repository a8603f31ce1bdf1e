"""Passes over KTIR modules. One pass a file; a pass is a function on the module, listed in :data:`PASSES` by name."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import ModuleOp

from torch_loom.ktir.passes.cse import eliminate_common
from torch_loom.ktir.passes.dce import eliminate_dead
from torch_loom.ktir.passes.fold import fold_constants
from torch_loom.ktir.passes.generalize import generalize_named, name_generics
from torch_loom.ktir.passes.inline import inline_calls

Pass = Callable[[ModuleOp], None]

PASSES: dict[str, Pass] = {
    "cse": eliminate_common,
    "dce": eliminate_dead,
    "fold": fold_constants,
    "generalize": generalize_named,
    "inline": inline_calls,
    "name": name_generics,
}


def run_passes(module: ModuleOp, names: list[str]) -> None:
    """Apply passes by name, in order."""
    for name in names:
        if name not in PASSES:
            raise ValueError(f"no pass '{name}'; there are {', '.join(PASSES)}")
        PASSES[name](module)


__all__ = ["PASSES", "Pass", "run_passes"]
