"""The result of each pass as text, for ``loom schedule --print-after``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch_loom import spyrecode
from torch_loom.scheduler.allocate import Allocation
from torch_loom.scheduler.channels import Wiring
from torch_loom.scheduler.grouping import Grouping
from torch_loom.scheduler.kernel import Assign, For, Kernel, Load, Ring, Stmt, Store, Tile, Value
from torch_loom.scheduler.placement import Pieces
from torch_loom.scheduler.plan import LoopPlan, Node, RingPlan, SegmentPlan, TransferPlan


def describe(name: str, result: Any) -> str:
    """Text of what a pass made."""
    return "\n".join(_DUMPS[name](result))


def _kernel(k: Kernel) -> Iterable[str]:
    yield f"kernel @{k.name} on {k.cores} cores"
    for a in k.args:
        yield f"  {a.name}: {a.kind.name.lower()} {a.dtype}" + (f" <= {a.hi}" if a.hi is not None else "")
    yield from _statements(k.body, 1)


def _statements(body: list[Stmt], depth: int) -> Iterable[str]:
    pad = "  " * depth
    for s in body:
        if isinstance(s, For):
            yield f"{pad}for {s.var} in {s.count}:"
            yield from _statements(s.body, depth + 1)
        elif isinstance(s, Load):
            assert s.value.tile is not None
            yield f"{pad}v{s.value.id} = load {_tile(s.value.tile)}"
        elif isinstance(s, Store):
            yield f"{pad}store {_value(s.value)} -> {_tile(s.tile)}"
        elif isinstance(s, Assign):
            yield f"{pad}cell{s.cell.id} = {_value(s.value)}"
        elif isinstance(s, Ring):
            to = ", ".join(str(h.core) for h in s.hops)
            yield f"{pad}ring cell{s.source.cell} {list(s.box)} -> cell{s.target.cell} of cores {to}"


def _tile(t: Tile) -> str:
    where = "LX" if t.view.local else f"arg {t.view.arg}"
    return f"{where} [{', '.join(map(str, t.coords))}] extents {list(t.extents)}"


def _value(v: Value) -> str:
    op = v.op.name.lower() if v.op is not None else v.kind.name.lower()
    return f"v{v.id} = {op}({', '.join(f'v{o.id}' for o in v.operands)}) : {v.dtype}{list(v.shape)}"


def _grouping(g: Grouping) -> Iterable[str]:
    for group in g.groups:
        fed = f", contraction v{group.matmul.id}" if group.matmul is not None else ""
        yield f"scope {group.scope} run {group.run} level {group.level}: space {list(group.space)}{fed}"
        for s in group.sinks:
            kind = "root" if s.target is None else type(s.target).__name__.lower()
            yield f"  {kind} {_value(s.value)}"


def _pieces(p: Pieces) -> Iterable[str]:
    for b in p.blocks.values():
        yield f"block {b.name}: {b.bytes} bytes, {b.role}{f' ({b.note})' if b.note else ''}"


def _nodes(nodes: tuple[Node, ...], depth: int = 0) -> Iterable[str]:
    pad = "  " * depth
    for n in nodes:
        if isinstance(n, LoopPlan):
            yield f"{pad}loop {n.var} x {n.count}"
            yield from _nodes(n.body, depth + 1)
        elif isinstance(n, TransferPlan):
            yield f"{pad}{n.unit.name} arg {n.arg} <-> {n.ref.block}: {[str(d.extent) for d in n.dims]}"
        elif isinstance(n, RingPlan):
            yield f"{pad}{n.unit.name} {n.source.block} -> core {n.core} {n.target.block}"
        else:
            yield pad + _segment(n)


def _segment(s: SegmentPlan) -> str:
    reads = [i.ref.block for i in s.inputs] + ([s.pt.a.ref.block, s.pt.b.ref.block] if s.pt else [])
    writes = [o.ref.block for o in s.outputs]
    return f"segment {s.id} {list(s.extents)}: {reads} -> {len(s.ops)} ops{' + PT' if s.pt else ''} -> {writes}"


def _wiring(w: Wiring) -> Iterable[str]:
    for c in w.channels:
        single = f" ({c.why_single})" if c.why_single else ""
        yield f"channel {c.name}: {c.producer.name} -> {c.consumer.name}, {c.phases} phases{single}"


def _memory(m: Allocation) -> Iterable[str]:
    for b in m.blocks:
        yield f"{b.address:>8} {b.bytes:>8} x {b.phases} {b.name} ({b.role})"
    yield f"peak {m.peak} bytes"


def _lines(values: Any) -> Iterable[str]:
    return [str(v) for v in values] or ["nothing"]


_DUMPS: dict[str, Callable[[Any], Iterable[str]]] = {
    "normalise": _kernel,
    "tile": lambda sizes: [f"scope {s}: pieces of {n}" for s, n in sizes.items()] or ["nothing is cut"],
    "group": _grouping,
    "segment": _pieces,
    "assemble": _nodes,
    "wire": _wiring,
    "allocate": _memory,
    "share": _nodes,
    "schedule-ir": lambda text: [text.rstrip()],
    "dataflow-ir": lambda text: [text.rstrip()],
    "check": _lines,
    "lower": lambda program: [spyrecode.disassemble(program).rstrip()],
}
