"""Which element of a host tensor meets which element of device memory.

Three descriptions of one relation. ``oracle`` walks every device coordinate and follows the definition;
``offsets`` gives the same pairs as arrays; ``describe`` gives them as nests of loops, as a copy engine
takes them. Padding belongs to no pair and is never touched.

Padding is decided per host dim, not on the linear offset: past the end of a row the linear offset is a
valid element of the next row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torch_loom.layout.arrangement import ElementArrangement
from torch_loom.layout.formats import DataFormats
from torch_loom.layout.stick import SpyreTensorLayout

Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class HostDim:
    """A host dim and the device dims that make it up, as (device dim, host positions per step)."""

    size: int
    stride: int
    parts: tuple[tuple[int, int], ...]


def attribute(layout: SpyreTensorLayout, size: Sequence[int], strides: Sequence[int]) -> list[HostDim]:
    """Assign each device dim to the host dim with the largest stride not above the device dim's step.

    The tile dim goes to the host dim of the stick. Dims of extent 1 or stride 0 take no part. A device
    dim that runs over several host dims that lie dense in each other makes them one host dim.
    Raises ValueError if a device dim fits no host dim.
    """
    dims = sorted(((step, extent) for extent, step in zip(size, strides, strict=True) if extent != 1 and step > 0))
    steps, extents = layout.stride_map, layout.device_size
    rank, tile = len(steps), layout.tile_dim()
    owner: dict[int, int] = {}
    for dim in range(rank - 1, -1, -1):
        if dim == tile and rank - 1 in owner:
            owner[dim] = owner[rank - 1]
        elif steps[dim] > 0 and extents[dim] != 0:
            fits = [i for i, (step, _) in enumerate(dims) if step <= steps[dim]]
            if fits and steps[dim] % dims[fits[-1]][0] == 0:
                owner[dim] = fits[-1]
            elif extents[dim] != 1 and not (dim == rank - 1 and not dims):
                raise ValueError(
                    f"device dim {dim} of {layout!r} (step {steps[dim]}) fits no dim of host size "
                    f"{list(size)}, strides {list(strides)}"
                )
    group = _fused(dims, layout, owner)
    out = []
    for first in sorted(set(group)):
        members = [i for i in range(len(dims)) if group[i] == first]
        step = dims[first][0]
        parts = tuple((d, steps[d] // step) for d in range(rank) if d in owner and group[owner[d]] == first)
        out.append(HostDim(math.prod(dims[i][1] for i in members), step, parts))
    return out


def _fused(dims: list[tuple[int, int]], layout: SpyreTensorLayout, owner: dict[int, int]) -> list[int]:
    """For each host dim (ascending strides) the innermost one it is fused with."""
    group = list(range(len(dims)))
    steps, extents = layout.stride_map, layout.device_size
    stick = len(steps) - 1
    for dim, host in owner.items():
        if stick in owner and host == owner[stick]:
            continue
        reach, last = extents[dim] * (steps[dim] // dims[host][0]), host
        span = dims[host][1]
        while reach > span and last + 1 < len(dims) and dims[last + 1][0] == dims[host][0] * span:
            last += 1
            group[last] = group[host]
            span *= dims[last][1]
    return group


def oracle(layout: SpyreTensorLayout, size: Sequence[int], strides: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs (host offset, device offset) in elements, one device coordinate after the other.

    Host offsets are relative to the tensor's first element. Broadcast dims pair one host element with
    several device elements; the pair of coordinate 0 comes first.
    """
    if 0 in size:
        return
    owners = attribute(layout, size, strides)
    steps, sizes = layout.stride_map, layout.device_size
    for coordinate in itertools.product(*map(range, sizes)):
        if any(x and step == -1 for x, step in zip(coordinate, steps, strict=True)):
            continue
        positions = [sum(coordinate[d] * per for d, per in dim.parts) for dim in owners]
        if any(x >= dim.size for x, dim in zip(positions, owners, strict=True)):
            continue
        owned = {d for dim in owners for d, _ in dim.parts}
        if any(x and step > 0 and d not in owned for d, (x, step) in enumerate(zip(coordinate, steps, strict=True))):
            continue
        host = sum(x * step for x, step in zip(coordinate, steps, strict=True) if step > 0)
        yield host, _device_offset(layout, coordinate)


def _device_offset(layout: SpyreTensorLayout, coordinate: Sequence[int]) -> int:
    """Row-major offset after the element arrangement has moved (tile, lane)."""
    place = list(coordinate)
    tile, elems = layout.tile_dim(), layout.elems_per_stick()
    if layout.element_arrangement is not ElementArrangement.STANDARD:
        tiles = 1 if tile is None else layout.device_size[tile]
        layout.element_arrangement.check(tiles, elems)
        column = place[-1] + (0 if tile is None else place[tile] * elems)
        new_tile, place[-1] = layout.element_arrangement.position(column, elems)
        if tile is not None:
            place[tile] = new_tile
    return sum(x * step for x, step in zip(place, layout.device_strides, strict=True))


def offsets(layout: SpyreTensorLayout, size: Sequence[int], strides: Sequence[int]) -> tuple[Offsets, Offsets]:
    """The pairs of :func:`oracle` in the same order, as two int64 arrays."""
    if 0 in size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    owners = attribute(layout, size, strides)
    steps, sizes = layout.stride_map, layout.device_size
    axes = np.ogrid[tuple(slice(extent) for extent in sizes)]
    owned = {d for dim in owners for d, _ in dim.parts}
    valid = np.ones(sizes, bool)
    for dim in owners:
        position = sum((axes[d] * per for d, per in dim.parts), np.zeros((1,) * len(sizes), np.int64))
        valid &= position < dim.size
    for d, step in enumerate(steps):
        if step == -1 or (step > 0 and d not in owned):
            valid &= axes[d] == 0
    host = sum((axes[d] * step for d, step in enumerate(steps) if step > 0), np.zeros(sizes, np.int64))
    device = _device_offsets(layout, axes)
    return host[valid], np.broadcast_to(device, valid.shape)[valid]


def _device_offsets(layout: SpyreTensorLayout, axes: Sequence[NDArray[np.intp]]) -> Offsets:
    place = list(axes)
    tile, elems = layout.tile_dim(), layout.elems_per_stick()
    if layout.element_arrangement is not ElementArrangement.STANDARD:
        tiles = 1 if tile is None else layout.device_size[tile]
        layout.element_arrangement.check(tiles, elems)
        table = np.array(
            [layout.element_arrangement.position(column, elems) for column in range(tiles * elems)], np.int64
        )
        column = place[-1] + (0 if tile is None else place[tile] * elems)
        place[-1] = table[column, 1]
        if tile is not None:
            place[tile] = table[column, 0]
    terms = (x * step for x, step in zip(place, layout.device_strides, strict=True))
    return sum(terms, np.zeros(layout.device_size, np.int64))


@dataclass(frozen=True)
class LoopNest:
    """One nest of loops of a copy engine. All lists innermost first; strides and offsets in elements."""

    size_: list[int]
    stride_src_: list[int]
    stride_dst_: list[int]
    offset_src_: int
    offset_dst_: int

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(source, destination) offsets, the innermost loop fastest."""
        for point in itertools.product(*map(range, reversed(self.size_))):
            inner_first = point[::-1]
            yield (
                self.offset_src_ + sum(x * s for x, s in zip(inner_first, self.stride_src_, strict=True)),
                self.offset_dst_ + sum(x * s for x, s in zip(inner_first, self.stride_dst_, strict=True)),
            )


@dataclass(frozen=True)
class DataConversion:
    """A transfer as loop nests; field names are those of the public runtime."""

    dci_dsName_: str
    isHostToSen_: bool
    dataformat_src_: DataFormats
    dataformat_dst_: DataFormats
    input_shape_: list[int]
    output_shape_: list[int]
    dcsi_: list[LoopNest] = field(default_factory=list)


def describe(
    layout: SpyreTensorLayout,
    size: Sequence[int],
    strides: Sequence[int],
    host_format: DataFormats,
    *,
    to_device: bool = True,
    name: str = "",
) -> DataConversion:
    """The transfer of a host tensor as loop nests: whole tiles, then a nest for each remainder.

    Each host dim that its device dims do not divide evenly doubles the number of nests. Towards the host
    a broadcast dim is read at coordinate 0 only.
    """
    host_shape = list(size)[::-1] or [1]
    device_shape = layout.device_size[::-1]
    source, target = (host_format, layout.device_dtype) if to_device else (layout.device_dtype, host_format)
    shapes = (host_shape, device_shape) if to_device else (device_shape, host_shape)
    nests = [] if 0 in size else list(_nests(layout, size, strides, to_device))
    return DataConversion(name, to_device, source, target, *shapes, nests)


def _nests(
    layout: SpyreTensorLayout, size: Sequence[int], strides: Sequence[int], to_device: bool
) -> Iterator[LoopNest]:
    if layout.element_arrangement is not ElementArrangement.STANDARD:
        raise ValueError(f"loop nests describe standard order only, not {layout.element_arrangement!r}")
    sizes, steps = layout.device_size, layout.stride_map
    owners = attribute(layout, size, strides)
    boxes = [_boxes(dim, sizes) for dim in owners]
    for choice in itertools.product(*boxes):
        extents = [n if step == 0 and to_device else 1 for n, step in zip(sizes, steps, strict=True)]
        start = [0] * len(sizes)
        for box in choice:
            for d, (first, count) in box.items():
                start[d], extents[d] = first, count
        host_steps = [max(step, 0) for step in steps]
        host = (
            [host_steps[d] for d in reversed(range(len(sizes)))],
            sum(x * s for x, s in zip(start, host_steps, strict=True)),
        )
        device = (
            layout.device_strides[::-1],
            sum(x * s for x, s in zip(start, layout.device_strides, strict=True)),
        )
        (src, src0), (dst, dst0) = (host, device) if to_device else (device, host)
        yield LoopNest(extents[::-1], src, dst, src0, dst0)


def _boxes(dim: HostDim, sizes: Sequence[int]) -> list[dict[int, tuple[int, int]]]:
    """Boxes of device coordinates, {device dim: (first, count)}, that cover one host dim's positions."""

    def cover(parts: list[tuple[int, int]], length: int) -> list[dict[int, tuple[int, int]]]:
        if length <= 0:
            return []
        if not parts:
            return [{}]
        (outer, per), inner = parts[0], parts[1:]
        # Extent-1 parts and those wider than the host dim cover what there is.
        whole = min(length // per, sizes[outer])
        found = [{outer: (0, whole), **box} for box in cover(inner, per)] if whole else []
        rest = length - whole * per
        if whole < sizes[outer]:
            found += [{outer: (whole, 1), **box} for box in cover(inner, rest)]
        return found

    return cover(sorted(dim.parts, key=lambda part: (-part[1], sizes[part[0]])), dim.size)
