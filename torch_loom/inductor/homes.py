"""Products whose operands or results are kept in LX: divided so that rows stay where they are, if that is faster.

The search of ``division.py`` takes operands from DDR. Where LX keeps them between kernels (``residency.py``) the cores
that made the rows also hold them: a division over rows alone moves nothing but the other operand, and one in which no
cores share K exchanges nothing. What is fastest depends on what surrounds a product, so the clock decides: it runs all
of them among the kernels around.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from . import config
from .compat import SchedulerNode, V
from .layouts import MAX_TRIES, Run, chosen_layouts
from .options import lx_between_kernels
from .plan import is_dot, touched_buffers

if TYPE_CHECKING:
    from .layout_trial import Trial

log = logging.getLogger(__name__)

# Kernels between the one that makes an operand and the product, at most, for the operand to be in LX when it is timed.
MAX_DISTANCE = 8


class Way(Enum):
    """A division other than the one that the search of ``division.py`` finds."""

    ROWS = "over rows"
    WHOLE_K = "without shares of K"


# Products by name, with the way that each is divided.
Homes = frozenset[tuple[str, Way]]

_chosen: WeakKeyDictionary[Any, Homes] = WeakKeyDictionary()


def homes() -> Homes:
    """Products of the current graph that are divided otherwise than the search says."""
    return _chosen.get(V.graph, frozenset())


def way_of(nodes: Sequence[SchedulerNode], among: Homes) -> Way | None:
    """How the product of these nodes is divided; None: as the search says."""
    names = {n.get_name() for n in nodes}
    return next((way for name, way in among if name in names), None)


@contextmanager
def dividing(products: Homes) -> Iterator[None]:
    """Divide products of the current graph in these ways for a while."""
    before = homes()
    _chosen[V.graph] = products
    try:
        yield
    finally:
        _chosen[V.graph] = before


def choose_homes(kernels: Sequence[list[SchedulerNode]], private: set[str], trial: Trial) -> None:
    """Decide for each kernel of the current graph that is a product, in order; ``private`` buffers may lie in LX.

    Equal kernels are decided once."""
    if not (config.work_division and lx_between_kernels()):
        return
    choice = dict(chosen_layouts())
    known: dict[str, Way | None] = {}
    kept: Homes = frozenset()
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
            known[searched] = _fastest(trial, step, steps, choice, kept, name)
        way = known.get(searched)
        if way is not None:
            kept |= {(name, way)}
    _chosen[V.graph] = kept


def _made(nodes: Sequence[SchedulerNode]) -> set[str]:
    return {b for n in nodes for b in n.get_buffer_names()}


def _fastest(
    trial: Trial, step: int, steps: Sequence[int], choice: Mapping[str, Run], kept: Homes, name: str
) -> Way | None:
    """The fastest way of kernel ``step``, product ``name``, timed among the kernels ``steps``; None: as searched."""
    texts = [trial.text(step, choice, kept)]
    best, least = None, None
    for way in Way:
        others = kept | {(name, way)}
        text = trial.text(step, choice, others)
        if text in texts:
            continue
        texts.append(text)
        if least is None:
            searched = least = trial.ns(steps, choice, kept)
        ns = trial.ns(steps, choice, others)
        log.debug("%s divided %s: %.0f ns, searched: %.0f ns", name, way.value, ns, searched)
        if ns < least:
            best, least = way, ns
    return best
