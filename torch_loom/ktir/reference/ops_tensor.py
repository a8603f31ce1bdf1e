"""``tensor`` and ``affine``: shapes move, values stay. Empty tensors carry no values and refuse to be read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType

from torch_loom.dialects.affine_sets import evaluate_map
from torch_loom.dialects.elements import element_of, shape_of
from torch_loom.dialects.upstream_tensor import reassociation_of, slice_dims
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array
from torch_loom.ktir.reference.machine import Empty, Partial, Tile, Values, handles, tensor
from torch_loom.ktir.reference.ops_arith import number, result_format


def sized(static: Sequence[int], dynamic: Sequence[Any]) -> tuple[int, ...]:
    """A shape with the dynamic extents filled in, in order."""
    rest = iter(dynamic)
    shape = tuple(int(next(rest)) if d == DYNAMIC_INDEX else d for d in static)
    if any(d < 0 for d in shape):
        raise ExecutionError("KT-X09", f"negative extent in shape {list(shape)}")
    return shape


def _result_shape(op: Any) -> tuple[int, ...]:
    shape = shape_of(op.results[0].type)
    assert shape is not None
    return shape


def element_zero(tile: Tile, op: Any) -> np.dtype[Any]:
    """The computing dtype of the result's elements."""
    return result_format(tile, op).dtype


@handles("tensor.empty")
def empty(tile: Tile, op: Any, values: Values) -> Values:
    """A shape without values."""
    return [Empty(sized(_result_shape(op), values), element_zero(tile, op))]


@handles("tensor.splat")
def splat(tile: Tile, op: Any, values: Values) -> Values:
    """One value everywhere."""
    shape = sized(_result_shape(op), values[1:])
    return [np.broadcast_to(np.asarray(values[0], element_zero(tile, op)), shape)]


@handles("tensor.from_elements")
def from_elements(tile: Tile, op: Any, values: Values) -> Values:
    """Elements in row-major order."""
    flat = np.asarray([np.asarray(v) for v in values], element_zero(tile, op))
    return [flat.reshape(_result_shape(op))]


@handles("tensor.extract")
def extract(tile: Tile, op: Any, values: Values) -> Values:
    """One element."""
    source, *indices = values
    if isinstance(source, Partial) and source.valid[_index(source.shape, indices)]:
        source = source.data
    array = tensor(source)
    return [number(np.asarray(array[_index(array.shape, indices)]))]


def _index(shape: tuple[int, ...], indices: Sequence[Any]) -> tuple[int, ...]:
    point = tuple(int(i) for i in indices)
    if any(not 0 <= i < extent for i, extent in zip(point, shape, strict=True)):
        raise ExecutionError("KT-X04", f"index {list(point)} outside a tensor of shape {list(shape)}")
    return point


@handles("tensor.insert")
def insert(tile: Tile, op: Any, values: Values) -> Values:
    """A copy with one element replaced."""
    scalar, target, *indices = values
    data, valid = writable(target)
    point = _index(data.shape, indices)
    data[point] = scalar
    valid[point] = True
    return [finished(data, valid)]


def writable(target: Any) -> tuple[Array, Array]:
    """A copy of a tensor and of which elements have values."""
    if isinstance(target, Empty):
        return np.zeros(target.shape, target.dtype), np.zeros(target.shape, bool)
    if isinstance(target, Partial):
        return target.data.copy(), target.valid.copy()
    return np.array(target), np.ones(np.shape(target), bool)


def finished(data: Array, valid: Array) -> Any:
    """A plain array once every element has a value."""
    return data if valid.all() else Partial(data, valid)


def _reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(value, Empty):
        return Empty(shape, value.dtype)
    if isinstance(value, Partial):
        return Partial(value.data.reshape(shape), value.valid.reshape(shape))
    return value.reshape(shape)


@handles("tensor.collapse_shape")
def collapse(tile: Tile, op: Any, values: Values) -> Values:
    """Join groups of dims."""
    source = values[0].shape
    return [_reshaped(values[0], tuple(prod(source[d] for d in group) for group in reassociation_of(op)))]


@handles("tensor.expand_shape")
def expand(tile: Tile, op: Any, values: Values) -> Values:
    """Split dims."""
    shape = sized(_result_shape(op), values[1:])
    if prod(shape) != prod(values[0].shape):
        raise ExecutionError("KT-X09", f"{list(values[0].shape)} cannot be expanded to {list(shape)}")
    return [_reshaped(values[0], shape)]


@handles("tensor.reshape")
def reshape(tile: Tile, op: Any, values: Values) -> Values:
    """Any shape of the same size, given by a tensor."""
    shape = tuple(int(v) for v in np.asarray(tensor(values[1])).ravel())
    declared = _result_shape(op)
    if any(d not in (DYNAMIC_INDEX, s) for d, s in zip(declared, shape, strict=True)):
        raise ExecutionError("KT-X09", f"reshape to {list(shape)}, the type says {op.results[0].type}")
    if prod(shape) != prod(values[0].shape):
        raise ExecutionError("KT-X09", f"{list(values[0].shape)} cannot be reshaped to {list(shape)}")
    return [_reshaped(values[0], shape)]


def _slices(op: Any, values: Sequence[Any], extents: Sequence[int]) -> tuple[tuple[slice, ...], list[int]]:
    """Slices of an extract_slice or insert_slice, and the sizes per dim."""
    rest = iter(values)
    lists = []
    for name in ("static_offsets", "static_sizes", "static_strides"):
        static = (int(v) for v in op.properties[name].get_values())
        lists.append([int(next(rest)) if v == DYNAMIC_INDEX else v for v in static])
    offsets, sizes, strides = lists
    found = []
    for dim, (offset, size, stride) in enumerate(zip(offsets, sizes, strides, strict=True)):
        last = offset + (size - 1) * stride
        if size < 0 or (size and not (0 <= offset < extents[dim] and 0 <= last < extents[dim])):
            raise ExecutionError("KT-X04", f"slice {offset}..{last} of dim {dim} outside a tensor of {list(extents)}")
        if stride > 0:
            found.append(slice(offset, last + 1 if size else offset, stride))
        else:
            found.append(slice(offset, last - 1 if last > 0 else None, stride))
    return tuple(found), sizes


@handles("tensor.extract_slice")
def extract_slice(tile: Tile, op: Any, values: Values) -> Values:
    """A box of a tensor; unit dims may be dropped."""
    source = values[0]
    slices, sizes = _slices(op, values[1:], source.shape)
    declared = _result_shape(op)
    static = [int(v) for v in op.properties["static_sizes"].get_values()]
    shape = tuple(sizes[d] for d in slice_dims(static, declared))
    if isinstance(source, Empty):
        return [Empty(shape, source.dtype)]
    if isinstance(source, Partial):
        return [finished(source.data[slices].reshape(shape), source.valid[slices].reshape(shape))]
    return [source[slices].reshape(shape)]


@handles("tensor.insert_slice")
def insert_slice(tile: Tile, op: Any, values: Values) -> Values:
    """A copy of the destination with a box replaced."""
    source, target, *rest = values
    slices, sizes = _slices(op, rest, target.shape)
    data, valid = writable(target)
    if isinstance(source, Empty):
        valid[slices] = False
        return [Partial(data, valid)]
    if isinstance(source, Partial):
        data[slices], valid[slices] = source.data.reshape(sizes), source.valid.reshape(sizes)
    else:
        data[slices], valid[slices] = source.reshape(sizes), True
    return [finished(data, valid)]


@handles("tensor.cast")
def cast(tile: Tile, op: Any, values: Values) -> Values:
    """The same tensor under a type with more or fewer known extents."""
    declared = shape_of(op.results[0].type)
    if declared is not None:
        for d, s in zip(declared, values[0].shape, strict=True):
            if d not in (DYNAMIC_INDEX, s):
                raise ExecutionError("KT-X09", f"a tensor of shape {list(values[0].shape)} is no {op.results[0].type}")
    return [values[0]]


@handles("tensor.dim")
def dim(tile: Tile, op: Any, values: Values) -> Values:
    """The extent of a dim."""
    position = int(values[1])
    if not 0 <= position < len(values[0].shape):
        raise ExecutionError("KT-X04", f"dim {position} of a tensor of rank {len(values[0].shape)}")
    return [values[0].shape[position]]


@handles("tensor.concat")
def concat(tile: Tile, op: Any, values: Values) -> Values:
    """Tensors joined along a dim."""
    return [np.concatenate([tensor(v) for v in values], axis=op.properties["dim"].value.data)]


@handles("tensor.pad")
def pad(tile: Tile, op: Any, values: Values) -> Values:
    """Padding with the value that the body yields (a constant body)."""
    source = tensor(values[0])
    rest = iter(values[1:])
    sides = []
    for name in ("static_low", "static_high"):
        static = (int(v) for v in op.properties[name].get_values())
        sides.append([int(next(rest)) if v == DYNAMIC_INDEX else v for v in static])
    low, high = sides
    if any(v < 0 for v in (*low, *high)):
        raise ExecutionError("KT-X09", "negative padding")
    shape = tuple(lo + s + hi for lo, s, hi in zip(low, source.shape, high, strict=True))
    grids = [
        np.arange(n, dtype=np.int64).reshape([-1 if a == d else 1 for a in range(len(shape))]) - lo
        for d, (n, lo) in enumerate(zip(shape, low, strict=True))
    ]
    fill = tile.now(op.region.block, grids)[0]
    result = np.array(np.broadcast_to(np.asarray(fill, source.dtype), shape))
    result[tuple(slice(lo, lo + s) for lo, s in zip(low, source.shape, strict=True))] = source
    return [result]


@handles("tensor.generate")
def generate(tile: Tile, op: Any, values: Values) -> Values:
    """Evaluate the body on index arrays."""
    assert isinstance(op.results[0].type, TensorType)
    shape = sized(_result_shape(op), values)
    grids = [
        np.arange(n, dtype=np.int64).reshape([-1 if a == d else 1 for a in range(len(shape))])
        for d, n in enumerate(shape)
    ]
    result = tile.now(op.body.block, grids)[0]
    dtype = tile.machine.formats.of(element_of(op.results[0].type)).dtype
    return [np.array(np.broadcast_to(np.asarray(result, dtype), shape))]


@handles("affine.apply", "affine.min", "affine.max")
def affine(tile: Tile, op: Any, values: Values) -> Values:
    """A map applied to index values."""
    results = evaluate_map(op.map.data, values)
    if op.name == "affine.apply":
        return [results[0]]
    fold = np.minimum if op.name == "affine.min" else np.maximum
    if all(type(r) is int for r in results):
        return [min(results) if op.name == "affine.min" else max(results)]
    found = results[0]
    for value in results[1:]:
        found = fold(found, value)
    return [found]
