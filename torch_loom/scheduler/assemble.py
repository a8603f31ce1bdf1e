"""Pass 4: the tree of nodes. Statements give the order of loops and transfers, groups give the segments."""

from __future__ import annotations

from torch_loom.scheduler.grouping import Grouping
from torch_loom.scheduler.kernel import For, Kernel, Load
from torch_loom.scheduler.plan import LoopPlan, Node
from torch_loom.scheduler.segments import Pieces


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
            nodes += [pieces.loads[id(s)] for s in run if isinstance(s, Load) and id(s) in pieces.loads]
            nodes += pieces.segments.get((scope, number), [])
            nodes += [pieces.stores[id(s)] for s in run if id(s) in pieces.stores]
        return tuple(nodes)

    return body(0)
