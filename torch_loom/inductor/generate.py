"""From scheduler nodes to the text of their kernel, with what a call of it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from .chain import emit_chain, plan_chain
from .compat import SchedulerNode
from .plan import make_plan
from .write import emit_kernel


@dataclass(frozen=True)
class Written:
    """A kernel: its KTIR, and in the order of a call its buffers with their access ("r", "w", "rw"), its sizes and the
    zero-dimensional host tensors whose values it takes."""

    text: str
    buffers: tuple[str, ...]
    access: tuple[str, ...]
    sizes: tuple[sympy.Expr, ...]
    scalars: tuple[str, ...]


def write_kernel(
    parts: Sequence[list[SchedulerNode]], removed: set[str], cores: int, ring: bool = True
) -> Written | None:
    """The kernel of one list of nodes, or of a chain of two; None if two do not fit together. Buffers in ``removed``
    live only inside. Cores share the hidden layer of a chain only with ``ring``. Raises Unsupported."""
    if len(parts) > 1:
        chain = plan_chain(parts[0], parts[1], cores, removed, 1, ring)
        if chain is None:
            return None
        plans = [chain.first, chain.second]
    else:
        chain, plans = None, [make_plan(parts[0], cores, removed)]
    stored: list[str] = []
    loaded: list[str] = []
    for t in (t for plan in plans for t in plan.record.touches):
        if t.store:  # a read after a write in the same kernel never reaches memory
            stored.append(t.name)
        elif t.name not in stored:
            loaded.append(t.name)
    buffers = list(dict.fromkeys([*loaded, *stored]))
    if chain is not None:
        text, symbols = emit_chain(chain, "kernel", buffers, removed)
    else:
        text, symbols = emit_kernel(plans[0], "kernel", buffers, removed)
    access = tuple("rw" if n in stored and n in loaded else "w" if n in stored else "r" for n in buffers)
    scalars = dict.fromkeys(s for plan in plans for s in plan.record.scalars)
    return Written(text, tuple(buffers), access, tuple(symbols), tuple(scalars))
