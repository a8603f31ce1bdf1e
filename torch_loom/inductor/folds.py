"""Reductions over the tile dims of a kernel: whole in a tile, or block by block with running values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .compat import SchedulerNode
from .domain import Dim, exact_div, product
from .plan import in_reduction
from .pointwise import elementwise
from .record import node_variables
from .values import Number, Operand, Value, register_kind
from .wide import checked, followed, held
from .wide import fold as fold_int64

if TYPE_CHECKING:
    from .emit import Emitter

NEUTRAL: dict[str, dict[str, float | int]] = {
    "sum": {"f32": 0.0, "i32": 0},
    "prod": {"f32": 1.0, "i32": 1},
    "max": {"f32": -math.inf, "i32": -(2**31)},
    "min": {"f32": math.inf, "i32": 2**31 - 1},
}

COMBINERS = {
    "sum": {"f32": "arith.addf", "i32": "arith.addi"},
    "prod": {"f32": "arith.mulf", "i32": "arith.muli"},
    "max": {"f32": "arith.maximumf", "i32": "arith.maxsi", "i1": "arith.ori"},
    "min": {"f32": "arith.minimumf", "i32": "arith.minsi", "i1": "arith.andi"},
    "any": {"i1": "arith.ori"},
    "xor_sum": {"i32": "arith.xori", "i1": "arith.xori"},
}


def fold_block(emitter: Emitter, kind: str, value: Operand, reduced: Sequence[Dim]) -> Operand:
    """Fold one block of a reduction into its running value; what stands beyond the extent is neutral."""
    assert emitter.running is not None and emitter.plan.blocked is not None
    d = emitter.plan.blocked
    if d is not emitter.plan.shared and exact_div(d.extent, emitter.plan.blocks[d]) is None:
        value = _ended(emitter, kind, value, d)
    block = fold(emitter, kind, value, reduced)
    whole = emitter.algebra.materialise(block, emitter.algebra.ordered(block.dims))
    before: Operand = Value(emitter.running.values[len(emitter.running.results)], whole.dims)
    if followed(whole):
        before = held(before)
    total = checked(emitter.algebra, emitter.algebra.apply(COMBINERS[kind][block.kind], [before, whole]))
    emitter.running.results.append(total.tensor)
    return whole


def _ended(emitter: Emitter, kind: str, value: Operand, d: Dim) -> Operand:
    """The value with what stands beyond the extent of ``d`` neutral."""
    end = emitter.splat_index(d.extent, ())
    inside = emitter.algebra.apply("arith.cmpi slt", [emitter.index_value(d.symbol), end])
    neutral = Number(NEUTRAL[kind][value.kind], value.kind)
    return elementwise(emitter.algebra, "where", [inside, value, neutral])  # type: ignore[return-value]


def fold(emitter: Emitter, kind: str, value: Operand, reduced: Sequence[Dim]) -> Value:
    """Fold the ``reduced`` dims of a value; of an int64 exactly, or with flags."""
    plan = emitter.plan
    if plan.shared is not None and plan.parts * plan.share != plan.shared.extent:
        value = _ended(emitter, kind, value, plan.shared)
    if not followed(value):
        return _fold(emitter, kind, value, reduced)
    return fold_int64(emitter.algebra, kind, value, reduced, lambda k, x: _fold(emitter, k, x, reduced))


def _fold(emitter: Emitter, kind: str, value: Operand, reduced: Sequence[Dim]) -> Value:
    combiner = COMBINERS[kind]
    have = emitter.algebra.union([value])
    kept = [d for d in have if d not in reduced]
    wanted = have if set(reduced) <= set(have) else emitter.algebra.ordered([*kept, *reduced])
    whole = emitter.algebra.materialise(value, wanted)
    axes = [i for i, d in enumerate(wanted) if d in reduced]
    if not kept:  # a value over no dims has one element
        tensor = emitter.b.expand_front(whole.tensor)
        out = Value(emitter.b.reduce(combiner[whole.kind], tensor, [a + 1 for a in axes]), ())
    else:
        out = Value(emitter.b.reduce(combiner[whole.kind], whole.tensor, axes), tuple(kept))
    return out if emitter.running is not None else _over_cores(emitter, [kind], [out])[0]


def _over_cores(emitter: Emitter, kinds: Sequence[str], values: Sequence[Value]) -> list[Value]:
    """Partial results of the cores that share a reduced extent, combined; all of them get the whole."""
    if emitter.plan.shared is None:
        return list(values)
    registers = [v.kind for v in values]
    combiners = [COMBINERS[k][r] for k, r in zip(kinds, registers, strict=True)]
    neutral = [NEUTRAL[k][r] for k, r in zip(kinds, registers, strict=True)]
    out = emitter.b.ring_fold(combiners, [v.tensor for v in values], neutral, emitter.plan.parts)
    return [Value(t, v.dims) for t, v in zip(out, values, strict=True)]


def welford(emitter: Emitter, value: Operand, reduced: Sequence[Dim]) -> tuple[Operand, Operand, Operand]:
    """Mean, sum of squared deviations and count, in two passes over the tile in LX."""
    count = product(d.extent for d in reduced)
    n = emitter.tiles.number(count)
    weight: Operand = (
        Number(float(n), "f32") if isinstance(n, int) else emitter.algebra.cast(emitter.splat_index(count, ()), "f32")
    )
    value = emitter.algebra.cast(value, "f32")
    total = fold(emitter, "sum", value, reduced)
    mean = elementwise(emitter.algebra, "truediv", [total, weight])
    delta = elementwise(emitter.algebra, "sub", [value, mean])  # type: ignore[list-item]
    square = elementwise(emitter.algebra, "mul", [delta, delta])  # type: ignore[list-item]
    return mean, fold(emitter, "sum", square, reduced), weight  # type: ignore[arg-type,return-value]


def reduce_by_blocks(emitter: Emitter) -> list[SchedulerNode]:
    """Run the nodes of the reduced extent block by block; returns the nodes that are left."""
    plan, tiles, b = emitter.plan, emitter.tiles, emitter.b
    d = plan.blocked
    assert d is not None
    inits, kept = [], []
    for kind, dtype, symbols in plan.record.reductions:
        register = register_kind(dtype)
        dims = emitter.algebra.ordered(x for x in plan.blocks if x not in plan.reduced and x.symbol in symbols)
        start = b.constant(NEUTRAL[kind][register], register)
        inits.append(b.splat(start, [tiles.block[x] for x in dims] or [1]))
        kept.append(dims)
    before = tiles.start[d] if d is plan.shared else 0
    steps = b.ceildiv(plan.share if d is plan.shared else tiles.extent[d], tiles.block[d])
    inside = [n for n in plan.nodes if in_reduction(plan, n)]
    with b.accumulate(0, steps, inits) as carried:
        tiles.start[d] = b.add(before, b.mul(carried.index, tiles.block[d]))
        emitter.running, emitter.held = carried, []
        for node in inside:
            node._body(*node_variables(node, plan.numel, plan.rnumel, plan.dims))
        stores, emitter.running, emitter.held = emitter.held, None, None
        emitter.loaded.clear()
        emitter.stored.clear()
    tiles.start[d] = before
    kinds = [kind for kind, _, _ in plan.record.reductions]
    totals = [Value(total, dims) for total, dims in zip(carried.results, kept, strict=True)]
    for (name, index), total in zip(stores, _over_cores(emitter, kinds, totals), strict=True):
        emitter.store(name, index, total)
    return [n for n in plan.nodes if n not in inside]
