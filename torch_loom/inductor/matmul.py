"""Contractions: roles of the dims, tile sizes and core grid, and the emission around ``linalg.matmul``.

C[batch, m, n] = sum_k A[batch, m, k] * B[batch, k, n]. A core owns a range of batches, of m tiles and of n
tiles; which of the two loops stands outside, and which tile therefore stays in LX, is part of the division
(``division.py``). K is whole in a tile where it fits. Everything after the product (bias, activation, residual)
is the SFU epilogue of the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import sympy

from . import config
from .access import ceil_sticks, format_of, geometry
from .compat import SchedulerNode
from .division import LX_BUDGET, Contraction, divide, explain, k_tile
from .domain import Dim, hint, product, typical
from .errors import Unsupported
from .plan import KernelPlan, MatmulPlan, access_of, is_dot, planned
from .record import node_variables
from .runtime import chip_name
from .values import Number, Operand, Value

if TYPE_CHECKING:
    from ..ktir.builder import Dim as Num
    from ..ktir.builder import Tensor
    from .emit import Emitter
    from .tiles import Tiles


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
    roles.whole_rows = any(n.is_reduction() and not is_dot(n) for n in plan.nodes)
    plan.matmul = roles
    for d in roles.k:
        plan.blocks[d] = d.extent
    # The innermost m dim gives rows; n dims are whole except the outermost of them.
    row = roles.m[-1] if roles.m else None
    batch = hint(product(d.extent for d in plan.dims if d not in plan.reduced and d not in roles.n and d is not row))
    m = typical(row.extent) if row else 1
    inner_n = hint(product(d.extent for d in roles.n[1:])) if len(roles.n) > 1 else 1
    n = typical(roles.n[0].extent) if roles.n else 1
    k, steps = _block_k(plan, roles, inner_n)
    operands = plan.record.contraction
    assert operands is not None
    outer = [d for d in plan.dims if d not in plan.reduced and d not in roles.n and d is not row]
    loads = [t for t in plan.record.touches if not t.store]
    shape = Contraction(
        batch,
        m,
        n,
        k,
        inner_n,
        steps,
        (
            all(d.extent.is_Integer for d in outer),
            row is None or row.extent.is_Integer,
            not roles.n or roles.n[0].extent.is_Integer,
        ),
        shared=not any(d.symbol in operands[1] for d in outer),
        epilogue=plan.record.operations,
        extra=sum(set(roles.n) <= access_of(t, plan.dims).dims and row in access_of(t, plan.dims).dims for t in loads),
        bytes=4 if format_of(geometry(loads[0].name).dtype, loads[0].name).element == "f32" else 2,
        whole_rows=roles.whole_rows,
    )
    ways = divide(shape, plan.cores, LX_BUDGET, chip_name(), config.work_division)
    explain(f"matmul of {plan.nodes[0].get_name()}", shape, ways)
    choice = ways[0]
    roles.grid, roles.rows_outer = choice.grid, choice.rows_outer
    plan.cores = math.prod(choice.grid)
    if row:
        whole = row.extent.is_Integer and choice.m_block >= m
        plan.blocks[row] = row.extent if whole else sympy.Integer(choice.m_block)
    for i, d in enumerate(roles.n):
        whole = roles.whole_rows or (d.extent.is_Integer and (i > 0 or choice.n_block >= n))
        # Blocks of a size that is open begin at whole sticks, whatever size was seen first.
        size = choice.n_block if d.extent.is_Integer else -(-choice.n_block // 64) * 64
        plan.blocks[d] = d.extent if whole else sympy.Integer(size)
    plan.blocks = {d: plan.blocks[d] for d in plan.dims if d in plan.blocks}


def _block_k(plan: KernelPlan, roles: MatmulPlan, inner_n: int) -> tuple[int, int]:
    """Elements of K in a tile and number of such tiles."""
    if not roles.k:
        return 1, 1
    first, inner = roles.k[0], planned(product(d.extent for d in roles.k[1:]))
    columns = planned(product(d.extent for d in roles.n)) if roles.whole_rows else 64 * inner_n
    whole = planned(first.extent) * inner
    step = max(1, k_tile(whole, columns, roles.whole_rows, LX_BUDGET) // inner)
    if step >= planned(first.extent):
        return whole, 1
    step = step // 64 * 64 if step > 64 else step
    plan.blocks[first] = sympy.Integer(step)
    roles.k_steps = ceil_sticks(first.extent, step)
    return step * inner, hint(roles.k_steps)


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

    mine_b = b.floordiv(me, gm * gn)
    mine_m = b.mod(b.floordiv(me, gn), gm) if gm > 1 else 0
    mine_n = b.mod(me, gn) if gn > 1 else 0
    item = _share(tiles, stack, total, gb, mine_b) if outer else 0
    for i, d in reversed(list(enumerate(outer))):
        tiles.start[d] = item if i == 0 else b.mod(item, tiles.extent[d])
        if i:
            item = b.floordiv(item, tiles.extent[d])
    cuts = [(roles.n[0] if roles.n else None, gn, mine_n), (row, gm, mine_m)]
    for cut, parts, mine in reversed(cuts) if roles.rows_outer else cuts:
        if cut is None or plan.blocks[cut] == cut.extent:
            continue
        at = _share(tiles, stack, b.ceildiv(tiles.extent[cut], tiles.block[cut]), parts, mine)
        tiles.start[cut] = b.mul(at, tiles.block[cut])


def _share(tiles: Tiles, stack: ExitStack, count: Num, parts: int, part: Num) -> Num:
    """Loop over this core's share of ``count`` tiles. Where all cores have equally many, the loop counts from 0: cores
    that then need the same bytes fetch them once."""
    b = tiles.b
    per = b.ceildiv(count, parts)
    low = b.mul(part, per)
    if parts == 1 or (isinstance(count, int) and count % parts == 0):
        return b.add(low, stack.enter_context(b.loop(0, per)) if per != 1 else 0)
    return stack.enter_context(b.loop(b.min(low, count), b.min(b.add(low, per), count)))


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
        if emitter.prologue is not None:
            emitter.prologue()
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
