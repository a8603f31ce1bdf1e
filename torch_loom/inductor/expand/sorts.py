"""Sorts and what follows from them, by counting: the rank of an element is the number of elements before it.

All comparisons are independent, so a sort is one reduction over pairs and one scatter by rank. NaN stands behind every
number, as PyTorch has it; equal elements keep their order. ``topk`` of a few elements takes extremes one by one.
"""

from __future__ import annotations

import torch

from . import expands
from .scans import lowest

aten = torch.ops.aten
FEW = 16  # extremes that are taken one by one
LONG = 512  # extents from which counting pairs costs more


def _less(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Is a before b in ascending order? NaN is behind everything."""
    if not a.is_floating_point():
        return a < b
    return (a < b) | (b.isnan() & ~a.isnan())


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.is_floating_point():
        return a == b
    return (a == b) | (a.isnan() & b.isnan())


def comparable(x: torch.Tensor) -> torch.Tensor:
    """The element type in which the device compares."""
    if x.is_floating_point():
        return x.float()
    return x.int() if x.dtype == torch.bool else x


def _order(x: torch.Tensor, descending: bool) -> torch.Tensor:
    """Places of the elements of the last dim in sorted order (int64)."""
    n = x.shape[-1]
    at = torch.arange(n, device=x.device)
    own, other = x.unsqueeze(-1), x.unsqueeze(-2)
    before = _less(own, other) if descending else _less(other, own)
    before = before | (_same(own, other) & (at.unsqueeze(0) < at.unsqueeze(1)))
    rank = before.to(torch.int32).sum(-1)
    return torch.zeros_like(rank).scatter(-1, rank, at.expand(rank.shape))


def _sort(x: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    row = x.movedim(dim, -1)
    places = _order(comparable(row), descending)
    return row.gather(-1, places).movedim(-1, dim).contiguous(), places.movedim(-1, dim).contiguous()


@expands(aten.sort.default)
def sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Values in order and where they came from."""
    return _sort(x, dim, descending)


@expands(aten.sort.stable)
def sort_stable(
    x: torch.Tensor, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values in order and where they came from."""
    return _sort(x, dim, descending)


def _first(hit: torch.Tensor) -> torch.Tensor:
    """First place of the last dim at which ``hit`` is true."""
    n = hit.shape[-1]
    at = torch.arange(n, device=hit.device)
    return torch.where(hit, at, n - 1).amin(-1)


def _extremes(x: torch.Tensor, k: int, largest: bool) -> torch.Tensor:
    """Places of the ``k`` largest or smallest elements of the last dim, one after the other."""
    end = lowest(x.dtype) if largest else lowest(x.dtype, high=True)
    at = torch.arange(x.shape[-1], device=x.device)
    taken = torch.zeros_like(x, dtype=torch.bool)
    places = []
    nan = x.isnan() if x.is_floating_point() else None
    for _ in range(k):
        left = x if nan is None else torch.where(nan, torch.inf, x)
        left = torch.where(taken, end, left)
        best = (left.amax(-1) if largest else left.amin(-1)).unsqueeze(-1)
        hit = (left == best) & ~taken
        if nan is not None:  # NaN is the largest of all
            waiting = nan & ~taken
            there = waiting.any(-1).unsqueeze(-1)
            only = (~waiting & ~taken).any(-1).unsqueeze(-1)
            hit = torch.where(there, waiting, hit) if largest else torch.where(only, hit & ~nan, hit)
        found = _first(hit)
        places.append(found)
        taken = taken | (at == found.unsqueeze(-1))
    return torch.stack(places, -1)


@expands(aten.topk.default)
def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest (smallest) elements, in order, and their places."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    row = x.movedim(dim, -1)
    n = row.shape[-1]
    if isinstance(k, int) and 0 < k <= FEW and isinstance(n, int) and n >= LONG:
        places = _extremes(comparable(row), k, largest)
    else:
        places = _order(comparable(row), largest)[..., :k]
    return row.gather(-1, places).movedim(-1, dim).contiguous(), places.movedim(-1, dim).contiguous()


def _extreme(x: torch.Tensor, dim: int | None, keepdim: bool, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest or smallest element along a dim (of all, for None) and its first place."""
    rank = x.dim()
    wide = comparable(x.reshape(-1) if dim is None or rank == 0 else x.movedim(dim, -1))
    best = wide.amax(-1) if largest else wide.amin(-1)
    hit = wide == best.unsqueeze(-1)
    if wide.is_floating_point():
        hit = hit | wide.isnan()
    found = best.to(x.dtype), _first(hit)
    if keepdim and rank:
        best, place = (t.reshape([1] * rank) if dim is None else t.unsqueeze(dim) for t in found)
        return best, place
    return found


@expands(aten.max.dim)
def max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest elements along a dim and their first places; NaN is larger than every number."""
    return _extreme(x, dim, keepdim, True)


@expands(aten.min.dim)
def min_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest elements along a dim and their first places; a NaN counts as the smallest."""
    return _extreme(x, dim, keepdim, False)


@expands(aten.argmax.default)
def argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """First place of the largest element; NaN is larger than every number."""
    return _extreme(x, dim, keepdim, True)[1]


@expands(aten.argmin.default)
def argmin(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """First place of the smallest element, or of the first NaN."""
    return _extreme(x, dim, keepdim, False)[1]


def _pick(
    x: torch.Tensor, places: torch.Tensor, k: torch.Tensor | int, dim: int, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Element ``k`` of the order ``places`` of the last dim of ``x``; ``k`` may differ by row."""
    if isinstance(k, torch.Tensor):
        place = places.gather(-1, k.unsqueeze(-1))
    else:
        place = places[..., k : k + 1]
    value = x.gather(-1, place)
    if keepdim:
        return value.movedim(-1, dim).contiguous(), place.movedim(-1, dim).contiguous()
    return value.squeeze(-1), place.squeeze(-1)


@expands(aten.kthvalue.default)
def kthvalue(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The k-th smallest element (from 1) and its place."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    row = x.movedim(dim, -1)
    return _pick(row, _order(comparable(row), False), k - 1, dim, keepdim)


def _median(x: torch.Tensor, dim: int, keepdim: bool, skip: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower median; a NaN is the result unless it is to be skipped."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    row = x.movedim(dim, -1)
    places, n = _order(comparable(row), False), row.shape[-1]
    if not x.is_floating_point():
        return _pick(row, places, (n - 1) // 2, dim, keepdim)
    numbers = (~row.isnan()).to(torch.int64).sum(-1)
    middle = (numbers - 1).clamp(min=0) // 2
    if not skip:  # the first NaN stands behind all numbers
        middle = torch.where(numbers < n, numbers, middle)
    return _pick(row, places, middle, dim, keepdim)


@expands(aten.median.dim)
def median_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower median along a dim and its place."""
    return _median(x, dim, keepdim, False)


@expands(aten.nanmedian.dim)
def nanmedian_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower median of the numbers along a dim and its place."""
    return _median(x, dim, keepdim, True)


@expands(aten.median.default)
def median(x: torch.Tensor) -> torch.Tensor:
    """Lower median of all elements."""
    return _median(x.reshape(-1), 0, False, False)[0]


@expands(aten.nanmedian.default)
def nanmedian(x: torch.Tensor) -> torch.Tensor:
    """Lower median of all numbers."""
    return _median(x.reshape(-1), 0, False, True)[0]


@expands(aten.mode.default)
def mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest of the most frequent elements and the last place where it stands."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    row = x.movedim(dim, -1)
    wide = comparable(row)
    count = _same(wide.unsqueeze(-1), wide.unsqueeze(-2)).to(torch.int32).sum(-1)
    often = count == count.amax(-1, True)
    value = torch.where(often, wide, lowest(wide.dtype, high=True)).amin(-1, True)
    at = torch.arange(row.shape[-1], device=x.device)
    place = torch.where(often & (wide == value), at, 0).amax(-1, True)
    return _pick(row, place, 0, dim, keepdim)


def _between(edges: torch.Tensor, values: torch.Tensor, right: bool, out_int32: bool) -> torch.Tensor:
    """Number of edges (last dim) before each value."""
    edges, values = comparable(edges), comparable(values)
    if edges.dtype != values.dtype:
        common = torch.promote_types(edges.dtype, values.dtype)
        edges, values = edges.to(common), values.to(common)
    edges, values = edges.unsqueeze(-2), values.unsqueeze(-1)
    passed = ~(edges > values) if right else ~(edges >= values)
    count = passed.to(torch.int32).sum(-1)
    return count.to(torch.int32 if out_int32 else torch.int64)


@expands(aten.bucketize.Tensor)
def bucketize(
    x: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """Bucket of each element between ascending boundaries."""
    return _between(boundaries, x.reshape(-1), right, out_int32).reshape(x.shape)


@expands(aten.searchsorted.Tensor)
def searchsorted(
    edges: torch.Tensor,
    values: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Place at which each value would enter its ascending row of ``edges``."""
    if sorter is not None:
        edges = edges.gather(-1, sorter)
    right = right or side == "right"
    if edges.dim() == 1:
        return _between(edges, values.reshape(-1), right, out_int32).reshape(values.shape)
    return _between(edges, values, right, out_int32)


@expands(aten.histc.default)
def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Counts of ``bins`` equal bins between ``min`` and ``max`` (of the data when they are equal)."""
    wide = x.reshape(-1).float()
    low: torch.Tensor | float = wide.amin() if min == max else float(min)
    high: torch.Tensor | float = wide.amax() if min == max else float(max)
    if isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor):
        flat = low == high
        low, high = torch.where(flat, low - 1, low), torch.where(flat, high + 1, high)
    place = ((wide - low) * bins / (high - low)).floor().clamp(max=bins - 1)
    inside = (wide >= low) & (wide <= high)
    at = torch.arange(bins, device=x.device, dtype=torch.float32).unsqueeze(-1)
    return ((place == at) & inside).to(torch.float32).sum(-1).to(x.dtype)
