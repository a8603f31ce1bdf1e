"""Contractions: roles of the dims, tile sizes and core grid, and the loops of a core.

C[batch, m, n] = sum_k A[batch, m, k] * B[batch, k, n]. A core owns a range of batches, of m tiles and of n
tiles; which of the two loops stands outside, and which tile therefore stays in LX, is part of the division
(``division.py``). K is whole in a tile where it fits. Everything after the product (bias, activation, residual)
is the SFU epilogue of the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import sympy

from . import config
from .access import ceil_sticks, format_of, geometry
from .division import LX_BUDGET, Contraction, Division, divide, explain, k_tile, share_axis
from .domain import Dim, hint, product, typical
from .footprint import sticks_of
from .homes import Way, homes, way_of
from .plan import KernelPlan, MatmulPlan, access_of, ends_alone, is_dot, planned
from .runtime import chip_name

if TYPE_CHECKING:
    from ..ktir.builder import Dim as Num
    from .tiles import Tiles


def _roles(plan: KernelPlan) -> MatmulPlan:
    outer = [d for d in plan.dims if d not in plan.reduced]
    a, b = plan.record.contractions[0]
    m = [d for d in outer if d.symbol in a and d.symbol not in b]
    n = [d for d in outer if d.symbol in b and d.symbol not in a]
    k = [d for d in plan.dims if d in plan.reduced]
    return MatmulPlan(m, n, k, (1, 1, 1, 1))


def plan_matmul(plan: KernelPlan) -> None:
    """Choose tile dims, blocks and the core grid of a contraction.

    A tile has the innermost row dim, all column dims and all of K, the outermost ones in blocks. Where that is too much
    for LX, K goes in smaller blocks, then by its outer dims; outer column dims become loops if that is faster, and
    always where they are outside of a dim whose size is open, which only blocks can bound."""
    roles = _roles(plan)
    roles.whole_rows = any(n.is_reduction() and not is_dot(n) for n in plan.nodes)
    found: list[tuple[MatmulPlan, Contraction, tuple[Division, ...]]] = []
    least = 0 if roles.whole_rows else max((i for i, d in enumerate(roles.n) if not d.extent.is_Integer), default=0)
    for first in range(least, 1 if roles.whole_rows else max(len(roles.n), 1)):
        way = _fitting(plan, replace(roles, n=roles.n[first:]))
        found.append(way)
        if way[1].steps == 1 and way[2][0].lx_bytes <= LX_BUDGET:
            break
    roles, shape, ways = min(found, key=lambda f: (f[2][0].lx_bytes > LX_BUDGET, f[2][0].cycles))
    plan.matmul = roles
    explain(f"matmul of {plan.nodes[0].get_name()}", shape, ways)
    _apply(plan, roles, ways[0], shape)


def _fitting(plan: KernelPlan, roles: MatmulPlan) -> tuple[MatmulPlan, Contraction, tuple[Division, ...]]:
    """The largest tiles over K whose divisions fit into LX, and those divisions, the fastest first. If none fits, the
    smallest."""
    for outer, step in _depths(roles):
        way = replace(roles, k=roles.k[outer:], k_outer=roles.k[:outer], k_block=step)
        shape = _contraction(plan, way)
        search = config.work_division and way_of(plan.nodes, homes()) is not Way.ROWS
        ways = divide(shape, plan.cores, LX_BUDGET, chip_name(), search)
        if ways[0].lx_bytes <= LX_BUDGET:
            break
    return way, shape, ways


def _depths(roles: MatmulPlan) -> Iterator[tuple[int, int | None]]:
    """What a tile has of K, more of it first: how many outer dims are loops, and indices along the next (None: all).
    Blocks inside of a loop divide their dim."""
    if not roles.k:
        yield 0, None
    for outer, d in enumerate(roles.k):
        extent, inner = planned(d.extent), planned(product(x.extent for x in roles.k[outer + 1 :]))
        columns = planned(product(x.extent for x in roles.n)) if roles.whole_rows else 64 * planned(_inner(roles))
        step = max(1, k_tile(extent * inner, columns, roles.whole_rows, LX_BUDGET) // inner)
        if step >= extent:
            yield outer, None
            step = extent - 1
        while step:
            step = step // 64 * 64 if step > 64 else step
            if not outer or extent % step == 0:
                yield outer, step
            step = step // 2 if not outer else step - 1


def _inner(roles: MatmulPlan) -> sympy.Expr:
    """Columns of one index of the outermost column dim."""
    return product(d.extent for d in roles.n[1:])


def _contraction(plan: KernelPlan, roles: MatmulPlan) -> Contraction:
    """The contraction as its division sees it."""
    row = roles.m[-1] if roles.m else None
    tile = {*roles.n, *roles.k, *roles.m[-1:]}
    outer = [d for d in plan.dims if d not in plan.reduced and d not in tile]
    m = typical(row.extent) if row else 1
    n = typical(roles.n[0].extent) if roles.n else 1
    k_inner = planned(product(d.extent for d in roles.k[1:]))
    k = (roles.k_block or planned(roles.k[0].extent)) * k_inner if roles.k else 1
    left, right = plan.record.contractions[0]
    loads = [t for t in plan.record.touches if not t.store]
    accesses = [access_of(t, plan.dims) for t in loads]
    size = {d: planned(d.extent) for d in tile}
    cut: dict[Dim, str] = {}
    for d, role, block in ((row, "m", min(m, 64)), (roles.n[0] if roles.n else None, "n", min(n, 64))):
        if d is not None:
            size[d], cut[d] = block, role
    if roles.k and roles.k_block is not None:
        size[roles.k[0]], cut[roles.k[0]] = roles.k_block, "k"
    operands = [a for a in accesses if a.dims & plan.reduced]
    results = [access_of(t, plan.dims) for t in plan.record.touches if t.store]
    results += [a for a in accesses if not a.dims & plan.reduced and row in a.dims and a.dims & set(roles.n)]
    return Contraction(
        batch=hint(product(d.extent for d in outer)),
        m=m,
        n=n,
        k=k,
        inner=hint(_inner(roles)),
        held=planned(_inner(roles)),
        steps=hint(_steps_over(roles)),
        shared=not any(d.symbol in right for d in outer),
        a_shared=not any(d.symbol in left for d in outer),
        epilogue=plan.record.operations,
        extra=sum(set(roles.n) <= a.dims and row in a.dims for a in accesses),
        bytes=4 if format_of(geometry(loads[0].name).dtype, loads[0].name).element == "f32" else 2,
        products=len(plan.record.contractions),
        written=len({t.name for t in plan.record.touches if t.store}),
        whole_rows=roles.whole_rows,
        k_unit=_k_unit(plan, roles),
        k_inner=k_inner,
        rest=_rest(roles) * k_inner,
        a_sticks=sticks_of(plan, [a for a in operands if not a.dims & _columns(plan)], size, cut, (roles.k,)),
        b_sticks=sticks_of(plan, [a for a in operands if a.dims & _columns(plan)], size, cut, (roles.n, roles.k)),
        c_sticks=sticks_of(plan, results, size, cut),
    )


def _columns(plan: KernelPlan) -> set[Dim]:
    """All column dims, those that are loops too."""
    return set(_roles(plan).n)


def _steps_over(roles: MatmulPlan) -> sympy.Expr:
    """Tiles of K that a core goes over which does not share it."""
    if not roles.k:
        return sympy.Integer(1)
    blocks = ceil_sticks(roles.k[0].extent, roles.k_block) if roles.k_block is not None else sympy.Integer(1)
    return sympy.expand(product(d.extent for d in roles.k_outer) * blocks)


def _rest(roles: MatmulPlan) -> int:
    """Indices along the outermost k dim of the last tile, if it has fewer than the others."""
    return planned(roles.k[0].extent) % roles.k_block if roles.k and roles.k_block is not None else 0


def _k_unit(plan: KernelPlan, roles: MatmulPlan) -> int:
    """Elements of K by which cores may share it, 0 if they may not: whole sticks and whole steps of the outermost k
    dim, where every access is affine, since a share of a tile may lie behind its end."""
    if way_of(plan.nodes, homes()) is Way.WHOLE_K:
        return 0
    if not config.ring_sums or not roles.k or roles.k_outer or not all(d.extent.is_Integer for d in roles.k):
        return 0
    inner = math.prod(int(d.extent) for d in roles.k[1:])
    unit = math.lcm(inner, 64)
    if int(roles.k[0].extent) * inner % unit:
        return 0
    return unit if all(ends_alone(plan, d) for d in (*roles.m[-1:], *roles.n[:1])) else 0


def _apply(plan: KernelPlan, roles: MatmulPlan, choice: Division, shape: Contraction) -> None:
    """Take over what was chosen."""
    row = roles.m[-1] if roles.m else None
    roles.grid, roles.rows_outer = choice.grid, choice.rows_outer
    plan.cores = math.prod(choice.grid)
    plan.blocks = {d: d.extent for d in roles.k}
    if choice.grid[3] > 1:
        plan.blocks[roles.k[0]] = sympy.Integer(choice.k_block // shape.k_inner)
        roles.k_steps = sympy.Integer(choice.steps) if choice.steps > 1 else None
        roles.share = share_axis(choice.m_block, choice.n_block, shape.inner, choice.grid[3])
    elif roles.k_block is not None or roles.k_outer:
        if roles.k_block is not None:
            plan.blocks[roles.k[0]] = sympy.Integer(roles.k_block)
        roles.k_steps = _steps_over(roles)
    if row:
        whole = row.extent.is_Integer and choice.m_block >= shape.m
        plan.blocks[row] = row.extent if whole else sympy.Integer(choice.m_block)
    for i, d in enumerate(roles.n):
        whole = roles.whole_rows or (d.extent.is_Integer and (i > 0 or choice.n_block >= shape.n))
        # Blocks of a size that is open are whole sticks of columns, whatever size was seen first.
        unit = 1 if d.extent.is_Integer else -(-64 // hint(_inner(roles)))
        size = -(-choice.n_block // unit) * unit
        plan.blocks[d] = d.extent if whole else sympy.Integer(size)
    plan.blocks = {d: plan.blocks[d] for d in plan.dims if d in plan.blocks}


def enter_loops(plan: KernelPlan, tiles: Tiles, stack: ExitStack) -> None:
    """Open the batch, n and m loops of this core and set start and block of every dim."""
    b, roles = tiles.b, plan.matmul
    assert roles is not None
    gb, gm, gn, gk = roles.grid
    for d, block in plan.blocks.items():
        tiles.block[d], tiles.start[d] = tiles.number(block), 0
    me: Num = b.tile_id()
    if gk > 1:  # cores that share K are neighbours
        tiles.part = b.mod(me, gk)
        tiles.start[roles.k[0]] = b.mul(tiles.part, b.mul(_steps(roles), tiles.block[roles.k[0]]))
        me = b.floordiv(me, gk)
    row = roles.m[-1] if roles.m else None
    outer = [d for d in plan.dims if d not in plan.blocks and d not in plan.reduced]
    total: Num = 1
    for d in outer:
        total = b.mul(total, tiles.extent[d])

    mine_b = b.floordiv(me, gm * gn)
    mine_m = b.mod(b.floordiv(me, gn), gm) if gm > 1 else 0
    mine_n = b.mod(me, gn) if gn > 1 else 0
    item = share(tiles, stack, total, gb, mine_b, outer[0] if ends_alone(plan, outer[0]) else None) if outer else 0
    for i, d in reversed(list(enumerate(outer))):
        tiles.start[d] = item if i == 0 else b.mod(item, tiles.extent[d])
        if i:
            item = b.floordiv(item, tiles.extent[d])
    cuts = [(roles.n[0] if roles.n else None, gn, mine_n), (row, gm, mine_m)]
    for cut, parts, mine in reversed(cuts) if roles.rows_outer else cuts:
        if cut is None or (parts == 1 and plan.blocks[cut] == cut.extent):
            continue
        count = b.ceildiv(tiles.extent[cut], tiles.block[cut])
        at = share(tiles, stack, count, parts, mine, cut if ends_alone(plan, cut) else None)
        tiles.start[cut] = b.mul(at, tiles.block[cut])


def _steps(roles: MatmulPlan) -> int:
    """Blocks of K that one of the cores goes over which share it."""
    return int(roles.k_steps) if roles.k_steps is not None else 1


def share(tiles: Tiles, stack: ExitStack, count: Num, parts: int, part: Num, loop: Dim | None) -> Num:
    """Loop over this core's share of ``count`` tiles.

    The loop counts from 0 and equally often on all cores: those that then need the same bytes fetch them once. Where
    the tiles do not divide evenly the last cores run past the end of ``loop``, which must keep its accesses inside
    (``ends_alone``); None: it does not, and each core counts its own tiles."""
    b = tiles.b
    per = b.ceildiv(count, parts)
    low = b.mul(part, per)
    even = parts == 1 or (isinstance(count, int) and count % parts == 0)
    if even or loop is not None:
        if not even and loop is not None:
            tiles.overrun.add(loop)
        return b.add(low, stack.enter_context(b.loop(0, per)) if per != 1 else 0)
    return stack.enter_context(b.loop(b.min(low, count), b.min(b.add(low, per), count)))
