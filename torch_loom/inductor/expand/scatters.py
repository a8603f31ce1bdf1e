"""Scatters that accumulate: each target folds the sources that point to it.

Colliding updates have no order on the chip, so they are not written but collected: every target compares the indices
with its own place and folds what matches. Sums of many floats go through PT as a product with the 0/1 matrix of matches
(there a NaN or infinity among the sources reaches all targets of its column). A comparison would take an index that
points nowhere, so each is checked first (``bounds.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..bounds import checked_index
from . import expands
from .scans import lowest
from .sorts import comparable

aten = torch.ops.aten
MATMUL = 1 << 22  # pairs of target and source element from which a sum goes through PT


def _collect(index: torch.Tensor, values: torch.Tensor, targets: Any) -> torch.Tensor:
    """out[p, r] = sum of values[n, r] with index[n] == p, for p < targets."""
    at = torch.arange(targets, device=index.device)
    match = index.unsqueeze(0) == at.unsqueeze(1)
    pairs = targets * values.shape[0] * values.shape[1]
    if values.is_floating_point() and (not isinstance(pairs, int) or pairs > MATMUL):
        return torch.mm(match.to(values.dtype), values)
    addends = values.float() if values.is_floating_point() else values
    return torch.where(match.unsqueeze(-1), addends.unsqueeze(0), 0).sum(1)


def _accumulate(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    wraps: bool = True,
    checks: bool = True,
) -> torch.Tensor:
    """x with values added at the places of an index tuple; negative ones count from the end if it ``wraps``."""
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return NotImplemented  # type: ignore[no-any-return]
    used = [k for k, i in enumerate(indices) if i is not None]
    kept = [k for k in range(x.dim()) if k not in used]
    given: list[torch.Tensor] = [i for i in indices if i is not None]
    if checks:
        given = [checked_index(i, x.shape[k], wraps) for k, i in zip(used, given, strict=True)]
    parts = torch.broadcast_tensors(*given)
    linear, targets = torch.zeros_like(parts[0]), 1
    for k, part in zip(used, parts, strict=True):
        linear = linear * x.shape[k] + part
        targets = targets * x.shape[k]
    count, rest = parts[0].dim(), [x.shape[k] for k in kept]
    # Neighbouring indices leave their dims in place, others move them to the front.
    together = used == list(range(used[0], used[0] + len(used)))
    front = sum(k < used[0] for k in kept) if together else 0
    whole = [*rest[:front], *parts[0].shape, *rest[front:]]
    spread = values.expand(whole)
    if any(isinstance(n, int) and n == 0 for n in whole):
        return x.clone()
    order = [*range(front, front + count), *range(front), *range(front + count, len(whole))]
    columns = spread.permute(order).reshape(linear.numel(), math.prod(rest))
    total = _collect(linear.reshape(-1), columns, targets)
    total = total.reshape([x.shape[k] for k in used] + rest)
    perm = [*used, *kept]
    total = total.permute([perm.index(d) for d in range(x.dim())])
    return (x + total).to(x.dtype) if x.dtype != torch.bool else x | (total != 0)


@expands(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Accumulating index_put; the plain one is a scatter."""
    return _accumulate(x, indices, values) if accumulate else NotImplemented  # type: ignore[no-any-return]


@expands(aten._unsafe_masked_index_put_accumulate.default)
def masked_index_put(
    x: torch.Tensor, mask: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> torch.Tensor:
    """x with the values under a mask added at the places of an index tuple; indices count under the mask only."""
    wrapped = [None if i is None else torch.where(i < 0, i + n, i) for i, n in zip(indices, x.shape, strict=False)]
    return _accumulate(x, wrapped, torch.where(mask, values, 0), checks=False)


@expands(aten.index_add.default, early=True)
def index_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """x with slices of source, times alpha, added at the places of index."""
    if x.dim() == 0:
        return x + source.reshape(-1).sum() * alpha
    indices: list[torch.Tensor | None] = [None] * (dim % x.dim()) + [index.reshape(-1)]
    return _accumulate(x, indices, source * alpha if alpha != 1 else source, wraps=False)


@expands(aten.put.default)
def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """x as one row with the elements of index replaced, or added to."""
    flat, at = x.reshape(-1), index.reshape(-1)
    if accumulate:
        return _accumulate(flat, [at], source.reshape(-1)).reshape(x.shape)
    return flat.index_put((at,), source.reshape(-1)).reshape(x.shape)


def _fold(x: torch.Tensor, match: torch.Tensor, source: torch.Tensor, reduce: str, include_self: bool) -> torch.Tensor:
    """Fold of x[.., p] with source[.., n] over the n of ``match[.., p, n]``."""
    own, other = comparable(x), comparable(source).unsqueeze(-2)
    hits = match.to(torch.int32).sum(-1)
    touched = hits > 0
    if reduce in ("sum", "add", "mean"):
        total = torch.where(match, other, 0).sum(-1)
        out = own + total if include_self else torch.where(touched, total, own)
        if reduce == "mean":
            count = hits + 1 if include_self else hits.clamp(min=1)
            out = (
                torch.where(touched, out / count, own)
                if out.is_floating_point()
                else out.div(count, rounding_mode="floor")
            )
    elif reduce in ("prod", "multiply"):
        total = torch.where(match, other, 1).prod(-1)
        out = own * total if include_self else torch.where(touched, total, own)
    else:
        largest = reduce == "amax"
        rows = torch.where(match, other, lowest(own.dtype, high=not largest))
        total = rows.amax(-1) if largest else rows.amin(-1)
        both = torch.maximum(own, total) if largest else torch.minimum(own, total)
        out = torch.where(touched, both if include_self else total, own)
    return out.to(x.dtype)


def _scatter_fold(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, include_self: bool
) -> torch.Tensor:
    if x.dim() == 0:
        return _scatter_fold(x.reshape(1), 0, index.reshape(1), source.reshape(1), reduce, include_self).reshape(())
    if index.numel() == 0:
        return x.clone()
    dim = dim % x.dim()
    index = checked_index(index, x.shape[dim])
    box = x
    for d in range(x.dim()):  # only as much of x as the index covers
        source = source.narrow(d, 0, index.shape[d])
        if d != dim:
            box = box.narrow(d, 0, index.shape[d])
    targets = torch.arange(x.shape[dim], device=x.device).unsqueeze(-1)
    match = index.movedim(dim, -1).unsqueeze(-2) == targets
    out = _fold(box.movedim(dim, -1), match, source.movedim(dim, -1), reduce, include_self).movedim(-1, dim)
    for d in range(x.dim()):
        if d != dim and index.shape[d] != x.shape[d]:
            whole = x
            for later in range(d + 1, x.dim()):
                if later != dim:
                    whole = whole.narrow(later, 0, index.shape[later])
            out = torch.cat([out, whole.narrow(d, index.shape[d], x.shape[d] - index.shape[d])], d)
    return out.contiguous()


@expands(aten.scatter_add.default)
def scatter_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """x with the elements of source added at the places of index along a dim."""
    return _scatter_fold(x, dim, index, source, "sum", True)


@expands(aten.scatter_reduce.two)
def scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """x folded with the elements of source at the places of index along a dim."""
    return _scatter_fold(x, dim, index, source, reduce, include_self)


@expands(aten.scatter.reduce)
def scatter_with(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, reduce: str) -> torch.Tensor:
    """The older spelling of a scatter that adds or multiplies."""
    return _scatter_fold(x, dim, index, source, reduce, True)


@expands(aten.scatter.value_reduce)
def scatter_value_with(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any, *, reduce: str) -> torch.Tensor:
    """The older spelling of a scatter that adds or multiplies by a number."""
    source = torch.full_like(index, value, dtype=x.dtype)
    return _scatter_fold(x, dim, index, source, reduce, True)


@expands(aten.scatter.value)
def scatter_value(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """x with a number, which the call may pass, at the places of index."""
    return x.scatter(dim, index, torch.full_like(index, value, dtype=x.dtype))


@expands(aten.index_reduce.default)
def index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """x folded with slices of source at the places of index."""
    if x.dim() == 0:
        return _scatter_fold(x, 0, index.reshape(()), source.reshape(()), reduce, include_self)
    dim = dim % x.dim()
    index = checked_index(index, x.shape[dim])
    match = index.unsqueeze(0) == torch.arange(x.shape[dim], device=x.device).unsqueeze(1)
    out = _fold(x.movedim(dim, -1), match, source.movedim(dim, -1), reduce, include_self)
    return out.movedim(-1, dim).contiguous()


@expands(aten.masked_scatter.default)
def masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """x with the elements under a mask replaced by those of source, in order."""
    x, mask = torch.broadcast_tensors(x, mask)
    if source.numel() == 0:
        return x.clone()
    at = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[at].reshape(x.shape), x)


@expands(aten.nonzero_static.default)
def nonzero_static(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """Coordinates of the first ``size`` elements that are not zero, in order; the rest is ``fill_value``."""
    if x.dim() == 0 or x.numel() == 0 or size == 0:
        return torch.full([size, x.dim()], fill_value, dtype=torch.int64, device=x.device)
    flat = (x != 0).reshape(-1)
    rank = flat.to(torch.int64).cumsum(0) - 1
    slot = torch.where(flat & (rank < size), rank, size)  # what does not count meets behind the end
    at = torch.arange(flat.shape[0], device=x.device)
    place = torch.full([size + 1], -1, dtype=torch.int64, device=x.device).scatter(0, slot, at)[:size]
    columns, rest = [], place
    for n in reversed(x.shape):
        columns.append(torch.where(place < 0, fill_value, rest % n))
        rest = rest // n
    return torch.stack(columns[::-1], -1)
