"""Operators that Inductor would leave to the host, written in terms of operators that it can fuse.

``@expands(op, ..)`` registers a function over tensors as the meaning of an aten operator on ``spyre``. The graph pass
traces it with the fake values of a node (sizes stay symbols) and puts the traced graph in the node's place; calls of
other registered operators inside of it are expanded in turn. A function may return ``NotImplemented`` to leave a case
to Inductor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

Expansion = Callable[..., Any]
EXPANSIONS: dict[Any, Expansion] = {}
EARLY: dict[Any, Expansion] = {}  # of operators whose own shape rules do not know symbols: used while tracing


def expands(*targets: Any, early: bool = False) -> Callable[[Expansion], Expansion]:
    """Register a function as the meaning of aten overloads, or of operators of other libraries by their names."""

    def register(fn: Expansion) -> Expansion:
        for target in targets:
            EXPANSIONS[target] = fn
            if early:
                EARLY[target] = fn
        return fn

    return register


def _load() -> None:
    from . import (  # noqa: F401
        bags,
        convolution,
        distances,
        experts,
        losses,
        pools,
        products,
        randoms,
        resizes,
        scans,
        scatters,
        sorts,
    )


class _NotExpanded(Exception):
    """The expansion leaves this case to Inductor."""


def _trace(fn: Expansion, node: torch.fx.Node) -> tuple[torch.fx.GraphModule, list[torch.fx.Node]]:
    """The graph of ``fn`` for the arguments of ``node``, and the nodes its placeholders stand for."""
    from ..compat import trace_with_decompositions

    inputs: list[torch.fx.Node] = []

    def collect(n: torch.fx.Node) -> torch.fx.Node:
        if n not in inputs:
            inputs.append(n)
        return n

    torch.fx.node.map_arg((node.args, node.kwargs), collect)

    def call(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
        out = fn(*args, **kwargs)
        if out is NotImplemented:
            raise _NotExpanded
        return out

    return trace_with_decompositions(call, [n.meta["val"] for n in inputs]), inputs


def expand_node(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Replace a node by its expansion; returns the new nodes, or None when it stays."""
    target = node.target
    fn = EXPANSIONS.get(target) or EXPANSIONS.get(target.name() if isinstance(target, torch._ops.OpOverload) else None)
    if fn is None:
        return None
    try:
        inner, inputs = _trace(fn, node)
    except _NotExpanded:
        return None
    graph = node.graph
    inherited = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node")
    kept = {k: node.meta[k] for k in inherited if k in node.meta}
    known: dict[torch.fx.Node, Any] = {}
    added: list[torch.fx.Node] = []
    sources = iter(inputs)
    result: Any = None
    with graph.inserting_before(node):
        for n in inner.graph.nodes:
            if n.op == "placeholder":
                known[n] = next(sources)
            elif n.op == "output":
                result = torch.fx.node.map_arg(n.args[0], lambda a: known[a])
            elif n.op == "get_attr":  # a constant tensor made while tracing
                name = f"_expanded{len(added)}_{n.target}_{node.name}"
                setattr(graph.owning_module, name, getattr(inner, n.target))
                known[n] = graph.get_attr(name)
                known[n].meta.update(n.meta)
            else:
                known[n] = graph.node_copy(n, lambda a: known[a])
                known[n].meta.update(kept, original_aten=node.target)
                added.append(known[n])
    _replace(node, result)
    return added


def _replace(node: torch.fx.Node, result: Any) -> None:
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(result[user.args[1]])
            user.graph.erase_node(user)
    node.graph.erase_node(node)


_load()
