"""Pass 4: the tree of nodes. Statements give the order of loops and transfers, groups give the segments."""

from __future__ import annotations

from torch_loom.scheduler.grouping import Grouping
from torch_loom.scheduler.kernel import For, Kernel
from torch_loom.scheduler.placement import Pieces
from torch_loom.scheduler.plan import LoopPlan, Node
from torch_loom.spyrecode.model import Unit


def assemble(kernel: Kernel, grouping: Grouping, pieces: Pieces) -> tuple[Node, ...]:
    """Nodes of the function body: per run loads, then segments, then stores; loops between runs."""

    def body(scope: int) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for number, run in enumerate(grouping.runs[scope]):
            if len(run) == 1 and isinstance(run[0], For):
                loop = run[0]
                inner = body(loop.id)
                if inner:
                    name = loop.var.terms[0][0][0].name if loop.var.terms else f"i{loop.id}"
                    nodes.append(LoopPlan(loop.id, name, loop.count, inner))
                continue
            for s in run:
                nodes += pieces.rings.get(id(s), [])
                nodes += pieces.loads.get(id(s), [])
            stores = [t for s in run for t in pieces.stores.get(id(s), [])]
            nodes += [t for t in stores if t.unit is Unit.MNILU]
            nodes += pieces.segments.get((scope, number), [])
            nodes += [t for t in stores if t.unit is Unit.MNISU]
        return tuple(nodes)

    return body(0)
