"""Products whose operands or results are kept in LX: divided so that rows stay where they are, if that is faster.

The search of ``division.py`` takes operands from DDR. Where LX keeps them between kernels (``residency.py``) the cores
that made the rows also hold them, and a division over rows alone moves nothing but the other operand. Which of the two
is faster depends on what surrounds a product, so the clock decides: it runs both among the kernels around them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from . import config
from .compat import SchedulerNode, V
from .layouts import MAX_TRIES, Run, chosen_layouts
from .options import current as options
from .plan import is_dot, touched_buffers

if TYPE_CHECKING:
    from .layout_trial import Trial

log = logging.getLogger(__name__)

# Kernels between the one that makes an operand and the product, at most, for the operand to be in LX when it is timed.
MAX_DISTANCE = 8

_at_home: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def at_home(nodes: Sequence[SchedulerNode]) -> bool:
    """Is the product of these nodes divided over its rows only?"""
    return not _at_home.get(V.graph, frozenset()).isdisjoint(n.get_name() for n in nodes)


@contextmanager
def dividing(products: frozenset[str]) -> Iterator[None]:
    """Divide the products of these names, of the current graph, over their rows for a while."""
    before = _at_home.get(V.graph, frozenset())
    _at_home[V.graph] = products
    try:
        yield
    finally:
        _at_home[V.graph] = before


def choose_homes(kernels: Sequence[list[SchedulerNode]], private: set[str], trial: Trial) -> None:
    """Decide for each kernel of the current graph that is a product, in order; ``private`` buffers may lie in LX.

    Equal kernels are decided once."""
    if not (config.work_division and config.residency) or options().public_outputs:
        return
    choice = dict(chosen_layouts())
    known: dict[str, bool] = {}
    kept: frozenset[str] = frozenset()
    for step, nodes in enumerate(kernels):
        name = next((n.get_name() for n in nodes if is_dot(n)), None)
        read = touched_buffers(nodes)
        if name is None or read.isdisjoint(private):
            continue
        searched = trial.text(step, choice, kept)
        if searched is None:
            continue
        if searched not in known and len(known) < MAX_TRIES:
            made = [s for s, n in enumerate(kernels[:step]) if not private.isdisjoint(_made(n) & read)]
            first = min((s for s in made if step - s <= MAX_DISTANCE), default=step)
            steps = range(min(first, max(step - 1, 0)), min(step + 2, len(kernels)))
            known[searched] = _faster(trial, step, steps, choice, kept, name)
        if known.get(searched):
            kept |= {name}
    _at_home[V.graph] = kept


def _made(nodes: Sequence[SchedulerNode]) -> set[str]:
    return {b for n in nodes for b in n.get_buffer_names()}


def _faster(
    trial: Trial, step: int, steps: Sequence[int], choice: Mapping[str, Run], kept: frozenset[str], name: str
) -> bool:
    """Is kernel ``step``, the product ``name``, faster over its rows, timed among the kernels ``steps``?"""
    homes = kept | {name}
    if trial.text(step, choice, homes) == trial.text(step, choice, kept):
        return False
    before, after = (trial.ns(steps, choice, h) for h in (kept, homes))
    log.debug("%s divided over rows where they are kept: %.0f ns, searched: %.0f ns", name, after, before)
    return after < before
