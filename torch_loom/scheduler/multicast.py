"""Pass 5c: loads that several cores do alike are fetched once and passed on over the ring.

A load is shared by the cores for which every number of the transfer is the same expression once the core number
is filled in: then they fetch the same bytes whatever the arguments and loop variables are. The memory waits for
all of them, so each must reach the load equally often: no loop around it may depend on the core. All cores run
their shared loads in the same order, and a core waits before one only for what its earlier transfers feed, so
waiting for each other cannot lock up. Groups that no expression of the core number tells apart are not shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch_loom.scheduler import rewrite as rw
from torch_loom.scheduler.core_table import table
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.plan import LoopPlan, Node, TransferPlan
from torch_loom.spyrecode.model import Unit


def share_loads(body: tuple[Node, ...], cores: int) -> tuple[Node, ...]:
    """The tree with ``group`` and ``sharers`` filled in."""
    if cores == 1:
        return body
    return tuple(_node(n, cores) for n in body)


def _node(n: Node, cores: int) -> Node:
    if isinstance(n, LoopPlan):
        if n.count.depends(("core",)):
            return n
        return replace(n, body=tuple(_node(inner, cores) for inner in n.body))
    if isinstance(n, TransferPlan) and n.unit is Unit.MNILU and not n.gathers:
        return _shared(n, cores)
    return n


def _shared(t: TransferPlan, cores: int) -> TransferPlan:
    varying = [e for e in _numbers(t) if e.depends(("core",))]
    groups: dict[tuple[str, ...], list[int]] = {}
    for core in range(cores):
        filled = {"core": Expr(core)}
        groups.setdefault(tuple(rw.substitute(e, filled).key for e in varying), []).append(core)
    if len(groups) == cores:
        return t
    number, size = [0] * cores, [1] * cores
    for k, members in enumerate(groups.values()):
        for core in members:
            number[core], size[core] = k, len(members)
    try:
        return replace(t, group=table(tuple(number)), sharers=table(tuple(size)))
    except ScheduleError:  # groups without a pattern: each core fetches its own copy
        return t


def _numbers(t: TransferPlan) -> Iterator[Expr]:
    """Everything that selects bytes of DDR."""
    yield t.ddr
    for d in t.dims:
        yield from (d.extent, d.lo, d.hi, d.ddr_stride)
    if t.lanes is not None:
        yield from (t.lanes.start, t.lanes.tile_stride, *t.lanes.strides)
