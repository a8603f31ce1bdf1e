"""``linalg``: bodies are evaluated once on whole arrays over the iteration space, never per element.

A reduction whose yielded value folds the output argument with something that does not depend on it is evaluated as
that something over the whole space, then folded in ascending order along the reduction loops; a sum of products is
handed to the matrix multiply of NumPy. Any other reduction runs its loops one point at a time, vectorised over the
parallel loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from torch_loom.dialects.affine_sets import evaluate
from torch_loom.dialects.elements import element_of
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array, Format
from torch_loom.ktir.reference.machine import Empty, Tile, Values, handles, tensor

Fold = Callable[[Array, Array], Array]

#: Combiners with an identity: op name -> (ufunc, identity of the format).
_FLOAT_FOLDS: dict[str, tuple[Any, float]] = {
    "arith.addf": (np.add, 0.0),
    "arith.mulf": (np.multiply, 1.0),
    "arith.maximumf": (np.maximum, -np.inf),
    "arith.maxnumf": (np.fmax, -np.inf),
    "arith.minimumf": (np.minimum, np.inf),
    "arith.minnumf": (np.fmin, np.inf),
}
_INT_FOLDS: dict[str, tuple[Any, Callable[[Format], int]]] = {
    "arith.addi": (np.add, lambda f: 0),
    "arith.muli": (np.multiply, lambda f: 1),
    "arith.maxsi": (np.maximum, lambda f: -(1 << (f.bits - 1))),
    "arith.minsi": (np.minimum, lambda f: (1 << (f.bits - 1)) - 1),
    "arith.andi": (np.bitwise_and, lambda f: -1),
    "arith.ori": (np.bitwise_or, lambda f: 0),
    "arith.xori": (np.bitwise_xor, lambda f: 0),
    "arith.maxui": (None, lambda f: 0),
    "arith.minui": (None, lambda f: -1),
}


def identity_of(name: str, fmt: Format) -> Any:
    """The value that a combiner leaves alone, None when it has none."""
    if name in _FLOAT_FOLDS:
        return np.float32(_FLOAT_FOLDS[name][1])
    if name in _INT_FOLDS:
        value = _INT_FOLDS[name][1](fmt)
        return bool(value & 1) if fmt.bits == 1 else value
    return None


# ---- iteration spaces --------------------------------------------------------------------------


def loop_extents(maps: Sequence[AffineMap], shapes: Sequence[tuple[int, ...]], loops: int) -> list[int]:
    """Extent of every loop from the operands that name it alone."""
    extents = [-1] * loops
    for value, shape in zip(maps, shapes, strict=True):
        for expr, extent in zip(value.results, shape, strict=True):
            if isinstance(expr, AffineDimExpr):
                if extents[expr.position] not in (-1, extent):
                    raise ExecutionError(
                        "KT-X09", f"loop d{expr.position} has extents {extents[expr.position]} and {extent}"
                    )
                extents[expr.position] = extent
    if -1 in extents:
        raise ExecutionError("KT-X10", f"loop d{extents.index(-1)} has no extent: no operand names it alone")
    return extents


def grids(extents: Sequence[int]) -> list[Array]:
    """Index arrays of the loops, broadcastable to the iteration space."""
    rank = len(extents)
    return [
        np.arange(n, dtype=np.int64).reshape([-1 if a == d else 1 for a in range(rank)]) for d, n in enumerate(extents)
    ]


def spread(array: Array, value: AffineMap, extents: Sequence[int]) -> Array:
    """An operand over the iteration space: a transposed view where the map is a projection, a gather otherwise."""
    loops = len(extents)
    dims = [e.position for e in value.results if isinstance(e, AffineDimExpr)]
    if len(dims) == len(value.results) and len(set(dims)) == len(dims):
        order = np.argsort(dims)
        moved = np.transpose(array, order) if array.ndim else array
        shape = [1] * loops
        for dim in dims:
            shape[dim] = extents[dim]
        return moved.reshape(shape)
    spaces = grids(extents)
    index = []
    for position, expr in enumerate(value.results):
        found = np.asarray(evaluate(expr, spaces))
        if found.size and (found.min() < 0 or found.max() >= array.shape[position]):
            raise ExecutionError("KT-X04", f"an indexing map leaves dim {position} of extent {array.shape[position]}")
        index.append(found)
    return np.asarray(array[tuple(index)]) if index else array.reshape([1] * loops)


def settle(values: Array, value: AffineMap, extents: Sequence[int], shape: tuple[int, ...], dtype: Any) -> Array:
    """Place values of the parallel iteration space into an output of a permutation map."""
    full = np.broadcast_to(np.asarray(values, dtype), tuple(extents))
    dims = [e.position for e in value.results if isinstance(e, AffineDimExpr)]
    if len(dims) != len(value.results) or len(set(dims)) != len(dims):
        raise ExecutionError("KT-X10", "an output map that is not a permutation of loops is not implemented")
    moved = np.transpose(full, [*dims, *(d for d in range(len(extents)) if d not in dims)])
    return np.array(moved.reshape(shape))


# ---- folds -------------------------------------------------------------------------------------


def fold_axes(tile: Tile, name: str, values: Array, axes: Sequence[int], initial: Array | None, fmt: Format) -> Array:
    """Fold axes in ascending order with a known combiner; f32 for floats, or the storage type on request."""
    moved = np.moveaxis(values, axes, range(len(axes)))
    flat = moved.reshape((int(np.prod(moved.shape[: len(axes)], dtype=np.int64)), *moved.shape[len(axes) :]))
    with np.errstate(all="ignore"):
        if name in ("arith.maxui", "arith.minui"):
            return _fold_unsigned(name, flat, initial, fmt)
        ufunc = _FLOAT_FOLDS[name][0] if name in _FLOAT_FOLDS else _INT_FOLDS[name][0]
        if fmt.is_float and tile.machine.options.accumulate == "storage":
            result = initial if initial is not None else np.full(flat.shape[1:], identity_of(name, fmt), np.float32)
            for part in flat:
                result = fmt.round(ufunc(result, part))
            return result
        if flat.shape[0] == 0:
            found = np.full(flat.shape[1:], identity_of(name, fmt), fmt.dtype)
        elif name in ("arith.addf", "arith.mulf"):
            pairwise = tile.machine.options.fold == "pairwise"
            found = pairwise_fold(ufunc, flat) if pairwise else ordered_fold(ufunc, flat)
        else:
            found = ufunc.reduce(flat, axis=0)
        if initial is not None:
            found = ufunc(initial, found)
        return fmt.round(np.asarray(found, fmt.dtype)) if fmt.bits > 1 else np.asarray(found, bool)


def ordered_fold(ufunc: Any, flat: Array) -> Array:
    """Fold axis 0 strictly in order (NumPy's reduce pairs elements, which rounds differently)."""
    count, rest = flat.shape[0], int(np.prod(flat.shape[1:], dtype=np.int64))
    if rest >= 64 or count <= 8:
        result = np.array(flat[0])
        for part in flat[1:]:
            ufunc(result, part, out=result)
        return result
    return np.asarray(ufunc.accumulate(flat, axis=0)[-1])


def pairwise_fold(ufunc: Any, flat: Array) -> Array:
    """Fold axis 0 by neighbours, then the results by neighbours; an odd one out waits for the next round."""
    while flat.shape[0] > 1:
        pairs = flat.shape[0] // 2
        folded = ufunc(flat[0 : 2 * pairs : 2], flat[1 : 2 * pairs : 2])
        flat = np.concatenate([folded, flat[2 * pairs :]])
    return np.asarray(flat[0])


def _fold_unsigned(name: str, flat: Array, initial: Array | None, fmt: Format) -> Array:
    unsigned = np.dtype(f"u{fmt.dtype.name}")
    values = flat.view(unsigned) if flat.flags.c_contiguous else np.ascontiguousarray(flat).view(unsigned)
    fold = np.maximum if name == "arith.maxui" else np.minimum
    if initial is not None:
        values = np.concatenate([np.asarray(initial, fmt.dtype).view(unsigned)[None], values])
    return np.asarray(fold.reduce(values, axis=0)).view(fmt.dtype)


def fold_of(block: Any, argument: BlockArgument, yielded: SSAValue) -> tuple[str, SSAValue] | None:
    """``(combiner, other)`` when the yielded value is ``combiner(argument, other)`` and other ignores the argument."""
    if not isinstance(yielded, OpResult) or yielded.op.parent_block() is not block:
        return None
    op = yielded.op
    if op.name == "math.fma" and op.operands[2] is argument and argument.uses.get_length() == 1:
        return "math.fma", yielded
    if op.name not in _FLOAT_FOLDS and op.name not in _INT_FOLDS:
        return None
    if argument.uses.get_length() != 1 or len(op.operands) != 2:
        return None
    lhs, rhs = op.operands
    if lhs is argument and rhs is not argument:
        return op.name, rhs
    return (op.name, lhs) if rhs is argument else None


# ---- generic -----------------------------------------------------------------------------------


def evaluate_body(
    tile: Tile, op: Any, arguments: Sequence[Any], spaces: list[Array], wanted: Sequence[SSAValue]
) -> Values:
    """Run the body on arrays and return the wanted values (block arguments or results)."""
    tile_spaces = tile.machine.caches.setdefault("spaces", [])
    tile_spaces.append(spaces)
    outer = tile.current
    block = op.body.block
    env = tile.env
    for argument, value in zip(block.args, arguments, strict=True):
        env[argument] = value
    for inner in block.ops:
        if inner is block.last_op:
            break
        handler = _HANDLER(inner)
        operands = [env.get(v) for v in inner.operands]
        if any(o is None for o in operands):
            continue  # depends on the accumulator, which this evaluation leaves out
        tile.current = inner
        try:
            results = handler(tile, inner, operands)
        except ExecutionError as error:
            if error.op is None:
                error.op = inner
            raise
        for name, value in zip(inner.results, results, strict=True):
            env[name] = value
    tile_spaces.pop()
    tile.current = outer
    found = [env[v] for v in wanted]
    for inner in block.ops:
        for name in inner.results:
            env.pop(name, None)
    for argument in block.args:
        env.pop(argument, None)
    return found


def _HANDLER(op: Operation) -> Any:
    from torch_loom.ktir.reference.machine import HANDLERS

    handler = HANDLERS.get(op.name)
    if handler is None:
        error = ExecutionError("KT-X10", f"'{op.name}' in a body is not implemented")
        error.op = op
        raise error
    return handler


@handles("linalg.index")
def index(tile: Tile, op: Any, values: Values) -> Values:
    """The index array of a loop."""
    return [tile.machine.caches["spaces"][-1][op.dim.value.data]]


def run_structured(tile: Tile, op: Any, values: Values) -> Values:
    """Any structured op with a body over its maps."""
    maps, reductions = op.maps(), op.iterators()
    shapes = [tuple(np.shape(v)) if not isinstance(v, Empty) else v.shape for v in values]
    extents = loop_extents(maps, shapes, len(reductions))
    count = op.input_count()
    block = op.body.block
    yields = list(block.last_op.operands)
    spaces = grids(extents)
    arguments: list[Any] = [
        spread(np.asarray(tensor(v)), m, extents) for v, m in zip(values[:count], maps[:count], strict=True)
    ]
    axes = [d for d, reduced in enumerate(reductions) if reduced]
    formats = [tile.machine.formats.of(element_of(v.type)) for v in op.outputs]
    outs = list(zip(values[count:], maps[count:], shapes[count:], formats, strict=True))
    if not axes:
        initial = [
            spread(tensor(v), m, extents) if block.args[count + k].uses.get_length() else None
            for k, (v, m, _, _) in enumerate(outs)
        ]
        found = evaluate_body(tile, op, [*arguments, *initial], spaces, yields)
        return [settle(f, m, extents, s, fmt.dtype) for f, (_, m, s, fmt) in zip(found, outs, strict=True)]
    return _reduce(tile, op, arguments, outs, extents, axes, spaces, yields)


def _reduce(
    tile: Tile,
    op: Any,
    arguments: list[Any],
    outs: list[Any],
    extents: list[int],
    axes: list[int],
    spaces: list[Array],
    yields: list[SSAValue],
) -> Values:
    block = op.body.block
    count = len(arguments)
    folds = [fold_of(block, block.args[count + k], y) for k, y in enumerate(yields)]
    if len(yields) == 2 and all(isinstance(y, OpResult) and y.op.name == "spyreop.exx2" for y in yields):
        return _means(tile, op, arguments, outs, extents, axes, spaces)
    kept = [1 if d in axes else n for d, n in enumerate(extents)]
    if any(f is None for f in folds):
        return _sequential(tile, op, arguments, outs, extents, axes, spaces)
    results = []
    for fold, (value, out_map, shape, fmt) in zip(folds, outs, strict=True):
        name, other = fold  # type: ignore[misc]
        initial = None if isinstance(value, Empty) else spread(tensor(value), out_map, extents)
        found = _product(tile, op, name, other, arguments, extents, axes, spaces)
        if found is None:
            if name == "math.fma":
                return _sequential(tile, op, arguments, outs, extents, axes, spaces)
            full = evaluate_body(tile, op, [*arguments, *[None] * len(outs)], spaces, [other])[0]
            full = np.broadcast_to(np.asarray(full, fmt.dtype), tuple(extents))
            start = (
                None
                if initial is None
                else np.broadcast_to(initial, kept).reshape([n for d, n in enumerate(extents) if d not in axes])
            )
            found = fold_axes(tile, name, full, axes, start, fmt).reshape(kept)
        elif initial is not None:
            found = fmt.round(np.asarray(found + initial, np.float32))
        else:
            found = fmt.round(found)
        results.append(settle(found, out_map, kept, shape, fmt.dtype))
    return results


def _product(
    tile: Tile,
    op: Any,
    name: str,
    other: SSAValue,
    arguments: list[Any],
    extents: list[int],
    axes: list[int],
    spaces: list[Array],
) -> Array | None:
    """Sum over the reduction loops of a product of two factors, by matrix multiplication; None if it is none."""
    if tile.machine.options.accumulate != "f32" or not isinstance(other, OpResult):
        return None
    multiply = other.op
    if (name, multiply.name) not in (("arith.addf", "arith.mulf"), ("math.fma", "math.fma")):
        return None
    block: Block = op.body.block
    if multiply.parent_block() is not block:
        return None
    if tile.machine.formats.of(element_of(multiply.results[0].type)).bits != 32:
        return None
    factors = evaluate_body(
        tile, op, [*arguments, *[None] * (len(block.args) - len(arguments))], spaces, list(multiply.operands[:2])
    )
    arrays = [np.asarray(f, np.float32) for f in factors]
    if any(a.ndim != len(extents) or any(a.shape[d] != extents[d] for d in axes) for a in arrays):
        return None
    return contract(arrays[0], arrays[1], extents, axes)


def contract(a: Array, b: Array, extents: Sequence[int], axes: Sequence[int]) -> Array:
    """Sum over ``axes`` of a * b in f32, both over the iteration space with extent 1 where a loop is not used."""
    rank = len(extents)
    batch: list[int] = []
    rows: list[int] = []
    columns: list[int] = []
    for d in range(rank):
        if d in axes:
            continue
        in_a, in_b = a.shape[d] != 1, b.shape[d] != 1
        (batch if in_a == in_b else rows if in_a else columns).append(d)
    order_a, order_b = [*batch, *rows, *columns, *axes], [*batch, *rows, *axes, *columns]
    inner = int(np.prod([extents[d] for d in axes], dtype=np.int64))
    size = {name: [extents[d] for d in dims] for name, dims in (("b", batch), ("r", rows), ("c", columns))}

    def flat(x: Array, order: Sequence[int], used: Sequence[int]) -> Array:
        shape = [extents[d] if d in used else x.shape[d] for d in range(rank)]
        return np.transpose(np.broadcast_to(x, shape), order)

    lhs = flat(a, order_a, [*batch, *rows, *axes])
    rhs = flat(b, order_b, [*batch, *columns, *axes])
    nb, nr, nc = (int(np.prod(size[k], dtype=np.int64)) for k in "brc")
    product = np.matmul(
        np.ascontiguousarray(lhs).reshape(nb, nr, inner), np.ascontiguousarray(rhs).reshape(nb, inner, nc)
    )
    result = product.reshape([*size["b"], *size["r"], *size["c"]])
    back = [*batch, *rows, *columns]
    result = np.transpose(result, np.argsort(back)) if back else result
    return result.reshape([1 if d in axes else extents[d] for d in range(rank)])


def _means(
    tile: Tile, op: Any, arguments: list[Any], outs: list[Any], extents: list[int], axes: list[int], spaces: list[Array]
) -> Values:
    """``spyreop.exx2`` over reduction loops: mean and mean of squares."""
    multiply = op.body.block.last_op.operands[0].owner
    x = evaluate_body(tile, op, [*arguments, *[None] * len(outs)], spaces, [multiply.operands[0]])[0]
    full = np.broadcast_to(np.asarray(x, np.float32), tuple(extents))
    kept = [1 if d in axes else n for d, n in enumerate(extents)]
    number = np.float32(np.prod([extents[d] for d in axes]))
    results = []
    for values, (_, out_map, shape, fmt) in zip((full, full * full), outs, strict=True):
        total = fold_axes(tile, "arith.addf", values, axes, None, _f32(tile)).reshape(kept)
        results.append(settle(fmt.round(total / number), out_map, kept, shape, fmt.dtype))
    return results


def _f32(tile: Tile) -> Format:
    from torch_loom.ktir.reference.formats import F32_FORMAT

    return F32_FORMAT


def _sequential(
    tile: Tile, op: Any, arguments: list[Any], outs: list[Any], extents: list[int], axes: list[int], spaces: list[Array]
) -> Values:
    """Reduction loops point by point in ascending order, vectorised over the parallel loops."""
    for value, *_ in outs:
        if isinstance(value, Empty):
            raise ExecutionError(
                "KT-V14", "the init of this reduction is tensor.empty and its combiner has no identity"
            )
    kept = [1 if d in axes else n for d, n in enumerate(extents)]
    state = [np.broadcast_to(spread(tensor(v), m, extents), kept) for v, m, _, _ in outs]
    yields = list(op.body.block.last_op.operands)
    for point in np.ndindex(*(extents[d] for d in axes)):
        chosen = [slice(None)] * len(extents)
        for axis, position in zip(axes, point, strict=True):
            chosen[axis] = slice(position, position + 1)

        def pick(array: Any, chosen: list[slice] = chosen) -> Any:
            return array[tuple(slice(None) if array.shape[d] == 1 else c for d, c in enumerate(chosen))]

        state = evaluate_body(tile, op, [*(pick(a) for a in arguments), *state], [pick(s) for s in spaces], yields)
    return [
        settle(np.broadcast_to(s, kept), m, kept, shape, fmt.dtype)
        for s, (_, m, shape, fmt) in zip(state, outs, strict=True)
    ]


@handles("linalg.generic", "linalg.reduce", "linalg.map")
def structured(tile: Tile, op: Any, values: Values) -> Values:
    """Ops with their own body."""
    return run_structured(tile, op, values)
