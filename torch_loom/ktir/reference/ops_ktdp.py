"""``ktdp``: ids, views, access tiles, load and store."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir.affine import AffineSet

from torch_loom.dialects.affine_sets import PointSet, UnboundedSet, bound, evaluate, evaluate_map, permutation
from torch_loom.dialects.affine_text import box_set
from torch_loom.dialects.elements import shape_of
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array, Format
from torch_loom.ktir.reference.machine import Tile, Values, handles, tensor
from torch_loom.ktir.reference.memory import AnyView, DistributedView, Memory, View, partitions_of
from torch_loom.ktir.reference.tiles import Access, DirectTile, IndirectTile

STICK_BYTES = 128


def points_of(value: AffineSet, symbols: tuple[int, ...], what: str) -> PointSet:
    """A set with its symbols bound."""
    try:
        return bound(value, symbols)
    except UnboundedSet as error:
        raise ExecutionError("KT-X09", f"{what}: {error}") from None


@handles("ktdp.get_compute_tile_id")
def tile_id(tile: Tile, op: Any, values: Values) -> Values:
    """Coordinates of the tile; dims that the grid does not have give 0."""
    count, ids = len(op.results), tile.ids
    if count == 1 and sum(extent > 1 for extent in tile.machine.grid) > 1 and not tile.machine.options.compat:
        raise ExecutionError("KT-V05", f"one id on the grid {list(tile.machine.grid)} is ambiguous; take one per dim")
    return [ids[k] if k < len(ids) else 0 for k in range(count)]


def unit_bytes(tile: Tile, fmt: Format) -> int:
    """Bytes per unit of address arithmetic."""
    unit = tile.machine.options.address_unit
    return {"elements": fmt.bytes, "bytes": 1, "sticks": STICK_BYTES}[unit]


@handles("ktdp.construct_memory_view")
def memory_view(tile: Tile, op: Any, values: Values) -> Values:
    """A view at an offset."""
    fmt = tile.machine.formats.of(op.view.type.element_type)
    sizes_count = len(op.sizes)
    offset, dynamic = values[0], values[1:]
    sizes = _filled(op.static_sizes.get_values(), dynamic[:sizes_count])
    strides = _filled(op.static_strides.get_values(), dynamic[sizes_count:])
    if any(s < 0 for s in sizes):
        raise ExecutionError("KT-X09", f"sizes {list(sizes)} of a view must not be negative")
    symbols = tuple(int(v) for v in dynamic[:sizes_count])
    points = points_of(op.coordinate_set.data, symbols, "coordinate_set")
    space = op.memory_space
    memory = tile.machine.ddr if space is None or space.is_global else _lx(tile, space.ct_id)
    label = f"%{op.view.name_hint}" if op.view.name_hint else "a view"
    return [View(memory, int(offset) * unit_bytes(tile, fmt), fmt, strides, points, label)]


def _lx(tile: Tile, owner: int | None) -> Memory:
    if owner is None:
        return tile.lx
    tiles = tile.machine.tiles
    if owner >= len(tiles):
        raise ExecutionError("KT-V04", f"ct_id = {owner}, but the grid has {len(tiles)} compute tiles")
    return tiles[owner].lx


def _filled(static: Any, dynamic: Values) -> tuple[int, ...]:
    rest = iter(dynamic)
    return tuple(int(next(rest)) if v == DYNAMIC_INDEX else int(v) for v in static)


@handles("ktdp.construct_distributed_memory_view")
def distributed_view(tile: Tile, op: Any, values: Values) -> Values:
    """Several partitions as one view; they must not overlap."""
    parts = [part for value in values for part in partitions_of(value)]
    key = (op, tuple(id(p.points) for p in parts))
    if key not in tile.machine.caches:
        for position, part in enumerate(parts):
            for earlier in parts[:position]:
                if not part.points.disjoint(earlier.points):
                    raise ExecutionError("KT-V10", f"partition {position} overlaps an earlier one")
        _require_no_holes(parts)
        tile.machine.caches[key] = parts
    return [DistributedView(parts, parts[0].format)]


def _require_no_holes(parts: list[View]) -> None:
    """The partitions together hold every coordinate from 0 to their largest."""
    held = [p.points for p in parts if not p.points.bounds.empty]
    if not held or held[0].rank == 0:
        return
    total = 1
    for dim in range(held[0].rank):
        total *= max(p.bounds.upper[dim] for p in held) + 1
    count = sum(p.size for p in held)
    if count != total:
        raise ExecutionError("KT-V11", f"the partitions hold {count} of {total} coordinates; the union has holes")


@handles("memref.subview")
def subview(tile: Tile, op: Any, values: Values) -> Values:
    """A strided part of a view, with coordinates from 0."""
    source = values[0]
    if not isinstance(source, View) or not source.points.is_box:
        raise ExecutionError("KT-X10", "memref.subview of a distributed view is not implemented")
    rest = iter(values[1:])
    lists = []
    for name in ("static_offsets", "static_sizes", "static_strides"):
        static = (int(v) for v in op.properties[name].get_values())
        lists.append([int(next(rest)) if v == DYNAMIC_INDEX else v for v in static])
    offsets, sizes, steps = lists
    lower, extents = source.points.bounds.lower, source.points.extents
    for dim, (offset, size, step) in enumerate(zip(offsets, sizes, steps, strict=True)):
        last = offset + (size - 1) * step
        if size < 0 or (size and not (0 <= offset < extents[dim] and 0 <= last < extents[dim])):
            raise ExecutionError("KT-X04", f"subview {offset}..{last} of dim {dim} outside {list(extents)}")
    base = source.address([lo + o for lo, o in zip(lower, offsets, strict=False)])
    strides = tuple(s * step for s, step in zip(source.strides, steps, strict=True))
    return [View(source.memory, base, source.format, strides, bound(box_set(sizes)), source.label)]


@handles("memref.cast")
def view_cast(tile: Tile, op: Any, values: Values) -> Values:
    """The same view under another type."""
    return [values[0]]


@handles("memref.dim")
def view_dim(tile: Tile, op: Any, values: Values) -> Values:
    """The extent of a dim of a view."""
    parts, dim = partitions_of(values[0]), int(values[1])
    if not 0 <= dim < parts[0].rank:
        raise ExecutionError("KT-X04", f"dim {dim} of a view of rank {parts[0].rank}")
    if len(parts) == 1:
        return [parts[0].points.extents[dim]]
    return [max(p.points.bounds.upper[dim] for p in parts) + 1]


@handles("ktdp.construct_access_tile")
def access_tile(tile: Tile, op: Any, values: Values) -> Values:
    """A box (or set) of coordinates at a base point."""
    count = len(op.subscripts)
    ids = [int(v) for v in values[1 : 1 + count]]
    symbols = tuple(int(v) for v in values[1 + count :])
    base = evaluate_map(op.base_map.data, ids)
    points = points_of(op.access_tile_set.data, symbols, "access_tile_set")
    if not points.bounds.empty and any(lo != 0 for lo in points.bounds.lower[: points.rank]):
        raise ExecutionError("KT-V08", f"the local set starts at {list(points.bounds.lower)}, not at 0")
    found = DirectTile(values[0], tuple(base), points, permutation(op.access_tile_order.data))
    _check_shape(op, found.shape)
    return [found]


def _check_shape(op: Any, shape: tuple[int, ...]) -> None:
    declared = op.tile.type.get_shape()
    if any(d not in (DYNAMIC_INDEX, s) for d, s in zip(declared, shape, strict=True)):
        raise ExecutionError("KT-V07", f"the set has extents {list(shape)}, the type is {op.tile.type}")


@handles("ktdp.construct_indirect_access_tile")
def indirect_tile(tile: Tile, op: Any, values: Values) -> Values:
    """Coordinates over a variable space, some read from index views."""
    views, captured = len(op.index_views), len(op.captured)
    index_views = iter(values[1 : 1 + views])
    ids = [int(v) for v in values[1 + views : 1 + views + captured]]
    symbols = tuple(int(v) for v in values[1 + views + captured :])
    points = points_of(op.variables_space_set.data, symbols, "variables_space_set")
    rank = points.rank
    bounds = points.bounds
    grids = [
        np.arange(lo, hi + 1, dtype=np.int64).reshape([-1 if a == d else 1 for a in range(rank)])
        for d, (lo, hi) in enumerate(zip(bounds.lower[:rank], bounds.upper[:rank], strict=True))
    ]
    member = np.ones(points.extents, bool) if points.is_box else points.mask()
    operands = [*ids, *grids]
    coordinates: list[Array] = []
    base: AnyView = values[0]
    for position, subscript in enumerate(op.subscripts):
        exprs = [np.asarray(evaluate(e, operands), np.int64) for e in subscript.exprs]
        if subscript.view is None:
            coordinates.append(exprs[0])
            continue
        loaded, known = _load_index(tile, next(index_views), exprs)
        coordinates.append(loaded)
        member = member & known
        _check_index(base, position, loaded, np.broadcast_to(member & known, np.broadcast_shapes(member.shape)))
    found = IndirectTile(base, coordinates, np.asarray(member), permutation(op.variables_space_order.data))
    _check_shape(op, found.shape)
    return [found]


def _load_index(tile: Tile, view: AnyView, exprs: list[Array]) -> tuple[Array, Array]:
    """Indices read from a view, and which of them exist (a point outside the index view selects nothing)."""
    shape = np.broadcast_shapes(*(e.shape for e in exprs)) if exprs else ()
    result = np.zeros(shape, np.int64)
    known = np.zeros(shape, bool)
    for part in partitions_of(view):
        mine = np.broadcast_to(part.inside(exprs), shape) & ~known
        if mine.any():
            result = np.where(mine, part.gather(exprs, mine).astype(np.int64), result)
            known = known | mine
    if tile.machine.access.strict_bounds and not known.all():
        raise ExecutionError("KT-X02", "reads indices outside the index view (strict bounds)")
    return result, known


def _check_index(base: AnyView, position: int, loaded: Array, member: Array) -> None:
    """A loaded index must lie inside the base view."""
    lower = min(p.points.bounds.lower[position] for p in partitions_of(base))
    upper = max(p.points.bounds.upper[position] for p in partitions_of(base))
    used = np.broadcast_to(loaded, member.shape)[member]
    bad = (used < lower) | (used > upper)
    if bad.any():
        raise ExecutionError("KT-X04", f"index {int(used[bad][0])} for dim {position}, the view holds {lower}..{upper}")


def _access(tile: Tile) -> Access:
    return tile.machine.access


@handles("ktdp.load")
def load(tile: Tile, op: Any, values: Values) -> Values:
    """Read a tile."""
    fmt = tile.machine.formats.of(op.value.type.element_type)
    if values[0].view.format is not fmt:
        raise ExecutionError("KT-V12", f"loads {values[0].view.format.name} from memory as {fmt.name}")
    result = values[0].read(_access(tile))
    declared = shape_of(op.value.type) or ()
    if any(d not in (DYNAMIC_INDEX, s) for d, s in zip(declared, result.shape, strict=True)):
        raise ExecutionError("KT-V07", f"the access tile has shape {list(result.shape)}, the tensor is {op.value.type}")
    return [result]


@handles("ktdp.store")
def store(tile: Tile, op: Any, values: Values) -> Values:
    """Write a tile."""
    array, target = tensor(values[0], "stores"), values[1]
    fmt = tile.machine.formats.of(op.value.type.element_type)
    if target.view.format is not fmt:
        raise ExecutionError("KT-V12", f"stores {fmt.name} to memory that holds {target.view.format.name}")
    if array.shape != target.shape:
        raise ExecutionError(
            "KT-V07", f"the tensor has shape {list(array.shape)}, the access tile {list(target.shape)}"
        )
    target.write(array, _access(tile))
    return []


@handles("ktdp.runtime_arg_extract")
def runtime_arg(tile: Tile, op: Any, values: Values) -> Values:
    """The value of a launch argument or a promise of its type."""
    if op.what == "value":
        return [values[0]]
    return [op.argument.type.promises[op.what]]
