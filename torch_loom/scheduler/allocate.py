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
    pairs = {(x, y) for x, y in in_place(body, live) if blocks[x].role == blocks[y].role == "temp"}
    todo = sorted((blocks[n] for n in live), key=lambda b: (-b.bytes * b.phases, b.name))
    placed: dict[str, BlockPlan] = {}
    peak = 0
    for b in todo:
        size = b.bytes * b.phases
        rivals = [p for p in placed.values() if _meet(live[p.name], live[b.name])]
        partners = [p for p in rivals if {(p.name, b.name), (b.name, p.name)} & pairs]
        address = next((p.address for p in partners if _free(p.address, size, rivals, p)), None)
        if address is None:
            address = _first_fit(size, rivals)
        if address + size > capacity:
            raise OutOfLx(_report(todo, capacity), hint="use smaller tiles")
        placed[b.name] = replace(b, address=address)
        peak = max(peak, address + size)
    return Allocation(tuple(sorted(placed.values(), key=lambda b: (b.address, b.name))), peak)


def _spans(rivals: list[BlockPlan]) -> list[Interval]:
    return sorted((p.address, p.address + p.bytes * p.phases) for p in rivals)


def _free(address: int, size: int, rivals: list[BlockPlan], partner: BlockPlan) -> bool:
    """True if a block may take exactly the place of its partner."""
    if size > partner.bytes * partner.phases:
        return False
    others = _spans([p for p in rivals if p is not partner])
    return all(address + size <= start or end <= address for start, end in others)


def _first_fit(size: int, rivals: list[BlockPlan]) -> int:
    address = 0
    for start, end in _spans(rivals):
        if address + size <= start:
            break
        address = max(address, end)
    return address


def in_place(body: tuple[Node, ...], live: dict[str, Interval]) -> set[tuple[str, str]]:
    """Pairs (old, new) of compute-group blocks that may share bytes although one segment uses both: the old
    one is read there for the last time, element by element where the new one is written."""
    pairs: set[tuple[str, str]] = set()
    for s, clock in _numbered(body):
        if s.pt is not None and len(s.outputs) != 1:
            continue
        for o in s.outputs:
            same = [i for i in s.inputs if (i.elem, i.strides, i.ref.offset) == (o.elem, o.strides, o.ref.offset)]
            for i in same:
                uses = [x for x in (*s.inputs, *((s.pt.a, s.pt.b) if s.pt else ())) if x.ref.block == i.ref.block]
                ends = live[i.ref.block][1] == clock and live[o.ref.block][0] == clock
                if len(uses) == 1 and ends and not o.dims and len(_writers(s, o.ref.block)) == 1:
                    pairs.add((i.ref.block, o.ref.block))
    return pairs


def _writers(s: SegmentPlan, block: str) -> list[str]:
    return [o.ref.block for o in s.outputs if o.ref.block == block]


def _numbered(nodes: tuple[Node, ...]) -> list[tuple[SegmentPlan, int]]:
    """Segments with their positions, as ``lifetimes`` counts them."""
    found: list[tuple[SegmentPlan, int]] = []

    def visit(inner: tuple[Node, ...]) -> None:
        for n in inner:
            if isinstance(n, LoopPlan):
                visit(n.body)
            elif isinstance(n, SegmentPlan):
                found.append((n, len(found)))

    visit(nodes)
    return found


def _meet(a: Interval, b: Interval) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _report(blocks: list[BlockPlan], capacity: int) -> str:
    total = sum(b.bytes * b.phases for b in blocks)
    rows = [f"{b.name} ({b.role}{f' of {b.note}' if b.note else ''}): {b.bytes} x {b.phases} bytes" for b in blocks[:8]]
    more = f", and {len(blocks) - 8} more" if len(blocks) > 8 else ""
    return f"the tiles do not fit into LX: {total} bytes live, {capacity} available: {'; '.join(rows)}{more}"
