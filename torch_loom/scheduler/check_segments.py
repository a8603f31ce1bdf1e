"""S1, S2: queues of a segment are filled and emptied once, and all units have the segments in one order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.streams import GROUP, Streams

Found = Iterator[tuple[str, str]]


def segments_match(s: Streams) -> Found:
    """Compare the parts that the four streams of the compute group hold."""
    parts: dict[int, dict[str, list[tuple[Any, tuple[str, ...]]]]] = {}
    order: dict[str, list[int]] = {}
    for unit in GROUP:
        seen: list[int] = []
        for op, loops in s.walk(unit):
            if isinstance(op, df.SegLoadOp | df.SegStoreOp | df.SegPtOp | df.SegVecOp):
                number = op.seg.data
                parts.setdefault(number, {}).setdefault(unit, []).append((op, loops))
                if not seen or seen[-1] != number:
                    seen.append(number)
        order[unit] = seen
    for number, units in parts.items():
        yield from _queues(number, units)
        yield from _loops(number, units)
    backbone = order.get("SFU", [])
    for unit, seen in order.items():
        if seen != [n for n in backbone if n in seen]:
            yield "S2", f"{unit} has the segments in the order {seen}, SFU in {backbone}"
    yield from _same_loops(s)


def _queues(number: int, units: dict[str, list[tuple[Any, tuple[str, ...]]]]) -> Found:
    vectors = [op for op, _ in units.get("SFU", [])]
    if len(vectors) != 1:
        yield "S1", f"segment {number} has {len(vectors)} vector parts in SFU"
        return
    loads = [op.queue.data for op, _ in units.get("L1LU", [])]
    stores = [op.queue.data for op, _ in units.get("L1SU", [])]
    outputs = [int(o.data.split()[2]) for o in vectors[0].outputs.data]
    inputs = [int(q) for q in vectors[0].inputs.get_values()]
    sources = list(loads)
    for op, _ in units.get("PT", []):
        a, b, out = (int(q) for q in op.queues.get_values())
        if a not in sources or b not in sources:
            yield "S1", f"segment {number}: PT reads queue {a if a not in sources else b}, which L1LU does not fill"
            return
        sources = [q for q in sources if q not in (a, b)] + [out]
    if sorted(sources) != sorted(inputs):
        yield "S1", f"segment {number}: queues {sorted(sources)} are filled, SFU reads {sorted(inputs)}"
    if sorted(stores) != sorted(outputs):
        yield "S1", f"segment {number}: SFU fills queues {sorted(outputs)}, L1SU reads {sorted(stores)}"


def _loops(number: int, units: dict[str, list[tuple[Any, tuple[str, ...]]]]) -> Found:
    nests = {loops for held in units.values() for _, loops in held}
    if len(nests) > 1:
        shown = {unit: list(held[0][1]) for unit, held in units.items()}
        yield "S1", f"segment {number} runs in different loops: {shown}"


def _same_loops(s: Streams) -> Found:
    heads: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for unit in GROUP:
        walked = list(s.walk(unit))
        if walked:
            heads[unit] = [(op.reg.data, loops) for op, loops in walked if isinstance(op, df.LoopOp)]
    if len({str(h) for h in heads.values()}) > 1:
        yield "S1", f"the compute streams have different loops: { {u: [r for r, _ in h] for u, h in heads.items()} }"
