"""Pass 7: the plan written as ScheduleIR: loops, pipelines, stages, buffers and channels."""

from __future__ import annotations

from itertools import groupby

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from torch_loom.dialects import schedule as sc
from torch_loom.scheduler.channels import reads
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.plan import LoopPlan, Node, OutputPlan, Plan, RingPlan, SegmentPlan, TransferPlan, node_id
from torch_loom.scheduler.postfix import infix
from torch_loom.spyrecode.model import Reduce, Unit

_GROUP = ("L1LU", "PT", "SFU", "L1SU")


def materialise(plan: Plan) -> ModuleOp:
    """ScheduleIR of a plan."""
    ops: list[Operation] = []
    for b in plan.blocks:
        ops.append(
            sc.BufferOp.make(
                {
                    "label": b.name,
                    "address": b.address,
                    "bytes": b.bytes,
                    "phases": b.phases,
                    "role": b.role,
                    "note": b.note,
                }
            )
        )
    for c in plan.channels:
        ops.append(
            sc.ChannelOp.make(
                {
                    "label": c.name,
                    "producer": c.producer.name,
                    "consumer": c.consumer.name,
                    "phases": c.phases,
                    "buffers": list(c.blocks),
                    "note": c.why_single and f"single: {c.why_single}",
                }
            )
        )
    ops.append(_pipeline(plan, plan.body))
    return ModuleOp([sc.KernelOp(plan.name, plan.cores, ops)])


def _text(e: Expr) -> str:
    """An expression as people read it: symbols by name."""

    def leaf(x: Expr) -> str | None:
        if x.const or len(x.terms) != 1 or x.terms[0][1] != 1 or len(x.terms[0][0]) != 1:
            return None
        atom = x.terms[0][0][0]
        return None if atom.args else atom.name

    return infix(e, leaf)


def _pipeline(plan: Plan, nodes: tuple[Node, ...]) -> Operation:
    children: list[Operation] = []
    for kind, run in groupby(nodes, key=_kind):
        members = list(run)
        if kind == "loop":
            for n in members:
                assert isinstance(n, LoopPlan)
                children.append(sc.LoopOp.make({"variable": n.var, "count": _text(n.count)}, [_pipeline(plan, n.body)]))
        else:
            children.append(_stage(plan, members))
    phases = [c.phases for c in plan.channels if any(node_id(n) in _homes(plan, c.name) for n in nodes)]
    return sc.PipelineOp.make({"modulo": max(phases, default=1)}, children)


def _homes(plan: Plan, channel: str) -> set[int]:
    return {n for (_, n, _), syncs in plan.syncs.items() if any(s.channel == channel for s in syncs)}


def _kind(n: Node) -> str:
    if isinstance(n, LoopPlan):
        return "loop"
    return n.unit.name if isinstance(n, TransferPlan | RingPlan) else "group"


def _stage(plan: Plan, members: list[Node]) -> Operation:
    waits: list[str] = []
    signals: list[str] = []
    for n in members:
        for (_, node, _), syncs in plan.syncs.items():
            if node == node_id(n):
                for s in syncs:
                    (waits if s.acquire else signals).append(f"{s.channel}.{s.side}")
    first = members[0]
    units = [first.unit.name] if isinstance(first, TransferPlan | RingPlan) else list(_GROUP)
    body = [_member(plan, n) for n in members]
    return sc.StageOp.make({"units": units, "waits": waits, "signals": signals}, body)


def _member(plan: Plan, n: Node) -> Operation:
    if isinstance(n, TransferPlan):
        return _transfer(plan, n)
    if isinstance(n, RingPlan):
        return _message(n)
    assert isinstance(n, SegmentPlan)
    return _segment(n)


def _message(m: RingPlan) -> Operation:
    source = f"{m.source.block}[{_text(m.source.offset)}]"
    target = f"core {_text(m.core)}: {m.target.block}[{_text(m.target.offset)}]"
    nest = [f"{_text(d.extent)} x ({_text(d.source_stride)}, {_text(d.target_stride)})" for d in m.dims]
    return sc.TransferOp.make({"source": source, "target": target, "nest": nest, "leaf": m.leaf, "where": m.where})


def _transfer(plan: Plan, t: TransferPlan) -> Operation:
    ddr = f"{plan.args[t.arg].name}[{_text(t.ddr)}]"
    lx = f"{t.ref.block}[{_text(t.ref.offset)}]"
    source, target = (ddr, lx) if t.unit is Unit.MNILU else (lx, ddr)
    nest = [f"{_text(d.extent)} x ({_text(d.ddr_stride)}, {_text(d.lx_stride)})" for d in t.dims]
    return sc.TransferOp.make({"source": source, "target": target, "nest": nest, "leaf": t.leaf, "where": t.where})


def _segment(s: SegmentPlan) -> Operation:
    contracts = [s.pt.a.ref.block, s.pt.b.ref.block, _text(s.pt.k)] if s.pt else []
    streams = [b for b in reads(s) if b in {i.ref.block for i in s.inputs}]
    return sc.SegmentOp.make(
        {
            "number": s.id,
            "extents": [_text(e) for e in s.extents],
            "reads": streams,
            "contracts": contracts,
            "operations": len(s.ops),
            "writes": [_written(o) for o in s.outputs],
            "where": s.where,
        }
    )


def _written(o: OutputPlan) -> str:
    if o.reduce is Reduce.NONE:
        return o.ref.block
    return f"{o.ref.block} {o.reduce.name.lower()} over {list(o.dims)}"
