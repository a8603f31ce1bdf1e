"""Write one kernel: loops over work items, then the bodies of its nodes, as KTIR."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import sympy

from ..ktir.builder import Dim as Num
from ..ktir.builder import KernelBuilder
from .access import geometry
from .compat import V, host_scalar, number_kind, sizevars
from .domain import Dim
from .emit import Emitter
from .folds import reduce_by_blocks
from .matmul import enter_loops
from .plan import KernelPlan, bound_of, is_dot
from .products import emit_products
from .record import node_variables
from .tiles import Tiles
from .values import register_kind


def emit_kernel(
    plan: KernelPlan, name: str, arguments: Sequence[str], removed: set[str]
) -> tuple[str, list[sympy.Symbol]]:
    """KTIR text of a kernel whose buffers are ``arguments`` in call order, and the size symbols that
    follow them."""
    b = KernelBuilder(name, plan.cores)
    bases = {a: b.buffer(f"a{i}") for i, a in enumerate(arguments)}
    symbols = size_symbols(plan, arguments)
    bounds = [bound_for(plan, s) for s in symbols]
    sizes, numbers = {}, {}
    for s, bound in zip(symbols, bounds, strict=True):
        kind = number_kind(s)
        if kind is None:
            sizes[s] = b.size(str(s), bound)
        else:
            numbers[s.name] = b.scalar(s.name, kind)
    tiles = Tiles(b, sizes)
    tiles.scalars.update(numbers)
    for i, scalar in enumerate(plan.record.scalars):
        dtype = host_scalar(scalar)
        assert dtype is not None
        tiles.scalars[scalar] = b.scalar(f"c{i}", register_kind(dtype))
    tiles.bases = bases
    tiles.written = {t.name for t in plan.record.touches if t.store}
    tiles.extent = {d: tiles.number(d.extent) for d in plan.dims}
    with ExitStack() as stack:
        emitter = Emitter(plan, b, tiles, removed, stack)
        if plan.matmul is not None:
            enter_loops(plan, tiles, stack)
        else:
            _enter_items(plan, tiles, stack)
        with V.set_ops_handler(emitter):
            emit_nodes(emitter)
    return b.text(), symbols


def emit_nodes(emitter: Emitter) -> None:
    """The bodies of a kernel's nodes inside its loops."""
    from .attention import emit_attention

    plan = emitter.plan
    nodes = list(plan.nodes)
    if plan.blocked is not None:
        nodes = reduce_by_blocks(emitter)
    if plan.matmul is not None:
        emit_products(emitter, [n for n in nodes if is_dot(n)])
        emitter.over = plan.matmul.n
        nodes = [n for n in nodes if not is_dot(n)]
    for node in nodes:
        if plan.attention is not None and node.is_reduction():
            emit_attention(emitter, node)
            continue
        node._body(*node_variables(node, plan.numel, plan.rnumel, plan.dims))


def bound_for(plan: KernelPlan, symbol: sympy.Symbol) -> int | None:
    """Largest value of a size the kernel is planned for; None where only loop counts depend on it."""
    if number_kind(symbol) is not None:
        return None
    if any(symbol in sympy.sympify(block).free_symbols for block in plan.blocks.values()):
        return bound_of(symbol)
    return sizevars().upper_bound(symbol)


def size_symbols(plan: KernelPlan, arguments: Sequence[str]) -> list[sympy.Symbol]:
    """Size symbols that the kernel needs, in a fixed order."""
    own = {d.symbol for d in plan.dims}
    found: set[sympy.Symbol] = {s for s in plan.record.values if s not in own}
    for d in plan.dims:
        found |= sympy.sympify(d.extent).free_symbols
    for t in plan.record.touches:
        found |= {s for s in t.index.free_symbols if s not in own and s not in t.indirect}
    for a in arguments:
        for h in geometry(a).dims:
            found |= h.extent.free_symbols
    return sorted((s for s in found if not str(s).startswith("gathered")), key=str)


def _enter_items(plan: KernelPlan, tiles: Tiles, stack: ExitStack) -> None:
    """Loop over this core's share of the work items and give every dim its start and block."""
    b = tiles.b
    counts: list[tuple[Dim, Num]] = []
    for d in plan.dims:
        if d in plan.blocks:
            tiles.block[d] = tiles.number(plan.blocks[d])
            tiles.start[d] = 0
            if plan.blocks[d] != d.extent and d not in plan.stepped:
                counts.append((d, b.ceildiv(tiles.extent[d], tiles.block[d])))
        elif d not in plan.stepped:
            counts.append((d, tiles.extent[d]))
    total: Num = 1
    for _, n in counts:
        total = b.mul(total, n)
    me = b.tile_id()
    per = b.ceildiv(total, plan.cores)
    low = b.mul(me, per)
    item: Num = stack.enter_context(b.loop(low, b.min(b.add(low, per), total)))
    for i, (d, n) in reversed(list(enumerate(counts))):
        at = item if i == 0 else b.mod(item, n)
        if i:
            item = b.floordiv(item, n)
        tiles.start[d] = b.mul(at, tiles.block[d]) if d in tiles.block else at
