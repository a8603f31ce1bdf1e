"""Static checks of a DataflowIR module: what must hold for every launch, shown without data.

The numbers S1..S12 are those of the scheduling page. Nothing here knows how the module was made, so texts written
or edited by hand are checked alike. ``check`` returns every violation; an empty list means: queues match, no
credit is lost and no unit waits for ever whatever the trip counts, every LX access of a transfer is bracketed
by its channel, tenants of LX do not meet, nothing is read that was never written, limits are kept, and transfers that
meet in DDR are ordered.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from torch_loom.scheduler.check_credits import credits_match, no_deadlock
from torch_loom.scheduler.check_ddr import ddr_order
from torch_loom.scheduler.check_memory import brackets, limits, tenants, written_first
from torch_loom.scheduler.check_segments import segments_match
from torch_loom.scheduler.streams import Streams


@dataclass(frozen=True)
class Violation:
    """A broken rule: the number of the check and what is wrong where."""

    check: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"


CHECKS = (segments_match, credits_match, no_deadlock, brackets, tenants, written_first, limits, ddr_order)
_NEEDS_CREDITS = {no_deadlock: ("S1", "S3", "S5"), ddr_order: ("S1", "S3", "S4", "S5")}


def check(module: ModuleOp) -> list[Violation]:
    """All violations of a module, in the order of the checks. A check that would only repeat an earlier failure
    (deadlock of credits that do not match) is skipped."""
    streams = Streams.of(module)
    found: list[Violation] = []
    for one in CHECKS:
        if any(v.check in _NEEDS_CREDITS.get(one, ()) for v in found):
            continue
        found += [Violation(*v) for v in one(streams)]
    return found
