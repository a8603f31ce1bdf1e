"""Views as functions: take the elements of a view out of a storage's value, and put new ones in.

A storage's value is a dense tensor. A view (sizes, strides, offset) of it is found in three steps: reshape the value so
that each dim of the view is one axis, slice the axes, and permute. ``put`` goes the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch


class Geometry(NamedTuple):
    """Sizes, strides and offset of a view, in elements of its storage."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class NoView(ValueError):
    """The view's elements are no slices of a reshaped storage."""


@dataclass(frozen=True)
class _Way:
    """``factors``: shape of the reshaped value; ``slices``: start, count and step per axis; ``axes``: the axis of each
    dim of the view that has more than one element of its own, in the view's order."""

    factors: tuple[int, ...]
    slices: tuple[tuple[int, int, int], ...]
    axes: tuple[int, ...]


def _own(view: Geometry) -> list[int]:
    """Dims of a view with several elements of their own."""
    return [d for d, (n, step) in enumerate(zip(view.sizes, view.strides, strict=True)) if n > 1 and step > 0]


def _along(view: Geometry, elements: int, steps: set[int]) -> _Way | None:
    """The way over axes whose steps in memory are ``steps``, if there is one."""
    chain = sorted(s for s in steps | {1} if s < elements) + [elements]
    if any(b % a for a, b in zip(chain, chain[1:], strict=False)):
        return None
    units = chain[-2::-1] if elements > 1 else []  # outermost axis first
    lengths = [chain[chain.index(u) + 1] // u for u in units]
    slices = [(view.offset // u % n, 1, 1) for u, n in zip(units, lengths, strict=True)]
    taken: list[int] = []
    for d in _own(view):
        count, step = view.sizes[d], view.strides[d]
        axis = next((k for k, u in enumerate(units) if u <= step), None)
        if axis is None or axis in taken or step % units[axis]:
            return None
        start, by = slices[axis][0], step // units[axis]
        if start + (count - 1) * by >= lengths[axis]:
            return None
        slices[axis] = (start, count, by)
        taken.append(axis)
    return _Way(tuple(lengths), tuple(slices), tuple(taken))


def _way(sizes: Sequence[int], view: Geometry) -> _Way:
    elements = prod(sizes)
    base = {prod(sizes[d + 1 :]) for d in range(len(sizes))}
    own = {view.strides[d] for d in _own(view)}
    for steps in (base, base | own, own, set()):
        found = _along(view, elements, steps)
        if found is not None:
            return found
    raise NoView(f"a view of sizes {list(view.sizes)} and strides {list(view.strides)} of a storage {list(sizes)}")


def _sliced(value: torch.Tensor, way: _Way) -> list[torch.Tensor]:
    """The reshaped value before and after each slice; an axis that is taken whole has none."""
    steps = [value.reshape(way.factors)]
    for axis, (start, count, by) in _cuts(way):
        steps.append(torch.ops.aten.slice.Tensor(steps[-1], axis, start, start + (count - 1) * by + 1, by))
    return steps


def _cuts(way: _Way) -> list[tuple[int, tuple[int, int, int]]]:
    whole = [(0, n, 1) for n in way.factors]
    return [(k, s) for k, (s, w) in enumerate(zip(way.slices, whole, strict=True)) if s != w]


def take(value: torch.Tensor, view: Geometry) -> torch.Tensor:
    """The elements of a view of a storage whose value is ``value``. Raises NoView."""
    way = _way(value.shape, view)
    part = _sliced(value, way)[-1]
    rest = [k for k in range(len(way.factors)) if k not in way.axes]
    own = set(_own(view))
    part = part.permute([*way.axes, *rest])
    part = part.reshape([n if d in own else 1 for d, n in enumerate(view.sizes)])
    return part.expand(view.sizes)


def put(value: torch.Tensor | None, sizes: Sequence[int], view: Geometry, new: torch.Tensor) -> torch.Tensor:
    """The value of a storage of ``sizes`` after ``new`` was written to a view of it; elements that the view shows
    several times get the first of the new ones. ``value`` may be None if the view shows everything. Raises NoView."""
    way = _way(sizes, view)
    own = _own(view)
    for d, (n, step) in enumerate(zip(view.sizes, view.strides, strict=True)):
        if n > 1 and step == 0:
            new = new.narrow(d, 0, 1)
    new = new.reshape([view.sizes[d] for d in own])
    order = sorted(range(len(own)), key=lambda i: way.axes[i])
    new = new.permute(order).reshape([count for _, count, _ in way.slices])
    if _cuts(way):
        assert value is not None
        steps = _sliced(value, way)
        for (axis, (start, count, by)), before in reversed(list(zip(_cuts(way), steps, strict=False))):
            new = torch.ops.aten.slice_scatter.default(before, new, axis, start, start + (count - 1) * by + 1, by)
    return new.reshape(tuple(sizes))
