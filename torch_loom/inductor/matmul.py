"""Contractions: roles of the dims, tile sizes and core grid, and the emission around ``linalg.matmul``.

C[batch, m, n] = sum_k A[batch, m, k] * B[batch, k, n]. A core owns a range of batches, of m tiles and of n
tiles; the n loop stands outside the m loop, so a weight tile is fetched once and stays in LX while the rows
pass by. K is whole in a tile. Everything after the product (bias, activation, residual) is the SFU epilogue
of the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from ..ktir.builder import Dim as Num
from ..ktir.builder import Tensor
from .access import ceil_sticks, format_of, geometry
from .compat import SchedulerNode
from .domain import Dim, hint, product
from .errors import Unsupported
from .plan import KernelPlan, MatmulPlan, planned
from .record import node_variables
from .tiles import Tiles
from .values import Number, Operand, Value

if TYPE_CHECKING:
    from .emit import Emitter

# Bytes of LX that the tiles of a contraction may take; the rest is for epilogue operands.
LX_BUDGET = 1_300_000


@dataclass(frozen=True)
class _Choice:
    cost: float
    grid: tuple[int, int, int]
    m_block: int
    n_block: int


def _roles(plan: KernelPlan) -> MatmulPlan:
    assert plan.record.contraction is not None
    a, b = plan.record.contraction
    outer = [d for d in plan.dims if d not in plan.reduced]
    m = [d for d in outer if d.symbol in a and d.symbol not in b]
    n = [d for d in outer if d.symbol in b and d.symbol not in a]
    k = [d for d in plan.dims if d in plan.reduced]
    return MatmulPlan(m, n, k, (1, 1, 1))


def plan_matmul(plan: KernelPlan) -> None:
    """Choose tile dims, blocks and the core grid of a contraction."""
    roles = _roles(plan)
    plan.matmul = roles
    for d in roles.k:
        plan.blocks[d] = d.extent
    # The innermost m dim gives rows; n dims are whole except the outermost of them.
    row = roles.m[-1] if roles.m else None
    batch = hint(product(d.extent for d in plan.dims if d not in plan.reduced and d not in roles.n and d is not row))
    m = hint(row.extent) if row else 1
    inner_n = hint(product(d.extent for d in roles.n[1:])) if len(roles.n) > 1 else 1
    n = hint(roles.n[0].extent) if roles.n else 1
    k = _block_k(plan, roles, inner_n)
    choice = _search(plan.cores, batch, m, n, k, inner_n)
    roles.grid = choice.grid
    if row:
        whole = row.extent.is_Integer and choice.m_block >= m
        plan.blocks[row] = row.extent if whole else sympy.Integer(choice.m_block)
    for i, d in enumerate(roles.n):
        whole = d.extent.is_Integer and (i > 0 or choice.n_block >= n)
        plan.blocks[d] = d.extent if whole else sympy.Integer(choice.n_block)
    plan.blocks = {d: plan.blocks[d] for d in plan.dims if d in plan.blocks}


def _block_k(plan: KernelPlan, roles: MatmulPlan, inner_n: int) -> int:
    """Elements of K in a tile: all of it, unless the smallest operand tiles would not fit LX then."""
    if not roles.k:
        return 1
    first, inner = roles.k[0], planned(product(d.extent for d in roles.k[1:]))
    limit = max(64, LX_BUDGET // (4 * (16 + 64 * inner_n)) // inner // 64 * 64)
    if planned(first.extent) <= limit:
        return planned(first.extent) * inner
    plan.blocks[first] = sympy.Integer(limit)
    roles.k_steps = ceil_sticks(first.extent, limit)
    return limit * inner


def _sizes(extent: int, steps: tuple[int, ...]) -> list[int]:
    return [s for s in steps if s < extent] + [min(extent, steps[-1])]


def _search(cores: int, batch: int, m: int, n: int, k: int, inner_n: int) -> _Choice:
    """Cheapest (grid, blocks) by a roofline of one core: matrix cycles against its share of DDR traffic.

    Rates are those of the chip description (1024 MAC a cycle and 4.27 B of DDR a cycle for each of 32
    busy cores); rows under 64 a core use the matrix unit less (hardware page, C8)."""

    def ceil(a: int, b: int) -> int:
        return -(-a // b)

    best: _Choice | None = None
    for gb in sorted({1, min(batch, cores), *(g for g in (2, 4, 8, 16, 32) if g <= min(batch, cores))}):
        for gm in (1, 2, 4, 8, 16, 32):
            for gn in (1, 2, 4, 8, 16, 32):
                if gb * gm * gn > cores:
                    continue
                for mb in _sizes(m, (16, 32, 64, 128)):
                    for nb in _sizes(n, (64, 128, 192, 256, 384)):
                        wide = nb * inner_n
                        lx = 4 * mb * k + 4 * wide * k + mb * wide * 12
                        if lx > LX_BUDGET and (mb > 16 or nb > 64):
                            continue
                        b_per = ceil(batch, gb)
                        m_per = ceil(ceil(m, mb), gm)
                        n_per = ceil(ceil(n, nb), gn)
                        rows = min(m, m_per * mb)
                        compute = b_per * m_per * n_per * mb * wide * k / 1024 / min(1.0, (rows / 64) ** 0.35)
                        moved = b_per * n_per * (wide * k + m_per * mb * (k + wide)) * 2.0
                        cost = max(compute, moved * gb * gm * gn / 136.5) + 200 * b_per * n_per * m_per
                        if best is None or cost < best.cost:
                            best = _Choice(cost, (gb, gm, gn), mb, nb)
    assert best is not None
    return best


def enter_loops(plan: KernelPlan, tiles: Tiles, stack: ExitStack) -> None:
    """Open the batch, n and m loops of this core and set start and block of every dim."""
    b, roles = tiles.b, plan.matmul
    assert roles is not None
    gb, gm, gn = roles.grid
    for d, block in plan.blocks.items():
        tiles.block[d], tiles.start[d] = tiles.number(block), 0
    me = b.tile_id()
    row = roles.m[-1] if roles.m else None
    outer = [d for d in plan.dims if d not in plan.blocks]
    total: Num = 1
    for d in outer:
        total = b.mul(total, tiles.extent[d])

    def span(count: Num, parts: int, part: Num) -> tuple[Num, Num]:
        per = b.ceildiv(count, parts)
        low = b.mul(part, per)
        return low, b.min(b.add(low, per), count)

    mine_b = b.floordiv(me, gm * gn)
    mine_m = b.mod(b.floordiv(me, gn), gm) if gm > 1 else 0
    mine_n = b.mod(me, gn) if gn > 1 else 0
    if gb * gm * gn < plan.cores:  # cores beyond the grid get an empty batch range
        low, high = span(total, gb, mine_b)
        item: Num = stack.enter_context(b.loop(b.min(low, total), high))
    elif outer:
        low, high = span(total, gb, mine_b)
        item = stack.enter_context(b.loop(low, high))
    else:
        item = 0
    for i, d in reversed(list(enumerate(outer))):
        tiles.start[d] = item if i == 0 else b.mod(item, tiles.extent[d])
        if i:
            item = b.floordiv(item, tiles.extent[d])
    for cut, parts, mine in ((roles.n[0] if roles.n else None, gn, mine_n), (row, gm, mine_m)):
        if cut is None or plan.blocks[cut] == cut.extent:
            continue
        low, high = span(b.ceildiv(tiles.extent[cut], tiles.block[cut]), parts, mine)
        at = stack.enter_context(b.loop(low, high))
        tiles.start[cut] = b.mul(at, tiles.block[cut])


def emit_dot(emitter: Emitter, a: Operand, b: Operand) -> Value:
    """The product of two operand tiles over the k dims."""
    roles = emitter.plan.matmul
    if roles is None or isinstance(a, Number) or isinstance(b, Number):
        raise Unsupported("matmul with a constant operand")
    builder = emitter.b
    m = [d for d in roles.m if d in emitter.tiles.block]
    n = [d for d in roles.n if d in emitter.tiles.block]
    left = flat(emitter, a, m, roles.k)
    right = flat(emitter, b, n, roles.k)
    # The stored order decides how PT reads the stationary operand; both orders cost the same.
    out = builder.matmul(left, builder.transpose(right, [1, 0]), init=emitter.partial)
    if emitter.partial is not None:
        emitter.partial = out
        return Value(out, ())
    return spread(emitter, out)


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


def emit_blocked(emitter: Emitter, node: SchedulerNode) -> None:
    """The node of a contraction whose K goes block by block: a loop that carries the partial sums, then the
    store of the node with the total."""
    plan, tiles, builder = emitter.plan, emitter.tiles, emitter.b
    roles = plan.matmul
    assert roles is not None and roles.k_steps is not None

    def extent(dims: list[Dim]) -> Num:
        total: Num = 1
        for d in dims:
            total = builder.mul(total, tiles.block[d]) if d in tiles.block else total
        return total

    first = roles.k[0]
    block = tiles.block[first]
    whole = builder.floordiv(tiles.extent[first], block)
    rest = builder.sub(tiles.extent[first], builder.mul(whole, block))

    def product_into(partial: Tensor) -> tuple[Tensor, list[tuple[str, sympy.Expr]]]:
        emitter.partial, emitter.held = partial, []
        node._body(*node_variables(node, plan.numel, plan.rnumel, plan.dims))
        total, stores = emitter.partial, emitter.held
        emitter.partial, emitter.held = None, None
        emitter.loaded.clear()
        return total, stores

    zero = builder.splat(builder.constant(0.0, "f32"), [extent(roles.m), extent(roles.n)])
    with builder.accumulate(0, whole, [zero]) as carried:
        tiles.start[first] = builder.mul(carried.index, block)
        total, stores = product_into(carried.values[0])
        carried.results = [total]
    total = carried.results[0]
    if rest != 0:  # what remains has its exact extent: the lanes beyond it hold no zeros
        tiles.start[first], tiles.block[first] = builder.mul(whole, block), rest
        total, stores = product_into(total)
        tiles.block[first] = block
    tiles.start[first] = 0
    for name, index in stores:
        emitter.store(name, index, spread(emitter, total))
