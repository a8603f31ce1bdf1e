"""Pass 5: channels with credits between the units, and where each unit acquires and releases.

Every block that two units share gets a channel. Its home is the loop body that holds its producer: each run
of that body exchanges one pair of credits, however deep the consumer's accesses are nested. A block inside
a loop has two phases, so that the producer fills one while the consumer drains the other. Transfers through
DDR that must not overtake each other (a load after a store of the same buffer) get a channel without
blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as Set
from dataclasses import dataclass, field, replace

from torch_loom.scheduler.plan import (
    BlockPlan,
    ChannelPlan,
    LoopPlan,
    Node,
    RingPlan,
    SegmentPlan,
    Sync,
    TransferPlan,
    node_id,
)
from torch_loom.spyrecode.model import Unit

Syncs = dict[tuple[Unit, int, str], tuple[Sync, ...]]


@dataclass(frozen=True)
class Touch:
    """One access of a unit to a block: the path of nodes from the function body to the accessing node."""

    unit: Unit
    write: bool
    path: tuple[Node, ...]


@dataclass
class Wiring:
    """Result: channels, synchronisation points, and blocks with phases and channel filled in."""

    channels: list[ChannelPlan] = field(default_factory=list)
    syncs: Syncs = field(default_factory=dict)
    blocks: dict[str, BlockPlan] = field(default_factory=dict)


def touches(body: tuple[Node, ...]) -> dict[str, list[Touch]]:
    """Accesses per block in program order."""
    found: dict[str, list[Touch]] = {}

    def visit(nodes: Iterable[Node], above: tuple[Node, ...]) -> None:
        for n in nodes:
            path = (*above, n)
            if isinstance(n, LoopPlan):
                visit(n.body, path)
            elif isinstance(n, TransferPlan):
                for g in n.gathers:
                    found.setdefault(g.ref.block, []).append(Touch(n.unit, False, path))
                found.setdefault(n.ref.block, []).append(Touch(n.unit, n.unit is Unit.MNILU, path))
            elif isinstance(n, RingPlan):
                found.setdefault(n.source.block, []).append(Touch(n.unit, False, path))
                found.setdefault(n.target.block, []).append(Touch(n.unit, True, path))
            else:
                for block in reads(n):
                    found.setdefault(block, []).append(Touch(Unit.L1LU, False, path))
                for o in n.outputs:
                    found.setdefault(o.ref.block, []).append(Touch(Unit.L1SU, True, path))

    visit(body, ())
    return found


def reads(s: SegmentPlan) -> list[str]:
    """Blocks that a segment reads, without repetition."""
    inputs = [*s.inputs, *((s.pt.a, s.pt.b) if s.pt else ())]
    return list(dict.fromkeys(i.ref.block for i in inputs))


def wire(
    body: tuple[Node, ...],
    blocks: dict[str, BlockPlan],
    buffers: int = 2,
    single: Set[str] = frozenset(),
) -> Wiring:
    """Create the channels of all shared blocks; those in ``single`` get one phase."""
    wiring = Wiring(blocks=dict(blocks))
    for name, uses in touches(body).items():
        producers = [t for t in uses if t.write]
        consumers = [t for t in uses if not t.write]
        makers, takers = {t.unit for t in producers}, {t.unit for t in consumers}
        if blocks[name].role == "temp":
            continue
        producer = producers[0].unit
        if blocks[name].role == "land":
            _connect_ring(wiring, name, producers, consumers)
            continue
        takers.discard(producer)  # a unit's own transfers are in order
        for taker in sorted(takers):
            _connect(
                wiring,
                name,
                producer,
                taker,
                producers,
                [t for t in consumers if t.unit is taker],
                1 if name in single else buffers,
            )
        assert len(makers) == 1, f"block {name} has producers {makers}"
    return wiring


def _connect(
    wiring: Wiring,
    block: str,
    producer: Unit,
    consumer: Unit,
    writes: list[Touch],
    reads_: list[Touch],
    buffers: int,
) -> None:
    depth = home_depth([t.path for t in (*writes, *reads_)])
    home = writes[0].path[depth - 1] if depth else None
    inside = any(isinstance(n, LoopPlan) for n in writes[0].path[:depth])
    phases = buffers if inside else 1
    why = "" if phases > 1 else ("no room or switched off" if inside else "not inside a loop")
    name = f"c_{block}"
    scope = home.scope if isinstance(home, LoopPlan) else 0
    wiring.channels.append(ChannelPlan(name, producer, consumer, phases, (block,), scope, depth, why))
    wiring.blocks[block] = replace(wiring.blocks[block], phases=phases, channel=name)
    bracket(wiring.syncs, producer, name, "empty", "full", [t.path[depth] for t in writes])
    bracket(wiring.syncs, consumer, name, "full", "empty", [t.path[depth] for t in reads_])


def _connect_ring(wiring: Wiring, block: str, writes: list[Touch], reads_: list[Touch]) -> None:
    """A channel between cores: senders bracket each message themselves, receivers the reads of a body's run."""
    depth = home_depth([t.path for t in (*writes, *reads_)])
    home = writes[0].path[depth - 1] if depth else None
    scope = home.scope if isinstance(home, LoopPlan) else 0
    name = f"r_{block}"
    first = writes[0].path[-1]
    assert isinstance(first, RingPlan)
    wiring.channels.append(
        ChannelPlan(name, Unit.MNISU, Unit.L1LU, 1, (block,), scope, depth, "between cores", ring=True)
    )
    wiring.blocks[block] = replace(wiring.blocks[block], phases=1, channel=name)
    nodes = [t.path[depth] for t in reads_]
    for when, node, side in (("before", nodes[0], "full"), ("after", nodes[-1], "empty")):
        key = (Unit.L1LU, node_id(node), when)
        sync = Sync(name, side, when == "before", first.senders)
        wiring.syncs[key] = (*wiring.syncs.get(key, ()), sync)


def home_depth(paths: list[tuple[Node, ...]]) -> int:
    """Number of enclosing loops that all paths share."""
    depth = 0
    while all(len(p) > depth + 1 for p in paths) and len({node_id(p[depth]) for p in paths}) == 1:
        depth += 1
    return depth


def bracket(syncs: Syncs, unit: Unit, channel: str, before: str, after: str, nodes: list[Node]) -> None:
    """Acquire before the first node, release after the last one (nodes stand in one body, in order)."""
    first, last = (unit, node_id(nodes[0]), "before"), (unit, node_id(nodes[-1]), "after")
    syncs[first] = (*syncs.get(first, ()), Sync(channel, before, True))
    syncs[last] = (*syncs.get(last, ()), Sync(channel, after, False))
