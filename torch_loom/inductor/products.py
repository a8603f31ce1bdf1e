"""Emission of the products of a kernel: operand tiles, partial sums over K and over cores, results over the dims.

Several products of equal roles share the loops and the tile of A. Stores wait until all of them are done: cores that
share K add all sums in one exchange, and each goes on with its share of the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy

from .access import format_of, geometry
from .compat import SchedulerNode
from .domain import Dim
from .errors import Unsupported
from .record import node_variables
from .values import Number, Operand, Value

if TYPE_CHECKING:
    from ..ktir.builder import Dim as Num
    from ..ktir.builder import Tensor
    from .emit import Emitter

Stores = list[tuple[str, sympy.Expr]]


def emit_dot(emitter: Emitter, a: Operand, b: Operand) -> Value:
    """The product of two operand tiles over the k dims, added to the partial sums."""
    roles = emitter.plan.matmul
    if roles is None or isinstance(a, Number) or isinstance(b, Number):
        raise Unsupported("matmul with a constant operand")
    builder = emitter.b
    m = [d for d in roles.m if d in emitter.tiles.block]
    n = [d for d in roles.n if d in emitter.tiles.block]
    left = flat(emitter, a, m, roles.k)
    right = flat(emitter, b, n, roles.k)
    # The stored order decides how PT reads the stationary operand; both orders cost the same.
    emitter.partial = builder.matmul(left, builder.transpose(right, [1, 0]), init=emitter.partial)
    return Value(emitter.partial, ())


def emit_products(emitter: Emitter, nodes: Sequence[SchedulerNode]) -> None:
    """The contractions of a kernel, block by block of K if need be, and their stores."""
    plan, tiles, builder = emitter.plan, emitter.tiles, emitter.b
    roles = plan.matmul
    assert roles is not None
    if roles.k_steps is None:
        sums, stores = _once(emitter, nodes, [None] * len(nodes))
    else:
        sums, stores = _by_blocks(emitter, nodes, roles.k_steps)
    parts = roles.grid[3]
    if parts > 1:
        sums = builder.ring_fold(["arith.addf"] * len(sums), sums, [0.0] * len(sums), parts, roles.share)
        if roles.share is None:  # the tile cannot be divided: the first core goes on with all of it
            emitter.only_first()
        else:
            d = roles.m[-1] if roles.share == 0 else roles.n[0]
            tiles.block[d] = builder.floordiv(tiles.block[d], parts)
            tiles.start[d] = builder.add(tiles.start[d], builder.mul(tiles.part, tiles.block[d]))
            tiles.overrun.add(d)
    for total, held in zip(sums, stores, strict=True):
        value = spread(emitter, total)
        for name, index in held:
            emitter.store(name, index, value)


def _once(
    emitter: Emitter, nodes: Sequence[SchedulerNode], partial: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Stores]]:
    """One tile of K of every product, added to ``partial``, and the stores of the results."""
    plan = emitter.plan
    sums, stores = [], []
    for node, before in zip(nodes, partial, strict=True):
        emitter.partial, emitter.held = before, []
        node._body(*node_variables(node, plan.numel, plan.rnumel, plan.dims))
        assert emitter.partial is not None
        sums.append(emitter.partial)
        stores.append(emitter.held)
    emitter.partial, emitter.held = None, None
    return sums, stores


def _by_blocks(
    emitter: Emitter, nodes: Sequence[SchedulerNode], steps: sympy.Expr
) -> tuple[list[Tensor], list[Stores]]:
    """A loop over the tiles of K that carries the partial sums."""
    tiles, builder, roles = emitter.tiles, emitter.b, emitter.plan.matmul
    assert roles is not None

    def extent(dims: Sequence[Dim]) -> Num:
        total: Num = 1
        for d in dims:
            total = builder.mul(total, tiles.block[d]) if d in tiles.block else total
        return total

    first = roles.k[0]
    block, before = tiles.block[first], tiles.start[first]
    if roles.grid[3] > 1:
        whole: Num = int(steps)
    else:
        whole = builder.floordiv(tiles.extent[first], block)
    # Cores that share K have whole blocks, which read zeros behind its end; else the rest has its exact extent, as the
    # lanes beyond it hold no zeros.
    rest: Num = 0 if roles.grid[3] > 1 else builder.sub(tiles.extent[first], builder.mul(whole, block))
    every = whole
    for d in roles.k_outer:  # their blocks of the first dim leave no rest
        every = builder.mul(every, tiles.extent[d])

    def step(partial: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Stores]]:
        if emitter.prologue is not None:
            emitter.prologue()
        found = _once(emitter, nodes, partial)
        emitter.loaded.clear()
        return found

    zero = builder.splat(builder.constant(0.0, "f32"), [extent(roles.m), extent(roles.n)])
    with builder.accumulate(0, every, [zero] * len(nodes)) as carried:
        at: Num = carried.index
        tiles.start[first] = builder.add(before, builder.mul(builder.mod(at, whole) if roles.k_outer else at, block))
        at = builder.floordiv(at, whole) if roles.k_outer else at
        for i, d in reversed(list(enumerate(roles.k_outer))):
            tiles.start[d] = builder.mod(at, tiles.extent[d]) if i else at
            at = builder.floordiv(at, tiles.extent[d])
        carried.results, stores = step(carried.values)
    sums = carried.results
    if rest != 0:
        tiles.start[first], tiles.block[first] = builder.mul(whole, block), rest
        sums, stores = step(sums)
        tiles.block[first] = block
    tiles.start[first] = before
    return sums, stores


def spread(emitter: Emitter, out: Tensor) -> Value:
    """A product [m, n] as a value over the m and n dims of the kernel."""
    builder, roles = emitter.b, emitter.plan.matmul
    assert roles is not None
    m = [d for d in roles.m if d in emitter.tiles.block]
    n = [d for d in roles.n if d in emitter.tiles.block]
    dims = (*m, *n)
    shape = [emitter.tiles.block[d] for d in dims] or [1]
    groups = [list(range(len(m))) or [], list(range(len(m), len(dims)))]
    if len(m) == 1 and len(n) == 1:
        return Value(out, dims)
    if not m or not n:
        kept = builder.collapse(out, [[0, 1]], [builder.mul(out.shape[0], out.shape[1])])
        return Value(builder.expand(kept, [list(range(len(shape)))], shape), dims)
    return Value(builder.expand(out, groups, shape), dims)


def flat(emitter: Emitter, x: Value, rows: Sequence[Dim], k: Sequence[Dim]) -> Tensor:
    """Operand as [rows, k] in the storage format of its buffer."""
    builder, tiles = emitter.b, emitter.tiles
    wanted = [*rows, *k]
    tensor = x.raw
    if tensor is None or tensor.dtype not in ("f16", "bf16", "f32"):
        half = _operand_element(emitter)
        value = emitter.algebra.cast(x, "f32")
        assert isinstance(value, Value)
        tensor = value.tensor if half == "f32" else builder.op("arith.truncf", value.tensor, result=half)
    whole = Value(tensor, x.dims)
    if set(x.dims) != set(wanted):
        whole = emitter.algebra.materialise(whole, [d for d in emitter.plan.dims if d in wanted])
    tensor = builder.transpose(whole.tensor, [whole.dims.index(d) for d in wanted])
    shape: list[Num] = []
    for part in (rows, k):
        extent: Num = 1
        for d in part:
            extent = builder.mul(extent, tiles.block[d])
        shape.append(extent)
    if not rows:
        return builder.expand(builder.collapse(tensor, [list(range(len(wanted)))], [shape[1]]), [[0, 1]], shape)
    groups = [list(range(len(rows))), list(range(len(rows), len(wanted)))]
    return builder.collapse(tensor, groups, shape)


def _operand_element(emitter: Emitter) -> str:
    """Element type that a computed operand is rounded to: that of the kernel's result."""
    stores = [t.name for t in emitter.plan.record.touches if t.store]
    return format_of(geometry(stores[0]).dtype, f"buffer {stores[0]}").element
