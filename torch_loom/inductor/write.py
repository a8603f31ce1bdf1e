"""Write one kernel: loops over work items, then the bodies of its nodes, as KTIR."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import sympy

from ..ktir.builder import Dim as Num
from ..ktir.builder import KernelBuilder, Tensor
from .access import geometry
from .compat import (
    CeilDiv,
    FloorDiv,
    Max,
    Mod,
    ModularIndexing,
    PythonMod,
    V,
    host_scalar,
    number_kind,
    sizevars,
)
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
) -> tuple[str, list[sympy.Expr]]:
    """KTIR text of a kernel whose buffers are ``arguments`` in call order, and the sizes and numbers that
    follow them."""
    b = KernelBuilder(name, plan.cores)
    bases = {a: b.buffer(f"a{i}") for i, a in enumerate(arguments)}
    sizes, numbers, passed = declare(b, size_symbols(plan, arguments), plan)
    tiles = Tiles(b, sizes)
    tiles.scalars.update(numbers)
    for i, scalar in enumerate(plan.record.scalars):
        dtype = host_scalar(scalar)
        assert dtype is not None
        tiles.scalars[scalar] = b.scalar(f"c{i}", register_kind(dtype))
    tiles.bases = bases
    tiles.written = {t.name for t in plan.record.touches if t.store}
    tiles.extent = {d: tiles.size(d.extent) for d in plan.dims}
    with ExitStack() as stack:
        emitter = Emitter(plan, b, tiles, removed, stack)
        if plan.matmul is not None:
            enter_loops(plan, tiles, stack)
        else:
            _enter_items(plan, tiles, stack)
        with V.set_ops_handler(emitter):
            emit_nodes(emitter)
    return b.text(), passed


def declare(
    b: KernelBuilder, wanted: Sequence[sympy.Expr], plan: KernelPlan
) -> tuple[dict[sympy.Expr, Num], dict[str, Tensor], list[sympy.Expr]]:
    """The sizes and the numbers (by name) of a kernel, as arguments, and what a call passes for them.

    A size may not be negative, so an integer that may be (a Python int, an item of a tensor) is passed as two
    sizes, of which it is the difference."""
    sizes: dict[sympy.Expr, Num] = {}
    numbers: dict[str, Tensor] = {}
    passed: list[sympy.Expr] = []
    extents = {d.extent for d in plan.dims}
    for k, s in enumerate(wanted):
        name = s.name if isinstance(s, sympy.Symbol) else f"e{k}"
        kind = number_kind(s) if isinstance(s, sympy.Symbol) else None
        if kind is not None:
            numbers[name] = b.scalar(name, kind)
        elif s not in extents and sizevars().span(s, {})[0] < 0:
            sizes[s] = b.sub(b.size(f"{name}_above"), b.size(f"{name}_below"))
            passed += [Max(0, s), Max(0, -s)]
            continue
        else:
            sizes[s] = b.size(name, bound_for(plan, s) if isinstance(s, sympy.Symbol) else None)
        passed.append(s)
    return sizes, numbers, passed


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


# Functions of sizes that kernels do not compute: the host does.
HOST_FUNCTIONS = {"TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt"}


def _host_parts(expr: sympy.Expr, own: set[sympy.Symbol]) -> set[sympy.Expr]:
    """Symbols of a size expression, and those parts of it that the host computes: conversions of floats, and
    quotients by what may be negative. Symbols in ``own`` are dims of the kernel."""
    if isinstance(expr, sympy.Symbol):
        return set() if expr in own else {expr}
    divides = isinstance(expr, (FloorDiv, CeilDiv, Mod, PythonMod, ModularIndexing))
    if not expr.free_symbols & own and (
        type(expr).__name__ in HOST_FUNCTIONS or (divides and sizevars().span(expr.args[1], {})[0] < 0)
    ):
        return {expr}
    return {part for a in expr.args for part in _host_parts(a, own)}


def size_symbols(plan: KernelPlan, arguments: Sequence[str]) -> list[sympy.Expr]:
    """Sizes and numbers that the kernel needs, in a fixed order: symbols, and expressions that the host computes."""
    own = {d.symbol for d in plan.dims}
    found: set[sympy.Expr] = {s for s in plan.record.values if s not in own}
    for d in plan.dims:
        parts = _host_parts(sympy.sympify(d.extent), own)
        found |= parts if all(isinstance(p, sympy.Symbol) for p in parts) else parts | {d.extent}
    for t in plan.record.touches:
        found |= _host_parts(t.index, own | set(t.indirect))
        for size in t.indirect.values():
            found |= _host_parts(sympy.sympify(size), own)
    for a in arguments:
        for h in geometry(a).dims:
            found |= _host_parts(sympy.sympify(h.extent), own)
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
    me: Num = b.tile_id()
    if plan.shared is not None:  # cores that share a reduced extent are neighbours
        tiles.part = b.mod(me, plan.parts)
        tiles.start[plan.shared] = b.mul(tiles.part, plan.share)
        if plan.parts * plan.share != tiles.extent[plan.shared]:
            tiles.overrun.add(plan.shared)
        me = b.floordiv(me, plan.parts)
    per = b.ceildiv(total, plan.cores // plan.parts)
    low = b.mul(me, per)
    item: Num = stack.enter_context(b.loop(low, b.min(b.add(low, per), total)))
    for i, (d, n) in reversed(list(enumerate(counts))):
        at = item if i == 0 else b.mod(item, n)
        if i:
            item = b.floordiv(item, n)
        tiles.start[d] = b.mul(at, tiles.block[d]) if d in tiles.block else at
