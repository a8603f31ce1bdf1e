"""Handlers of pass 1 for tensor operations: arithmetic, shape changes, structured linalg operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, DenseArrayBase, IntegerAttr, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import lane_ops
from torch_loom.scheduler.affine import apply_map
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.kernel import FLOATS, Kind, Value
from torch_loom.scheduler.normalise import (
    HANDLERS,
    Empty,
    Normaliser,
    dtype_of,
    handles,
    index_arithmetic,
    index_compare,
)
from torch_loom.spyrecode.model import Reduce
from torch_loom.spyrecode.model import VecOp as V

Shape = tuple[Expr, ...]

# ---- elementwise --------------------------------------------------------------------------------------


def _elementwise(n: Normaliser, op: Operation) -> None:
    if index_arithmetic(n, op):
        return
    operands = [n.value(v) for v in op.operands]
    value = lane_ops.elementwise(n.graph, op.name, operands, dtype_of(op.results[0].type))
    if value is None:
        n.fail(f"no lane operation for {operands[-1].dtype}")
    n.set(op.results[0], value)


def _named_linalg(n: Normaliser, op: Operation) -> None:
    outs = op.operands[-1]
    operands = [n.value(v) for v in op.operands[:-1]]
    value = lane_ops.elementwise(n.graph, op.name, operands, dtype_of(outs.type))
    if value is None:
        n.fail(f"no lane operation for {operands[-1].dtype}")
    n.set(op.results[0], value)


for _name in {*lane_ops.FLOAT_OPS, *lane_ops.INT_OPS, *lane_ops.MASK_OPS, *lane_ops.COMPOUND}:
    HANDLERS[_name] = _named_linalg if _name.startswith("linalg.") else _elementwise


@handles("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
def _integer_cast(n: Normaliser, op: Operation) -> None:
    source = op.operands[0]
    if n.is_number(source) and dtype_of(op.results[0].type) != "i1":
        number = n.number(source)
        signed_bit = op.name == "arith.extsi" and dtype_of(source.type) == "i1"
        n.set(op.results[0], -number if signed_bit else number)
        return
    _elementwise(n, op)


@handles("arith.cmpi")
def _cmpi(n: Normaliser, op: Operation) -> None:
    predicate = lane_ops.CMPI[_predicate(op)]
    if all(n.is_number(v) for v in op.operands):
        n.set(op.results[0], index_compare(n, predicate, *(n.number(v) for v in op.operands)))
        return
    a, b = (n.value(v) for v in op.operands)
    n.set(op.results[0], lane_ops.compare_int(n.graph, predicate, a, b))


@handles("arith.cmpf")
def _cmpf(n: Normaliser, op: Operation) -> None:
    a, b = (n.value(v) for v in op.operands)
    n.set(op.results[0], lane_ops.compare_float(n.graph, lane_ops.CMPF[_predicate(op)], a, b))


def _predicate(op: Operation) -> int:
    attr = op.properties["predicate"]
    assert isinstance(attr, IntegerAttr)
    return attr.value.data


@handles("arith.select")
def _select(n: Normaliser, op: Operation) -> None:
    if all(n.is_number(v) for v in op.operands):
        chosen, one, other = (n.number(v) for v in op.operands)
        n.set(op.results[0], chosen * one + (ex.ONE - chosen) * other)
        return
    n.set(op.results[0], lane_ops.select(n.graph, *(n.value(v) for v in op.operands)))


# ---- shapes -------------------------------------------------------------------------------------------


@handles("tensor.empty")
def _empty(n: Normaliser, op: Operation) -> None:
    n.set(
        op.results[0], Empty(_typed_shape(n, op.results[0], list(op.operands)), dtype_of(op.results[0].type))
    )


def _typed_shape(n: Normaliser, result: SSAValue, dynamic: list[SSAValue]) -> Shape:
    assert isinstance(result.type, TensorType)
    rest = iter(dynamic)
    return tuple(Expr(s) if s >= 0 else n.number(next(rest)) for s in result.type.get_shape())


@handles("tensor.splat")
def _splat(n: Normaliser, op: Operation) -> None:
    shape = _typed_shape(n, op.results[0], list(op.operands[1:]))
    n.set(op.results[0], n.graph.remap(n.value(op.operands[0]), shape, lambda _: ()))


@handles("linalg.fill")
def _fill(n: Normaliser, op: Operation) -> None:
    n.set(op.results[0], n.graph.remap(n.value(op.operands[0]), n.shape(op.operands[1]), lambda _: ()))


@handles("linalg.transpose")
def _transpose(n: Normaliser, op: Operation) -> None:
    perm = _ints(op, "permutation")
    value = n.value(op.operands[0])
    shape = tuple(value.shape[p] for p in perm)
    n.set(
        op.results[0],
        n.graph.remap(value, shape, lambda i: tuple(i[perm.index(k)] for k in range(len(perm)))),
    )


@handles("linalg.broadcast")
def _broadcast(n: Normaliser, op: Operation) -> None:
    added = _ints(op, "dimensions")
    shape = n.shape(op.operands[1])
    kept = [k for k in range(len(shape)) if k not in added]
    n.set(op.results[0], n.graph.remap(n.value(op.operands[0]), shape, lambda i: tuple(i[k] for k in kept)))


def _ints(op: Operation, name: str) -> tuple[int, ...]:
    attr = op.properties.get(name) or op.attributes[name]
    if isinstance(attr, DenseArrayBase):
        return tuple(int(v) for v in attr.get_values())
    assert isinstance(attr, ArrayAttr)
    return tuple(int(a.value.data) for a in attr.data)


def _groups(op: Operation) -> list[list[int]]:
    attr = op.properties["reassociation"]
    assert isinstance(attr, ArrayAttr)
    return [[int(i.value.data) for i in group.data] for group in attr.data]


@handles("tensor.collapse_shape")
def _collapse(n: Normaliser, op: Operation) -> None:
    groups, value = _groups(op), n.value(op.operands[0])
    shape = tuple(_product([value.shape[k] for k in g]) for g in groups)
    n.set(op.results[0], n.graph.remap(value, shape, lambda i: collapse_index(i, groups, value.shape)))


def _product(extents: Sequence[Expr]) -> Expr:
    total = ex.ONE
    for e in extents:
        total = total * e
    return total


def collapse_index(index: tuple[Expr, ...], groups: list[list[int]], shape: Shape) -> tuple[Expr, ...]:
    """Operand index of a collapse: each result index is cut into the digits of its group."""
    out: list[Expr] = []
    for position, group in zip(index, groups, strict=True):
        digits: list[Expr] = []
        rest = position
        for k in reversed(group[1:]):
            digits.append(ex.mod(rest, shape[k]))
            rest = ex.floordiv(rest, shape[k])
        out += [rest, *reversed(digits)] if group else []
    return tuple(out)


@handles("tensor.expand_shape")
def _expand(n: Normaliser, op: Operation) -> None:
    groups, value = _groups(op), n.value(op.operands[0])
    shape = n.mixed(op, "static_output_shape", list(op.operands[1:]))

    def imap(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        out = []
        for g in groups:
            at = ex.ZERO
            for k in g:
                at = at * shape[k] + i[k]
            out.append(at)
        return tuple(out)

    n.set(op.results[0], n.graph.remap(value, shape, imap))


@handles("tensor.extract_slice")
def _slice(n: Normaliser, op: Operation) -> None:
    source, offsets, sizes, strides = n.segments(op)
    at = n.mixed(op, "static_offsets", offsets)
    extents = n.mixed(op, "static_sizes", sizes)
    by = n.mixed(op, "static_strides", strides)
    result = op.results[0].type
    assert isinstance(result, TensorType)
    kept = _kept_dims(extents, result.get_shape())
    shape = tuple(extents[k] for k in kept)

    def imap(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        inner = dict(zip(kept, i, strict=True))
        return tuple(at[k] + inner.get(k, ex.ZERO) * by[k] for k in range(len(at)))

    n.set(op.results[0], n.graph.remap(n.value(source[0]), shape, imap))


def _kept_dims(extents: Shape, shape: Sequence[int]) -> list[int]:
    """Dims of a slice that the result keeps when unit dims are dropped."""
    drop = len(extents) - len(shape)
    kept: list[int] = []
    for k, e in enumerate(extents):
        wanted = shape[len(kept)] if len(kept) < len(shape) else None
        if drop and e == 1 and (wanted != 1 or len(extents) - k > len(shape) - len(kept)):
            drop -= 1
        else:
            kept.append(k)
    return kept


@handles("tensor.insert_slice")
def _insert(n: Normaliser, op: Operation) -> None:
    source, dest, offsets, sizes, strides = n.segments(op)
    at = n.mixed(op, "static_offsets", offsets)
    extents = n.mixed(op, "static_sizes", sizes)
    if any(s != 1 for s in n.mixed(op, "static_strides", strides)):
        n.fail("only unit strides can be scheduled")
    part = n.value(source[0])
    kept = _kept_dims(extents, [e.value if e.static else -1 for e in part.shape])
    wide = n.graph.remap(part, extents, lambda i: tuple(i[k] for k in kept))
    below = n.env.get(dest[0])
    alone = sum(1 for _ in dest[0].uses) == 1 and isinstance(below, Value) and below.scope == n.graph.scope
    if alone and isinstance(below, Value) and below.kind is Kind.CELL:
        cell = n.cells[below.cell]  # nobody else reads the tensor below: it is extended in place
    else:
        cell = n.new_cell(dtype_of(op.results[0].type), n.shape(dest[0]))
        if not isinstance(below, Empty):
            n.assign(cell, n.value(dest[0]))
    n.assign(cell, wide, at)
    n.set(op.results[0], n.read(cell))


@handles("tensor.extract")
def _extract(n: Normaliser, op: Operation) -> None:
    at = tuple(n.number(v) for v in op.operands[1:])
    n.set(op.results[0], n.graph.remap(n.value(op.operands[0]), (), lambda _: at))


@handles("tensor.from_elements")
def _from_elements(n: Normaliser, op: Operation) -> None:
    if len(op.operands) != 1:
        n.fail("only one element can be scheduled")
    shape = _typed_shape(n, op.results[0], [])
    n.set(op.results[0], n.graph.remap(n.value(op.operands[0]), shape, lambda _: ()))


@handles("tensor.dim")
def _dim(n: Normaliser, op: Operation) -> None:
    n.set(op.results[0], n.shape(op.operands[0])[n.number(op.operands[1]).value])


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


def fold(
    n: Normaliser, body: Block, wide: list[Value], outs: list[SSAValue], dims: Sequence[int]
) -> list[Value]:
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


@handles("linalg.reduce")
def _reduce(n: Normaliser, op: Operation) -> None:
    half = len(op.operands) // 2
    ins, outs = list(op.operands[:half]), list(op.operands[half:])
    body = op.regions[0].blocks[0]
    wide = [n.value(v) for v in ins]
    for arg, value in zip(body.args[:half], wide, strict=True):
        n.env[arg] = value
    for result, value in zip(op.results, fold(n, body, wide, outs, _ints(op, "dimensions")), strict=True):
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
