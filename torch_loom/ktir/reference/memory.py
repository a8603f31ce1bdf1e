"""Memories of the reference machine and the views that name parts of them.

DDR is a set of buffers at byte addresses; every compute tile has one LX. A view keeps a byte base, strides and its
coordinate set; reading and writing go through boxes of coordinates where possible (one strided copy) and through
coordinate arrays otherwise (one gather). Coordinates outside the coordinate set read 0 and are not written; inside
the set but outside a buffer is an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from torch_loom.dialects.affine_sets import Box, PointSet
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array, Format

Bytes = NDArray[np.uint8]


@dataclass
class Buffer:
    """Bytes at an address. ``written`` marks initialised bytes; None when all are."""

    name: str
    start: int
    data: Bytes
    written: NDArray[np.bool_] | None = None

    @property
    def end(self) -> int:
        """First byte after the buffer."""
        return self.start + len(self.data)


@dataclass
class Memory:
    """An address space: buffers sorted by address, not overlapping."""

    name: str
    buffers: list[Buffer] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)

    def add(self, buffer: Buffer) -> None:
        """Place a buffer; overlapping another one is an error."""
        position = bisect_right(self._starts, buffer.start)
        for other in self.buffers[max(0, position - 1) : position + 1]:
            if buffer.start < other.end and other.start < buffer.end:
                raise ExecutionError(
                    "KT-X02",
                    f"{buffer.name} at bytes {buffer.start}..{buffer.end - 1} overlaps {other.name} "
                    f"at {other.start}..{other.end - 1}",
                )
        self.buffers.insert(position, buffer)
        self._starts.insert(position, buffer.start)

    def find(self, first: int, last: int, what: str) -> Buffer:
        """The buffer that holds bytes ``first`` to ``last``."""
        position = bisect_right(self._starts, first) - 1
        if position >= 0:
            buffer = self.buffers[position]
            if first < buffer.end:
                if last < buffer.end:
                    return buffer
                raise ExecutionError(
                    "KT-X02",
                    f"{what} bytes {first}..{last} of {self.name}, but {buffer.name} ends at byte {buffer.end - 1}",
                )
        raise ExecutionError("KT-X02", f"{what} bytes {first}..{last} of {self.name}, where no buffer lies")


@dataclass
class View:
    """A strided view: byte base, strides in elements, the coordinate set."""

    memory: Memory
    base: int
    format: Format
    strides: tuple[int, ...]
    points: PointSet
    label: str = ""

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.strides)

    def address(self, point: Sequence[int]) -> int:
        """Byte address of a coordinate."""
        lower = self.points.bounds.lower
        offset = sum((p - lo) * s for p, lo, s in zip(point, lower, self.strides, strict=False))
        return self.base + offset * self.format.bytes

    def _window(self, box: Box, what: str) -> tuple[Array, Buffer, int]:
        """A strided array over the memory of a non-empty box inside the bounds, and where it starts."""
        size = self.format.bytes
        first = self.address(box.lower)
        spans = [(e - 1) * s * size for e, s in zip(box.extents, self.strides, strict=True)]
        low = first + sum(s for s in spans if s < 0)
        high = first + sum(s for s in spans if s > 0) + size - 1
        buffer = self.memory.find(low, high, what)
        start = first - buffer.start
        if start % size:
            raise ExecutionError("KT-X02", f"byte address {first} is not a multiple of the element size {size}")
        typed = buffer.data[: len(buffer.data) // size * size].view(self.format.memory)
        strides = [s * size for s in self.strides]
        return as_strided(typed[start // size :], box.extents, strides), buffer, start

    def read_box(self, box: Box) -> Array:
        """Values of a box of coordinates that lies inside the bounds of the set."""
        if box.empty:
            return np.zeros(box.extents, self.format.dtype)
        window, buffer, start = self._window(box, "reads")
        if buffer.written is not None:
            self._require_written(buffer, start, box)
        return self.format.decode(window.copy())

    def write_box(self, box: Box, values: Array) -> None:
        """Write a box of coordinates that lies inside the bounds of the set."""
        if box.empty:
            return
        window, buffer, start = self._window(box, "writes")
        window[...] = self.format.encode(values)
        if buffer.written is not None:
            self._written(buffer, start, box)[...] = True

    def _written(self, buffer: Buffer, start: int, box: Box) -> Array:
        size = self.format.bytes
        assert buffer.written is not None
        strides = [s * size for s in self.strides]
        return as_strided(buffer.written[start:], (*box.extents, size), (*strides, 1))

    def _require_written(self, buffer: Buffer, start: int, box: Box) -> None:
        if not self._written(buffer, start, box).all():
            raise ExecutionError(
                "KT-X03", f"reads {self.label or self.memory.name} before anything was written there ({buffer.name})"
            )

    def offsets(self, coordinates: Sequence[Array]) -> Array:
        """Byte addresses of coordinate arrays."""
        total: Any = np.int64(0)
        for coordinate, lower, stride in zip(coordinates, self.points.bounds.lower, self.strides, strict=False):
            total = total + (coordinate - lower) * stride
        return self.base + np.asarray(total, np.int64) * self.format.bytes

    def inside(self, coordinates: Sequence[Array]) -> Array:
        """Which coordinates belong to the coordinate set."""
        found: Any = np.bool_(True)
        bounds = self.points.bounds
        for coordinate, lower, upper in zip(coordinates, bounds.lower, bounds.upper, strict=False):
            found = found & (coordinate >= lower) & (coordinate <= upper)
        if not self.points.is_box:
            found = found & self.points.holds(coordinates)
        return np.asarray(found)

    def gather(self, coordinates: Sequence[Array], valid: Array) -> Array:
        """Values at coordinate arrays; points that are not valid give 0."""
        shape = np.broadcast_shapes(valid.shape, *(np.shape(c) for c in coordinates))
        valid = np.broadcast_to(valid, shape)
        addresses = np.broadcast_to(self.offsets(coordinates), shape)
        result = np.zeros(shape, self.format.dtype)
        if not valid.any():
            return result
        everything = bool(valid.all())
        chosen = addresses if everything else addresses[valid]
        typed, index, buffer = self._typed(chosen, "reads")
        if buffer.written is not None and not buffer.written[index * self.format.bytes].all():
            raise ExecutionError("KT-X03", f"reads {self.label or self.memory.name} before anything was written there")
        values = self.format.decode(typed[index])
        if everything:
            return values.reshape(shape)
        result[valid] = values
        return result

    def scatter(self, coordinates: Sequence[Array], valid: Array, values: Array) -> None:
        """Write values at coordinate arrays in row-major order; points that are not valid are skipped."""
        valid = np.broadcast_to(valid, values.shape)
        if not valid.any():
            return
        addresses = np.broadcast_to(self.offsets(coordinates), values.shape)[valid]
        typed, index, buffer = self._typed(addresses, "writes")
        typed[index] = self.format.encode(values[valid])
        if buffer.written is not None:
            for byte in range(self.format.bytes):
                buffer.written[index * self.format.bytes + byte] = True

    def _typed(self, addresses: Array, what: str) -> tuple[Array, Array, Buffer]:
        size = self.format.bytes
        low, high = int(addresses.min()), int(addresses.max())
        buffer = self.memory.find(low, high + size - 1, what)
        if (low - buffer.start) % size:
            raise ExecutionError("KT-X02", f"byte address {low} is not a multiple of the element size {size}")
        typed = buffer.data[: len(buffer.data) // size * size].view(self.format.memory)
        return typed, (addresses - buffer.start) // size, buffer


@dataclass
class DistributedView:
    """Several partitions; the first whose set holds a coordinate serves it."""

    partitions: list[View]
    format: Format

    @property
    def rank(self) -> int:
        """Number of dims."""
        return self.partitions[0].rank


AnyView = View | DistributedView


def partitions_of(view: AnyView) -> list[View]:
    """The views behind a view."""
    return view.partitions if isinstance(view, DistributedView) else [view]


def clip(box: Box, bounds: Box) -> Box:
    """The part of a box inside other bounds."""
    return Box(tuple(map(max, box.lower, bounds.lower)), tuple(map(min, box.upper, bounds.upper)))


def relative(box: Box, origin: Sequence[int]) -> tuple[slice, ...]:
    """Slices of a box in an array that starts at ``origin``."""
    return tuple(slice(lo - o, hi - o + 1) for lo, hi, o in zip(box.lower, box.upper, origin, strict=True))
