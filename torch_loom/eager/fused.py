"""A pending graph of fused mode as one functional FX graph.

The native recorder describes what it held back: storages (``slots``) and operators between views of them, in order.
Here a storage is a value: a read takes the view's elements out of it, a write puts them back, and what PyTorch calls
aliasing is gone. Sizes are the ones at hand; numbers stay open. A storage that had memory before and was written is
updated in place at the end; one that was made by the graph and is still looked at is a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from . import graph
from .views import Geometry, NoView, put, take


@dataclass(frozen=True)
class Slot:
    """A storage: its dims from the outermost in memory, dense. ``filled``: it has memory before the graph runs;
    ``live``: somebody can look at it afterwards."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    filled: bool
    live: bool


@dataclass(frozen=True)
class View:
    """Elements of a slot as a tensor sees them."""

    slot: int
    geometry: Geometry


@dataclass(frozen=True)
class Node:
    """One operator: "compute", "copy" or "fill". Results go to ``writes``; None stands for a result that is None."""

    kind: str
    op: Any
    arguments: list[Any]
    reads: list[View]
    writes: list[View | None]
    numbers: list[graph.NumberArg]


@dataclass(frozen=True)
class Pending:
    """What the recorder held back."""

    slots: list[Slot]
    nodes: list[Node]
    device: torch.device


class Cut(Exception):
    """The graph cannot be one program because of node ``at``."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


def _view(described: tuple[Any, ...] | None) -> View | None:
    if described is None:
        return None
    slot, sizes, strides, offset = described
    return View(slot, Geometry(tuple(sizes), tuple(strides), offset))


def _reads(described: Sequence[Any]) -> list[View]:
    return [v for v in map(_view, described) if v is not None]


def pending(described: tuple[Any, ...], overload: Any) -> Pending:
    """A pending graph from the native recorder's description; ``overload(name, overload)`` finds an operator."""
    slots, nodes, index = described
    return Pending(
        [Slot(tuple(sizes), dtype, filled, live) for sizes, dtype, filled, live in slots],
        [
            Node(
                kind,
                overload(name, variant) if name is not None else None,
                [graph.argument(a) for a in arguments or ()],
                _reads(reads),
                [_view(w) for w in writes],
                [graph.NumberArg(*n) for n in numbers],
            )
            for kind, name, variant, arguments, reads, writes, numbers in nodes
        ],
        torch.device("spyre", index),
    )


class _Values:
    """The value of each slot while the nodes are traced."""

    def __init__(self, work: Pending, blocks: dict[int, torch.Tensor]) -> None:
        self.slots = work.slots
        self.device = work.device
        self.now = dict(blocks)
        self.written: set[int] = set()

    def read(self, view: View) -> torch.Tensor:
        return take(self.now[view.slot], view.geometry)

    def write(self, view: View, value: torch.Tensor) -> None:
        slot = self.slots[view.slot]
        value = value.to(slot.dtype).expand(view.geometry.sizes)
        self.now[view.slot] = put(self.now.get(view.slot), slot.sizes, view.geometry, value)
        self.written.add(view.slot)

    def run(self, node: Node, numbers: list[Any]) -> None:
        """Compute a node; ``numbers`` are its numbers as the trace knows them."""
        if node.kind == "copy":
            results = self.read(node.reads[0]).clone()  # apart from a block that is updated in place at the end
        elif node.kind == "fill":
            results = torch.full((), numbers[0], device=self.device)
        else:
            tensors, left = iter(node.reads), iter(numbers)
            results = graph.apply(node.op, [self._argument(a, tensors, left) for a in node.arguments])
        listed = list(results) if isinstance(results, (tuple, list)) else [results]
        for view, result in zip(node.writes, listed, strict=True):
            if view is not None:
                self.write(view, result)

    def _argument(self, argument: Any, tensors: Iterator[View], numbers: Iterator[Any]) -> Any:
        if isinstance(argument, graph.TensorArg):
            return self.read(next(tensors))
        if isinstance(argument, graph.NumberArg):
            return next(numbers)
        if isinstance(argument, graph.Constant):
            return argument.value
        return [self._argument(a, tensors, numbers) for a in argument]


def trace(work: Pending, decompositions: dict[Any, Any]) -> graph.Graph:
    """The functional graph of ``work``; ``meta["line"]`` of its nodes is the number of the operator they compute.

    Raises Cut for an operator or a view that does not fit in a graph."""
    made = graph.Inputs(special=True)
    filled = [i for i, s in enumerate(work.slots) if s.filled]
    results = [i for i, s in enumerate(work.slots) if s.live and not s.filled]
    with graph.clean_modes(), graph.no_complaints():
        blocks = [made.block(work.slots[i].sizes, work.slots[i].dtype, work.device) for i in filled]
        numbers = [[int(n.value) if n.kind == "size" else made.number(n) for n in node.numbers] for node in work.nodes]

        def call(*leaves: Any) -> Any:
            given = dict(zip(map(id, made.numbers), leaves[len(blocks) :], strict=True))
            values = _Values(work, dict(zip(filled, leaves, strict=False)))
            for at, (node, own) in enumerate(zip(work.nodes, numbers, strict=True)):
                try:
                    with _line(at):
                        values.run(node, [given.get(id(n), n) for n in own])
                except (graph.Untraceable, NoView, *graph.NEEDS_DATA, *graph.ARGUMENT_ERRORS) as error:
                    raise Cut(at, f"{type(error).__name__}: {error}") from error
            for slot, block in zip(filled, leaves, strict=False):
                if slot in values.written and work.slots[slot].live:
                    block.copy_(values.now[slot])
            return [values.now[i].contiguous() for i in results]

        leaves = [*blocks, *made.numbers]
        with made.mode:
            module = graph.traced(call, leaves, decompositions)
    graph.refuse_constants(module)
    return graph.Graph(module, leaves, made.integers, made)


@contextmanager
def _line(number: int) -> Iterator[None]:
    """Note on each FX node that is traced inside which operator it belongs to."""
    mode = get_proxy_mode()
    assert mode is not None
    nodes = mode.tracer.graph.nodes
    before = len(nodes)
    yield
    for node in islice(reversed(nodes), len(nodes) - before):
        node.meta["line"] = number
