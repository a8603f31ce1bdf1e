"""Access tiles at run time: a box of coordinates, or arrays of coordinates.

A tile yields its values in the order of its type: ``out[order(p)] = view[point(p)]``; storing is the mirror image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_loom.dialects.affine_sets import Box, PointSet
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array
from torch_loom.ktir.reference.memory import AnyView, View, clip, partitions_of, relative


@dataclass
class Access:
    """Options of reading and writing tiles."""

    strict_bounds: bool = False
    check_collisions: bool = False


@dataclass
class DirectTile:
    """Coordinates ``base + p`` for the points p of a local set."""

    view: AnyView
    base: tuple[int, ...]
    points: PointSet
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in the order of the tile."""
        extents = self.points.extents
        return tuple(extents[d] for d in self.order)

    def _box(self) -> Box:
        bounds = self.points.bounds
        lower = tuple(b + lo for b, lo in zip(self.base, bounds.lower, strict=False))
        upper = tuple(b + hi for b, hi in zip(self.base, bounds.upper, strict=False))
        return Box(lower, upper)

    def _boxes(self) -> bool:
        return self.points.is_box and all(p.points.is_box for p in partitions_of(self.view))

    def _coordinates(self) -> tuple[list[Array], Array]:
        box = self._box()
        rank = len(self.base)
        grids = [
            np.arange(lo, hi + 1, dtype=np.int64).reshape([-1 if a == d else 1 for a in range(rank)])
            for d, (lo, hi) in enumerate(zip(box.lower, box.upper, strict=True))
        ]
        member = np.ones(self.points.extents, bool) if self.points.is_box else self.points.mask()
        return grids, member

    def read(self, access: Access) -> Array:
        """Values in tile order."""
        if self.points.bounds.empty:
            return np.zeros(self.shape, self.view.format.dtype)
        if not self._boxes():
            grids, member = self._coordinates()
            return np.transpose(_gather(self.view, grids, member, access), self.order)
        box = self._box()
        parts = partitions_of(self.view)
        first = clip(box, parts[0].points.bounds)
        if len(parts) == 1 and first == box:
            return np.transpose(parts[0].read_box(box), self.order)
        result = np.zeros(box.extents, self.view.format.dtype)
        covered = 0
        for part in parts:
            inner = clip(box, part.points.bounds)
            if not inner.empty:
                result[relative(inner, box.lower)] = part.read_box(inner)
                covered += inner.size
        _check_covered(access, covered, box, "reads")
        return np.transpose(result, self.order)

    def write(self, values: Array, access: Access) -> None:
        """Store values given in tile order."""
        if self.points.bounds.empty:
            return
        local = np.transpose(values, np.argsort(self.order)) if self.order else values
        if not self._boxes():
            grids, member = self._coordinates()
            _scatter(self.view, grids, member, local, access)
            return
        box = self._box()
        covered = 0
        for part in partitions_of(self.view):
            inner = clip(box, part.points.bounds)
            if not inner.empty:
                part.write_box(inner, local[relative(inner, box.lower)])
                covered += inner.size
        _check_covered(access, covered, box, "writes")


def _check_covered(access: Access, covered: int, box: Box, what: str) -> None:
    if access.strict_bounds and covered != box.size:
        raise ExecutionError(
            "KT-X02",
            f"{what} coordinates {list(box.lower)}..{list(box.upper)}, partly outside the view (strict bounds)",
        )


def _gather(view: AnyView, coordinates: Sequence[Array], member: Array, access: Access) -> Array:
    parts = partitions_of(view)
    shape = np.broadcast_shapes(member.shape, *(np.shape(c) for c in coordinates))
    result = np.zeros(shape, view.format.dtype)
    left = np.broadcast_to(member, shape)
    for part in parts:
        mine = left & part.inside(coordinates)
        if mine.any():
            result = np.where(mine, part.gather(coordinates, mine), result)
            left = left & ~mine
    if access.strict_bounds and left.any():
        raise ExecutionError("KT-X02", "reads coordinates outside the view (strict bounds)")
    return result


def _scatter(view: AnyView, coordinates: Sequence[Array], member: Array, values: Array, access: Access) -> None:
    left = np.broadcast_to(member, values.shape)
    for part in partitions_of(view):
        mine = left & part.inside(coordinates)
        if mine.any():
            part.scatter(coordinates, mine, values)
            left = left & ~mine
    if access.strict_bounds and left.any():
        raise ExecutionError("KT-X02", "writes coordinates outside the view (strict bounds)")


@dataclass
class IndirectTile:
    """Coordinates as arrays over a variable space, each broadcastable to the space's extents."""

    view: AnyView
    coordinates: list[Array]
    member: Array
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in the order of the tile."""
        return tuple(self.member.shape[d] for d in self.order)

    def _ordered(self) -> tuple[list[Array], Array]:
        """Coordinates and membership in tile order, which is also the order of traversal."""
        full = [np.broadcast_to(c, self.member.shape) for c in self.coordinates]
        return [np.transpose(c, self.order) for c in full], np.transpose(self.member, self.order)

    def read(self, access: Access) -> Array:
        """Values in tile order."""
        coordinates, member = self._ordered()
        return _gather(self.view, coordinates, member, access)

    def write(self, values: Array, access: Access) -> None:
        """Store values given in tile order; of colliding coordinates the last wins."""
        coordinates, member = self._ordered()
        if access.check_collisions:
            flat = np.stack([c[member] for c in coordinates], axis=-1) if coordinates else np.zeros((1, 0))
            if len(np.unique(flat, axis=0)) != len(flat):
                raise ExecutionError("KT-X11", f"{len(flat)} points store to fewer coordinates (collision check)")
        _scatter(self.view, coordinates, member, values, access)


AnyTile = DirectTile | IndirectTile


def describe(value: Any) -> str:
    """Short text of a run-time value for messages."""
    if isinstance(value, View):
        return f"view {value.label} at byte {value.base}"
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)}" if value.size > 4 else str(value.tolist())
    return str(value) if isinstance(value, int | float | np.generic) else type(value).__name__
