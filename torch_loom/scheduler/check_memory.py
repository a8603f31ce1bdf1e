"""S7: transfers touch LX only while they hold the credit. S9: tenants of LX do not meet. S11: nothing is
read that was never written. S12: capacity, alignment, ranks and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xdsl.ir import Block, Operation

from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.streams import GROUP, BlockInfo, Streams

Found = Iterator[tuple[str, str]]
Access = tuple[str, str, bool, str]  # block, channel, write, what
Span = tuple[int, int] | None

_RANK = 8
_STICK = 128


def accesses(op: Operation, unit: str) -> list[Access]:
    """LX blocks that an operation touches."""
    if isinstance(op, df.CopyOp):
        what = f"the transfer of '{op.arg.data}'"
        found = [(op.lx.data[0].data, op.lx.data[1].data, unit == "MNILU", what)]
        return found + [(p.data[0].data, p.data[1].data, False, f"the indices of {what}") for p in op.gathers.data]
    if isinstance(op, df.RingCopyOp):
        (a, via), (b, ring) = ([s.data for s in pair.data] for pair in (op.source, op.target))
        return [(a, via, False, "the copy to another core"), (b, ring, True, "the copy to another core")]
    if isinstance(op, df.SegLoadOp | df.SegStoreOp):
        write = isinstance(op, df.SegStoreOp)
        return [(op.lx.data[0].data, op.lx.data[1].data, write, f"segment {op.seg.data}")]
    return []


def brackets(s: Streams) -> Found:
    """Blocks that several unit groups touch belong to a channel, and every access lies inside its credits."""
    users: dict[str, set[str]] = {}
    for unit in s.units:
        for op, _ in s.walk(unit):
            for block, _, _, _ in accesses(op, unit):
                users.setdefault(block, set()).add("group" if unit in GROUP else unit)
    owner = {b: c for c in s.channels.values() for b in c.blocks}
    for block, units in users.items():
        if len(units) > 1 and block not in owner:
            yield "S7", f"block '{block}' is shared by {', '.join(sorted(units))} without a channel"
    for unit, stream in s.units.items():
        yield from _inside(s, unit, stream, set())


def _inside(s: Streams, unit: str, block: Block, held: set[tuple[str, str]]) -> Found:
    for op in block.ops:
        if isinstance(op, df.AcquireOp | df.RingAcquireOp):
            held.add((op.channel.data, op.side.data))
        elif isinstance(op, df.ReleaseOp | df.RingReleaseOp):
            held.discard((op.channel.data, "full" if op.side.data == "empty" else "empty"))
        elif isinstance(op, df.LoopOp):
            yield from _inside(s, unit, op.body.block, held)
        for name, via, write, what in accesses(op, unit):
            channel = s.channels.get(via)
            if channel is None or channel.end(unit) != unit:
                if via and channel is None:
                    yield "S7", f"{unit}: {what} goes through the channel '{via}', which is not declared"
                continue
            if name not in channel.blocks:
                yield "S7", f"{unit}: {what} uses block '{name}' through '{via}', which does not guard it"
            side = "empty" if unit == channel.producer else "full"
            if (via, side) not in held:
                verb = "writes" if write else "reads"
                yield "S7", f"{unit}: {what} {verb} '{name}' without holding {side} of '{via}'"


def tenants(s: Streams) -> Found:
    """Blocks with common bytes must live at different times, which only the compute group can promise."""
    spans = _lifetimes(s)
    blocks = sorted(s.blocks.values(), key=lambda b: b.address)
    for k, a in enumerate(blocks):
        for b in blocks[k + 1 :]:
            if b.address >= _end(a):
                break
            x, y = spans.get(a.name), spans.get(b.name)
            meet = x is None or y is None or (x[0] <= y[1] and y[0] <= x[1])
            if meet and not _handed_over(s, a, b, x, y):
                yield "S9", f"blocks '{a.name}' and '{b.name}' share LX bytes {b.address}.. at the same time"


def _handed_over(s: Streams, a: BlockInfo, b: BlockInfo, x: Span, y: Span) -> bool:
    """True if one segment reads the old tenant for the last time and writes the new one over it, element by
    element."""
    if x is None or y is None or a.address != b.address:
        return False
    if x[1] == y[0]:
        old, new, clock = a, b, x[1]
    elif y[1] == x[0]:
        old, new, clock = b, a, y[1]
    else:
        return False
    numbers = list(dict.fromkeys(number for number, _ in _segments(s, "SFU")))
    loads = _ports(s, "L1LU", numbers[clock], old.name)
    stores = _ports(s, "L1SU", numbers[clock], new.name)
    return len(loads) == 1 and loads == stores


def _ports(s: Streams, unit: str, number: int, block: str) -> list[tuple[str, list[str]]]:
    """(element format, offset and strides as texts) of a segment's accesses to a block."""
    found = []
    for op, path in _nested(s.units.get(unit), (), [0]):
        if op.seg.data == number and accesses(op, unit)[0][0] == block:
            found.append(
                (op.elem.data, [str(n) if isinstance(n, int) else str(s.slots.get(n, path)) for n in op.numbers()])
            )
    return found


def _end(b: BlockInfo) -> int:
    return b.address + b.bytes * b.phases


def _lifetimes(s: Streams) -> dict[str, tuple[int, int] | None]:
    """Per block the clock of its first and last use; None when a transfer unit touches it.

    The clock counts segments. What is used inside a loop but lives beyond one iteration (because it is also
    used outside) lives through the whole loop."""
    outside = {b for u in s.units if u not in GROUP for op, _ in s.walk(u) for b, _, _, _ in accesses(op, u)}
    clocks: dict[int, int] = {}
    loops: dict[int, tuple[int, int]] = {}
    for number, path in _segments(s, "SFU"):
        clock = clocks.setdefault(number, len(clocks))
        for loop in path:
            first, last = loops.get(loop, (clock, clock))
            loops[loop] = (min(first, clock), max(last, clock))
    uses: dict[str, list[tuple[tuple[int, int], tuple[int, ...]]]] = {}
    for unit in ("L1LU", "L1SU"):
        for op, path in _nested(s.units.get(unit), (), [0]):
            for block, _, _, _ in accesses(op, unit):
                at = clocks.get(op.seg.data, 0)
                uses.setdefault(block, []).append(((at, at), path))
    found: dict[str, tuple[int, int] | None] = dict.fromkeys(outside)
    for block, places in uses.items():
        if block in outside:
            continue
        depth = 0
        while all(len(p) > depth for _, p in places) and len({p[depth] for _, p in places}) == 1:
            depth += 1
        spans = [loops[p[depth]] if len(p) > depth else at for at, p in places]
        found[block] = (min(a for a, _ in spans), max(b for _, b in spans))
    return found


def _segments(s: Streams, unit: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Segments of a unit in order with the loops around them, numbered as they open."""
    for op, path in _nested(s.units.get(unit), (), [0]):
        yield op.seg.data, path


def _nested(block: Block | None, above: tuple[int, ...], opened: list[int]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    for op in block.ops if block is not None else ():
        if isinstance(op, df.LoopOp):
            opened[0] += 1
            yield from _nested(op.body.block, (*above, opened[0]), opened)
        elif isinstance(op, df.SegLoadOp | df.SegStoreOp | df.SegVecOp):
            yield op, above


def written_first(s: Streams) -> Found:
    """Every block that is read has a writer."""
    writes: set[str] = set()
    reads_: dict[str, str] = {}
    for unit in s.units:
        for op, _ in s.walk(unit):
            for block, _, write, what in accesses(op, unit):
                if write:
                    writes.add(block)
                else:
                    reads_.setdefault(block, f"{unit}: {what}")
    for block, what in reads_.items():
        if block not in writes:
            yield "S11", f"{what} reads block '{block}', which nothing writes"


def limits(s: Streams) -> Found:
    """Alignment, capacity, ranks; arguments used as they are declared."""
    for b in s.blocks.values():
        if b.address % _STICK or b.bytes % _STICK or b.address < 0:
            yield "S12", f"block '{b.name}' at {b.address} of {b.bytes} bytes is not made of whole sticks"
        if _end(b) > s.lx_bytes:
            yield "S12", f"block '{b.name}' ends at byte {_end(b)} of {s.lx_bytes} in LX"
    for c in s.channels.values():
        for name in c.blocks:
            if name not in s.blocks:
                yield "S12", f"channel '{c.name}' guards '{name}', which is not declared"
            elif s.blocks[name].phases != c.phases:
                yield "S12", f"block '{name}' has {s.blocks[name].phases} phases, its channel '{c.name}' {c.phases}"
    for unit in s.units:
        for op, _ in s.walk(unit):
            for name, _, _, what in accesses(op, unit):
                if name not in s.blocks:
                    yield "S12", f"{unit}: {what} uses block '{name}', which is not declared"
            if isinstance(op, df.CopyOp):
                yield from _copy_limits(s, unit, op)
            elif isinstance(op, df.SegVecOp) and op.rank.data > _RANK:
                yield "S12", f"segment {op.seg.data} has {op.rank.data} dims, at most {_RANK} are possible"


def _copy_limits(s: Streams, unit: str, op: df.CopyOp) -> Found:
    if op.rank.data > _RANK:
        yield "S12", f"a transfer of '{op.arg.data}' has {op.rank.data} dims, at most {_RANK} are possible"
    kind, access = s.args.get(op.arg.data, ("missing", ""))
    wanted = "READ" if unit == "MNILU" else "WRITE"
    if kind != "BUFFER":
        yield "S12", f"{unit} moves '{op.arg.data}', which is not a buffer argument"
    elif access not in (wanted, "BOTH"):
        yield "S12", f"{unit} moves '{op.arg.data}', which is declared {access.lower()} only"
