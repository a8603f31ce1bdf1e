"""Changing which host dim is the stick: the element map between two layouts of one tensor, and its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torch_loom.layout.stick import SpyreTensorLayout
from torch_loom.layout.transfer import Offsets, offsets


def restickify_layout(
    layout: SpyreTensorLayout, size: Sequence[int], strides: Sequence[int], stick_dim: int
) -> SpyreTensorLayout:
    """A layout of the same tensor with host dim ``stick_dim`` as the stick, the other dims in order."""
    if not 0 <= stick_dim < len(size):
        raise ValueError(f"stick dim {stick_dim} is not a dim of host size {list(size)}")
    order = [dim for dim in range(len(size)) if dim != stick_dim] + [stick_dim]
    return SpyreTensorLayout(list(size), list(strides), layout.device_dtype, order)


def restickify_map(
    source: SpyreTensorLayout,
    target: SpyreTensorLayout,
    size: Sequence[int],
    strides: Sequence[int],
) -> tuple[Offsets, Offsets]:
    """(source, target) device offsets in elements of every element of the tensor, by ascending host offset.

    Padding of either layout is in neither array.
    """
    host_a, device_a = offsets(source, size, strides)
    host_b, device_b = offsets(target, size, strides)
    # Broadcast dims hold copies: any one serves as the source, all of them must be written.
    order = np.argsort(host_a, kind="stable")
    first = order[np.searchsorted(host_a[order], host_b)]
    rank = np.argsort(host_b, kind="stable")
    return device_a[first][rank], device_b[rank]


def restickify_cost(source: SpyreTensorLayout, target: SpyreTensorLayout) -> int | None:
    """Planner cost: elements of the target buffer, 0 if both describe the same bytes, None if impossible."""
    if source.device_dtype is not target.device_dtype:
        return None
    return 0 if source.same_bytes(target) else math.prod(target.device_size)
