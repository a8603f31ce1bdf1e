"""Attention as one kernel: scores, softmax and the weighted sum of values, key block by key block.

``spyre::attention`` becomes a reduction of type "attention" over (keys, head size) in the loop language, so masks,
biases and whatever else makes a score are ordinary loads and index comparisons of the same body. A block of keys
updates three running values per query row in LX: the highest score m, the total l of exp(score - m) and the
weighted sum of values. With m' = max(m, scores of the block) both sums are scaled by exp(m - m') before the block is
added (online softmax: Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867), so no score is ever in DDR.

In a decode step the query heads that share a key head are the rows of the products, so keys are read once for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from .compat import (
    FloorDiv,
    Reduction,
    ReductionHint,
    SchedulerNode,
    TensorBox,
    ops,
    register_lowering,
    sizevars,
    view_of,
)
from .division import LX_BUDGET
from .domain import Dim, hint, product, typical
from .errors import Unsupported
from .plan import KernelPlan, planned
from .products import flat
from .record import node_variables
from .values import Number, Operand, Value

if TYPE_CHECKING:  # a warm start needs no code generator
    from ..ktir.builder import Carried, Tensor
    from ..ktir.builder import Dim as Num
    from .emit import Emitter

# A score below the smallest half is a mask: -inf, or what a stored -inf becomes on the device.
NOTHING = -65504.0
LOWEST = -3.0e38  # below every score and finite, so that differences of running maxima are never NaN
QUERY_ROWS, KEY_ROWS = 128, 512

ATTENTION, CAUSAL = "attention", "attention_causal"
# Reductions that PT computes; all others are the vector unit's.
CONTRACTIONS = frozenset(("dot", ATTENTION, CAUSAL))


@torch.library.custom_op("spyre::attention", mutates_args=())
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale: float = 1.0,
    is_causal: bool = False,
) -> torch.Tensor:
    """softmax(q k^T * scale + bias) v with rows before heads: [batch, rows, heads, value size].

    ``q`` is [batch, heads, rows, size], ``k`` [batch, key heads, keys, size], ``v`` [batch, key heads, keys, value
    size]; key heads divide heads. ``bias`` broadcasts to [batch, heads, rows, keys]. ``is_causal`` lets row i see
    keys 0 to i. A row that sees no key gives zeros."""
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, scale=scale, is_causal=is_causal, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous()


@attention.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale: float = 1.0,
    is_causal: bool = False,
) -> torch.Tensor:
    return q.new_empty([q.shape[0], q.shape[2], q.shape[1], v.shape[3]])


def _broadcasting(x: TensorBox, rank: int) -> Callable[[Sequence[Any]], Any]:
    """Loader of ``x`` by an index of ``rank`` dims to which its own dims broadcast."""
    load, size = x.make_loader(), x.get_size()

    def at(index: Sequence[Any]) -> Any:
        own = index[rank - len(size) :]
        return load([sympy.Integer(0) if s == 1 else i for s, i in zip(size, own, strict=True)])

    return at


@register_lowering(torch.ops.spyre.attention.default, type_promotion_kind=None)
def lower_attention(
    q: TensorBox,
    k: TensorBox,
    v: TensorBox,
    bias: TensorBox | None = None,
    scale: float = 1.0,
    is_causal: bool = False,
) -> TensorBox:
    """An "attention" reduction over (keys, head size). Operands are realised: PT reads them from memory."""
    for x in (q, k, v):
        x.realize()
    batch, heads, rows, size = q.get_size()
    _, groups, keys, width = v.get_size()
    members = sizevars().simplify(FloorDiv(heads, groups))
    load_q, load_k, load_v = q.make_loader(), k.make_loader(), v.make_loader()
    load_bias = _broadcasting(bias, 4) if bias is not None else None

    def inner(index: Sequence[Any], reduction: Sequence[Any]) -> Any:
        b, row, group, member, column = index
        key, inside = reduction
        head = group * members + member
        score = ops.dot(load_q([b, head, row, inside]), load_k([b, group, key, inside]))
        score = ops.mul(score, ops.constant(scale, torch.float32))
        if load_bias is not None:
            score = ops.add(score, load_bias([b, head, row, key]))
        if is_causal:
            seen = ops.le(ops.index_expr(key, torch.int64), ops.index_expr(row, torch.int64))
            score = ops.where(seen, score, ops.constant(-math.inf, torch.float32))
        return score, load_v([b, group, key, column])

    kind: Any = CAUSAL if is_causal else ATTENTION
    out = TensorBox.create(
        Reduction(
            device=q.get_device_or_error(),
            dtype=q.get_dtype(),
            inner_fn=inner,
            ranges=[batch, rows, groups, members, width],
            reduction_ranges=[keys, size],
            reduction_type=kind,
            src_dtype=q.get_dtype(),
            reduction_hint=ReductionHint.DEFAULT,
        )
    )
    out.realize()
    out.freeze_layout()
    return view_of(out, [batch, rows, heads, width])


@dataclass
class AttentionPlan:
    """Roles of the dims: query rows (row position and group member), keys, head size, value size.

    Blocks are cut from ``keys``; ``outer_keys`` stand outside of it where an operand of the scores splits the keys."""

    rows: list[Dim]
    keys: Dim
    outer_keys: list[Dim]
    inside: list[Dim]
    columns: list[Dim]
    causal_row: Dim | None  # the dim of row positions when blocks of keys behind a row block can be left out


def is_attention(plan: KernelPlan) -> bool:
    """Does the kernel hold an attention?"""
    return any(kind in (ATTENTION, CAUSAL) for kind, _, _ in plan.record.reductions)


def plan_attention(plan: KernelPlan) -> None:
    """Choose tile dims and block sizes."""
    of_q, of_k = plan.record.contractions[0]
    touched = next(symbols for kind, _, symbols in plan.record.reductions if kind in (ATTENTION, CAUSAL))
    outer = [d for d in plan.dims if d not in plan.reduced]
    inside = [d for d in plan.dims if d in plan.reduced and d.symbol in of_q]
    *outer_keys, keys = [d for d in plan.dims if d in plan.reduced and d.symbol not in of_q]
    rows = [d for d in outer if d.symbol in of_q and d.symbol not in of_k]
    columns = [d for d in outer if d.symbol not in of_q and d.symbol in touched]
    batch = [d for d in outer if d not in rows and d not in columns]
    causal_row = None if outer_keys else _position(plan, rows)
    plan.attention = AttentionPlan(rows, keys, outer_keys, inside, columns, causal_row)
    for d in (*inside, *columns):
        plan.blocks[d] = d.extent
    tile = _block_rows(plan, rows, hint(product(d.extent for d in batch)))
    plan.blocks[keys] = _block_keys(keys, tile, planned(product(d.extent for d in (*inside, *columns))))
    plan.blocks = {d: plan.blocks[d] for d in plan.dims if d in plan.blocks}


def _position(plan: KernelPlan, rows: Sequence[Dim]) -> Dim | None:
    """The dim of row positions of a causal attention, None when it was split or there is one row."""
    node: Any = next(n.node for n in plan.nodes if n.is_reduction())
    if node.get_reduction_type() != CAUSAL or not rows:
        return None
    return rows[0] if sizevars().equal(rows[0].extent, sympy.sympify(node.data.ranges[1])) else None


def _block_rows(plan: KernelPlan, rows: Sequence[Dim], batch: int) -> int:
    """Give tile rows to the longest row dim: positions, or group members when there is one position. Returns how
    many rows a tile has."""
    if not rows:
        return 1
    row = max(rows, key=lambda d: typical(d.extent))
    extent = typical(row.extent)
    items = batch * hint(product(d.extent for d in rows if d is not row))
    block = min(QUERY_ROWS, 1 << (extent - 1).bit_length())
    while block > 16 and items * -(-extent // block) < plan.cores:
        block //= 2
    plan.blocks[row] = row.extent if row.extent.is_Integer and block >= extent else sympy.Integer(block)
    return block


def _block_keys(keys: Dim, rows: int, width: int) -> sympy.Expr:
    """Keys in a block: as many as LX holds beside their scores (float32, about five values alive)."""
    block = KEY_ROWS
    while block > 64 and block * (rows * 4 * 5 + width * 2 * 2) + rows * width * 12 > LX_BUDGET:
        block //= 2
    if keys.extent.is_Integer and int(keys.extent) <= block:
        return keys.extent
    return sympy.Integer(block)


def emit_scores(emitter: Emitter, q: Operand, k: Operand) -> Value:
    """q k^T of the current tiles, over (rows, keys)."""
    roles = emitter.plan.attention
    assert roles is not None
    if isinstance(q, Number) or isinstance(k, Number):
        raise Unsupported("attention with a constant operand")
    b, tiles = emitter.b, emitter.tiles
    rows = [d for d in roles.rows if d in tiles.block]
    left = flat(emitter, q, rows, roles.inside)
    right = flat(emitter, k, [roles.keys], roles.inside)
    out = b.matmul(left, b.transpose(right, [1, 0]))
    dims = (*rows, roles.keys)
    groups = [list(range(len(rows))) or [0], [len(dims) - 1]] if rows else [[0, 1]]
    shape = [tiles.block[d] for d in dims]
    if not rows:
        return Value(b.collapse(out, groups, shape), dims)
    return Value(b.expand(out, groups, shape), dims)


def update(emitter: Emitter, score: Operand, value: Operand) -> None:
    """Take one block of keys into the running values (highest score, total, weighted sum)."""
    roles, carried = emitter.plan.attention, emitter.attending
    assert roles is not None and carried is not None
    if isinstance(value, Number):
        raise Unsupported("attention over constant values")
    b, tiles = emitter.b, emitter.tiles
    rows = [d for d in roles.rows if d in tiles.block]
    scores = _by_rows(emitter, score, rows)
    highest, total, sums = carried.values
    peak = b.op("arith.maximumf", highest, b.reduce("arith.maximumf", scores, [1]))
    weights = b.op("math.exp", b.op("arith.subf", scores, b.broadcast(peak, scores.shape, [1])))
    fade = b.op("math.exp", b.op("arith.subf", highest, peak))
    total = b.op("arith.addf", b.op("arith.mulf", total, fade), b.reduce("arith.addf", weights, [1]))
    values = flat(emitter, value, [roles.keys], roles.columns)
    faded = b.op("arith.mulf", sums, b.broadcast(fade, sums.shape, [1]))
    operand = weights if values.dtype == "f32" else b.op("arith.truncf", weights, result=values.dtype)
    carried.results = [peak, total, b.matmul(operand, values, init=faded)]


def _by_rows(emitter: Emitter, score: Operand, rows: Sequence[Dim]) -> Tensor:
    """Scores as [rows, keys]; what stands beyond the last key is -inf."""
    roles = emitter.plan.attention
    assert roles is not None
    algebra, tiles, keys = emitter.algebra, emitter.tiles, roles.keys
    if emitter.plan.blocks[keys] != keys.extent:
        inside = algebra.apply("arith.cmpi slt", [emitter.index_value(keys.symbol), emitter.size_value(keys.extent)])
        score = emitter.elementwise("where", [inside, score, Number(-math.inf, "f32")])
    whole = algebra.materialise(algebra.cast(score, "f32"), (*rows, keys))
    extent: Num = 1
    for d in rows:
        extent = emitter.b.mul(extent, tiles.block[d])
    shape = [extent, tiles.block[keys]]
    if not rows:
        return emitter.b.expand(whole.tensor, [[0, 1]], shape)
    return emitter.b.collapse(whole.tensor, [list(range(len(rows))), [len(rows)]], shape)


def emit_attention(emitter: Emitter, node: SchedulerNode) -> None:
    """The node of an attention: a loop over blocks of keys, then the store of its result."""
    plan, tiles, b = emitter.plan, emitter.tiles, emitter.b
    roles = plan.attention
    assert roles is not None
    rows = [d for d in roles.rows if d in tiles.block]

    def extent(dims: Sequence[Dim]) -> Num:
        total: Num = 1
        for d in dims:
            total = b.mul(total, tiles.block[d])
        return total

    def start(value: float, shape: Sequence[Num]) -> Tensor:
        return b.splat(b.constant(value, "f32"), shape)

    height, width = extent(rows), extent(roles.columns)
    inits = [start(LOWEST, [height]), start(0.0, [height]), start(0.0, [height, width])]
    end = tiles.extent[roles.keys]
    if roles.causal_row is not None:  # no row of this tile sees a key behind its last row
        row = roles.causal_row
        end = b.min(end, b.add(tiles.start[row], tiles.block.get(row, 1)))
    block = tiles.block[roles.keys]
    blocks = b.ceildiv(end, block)
    steps = blocks
    for d in roles.outer_keys:
        steps = b.mul(steps, tiles.extent[d])
    with b.accumulate(0, steps, inits) as carried:
        tiles.start[roles.keys] = b.mul(b.mod(carried.index, blocks) if roles.outer_keys else carried.index, block)
        rest: Num = carried.index if not roles.outer_keys else b.floordiv(carried.index, blocks)
        for d in reversed(roles.outer_keys):
            tiles.start[d] = b.mod(rest, tiles.extent[d])
            rest = b.floordiv(rest, tiles.extent[d])
        emitter.attending, emitter.held = carried, []
        node._body(*node_variables(node, plan.numel, plan.rnumel, plan.dims))
        stores, emitter.attending, emitter.held = emitter.held, None, None
        emitter.loaded.clear()
    for d in (roles.keys, *roles.outer_keys):
        tiles.start[d] = 0
    out = _result(emitter, carried, rows)
    for name, index in stores:
        emitter.store(name, index, out)


def _result(emitter: Emitter, carried: Carried, rows: Sequence[Dim]) -> Value:
    """Weighted sum over total, zero for rows without any key, over (rows, columns)."""
    roles = emitter.plan.attention
    assert roles is not None
    b, tiles = emitter.b, emitter.tiles
    highest, total, sums = carried.results
    ratio = b.op("arith.divf", sums, b.broadcast(total, sums.shape, [1]))
    nothing = b.splat(b.constant(NOTHING, "f32"), highest.shape)
    empty = b.broadcast(b.op("arith.cmpf olt", highest, nothing), sums.shape, [1])
    out = b.op("arith.select", empty, b.splat(b.constant(0.0, "f32"), sums.shape), ratio)
    dims = (*rows, *roles.columns)
    shape = [tiles.block[d] for d in dims]
    if rows:
        groups = [list(range(len(rows))), list(range(len(rows), len(dims)))]
        return Value(b.expand(out, groups, shape), dims)
    flat_out = b.collapse(out, [[0, 1]], [sums.shape[1]])
    return Value(b.expand(flat_out, [list(range(len(shape)))], shape), dims)
