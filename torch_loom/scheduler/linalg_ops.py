"""Handlers of pass 1 for structured linalg operations: contractions, reductions, generic bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IntegerAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import lane_ops
from torch_loom.scheduler.affine import apply_map
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.index_ops import index_predicate
from torch_loom.scheduler.kernel import FLOATS, Kind, Value
from torch_loom.scheduler.normalise import (
    HANDLERS,
    Empty,
    Normaliser,
    dtype_of,
    handles,
)
from torch_loom.scheduler.tensor_ops import ints
from torch_loom.spyrecode.model import Reduce
from torch_loom.spyrecode.model import VecOp as V

Shape = tuple[Expr, ...]


# ---- contraction ----------------------------------------------------------------------------------------


@handles("linalg.matmul", "linalg.batch_matmul")
def _matmul(n: Normaliser, op: Operation) -> None:
    a, b = n.value(op.operands[0]), n.value(op.operands[1])
    batched = op.name == "linalg.batch_matmul"
    if a.dtype not in FLOATS or b.dtype not in FLOATS:
        n.fail(f"PT multiplies floats, not {a.dtype} and {b.dtype}")
    if not batched:
        a = n.graph.remap(a, (ex.ONE, *a.shape), lambda i: i[1:])
        b = n.graph.remap(b, (ex.ONE, *b.shape), lambda i: i[1:])
    if a.shape[2] != b.shape[1] or a.shape[0] != b.shape[0]:
        n.fail(f"operands of shapes {list(a.shape)} and {list(b.shape)} do not contract")
    product = n.graph.matmul(a, b)
    if not batched:
        product = n.graph.remap(product, product.shape[1:], lambda i: (ex.ZERO, *i))
    dtype = dtype_of(op.results[0].type)
    n.set(op.results[0], _combine_init(n, product, op.operands[2], V.ADD_F, 0.0, dtype))


def _combine_init(
    n: Normaliser, value: Value, outs: SSAValue, op: V, identity: float | int | None, dtype: str
) -> Value:
    """Fold the initial value in exactly once, unless it is empty or the identity."""
    init = n.env.get(outs)
    if not isinstance(init, Empty):
        start = n.value(outs)
        if not (start.kind is Kind.CONST and identity is not None and start.imm == identity):
            value = n.graph.map(op, "f32" if dtype in FLOATS else dtype, start, value)
    return n.graph.round(value, dtype) if dtype in FLOATS else value


# ---- reductions -----------------------------------------------------------------------------------------

INF = float("inf")

COMBINERS: dict[str, tuple[Reduce, V, float | int]] = {
    "arith.addf": (Reduce.ADD, V.ADD_F, 0.0), "arith.mulf": (Reduce.MUL, V.MUL_F, 1.0),
    "arith.maximumf": (Reduce.MAX, V.MAX_F, -INF), "arith.minimumf": (Reduce.MIN, V.MIN_F, INF),
    "arith.maxnumf": (Reduce.MAX, V.MAXNUM_F, -INF), "arith.minnumf": (Reduce.MIN, V.MINNUM_F, INF),
    "arith.addi": (Reduce.ADD_I, V.ADD_I, 0), "arith.muli": (Reduce.MUL_I, V.MUL_I, 1),
    "arith.maxsi": (Reduce.MAX_I, V.MAX_I, -(1 << 31)), "arith.minsi": (Reduce.MIN_I, V.MIN_I, (1 << 31) - 1),
}  # fmt: skip

MASK_COMBINERS: dict[str, tuple[Reduce, V, float | int]] = {
    "arith.ori": (Reduce.OR_M, V.OR_M, 0), "arith.andi": (Reduce.AND_M, V.AND_M, 1),
    "arith.maxui": (Reduce.OR_M, V.OR_M, 0), "arith.minui": (Reduce.AND_M, V.AND_M, 1),
}  # fmt: skip


def fold(n: Normaliser, body: Block, wide: list[Value], outs: list[SSAValue], dims: Sequence[int]) -> list[Value]:
    """Reductions of a body whose arguments are (elements..., accumulators...) in that order or reversed.

    The caller has bound the element arguments; accumulators are found as operands of the combiners."""
    accumulators: dict[SSAValue, int] = {}
    for arg in body.args:
        if arg not in n.env:
            accumulators[arg] = len(accumulators)
    block_ops = list(body.ops)
    yielded = list(block_ops[-1].operands)
    combiners = {v.owner for v in yielded if isinstance(v.owner, Operation)}
    shape = wide[0].shape
    for op in block_ops[:-1]:
        if op in combiners and any(o in accumulators for o in op.operands):
            continue
        if any(o in accumulators for o in op.operands):
            n.fail("the reduction body is not one combination of an accumulator with a value")
        n.at(op)
        if op.name not in HANDLERS:
            n.fail("this operation cannot be scheduled")
        HANDLERS[op.name](n, op)
    results = []
    for v, out in zip(yielded, outs, strict=True):
        last = v.owner
        if not isinstance(last, Operation) or len(last.operands) != 2:
            n.fail("the reduction body is not one combination of an accumulator with a value")
        assert isinstance(last, Operation)
        element = next((o for o in last.operands if o not in accumulators), None)
        dtype = dtype_of(out.type)
        row = (MASK_COMBINERS if dtype == "i1" else COMBINERS).get(last.name)
        if element is None or row is None:
            n.fail(f"'{last.name}' is not a combiner", hint="use add, mul, max, min, and, or")
        assert element is not None and row is not None
        how, lane, identity = row
        value = n.graph.broadcast_scalar(n.value(element), shape)
        kept = "f32" if dtype in FLOATS else dtype
        results.append(_combine_init(n, n.graph.reduce(how, value, dims, kept), out, lane, identity, dtype))
    return results


def arg_fold(
    n: Normaliser, body: Block, wide: list[Value], outs: list[SSAValue], dims: Sequence[int]
) -> list[Value] | None:
    """The fold (best value, what belongs to it) of a body that compares, then selects both; None for others.

    The first of equal values wins, as in ascending order with a strict comparison."""
    ops = list(body.ops)
    if [op.name for op in ops] != ["arith.cmpf", "arith.select", "arith.select", "linalg.yield"] or len(dims) != 1:
        return None
    compare, first, second = ops[:3]
    predicate = lane_ops.CMPF[index_predicate(compare)]
    x, p, best_x, best_p = body.args
    fits = (
        predicate in ("ogt", "olt")
        and list(compare.operands) == [x, best_x]
        and list(first.operands[1:]) == [x, best_x]
        and list(second.operands[1:]) == [p, best_p]
    )
    if not fits:
        return None
    g, dim = n.graph, dims[0]
    value, payload = wide
    shape = value.shape
    how, lane = (Reduce.MAX, V.MAX_F) if predicate == "ogt" else (Reduce.MIN, V.MIN_F)

    def spread(v: Value) -> Value:
        return g.remap(v, shape, lambda i: (*i[:dim], *i[dim + 1 :]))

    best = g.reduce(how, value, dims, value.dtype)
    at = g.index(lambda i: i[dim], "i32", shape)
    far = g.const((1 << 31) - 1, "i32")
    here = g.map(V.SELECT, "i32", g.map(V.EQ_F, "i1", value, spread(best)), at, far)
    place = g.reduce(Reduce.MIN_I, here, dims, "i32")
    chosen = g.map(V.EQ_I, "i1", at, spread(place))
    floating = payload.dtype in FLOATS
    nothing = g.const(0.0 if floating else 0, payload.dtype)
    picked = g.map(V.SELECT, payload.dtype, chosen, payload, nothing)
    found = g.reduce(Reduce.ADD if floating else Reduce.ADD_I, picked, dims, payload.dtype)
    if isinstance(n.env.get(outs[0]), Empty):
        return [best, found]
    start, carried = n.value(outs[0]), n.value(outs[1])
    wins = lane_ops.compare_float(g, predicate, best, start)
    return [g.map(lane, value.dtype, best, start), lane_ops.select(g, wins, found, carried)]


@handles("linalg.reduce")
def _reduce(n: Normaliser, op: Operation) -> None:
    half = len(op.operands) // 2
    ins, outs = list(op.operands[:half]), list(op.operands[half:])
    body = op.regions[0].blocks[0]
    wide = [n.value(v) for v in ins]
    for arg, value in zip(body.args[:half], wide, strict=True):
        n.env[arg] = value
    dims = ints(op, "dimensions")
    values = arg_fold(n, body, wide, outs, dims) if half == 2 else None
    for result, value in zip(op.results, values or fold(n, body, wide, outs, dims), strict=True):
        n.set(result, value)


@handles("linalg.generic")
def _generic(n: Normaliser, op: Operation) -> None:
    groups = n.segments(op)
    ins, outs = groups[0], groups[1]
    maps_attr, kinds_attr = op.properties["indexing_maps"], op.properties["iterator_types"]
    assert isinstance(maps_attr, ArrayAttr) and isinstance(kinds_attr, ArrayAttr)
    maps = [m.data for m in maps_attr.data if isinstance(m, AffineMapAttr)]
    reduced = [k for k, kind in enumerate(kinds_attr.data) if "reduction" in str(kind)]
    extents = _loop_extents(n, maps, [n.shape(v) for v in (*ins, *outs)])
    body = op.regions[0].blocks[0]
    for arg, v, m in zip(body.args, ins, maps, strict=False):
        n.env[arg] = n.graph.remap(n.value(v), extents, _through(m))
    n.loop_extents = extents
    if reduced:
        wide = [n.graph.const(0.0, "f32", extents)]
        values = fold(n, body, wide, outs, reduced)
        kept = [k for k in range(len(extents)) if k not in reduced]
        for result, value, m in zip(op.results, values, maps[len(ins) :], strict=True):
            n.set(result, _project(n, value, m, kept))
        return
    for arg, v, m in zip(body.args[len(ins) :], outs, maps[len(ins) :], strict=True):
        if not isinstance(n.env.get(v), Empty):
            n.env[arg] = n.graph.remap(n.value(v), extents, _through(m))
    n.block(body)
    for result, v, m in zip(op.results, list(body.ops)[-1].operands, maps[len(ins) :], strict=True):
        value = n.graph.broadcast_scalar(n.value(v), extents)
        n.set(result, _project(n, value, m, list(range(len(extents)))))


def _through(m: AffineMap) -> Callable[[tuple[Expr, ...]], tuple[Expr, ...]]:
    return lambda i: apply_map(m, i)


@handles("linalg.index")
def _index(n: Normaliser, op: Operation) -> None:
    dim = op.properties["dim"]
    assert isinstance(dim, IntegerAttr)
    extents: Shape = n.loop_extents
    n.set(op.results[0], n.graph.index(lambda i: i[dim.value.data], "index", extents))


def _loop_extents(n: Normaliser, maps: list[AffineMap], shapes: list[Shape]) -> Shape:
    extents: list[Expr | None] = [None] * (maps[0].num_dims if maps else 0)
    for m, shape in zip(maps, shapes, strict=True):
        for e, size in zip(m.results, shape, strict=True):
            if isinstance(e, AffineDimExpr) and extents[e.position] is None:
                extents[e.position] = size
    if any(e is None for e in extents):
        n.fail("a loop of the generic op has no extent")
    return tuple(e for e in extents if e is not None)


def _project(n: Normaliser, value: Value, m: AffineMap, kept: list[int]) -> Value:
    """The result tensor of a value over the loops ``kept``, for an output map that permutes them."""
    positions = [e.position for e in m.results if isinstance(e, AffineDimExpr)]
    if len(positions) != len(m.results) or sorted(positions) != sorted(kept):
        n.fail("the output map must be a permutation of the parallel loops")
    if positions == kept:
        return value
    shape = tuple(value.shape[kept.index(p)] for p in positions)
    return n.graph.remap(value, shape, lambda i: tuple(i[positions.index(k)] for k in kept))
