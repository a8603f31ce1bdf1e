"""The clock as judge of chains: two products as one kernel, with or without a hidden layer shared by cores, or apart.

``chain_cost.py`` lets products apart meet in DDR. Where LX keeps the hidden layer, apart may be faster; the kernels
around them decide what LX has room for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import config
from .compat import SchedulerNode
from .homes import homes
from .layout_trial import Trial
from .layouts import MAX_TRIES, chosen_layouts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Whether cores share the hidden layer of a chain; None: the products stay apart."""

    ring: bool | None


def judged(
    trial: Trial, first: Sequence[SchedulerNode], second: Sequence[SchedulerNode], removed: set[str]
) -> Verdict | None:
    """What is fastest for two kernels of ``trial`` that follow one another; ``removed`` are the buffers that live only
    inside of their chain. Equal pairs are decided once. None if they do not follow, or after too many others."""
    step = next((s for s, (nodes, _) in enumerate(trial.kernels) if nodes[0] is first[0]), None)
    if step is None or step + 1 == len(trial.kernels) or trial.kernels[step + 1][0][0] is not second[0]:
        return None
    choice, kept = dict(chosen_layouts()), homes()
    texts = tuple(trial.text(s, choice, kept) for s in (step, step + 1))
    if texts not in trial.chains:
        if len(trial.chains) >= MAX_TRIES:
            return None
        ns: dict[bool | None, float] = {None: trial.ns(trial.around(step), choice, kept)}
        for ring in (True, False) if config.ring_sums else (False,):
            ns[ring] = trial.chain_ns(step, removed, ring, choice, kept)
        best = min(ns, key=lambda ring: ns[ring])
        log.debug("kernels %d and %d apart %.0f ns, as a chain %s", step, step + 1, ns[None], _times(ns))
        trial.chains[texts] = best if math.isfinite(ns[best]) else None
    return Verdict(trial.chains[texts])


def _times(ns: dict[bool | None, float]) -> str:
    words = {True: "with a shared hidden layer", False: "with rows of its own for each core"}
    return ", ".join(f"{words[ring]} {t:.0f} ns" for ring, t in ns.items() if ring is not None)
