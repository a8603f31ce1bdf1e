"""Pass 6: LX addresses.

Blocks that a transfer unit touches own their bytes for the whole kernel: the unit may run ahead of the
compute group, so nothing orders it against another tenant. Blocks of the compute group alone live from their
first writer to their last reader in program order and share bytes when these intervals do not meet; the
group runs its segments in that order, which is the ordering a new tenant needs. First fit, largest first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_loom.scheduler.channels import home_depth, touches
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.plan import BlockPlan, LoopPlan, Node, SegmentPlan, node_id

Interval = tuple[int, int]


class OutOfLx(ScheduleError):
    """The blocks do not fit."""


def lifetimes(body: tuple[Node, ...], blocks: dict[str, BlockPlan]) -> dict[str, Interval]:
    """First and last position of each block; positions number the segments and loop ends in program order."""
    spans: dict[int, Interval] = {}
    clock = 0

    def visit(nodes: tuple[Node, ...]) -> None:
        nonlocal clock
        for n in nodes:
            start = clock
            if isinstance(n, LoopPlan):
                visit(n.body)
            elif isinstance(n, SegmentPlan):
                clock += 1
            spans[node_id(n)] = (start, max(clock - 1, start))

    visit(body)
    whole = (0, max(clock - 1, 0))
    found: dict[str, Interval] = {}
    for name, uses in touches(body).items():
        if blocks[name].role != "temp":
            found[name] = whole
            continue
        depth = home_depth([t.path for t in uses if t.write])
        ends = [spans[node_id(t.path[min(depth, len(t.path) - 1)])] for t in uses]
        found[name] = (min(e[0] for e in ends), max(e[1] for e in ends))
        if any(node_id(t.path[depth - 1]) != node_id(uses[0].path[depth - 1]) for t in uses if depth):
            found[name] = whole
    return found


@dataclass(frozen=True)
class Allocation:
    """Blocks with addresses, and the highest byte used."""

    blocks: tuple[BlockPlan, ...]
    peak: int


def allocate(body: tuple[Node, ...], blocks: dict[str, BlockPlan], capacity: int) -> Allocation:
    """Place every used block. Raises ``OutOfLx`` with the largest tenants."""
    live = lifetimes(body, blocks)
    todo = sorted((blocks[n] for n in live), key=lambda b: (-b.bytes * b.phases, b.name))
    placed: list[BlockPlan] = []
    peak = 0
    for b in todo:
        size = b.bytes * b.phases
        address = 0
        taken = sorted((p.address, p.address + p.bytes * p.phases) for p in placed if _meet(live[p.name], live[b.name]))
        for start, end in taken:
            if address + size <= start:
                break
            address = max(address, end)
        if address + size > capacity:
            raise OutOfLx(_report(todo, capacity), hint="use smaller tiles")
        placed.append(replace(b, address=address))
        peak = max(peak, address + size)
    return Allocation(tuple(sorted(placed, key=lambda b: (b.address, b.name))), peak)


def _meet(a: Interval, b: Interval) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _report(blocks: list[BlockPlan], capacity: int) -> str:
    total = sum(b.bytes * b.phases for b in blocks)
    rows = [f"{b.name} ({b.role}{f' of {b.note}' if b.note else ''}): {b.bytes} x {b.phases} bytes" for b in blocks[:8]]
    more = f", and {len(blocks) - 8} more" if len(blocks) > 8 else ""
    return f"the tiles do not fit into LX: {total} bytes live, {capacity} available: {'; '.join(rows)}{more}"
