"""What a kernel does before any of it is written: common dims, roles, tile sizes, division over cores.

A *tile* dim is part of every tensor of the kernel, a *loop* dim is a scalar in addresses. Reduction dims and
dims that run along sticks are tile dims; one more dim gives rows. The tiles of all loops, flattened, are the
work items that the cores share in contiguous chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sympy

from .access import Access, geometry, resolve
from .compat import BaseSchedulerNode, SchedulerNode, extents_of, ranges_of, sizevars
from .domain import Boundaries, Dim, Misaligned, exact_div, hint, product, refine, suffix_products
from .errors import Unsupported
from .record import Record, Touch, insides, operands, record

if TYPE_CHECKING:
    from .attention import AttentionPlan

# Elements of a tile of one value. 16 Ki float32 elements are 64 KiB: about ten values fit LX twice.
TILE_ELEMENTS = 16384
LANE_BLOCK = 512
# Elements of a reduced extent that one tile row may have: 512 KiB of float32.
REDUCED_ELEMENTS = 1 << 17
DEFAULT_BOUND = 1024


@dataclass
class KernelPlan:
    """Everything the emitter needs."""

    nodes: list[SchedulerNode]
    numel: sympy.Expr
    rnumel: sympy.Expr
    dims: list[Dim]
    reduced: set[Dim]
    record: Record
    cores: int
    blocks: dict[Dim, sympy.Expr] = field(default_factory=dict)  # tile dims only
    matmul: MatmulPlan | None = None
    attention: AttentionPlan | None = None
    blocked: Dim | None = None  # reduced dim that goes block by block because LX cannot hold all of it
    parts: int = 1  # neighbouring cores that share the reduced dim ``shared`` (see shares.py)
    shared: Dim | None = None

    @property
    def axis_order(self) -> list[Dim]:
        """Order of the axes of values: the dim that runs along the sticks of most accesses comes last,
        so that vector operations work on whole sticks."""
        votes: dict[Dim, int] = {}
        for t in self.record.touches:
            for d in access_of(t, self.dims).lane_dims:
                votes[d] = votes.get(d, 0) + 1
        last = max(self.dims, key=lambda d: (votes.get(d, 0), self.dims.index(d)), default=None)
        return [d for d in self.dims if d is not last] + ([last] if last is not None else [])

    @property
    def stepped(self) -> list[Dim]:
        """Dims whose blocks are not work items: a core goes over its own of them in order."""
        keys = [self.attention.keys, *self.attention.outer_keys] if self.attention is not None else []
        return [d for d in (self.blocked, self.shared) if d is not None] + keys

    @property
    def share(self) -> int:
        """Extent of ``shared`` that one core has, in whole blocks; the last core's may reach past the end."""
        assert self.shared is not None
        block = int(self.blocks[self.shared])
        return -(-int(self.shared.extent) // block // self.parts) * block

    @property
    def loops(self) -> list[Dim]:
        """Dims that are not part of tiles, outermost first."""
        return [d for d in self.dims if d not in self.blocks]

    def tiles_of(self, d: Dim) -> sympy.Expr:
        """Number of blocks along a tile dim."""
        from .access import ceil_sticks

        return sympy.Integer(1) if self.blocks[d] == d.extent else ceil_sticks(d.extent, int(self.blocks[d]))


@dataclass
class MatmulPlan:
    """Roles of the dims of a contraction and the core grid (batch, m, n, k)."""

    m: list[Dim]
    n: list[Dim]
    k: list[Dim]
    grid: tuple[int, int, int, int]
    rows_outer: bool = False
    whole_rows: bool = False  # the epilogue reduces over the columns, so a tile has all of them
    k_block: int | None = None  # indices of the outermost k dim in a tile of a core that has all of K (None: all)
    k_outer: list[Dim] = field(default_factory=list)  # further reduced dims, outside of ``k``, that are loops
    k_steps: sympy.Expr | None = None  # tiles of K, outer dims included, when one cannot hold all of a core's part
    share: int | None = None  # axis of a tile that the cores which share K divide, once they have added it up


def is_dot(node: SchedulerNode) -> bool:
    """Is the node a contraction?"""
    return node.is_reduction() and node.node.get_reduction_type() == "dot"  # type: ignore[union-attr]


def same_left_operand(dots: Sequence[SchedulerNode]) -> bool:
    """Do the contractions run over equal ranges, with one left operand and right ones that depend on the same loops?"""
    (left, right), *others = (operands(d) for d in dots)
    return all(
        a == left and b[1].free_symbols == right[1].free_symbols and ranges_of(d) == ranges_of(dots[0])
        for (a, b), d in zip(others, dots[1:], strict=True)
    )


def groups(nodes: Sequence[SchedulerNode]) -> tuple[sympy.Expr, sympy.Expr]:
    """(numel, rnumel) of a fused kernel: the contraction's or else the reduction's if there is one."""
    reductions = [n for n in nodes if n.is_reduction()]
    reduction = next((n for n in reductions if is_dot(n)), reductions[0] if reductions else None)
    chosen = extents_of(reduction or nodes[0])
    return sympy.expand(chosen[0]), sympy.expand(chosen[1])


def align(nodes: Sequence[SchedulerNode], numel: sympy.Expr, rnumel: sympy.Expr) -> Boundaries:
    """Boundaries common to the ranges of all nodes. Raises Misaligned."""
    bounds = Boundaries(sympy.expand(numel * rnumel))
    if rnumel != 1:
        bounds.add(rnumel)
    for node in nodes:
        sizes, reduced = ranges_of(node)
        outer, inner = insides(node, numel, rnumel)
        for b in [outer, *suffix_products(sizes, outer), *suffix_products(reduced, inner)]:
            if b != 1:
                bounds.add(b)
    return bounds


def flatten(node: BaseSchedulerNode) -> list[SchedulerNode]:
    """Plain nodes of a possibly fused node, in order."""
    return [n for n in node.get_nodes() if isinstance(n, SchedulerNode)]


def readers(nodes: Sequence[SchedulerNode]) -> set[str]:
    """Names of the nodes (or "OUTPUT") outside of ``nodes`` that read what they make."""
    own = {n.get_name() for n in nodes}
    return {u.node.get_name() for n in nodes for b in n.get_outputs() for u in b.users} - own


def link(first: Sequence[SchedulerNode], second: Sequence[SchedulerNode]) -> str | None:
    """The buffer that ``first`` makes for the contraction of ``second`` alone; None if there is more between them."""
    own = {n.get_name() for n in first}
    dots = {n.get_name() for n in second if is_dot(n)}
    users = {b.get_name(): {u.node.get_name() for u in b.users} - own for n in first for b in n.get_outputs()}
    crossing = [name for name, outside in users.items() if outside]
    return crossing[0] if len(crossing) == 1 and users[crossing[0]] == dots and len(dots) == 1 else None


def access_of(touch: Touch, dims: list[Dim]) -> Access:
    """The device access of a recorded touch."""
    limits = touch.limits if touch.guarded else None
    return resolve(geometry(touch.name), touch.index, dims, touch.indirect, limits)


def ends_alone(plan: KernelPlan, d: Dim) -> bool:
    """May a core run past the end of ``d``? Its loads then read zeros or what nobody uses, its stores write nothing.

    That takes affine accesses (the gather unit checks its indices), and stores of a host dim that ends where ``d``
    does, unless views of their own extent end them; of a reduced dim, stores without it are another core's."""
    for t in plan.record.touches:
        access = access_of(t, plan.dims)
        if access.linear is not None or any(c.indirect for c in access.coordinates):
            return False
        if not t.store:
            continue
        if d not in access.dims:
            if d in plan.reduced:
                continue
            return False
        for c in access.coordinates:
            steps = dict(c.terms)
            if d not in steps or (d in plan.blocks and c.dim.tile_stride is None):
                continue
            end = sympy.expand(c.offset + sum(s * (e.extent - 1) for e, s in c.terms) + 1)
            if end != c.dim.extent or any(hint(s) > hint(steps[d]) for s in steps.values()):
                return False
    return True


def common_dims(
    nodes: list[SchedulerNode],
    numel: sympy.Expr,
    rnumel: sympy.Expr,
    bounds: Boundaries,
    removed: set[str],
    cuts: Callable[[str], list[sympy.Expr]],
) -> tuple[list[Dim], set[Dim], Record]:
    """Dims over which every index of the nodes is affine, the reduced ones of them, and what the bodies do over them;
    ``cuts`` gives the host strides at which a buffer's index changes its device dim."""

    def indices(dims: Sequence[Dim]) -> list[tuple[sympy.Expr, list[sympy.Expr], set[sympy.Symbol]]]:
        found = record(nodes, numel, rnumel, dims, removed)
        return [(t.index, cuts(t.name), set(t.limits)) for t in found.touches]

    dims = refine(bounds, indices)
    reduced = {d for d in dims if rnumel != 1 and exact_div(rnumel, sympy.expand(d.suffix * d.extent)) is not None}
    return dims, reduced, record(nodes, numel, rnumel, dims, removed)


def touched_buffers(nodes: Iterable[SchedulerNode]) -> set[str]:
    """Buffers that nodes read or write."""
    return {b for n in nodes for b in (*n.used_buffer_names(), *n.get_buffer_names())}


def make_plan(nodes: list[SchedulerNode], cores: int, removed: set[str]) -> KernelPlan:
    """Plan the kernel of ``nodes``; buffers in ``removed`` live only inside of it. Raises Unsupported."""
    numel, rnumel = groups(nodes)
    try:
        bounds = align(nodes, numel, rnumel)
    except Misaligned as e:
        raise Unsupported(f"fusion of {[n.get_name() for n in nodes]}: sizes do not divide ({e})") from e

    dims, reduced, seen = common_dims(nodes, numel, rnumel, bounds, removed, lambda name: geometry(name).cuts)
    plan = KernelPlan(nodes, numel, rnumel, dims, reduced, seen, cores)
    from .attention import is_attention, plan_attention

    if is_attention(plan):
        plan_attention(plan)
    elif seen.contractions:
        from .matmul import plan_matmul

        plan_matmul(plan)
    else:
        from .shares import share_reduction

        _choose_tiles(plan)
        share_reduction(plan)
    return plan


def _block_reduction(plan: KernelPlan, lanes: int) -> None:
    """Cut the outermost reduced dim when one tile row (``lanes`` values wide) would be too long.

    Only where every reduction reads the inputs directly: a second reduction over the same extent that needs
    the first would need a second pass over memory. Then the extent stays whole (and must fit)."""
    dims = [d for d in plan.dims if d in plan.reduced]
    if not dims or planned(product(d.extent for d in dims)) * lanes <= REDUCED_ELEMENTS:
        return
    inner = planned(product(d.extent for d in dims[1:])) * lanes
    reductions = {n.get_name() for n in plan.nodes if n.is_reduction()}
    names = {b for n in plan.nodes if n.is_reduction() for b in n.get_buffer_names()}
    in_loop = [n for n in plan.nodes if in_reduction(plan, n)]
    chained = any(names & n.used_buffer_names() - n.get_buffer_names() for n in in_loop)
    simple = all(n.node.get_reduction_type() in SIMPLE for n in plan.nodes if n.get_name() in reductions)  # type: ignore[union-attr]
    if chained or not simple or inner > REDUCED_ELEMENTS // 2:
        return
    plan.blocked = dims[0]
    step = max(1, REDUCED_ELEMENTS // 4 // inner)
    plan.blocks[dims[0]] = sympy.Integer(step // 64 * 64 if step > 64 else step)


SIMPLE = ("sum", "prod", "max", "min")


def in_reduction(plan: KernelPlan, node: SchedulerNode) -> bool:
    """Does the node run over the reduced extent (rather than on results of reductions)?"""
    return node.is_reduction() or sizevars().equal(extents_of(node)[0], plan.numel * plan.rnumel)


def bound_of(symbol: sympy.Symbol) -> int:
    """Largest value of a size for which tiles that hold its whole extent are planned.

    Without a maximum from the model there is room to grow; a launch beyond it compiles the kernel once
    more for a larger maximum."""
    known = sizevars().upper_bound(symbol)
    room = max(DEFAULT_BOUND, 1 << (2 * hint(symbol) - 1).bit_length())
    return min(known, room) if known is not None else room


def planned(expr: sympy.Expr) -> int:
    """A size at the bounds of its symbols: what LX must hold."""
    expr = sympy.sympify(expr)
    return int(expr.subs({s: bound_of(s) for s in expr.free_symbols}))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _choose_tiles(plan: KernelPlan) -> None:
    """Tile dims and block sizes of a pointwise or reduction kernel."""
    accesses = [access_of(t, plan.dims) for t in plan.record.touches]
    stores = [a for a, t in zip(accesses, plan.record.touches, strict=True) if t.store]
    lanes: list[Dim] = []
    for a in [*stores, *accesses]:
        lanes.extend(d for d in a.lane_dims if d not in lanes and d not in plan.reduced)
    for d in plan.dims:
        if d in plan.reduced:
            plan.blocks[d] = d.extent
    _block_reduction(plan, 64 if lanes else 1)
    rows = [d for d in plan.dims if d not in plan.reduced and d not in lanes]
    # Lane dims first: whole when short, otherwise in blocks of whole sticks.
    outside = hint(product(d.extent for d in rows)) if rows else 1
    inner = [d for d in plan.dims if d in lanes]
    width = planned(product(plan.blocks[d] for d in plan.reduced)) if plan.reduced else 1
    for d in reversed(inner):
        extent = hint(d.extent)
        limit = max(64, min(LANE_BLOCK, TILE_ELEMENTS // max(width, 1)) // 64 * 64)
        if outside < plan.cores:  # too few rows for all cores: cut the lanes as well
            limit = min(limit, max(64, _round_up(-(-extent * outside // plan.cores), 64)))
        whole = d.extent.is_Integer and extent <= limit
        plan.blocks[d] = d.extent if whole else sympy.Integer(limit)
        width *= min(extent, limit)
    if rows:
        row = rows[-1]
        block = max(1, TILE_ELEMENTS // max(width, 1))
        block = min(1 << (block.bit_length() - 1), 1 << (hint(row.extent) - 1).bit_length())
        others = product([d.extent for d in rows[:-1]] + [plan.tiles_of(d) for d in inner])
        while block > 1 and hint(others) * -(-hint(row.extent) // block) < plan.cores:
            block //= 2
        extent = hint(row.extent)
        whole = row.extent.is_Integer and block >= extent
        plan.blocks[row] = row.extent if whole else sympy.Integer(block)
    plan.blocks = {d: plan.blocks[d] for d in plan.dims if d in plan.blocks}
