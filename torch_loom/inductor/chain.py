"""Two products in one kernel: the layer between them never leaves LX.

y = (f(x W1 + b1)) W2 goes over blocks of the hidden columns: a block of the hidden layer is computed from the rows of
x that the core holds, rounded as a store would round it, and multiplied into the running sums of y. Rows stay on their
core; the weights pass by once per row tile and are fetched once for all cores. Where rows are few, several cores take
the same rows and a part of the hidden layer each, and add their sums of y over the ring: a core then has more rows at a
time, which suits the array, and goes on with its share of them. What follows the second product (bias, residual, norm)
is its epilogue as always. A gated hidden layer is made of two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import sympy

from ..ktir.builder import KernelBuilder
from . import config
from .access import format_of
from .chain_cost import Chained, Layers, chained
from .compat import SchedulerNode, V, buffer_of, extents_of, host_scalar
from .division import LX_BUDGET
from .domain import hint
from .emit import Emitter
from .matmul import enter_loops
from .plan import KernelPlan, is_dot, link, make_plan
from .record import SFU_CYCLES
from .runtime import chip_name
from .tiles import Tiles
from .values import Value, register_kind
from .write import declare, emit_nodes, size_symbols


@dataclass
class Chain:
    """Plans of both products over the same rows, and the buffer between them."""

    first: KernelPlan
    second: KernelPlan
    hidden: str


def plan_chain(
    first: list[SchedulerNode], second: list[SchedulerNode], cores: int, removed: set[str], extra: int, ring: bool
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
    way = chain_way(layers(first, second, extra), cores, ring)
    if way is None:
        return None
    whole = m.extent.is_Integer and way.m_block >= int(m.extent)
    block = m.extent if whole else sympy.Integer(way.m_block)
    width = sympy.Integer(way.h_block)
    a.matmul.k_steps, b.matmul.k_steps = None, sympy.Integer(int(k.extent) // way.h_block // way.parts)
    a.blocks = {d: block if d is outer[0] else width if d in a.matmul.n else d.extent for d in a.dims}
    b.blocks = {d: block if d is m else width if d is k else d.extent for d in b.dims}
    b.matmul.grid, b.matmul.rows_outer, b.cores = (1, way.rows, 1, way.parts), False, way.rows * way.parts
    a.matmul.grid, a.matmul.share, b.matmul.share = (1, 1, 1, 1), None, 0
    return Chain(a, b, hidden)


def layers(first: Sequence[SchedulerNode], second: Sequence[SchedulerNode], extra: int) -> Layers | None:
    """What two contractions look like as a chain; None if their sizes forbid it."""
    dots = [[n for n in part if is_dot(n)] for part in (first, second)]
    if not dots[0] or len(dots[1]) != 1:
        return None
    sizes = [part[0].node.get_size() for part in dots]  # type: ignore[union-attr]
    k, h = (sympy.sympify(extents_of(part[0])[1]) for part in dots)
    if [len(s) for s in sizes] != [2, 2] or sizes[0][0] != sizes[1][0] or sizes[0][1] != h:
        return None
    m, n = (sympy.sympify(s) for s in sizes[1])
    if not all(s.is_Integer for s in (k, h, n)):
        return None
    return Layers(hint(m), int(k), int(h), int(n), len(dots[0]), _operations(first), extra)


def chain_way(c: Layers | None, cores: int, ring: bool = True) -> Chained | None:
    """The fastest way to run both layers as one kernel; None if LX is too small. Without ``ring`` no core shares its
    rows."""
    return None if c is None else chained(c, cores, LX_BUDGET, chip_name(), config.ring_sums and ring)


def _operations(nodes: Sequence[SchedulerNode]) -> float:
    """Cycles of the SFU per vector of the hidden layer."""
    calls = [x for n in nodes for x in n._body.root_block.graph.nodes if x.op == "call_method"]
    moves = ("load", "store", "get_index", "constant", "dot", "reduction", "store_reduction", "to_dtype")
    return sum(SFU_CYCLES.get(str(x.target), 1.0) for x in calls if x.target not in moves)


def emit_chain(chain: Chain, name: str, arguments: Sequence[str], removed: set[str]) -> tuple[str, list[sympy.Expr]]:
    """KTIR of a chain, as ``write.emit_kernel`` for a plain kernel."""
    first, second = chain.first, chain.second
    b = KernelBuilder(name, second.cores)
    bases = {a: b.buffer(f"a{i}") for i, a in enumerate(arguments)}
    symbols = sorted({*size_symbols(first, arguments), *size_symbols(second, arguments)}, key=str)
    sizes, scalars, passed = declare(b, symbols, second)
    for i, scalar in enumerate(dict.fromkeys([*first.record.scalars, *second.record.scalars])):
        dtype = host_scalar(scalar)
        assert dtype is not None
        scalars[scalar] = b.scalar(f"c{i}", register_kind(dtype))
    tiles = []
    for plan in (first, second):
        t = Tiles(b, sizes)
        t.bases, t.scalars = bases, scalars
        t.written = {x.name for p in (first, second) for x in p.record.touches if x.store}
        t.extent = {d: t.size(d.extent) for d in plan.dims}
        tiles.append(t)
    with ExitStack() as stack:
        inner, outer = (Emitter(p, b, t, removed, stack) for p, t in zip((first, second), tiles, strict=True))
        enter_loops(second, tiles[1], stack)
        outer.prologue = lambda: _hidden(chain, inner, outer)
        with V.set_ops_handler(outer):
            emit_nodes(outer)
    return b.text(), passed


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
        emit_nodes(inner)
    whole = inner.algebra.materialise(inner.stored[chain.hidden], (m1, h1))
    dtype = buffer_of(chain.hidden)[2]
    raw = inner.narrow(whole, dtype, format_of(dtype, chain.hidden).element)
    wide = raw if raw.dtype == "f32" else inner.b.op("arith.extf", raw, result="f32")
    outer.stored[chain.hidden] = Value(wide, (m2, h2), raw)
