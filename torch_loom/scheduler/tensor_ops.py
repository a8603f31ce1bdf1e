"""Handlers of pass 1 for tensors: elementwise arithmetic and shape changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, TensorType
from xdsl.ir import Operation, SSAValue

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import lane_ops
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.index_ops import index_arithmetic, index_compare, index_predicate
from torch_loom.scheduler.kernel import Kind, Value
from torch_loom.scheduler.normalise import (
    HANDLERS,
    Empty,
    Normaliser,
    dtype_of,
    handles,
)
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
    predicate = lane_ops.CMPI[index_predicate(op)]
    if all(n.is_number(v) for v in op.operands):
        n.set(op.results[0], index_compare(n, predicate, *(n.number(v) for v in op.operands)))
        return
    a, b = (n.value(v) for v in op.operands)
    n.set(op.results[0], lane_ops.compare_int(n.graph, predicate, a, b))


@handles("arith.cmpf")
def _cmpf(n: Normaliser, op: Operation) -> None:
    a, b = (n.value(v) for v in op.operands)
    n.set(op.results[0], lane_ops.compare_float(n.graph, lane_ops.CMPF[index_predicate(op)], a, b))


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
    n.set(op.results[0], Empty(_typed_shape(n, op.results[0], list(op.operands)), dtype_of(op.results[0].type)))


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
    perm = ints(op, "permutation")
    value = n.value(op.operands[0])
    shape = tuple(value.shape[p] for p in perm)
    n.set(
        op.results[0],
        n.graph.remap(value, shape, lambda i: tuple(i[perm.index(k)] for k in range(len(perm)))),
    )


@handles("linalg.broadcast")
def _broadcast(n: Normaliser, op: Operation) -> None:
    added = ints(op, "dimensions")
    shape = n.shape(op.operands[1])
    kept = [k for k in range(len(shape)) if k not in added]
    n.set(op.results[0], n.graph.remap(n.value(op.operands[0]), shape, lambda i: tuple(i[k] for k in kept)))


def ints(op: Operation, name: str) -> tuple[int, ...]:
    """An integer list property."""
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
    if not groups:  # rank 0: every operand dim has one element
        return tuple(ex.ZERO for _ in shape)
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
        out: list[Expr] = []
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


def _component(k: int) -> Callable[[tuple[Expr, ...]], Expr]:
    return lambda i: i[k]


@handles("tensor.generate")
def _generate(n: Normaliser, op: Operation) -> None:
    shape = _typed_shape(n, op.results[0], list(op.operands))
    body = op.regions[0].blocks[0]
    for k, arg in enumerate(body.args):
        n.set(arg, n.graph.index(_component(k), "index", shape))
    n.block(body)
    n.set(op.results[0], n.graph.broadcast_scalar(n.value(list(body.ops)[-1].operands[0]), shape))


@handles("linalg.map")
def _map(n: Normaliser, op: Operation) -> None:
    body = op.regions[0].blocks[0]
    inputs = list(op.operands[:-1])
    for arg, v in zip(body.args, inputs, strict=False):
        n.set(arg, n.value(v))
    n.block(body)
    value = n.value(list(body.ops)[-1].operands[0])
    n.set(op.results[0], n.graph.broadcast_scalar(value, n.shape(op.operands[-1])))


@handles("spyreop.compare")
def _flag(n: Normaliser, op: Operation) -> None:
    """A float flag, 1 or 0."""
    a, b = (n.value(v) for v in op.operands)
    predicate = op.predicate  # type: ignore[attr-defined]
    mask = lane_ops.compare_float(n.graph, lane_ops.FLAGS[predicate], a, b)
    n.set(op.results[0], n.graph.map(V.COPY, dtype_of(op.results[0].type), mask))


@handles("spyreop.softplus")
def _softplus(n: Normaliser, op: Operation) -> None:
    beta, limit = (n.graph.const(op.literal(k), "f32") for k in ("beta", "threshold"))  # type: ignore[attr-defined]
    value = n.graph.map(V.SOFTPLUS, "f32", n.value(op.operands[0]), beta, limit)
    n.set(op.results[0], n.graph.round(value, dtype_of(op.results[0].type)))


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
