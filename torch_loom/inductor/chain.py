"""Two products in one kernel: the layer between them never leaves LX.

y = (f(x W1 + b1)) W2 goes over blocks of the hidden columns: a block of the hidden layer is computed from the rows of x
that the core holds, rounded as a store would round it, and multiplied into the running sums of y. Rows stay on their
core, so nothing is exchanged; the weights pass by once per row tile and are fetched once for all cores. What follows
the second product (bias, residual, norm) is its epilogue as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import sympy

from ..ktir.builder import KernelBuilder
from .access import format_of
from .compat import SchedulerNode, V, buffer_of, host_scalar
from .division import LX_BUDGET, Chained, chained
from .domain import hint
from .emit import Emitter
from .matmul import emit_blocked, enter_loops
from .plan import KernelPlan, is_dot, link, make_plan
from .record import node_variables
from .runtime import chip_name
from .tiles import Tiles
from .values import Value, register_kind
from .write import bound_for, size_symbols


@dataclass
class Chain:
    """Plans of both products over the same rows, and the buffer between them."""

    first: KernelPlan
    second: KernelPlan
    hidden: str


def plan_chain(
    first: list[SchedulerNode], second: list[SchedulerNode], cores: int, removed: set[str], extra: int
) -> Chain | None:
    """Plan both products for one kernel; None where their loops do not fit together."""
    hidden = link(first, second)
    if hidden is None or hidden not in removed:
        return None
    a, b = make_plan(first, cores, removed), make_plan(second, cores, removed - {hidden})
    if a.matmul is None or b.matmul is None:
        return None
    outer = [d for d in a.dims if d not in a.reduced and d not in a.matmul.n]
    rows = [d for d in b.dims if d not in b.reduced and d not in b.matmul.n]
    if [len(x) for x in (outer, rows, a.matmul.m, b.matmul.m, a.matmul.n, b.matmul.k)] != [1] * 6:
        return None
    m, k = rows[0], b.matmul.k[0]
    if outer[0].extent != m.extent or a.matmul.n[0].extent != k.extent:
        return None
    reads = {t.index for t in b.record.touches if t.name == hidden}
    if reads != {sympy.expand(m.symbol * k.extent + k.symbol)}:
        return None
    b.record.touches = [t for t in b.record.touches if t.name != hidden]
    way = chain_way(first, second, cores, extra)
    if way is None:
        return None
    whole = m.extent.is_Integer and way.m_block >= int(m.extent)
    block = m.extent if whole else sympy.Integer(way.m_block)
    width = sympy.Integer(way.h_block)
    a.matmul.k_steps, b.matmul.k_steps = None, sympy.Integer(int(k.extent) // way.h_block)
    a.blocks = {d: block if d is outer[0] else width if d in a.matmul.n else d.extent for d in a.dims}
    b.blocks = {d: block if d is m else width if d is k else d.extent for d in b.dims}
    b.matmul.grid, b.matmul.rows_outer, b.cores = (1, way.rows, 1), False, way.rows
    return Chain(a, b, hidden)


def chain_way(
    first: Sequence[SchedulerNode], second: Sequence[SchedulerNode], cores: int, extra: int
) -> Chained | None:
    """The fastest way to run two products as one kernel; None if their sizes forbid it or LX is too small."""
    dots = [next(n for n in part if is_dot(n)) for part in (first, second)]
    sizes = [d.node.get_size() for d in dots]  # type: ignore[union-attr]
    k, h = (sympy.sympify(d.group[1][1]) for d in dots)
    if [len(s) for s in sizes] != [2, 2] or sizes[0][0] != sizes[1][0] or sizes[0][1] != h:
        return None
    m, n = (sympy.sympify(s) for s in sizes[1])
    if not all(s.is_Integer for s in (k, h, n)):
        return None
    return chained(
        hint(m), int(k), int(h), int(n), extra, m.is_Integer, _operations(first), cores, LX_BUDGET, chip_name()
    )


def _operations(nodes: Sequence[SchedulerNode]) -> int:
    """Operations of the SFU per element of the hidden layer."""
    return sum(len([x for x in n._body.root_block.graph.nodes if x.op == "call_method"]) for n in nodes)


def emit_chain(chain: Chain, name: str, arguments: Sequence[str], removed: set[str]) -> tuple[str, list[sympy.Symbol]]:
    """KTIR of a chain, as ``write.emit_kernel`` for a plain kernel."""
    first, second = chain.first, chain.second
    b = KernelBuilder(name, second.cores)
    bases = {a: b.buffer(f"a{i}") for i, a in enumerate(arguments)}
    symbols = sorted({*size_symbols(first, arguments), *size_symbols(second, arguments)}, key=str)
    sizes = {s: b.size(str(s), bound_for(second, s)) for s in symbols}
    scalars = {}
    for i, scalar in enumerate(dict.fromkeys([*first.record.scalars, *second.record.scalars])):
        dtype = host_scalar(scalar)
        assert dtype is not None
        scalars[scalar] = b.scalar(f"c{i}", register_kind(dtype))
    tiles = []
    for plan in (first, second):
        t = Tiles(b, sizes)
        t.bases, t.scalars = bases, scalars
        t.written = {x.name for p in (first, second) for x in p.record.touches if x.store}
        t.extent = {d: t.number(d.extent) for d in plan.dims}
        tiles.append(t)
    inner, outer = Emitter(first, b, tiles[0], removed), Emitter(second, b, tiles[1], removed)
    with ExitStack() as stack:
        enter_loops(second, tiles[1], stack)
        outer.prologue = lambda: _hidden(chain, inner, outer)
        with V.set_ops_handler(outer):
            for node in second.nodes:
                if is_dot(node):
                    emit_blocked(outer, node)
                    continue
                assert second.matmul is not None
                outer.over = second.matmul.n
                node._body(*node_variables(node, second.numel, second.rnumel, second.dims))
    return b.text(), symbols


def _hidden(chain: Chain, inner: Emitter, outer: Emitter) -> None:
    """Compute the current block of the hidden layer and hand it to the second product."""
    first, second = chain.first, chain.second
    assert first.matmul is not None and second.matmul is not None
    (m1,), (h1,), (m2,), (h2,) = first.matmul.m, first.matmul.n, second.matmul.m, second.matmul.k
    tiles, source = inner.tiles, outer.tiles
    tiles.block = {d: tiles.number(first.blocks[d]) for d in first.dims}
    tiles.start = dict.fromkeys(first.dims, 0)
    tiles.start |= {m1: source.start[m2], h1: source.start[h2]}
    inner.loaded.clear()
    inner.stored.clear()
    with V.set_ops_handler(inner):
        for node in first.nodes:
            node._body(*node_variables(node, first.numel, first.rnumel, first.dims))
    whole = inner.algebra.materialise(inner.stored[chain.hidden], (m1, h1))
    dtype = buffer_of(chain.hidden)[2]
    raw = inner.narrow(whole, dtype, format_of(dtype, chain.hidden).element)
    wide = raw if raw.dtype == "f32" else inner.b.op("arith.extf", raw, result="f32")
    outer.stored[chain.hidden] = Value(wide, (m2, h2), raw)
