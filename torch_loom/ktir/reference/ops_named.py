"""Named ``linalg`` ops: elementwise through the scalar op they apply, contractions through matrix multiplication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_loom.dialects.elements import element_of
from torch_loom.dialects.upstream_linalg import CONTRACTIONS, ELEMENTWISE
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array, Format
from torch_loom.ktir.reference.machine import HANDLERS, Empty, Tile, Values, handles, tensor
from torch_loom.ktir.reference.ops_arith import to_format
from torch_loom.ktir.reference.ops_linalg import contract, loop_extents, settle, spread


@dataclass
class Applied:
    """A scalar op applied to whole tensors, in the shape that handlers expect of an operation."""

    name: str
    operands: Sequence[Any]
    results: Sequence[Any]


def cast_array(value: Any, source: Format, target: Format) -> Array:
    """A tensor or scalar in another element type, as upstream casts the inputs of named ops."""
    array = np.asarray(value)
    if source is target or source.name == target.name:
        return array
    if target.is_float:
        return target.round(array.astype(np.float32))
    if source.is_float:
        whole = np.trunc(array.astype(np.float64))
        limit = 2.0 ** (target.bits - 1)
        if np.any((whole < -limit) | (whole >= limit)):
            raise ExecutionError("KT-X08", f"a value does not fit into {target.name}")
        array = whole
    elif source.bits == 1:
        array = -(array.astype(np.int8))
    return to_format(array.astype(np.int64), target)


@handles(*(f"linalg.{name}" for name in ELEMENTWISE))
def elementwise(tile: Tile, op: Any, values: Values) -> Values:
    """A scalar op on every element; ``outs`` gives only the shape."""
    formats = [tile.machine.formats.of(element_of(v.type)) for v in op.operands]
    target = formats[-1]
    shape = values[-1].shape
    name = op.scalar_name
    inputs: list[Array] = []
    for position, (value, source) in enumerate(zip(values[:-1], formats[:-1], strict=True)):
        array = tensor(value)
        keeps = name == "arith.select" and position == 0
        inputs.append(np.asarray(array) if keeps else cast_array(array, source, target))
    if name == "copy":
        result = inputs[0]
    elif name == "reciprocal":
        with np.errstate(all="ignore"):
            result = target.round(np.float32(1) / inputs[0])
    elif name == "square":
        with np.errstate(all="ignore"):
            result = target.round(inputs[0] * inputs[0])
    elif name == "arith.select":
        result = np.where(inputs[0], inputs[1], inputs[2])
    else:
        result = HANDLERS[name](tile, Applied(name, op.operands, op.results), list(inputs))[0]
    maps = op.maps()
    if any(m != maps[-1] for m in maps[:-1]) and "indexing_maps" in op.properties:
        raise ExecutionError("KT-X10", f"{op.name} with indexing_maps is not implemented; use linalg.generic")
    return [np.array(np.broadcast_to(np.asarray(result, target.dtype), shape))]


@handles(*(f"linalg.{name}" for name in CONTRACTIONS))
def contraction(tile: Tile, op: Any, values: Values) -> Values:
    """outs + sum of products, accumulated in f32 (or in the storage type on request)."""
    maps, reductions = op.maps(), op.iterators()
    formats = [tile.machine.formats.of(element_of(v.type)) for v in op.operands]
    target = formats[-1]
    a, b = (cast_array(tensor(v), f, target) for v, f in zip(values[:2], formats[:2], strict=True))
    out = values[2]
    shapes = [a.shape, b.shape, out.shape]
    extents = loop_extents(maps, shapes, len(reductions))
    axes = [d for d, reduced in enumerate(reductions) if reduced]
    kept = [1 if d in axes else n for d, n in enumerate(extents)]
    lhs, rhs = spread(a, maps[0], extents), spread(b, maps[1], extents)
    initial = None if isinstance(out, Empty) else spread(tensor(out), maps[2], extents)
    if target.is_float and tile.machine.options.accumulate == "storage":
        found = _stored_sum(lhs, rhs, extents, axes, initial, target, kept)
        return [settle(found, maps[2], kept, out.shape, target.dtype)]
    with np.errstate(all="ignore"):
        found = contract(lhs, rhs, extents, axes)
        if initial is not None:
            found = found + initial
    found = target.round(np.asarray(found, np.float32)) if target.is_float else to_format(found, target)
    return [settle(found, maps[2], kept, out.shape, target.dtype)]


def _stored_sum(
    lhs: Array, rhs: Array, extents: list[int], axes: list[int], initial: Array | None, fmt: Format, kept: list[int]
) -> Array:
    """The sum rounded to the storage type after every step, in ascending order."""
    total = np.zeros(kept, np.float32) if initial is None else np.broadcast_to(initial, kept)
    with np.errstate(all="ignore"):
        for point in np.ndindex(*(extents[d] for d in axes)):
            chosen: list[Any] = [slice(None)] * len(extents)
            for axis, position in zip(axes, point, strict=True):
                chosen[axis] = slice(position, position + 1)
            a, b = (x[tuple(slice(None) if x.shape[d] == 1 else c for d, c in enumerate(chosen))] for x in (lhs, rhs))
            total = fmt.round(total + fmt.round(a * b))
    return np.asarray(total)


@handles("linalg.transpose")
def transpose(tile: Tile, op: Any, values: Values) -> Values:
    """Output dim i is input dim permutation[i]."""
    return [np.transpose(tensor(values[0]), op.dims)]


@handles("linalg.broadcast")
def broadcast(tile: Tile, op: Any, values: Values) -> Values:
    """Add dims."""
    array = tensor(values[0])
    shape = values[1].shape
    kept = [d for d in range(len(shape)) if d not in op.dims]
    if [shape[d] for d in kept] != list(array.shape):
        raise ExecutionError("KT-X09", f"{list(array.shape)} cannot be broadcast to {list(shape)}")
    return [np.broadcast_to(np.expand_dims(array, tuple(sorted(op.dims))), shape)]
