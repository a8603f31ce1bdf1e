"""Running sums, products, maxima: every prefix is a reduction under a mask.

``out[i] = fold(x[j] for j <= i)``. Long extents are cut into rows of ``ROW``: a prefix inside of its row, combined with
the fold of all rows before it, which is a scan of its own. Work per element is then about ``ROW``, and no value waits
for its neighbour. An extent that is open is cut ``LEVELS`` times, which serves all lengths with one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import expands

aten = torch.ops.aten
ROW = 64
LEVELS = 2  # cuts of an open extent; a length of ROW^3 leaves a row of ROW to the last one

Fold = Callable[[torch.Tensor, int], torch.Tensor]


def _prefixes(x: torch.Tensor, fold: Fold, neutral: float) -> torch.Tensor:
    """Inclusive scan of the last dim."""
    n = x.shape[-1]
    at = torch.arange(n, device=x.device)
    mask = at.unsqueeze(0) <= at.unsqueeze(1)
    return fold(torch.where(mask, x.unsqueeze(-2), neutral), -1)


def _scan(
    x: torch.Tensor, fold: Fold, combine: Callable[..., torch.Tensor], neutral: float, cuts: int = LEVELS
) -> torch.Tensor:
    """Inclusive scan of the last dim, by rows when it may be long; ``cuts`` more of them if its length is open."""
    n = x.shape[-1]
    if (n <= 2 * ROW) if isinstance(n, int) else cuts == 0:
        return _prefixes(x, fold, neutral)
    # An open number of rows is never 1: no graph is special to short lengths.
    rows = -(-n // ROW) if isinstance(n, int) else n // ROW + 2
    padded = aten.constant_pad_nd(x, [0, rows * ROW - n], neutral)
    inside = _prefixes(padded.reshape(*x.shape[:-1], rows, ROW), fold, neutral)
    totals = _scan(inside[..., -1], fold, combine, neutral, cuts - 1)
    before = aten.constant_pad_nd(totals, [1, 0], neutral)[..., :rows]
    return combine(inside, before.unsqueeze(-1)).reshape(*x.shape[:-1], rows * ROW)[..., :n]


def _along(x: torch.Tensor, dim: int, scan: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a scan of the last dim along ``dim``."""
    if x.dim() == 0:
        out = scan(x.reshape(1))
        return tuple(o.reshape(()) for o in out) if isinstance(out, tuple) else out.reshape(())
    out = scan(x.movedim(dim, -1))
    if isinstance(out, tuple):
        return tuple(o.movedim(-1, dim).contiguous() for o in out)
    return out.movedim(-1, dim).contiguous()


def _typed(x: torch.Tensor, dtype: torch.dtype | None) -> tuple[torch.Tensor, torch.dtype]:
    """The operand in the type that the scan is computed in, and the type of the result."""
    result = dtype or (x.dtype if x.is_floating_point() else torch.int64)
    x = x.to(result)
    return (x.float() if x.is_floating_point() else x), result


@expands(aten.cumsum.default)
def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """out[i] = x[0] + .. + x[i]"""
    x, result = _typed(x, dtype)
    return _along(x, dim, lambda v: _scan(v, lambda t, d: t.sum(d), torch.add, 0)).to(result)


@expands(aten.cumprod.default)
def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """out[i] = x[0] * .. * x[i]"""
    x, result = _typed(x, dtype)
    return _along(x, dim, lambda v: _scan(v, lambda t, d: t.prod(d), torch.mul, 1)).to(result)


@expands(aten.logcumsumexp.default)
def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """out[i] = log(exp(x[0]) + .. + exp(x[i])), relative to a maximum"""

    def fold(t: torch.Tensor, d: int) -> torch.Tensor:
        highest = t.amax(d)
        base = torch.where(highest.isfinite(), highest, 0.0)
        return torch.exp(t - base.unsqueeze(d)).sum(d).log() + base

    return _along(x.float(), dim, lambda v: _scan(v, fold, torch.logaddexp, -torch.inf)).to(x.dtype)


def _extreme(x: torch.Tensor, dim: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Running extreme and the last place where it stood; NaN beats every number."""

    def scan(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fold = (lambda t, d: t.amax(d)) if largest else (lambda t, d: t.amin(d))
        combine = torch.maximum if largest else torch.minimum
        values = _scan(v, fold, combine, lowest(v.dtype, high=not largest))
        hit = v == values
        if v.is_floating_point():
            hit = hit | v.isnan()
        at = torch.arange(v.shape[-1], device=v.device).expand(v.shape)
        return values, _scan(torch.where(hit, at, -1), lambda t, d: t.amax(d), torch.maximum, -1)

    wide = x.float() if x.is_floating_point() else x.int() if x.dtype == torch.bool else x
    values, places = _along(wide, dim, scan)
    return values.to(x.dtype), places


def lowest(dtype: torch.dtype, high: bool = False) -> Any:
    """Smallest (largest) value of a type as the device computes it: int64 in 32 bits."""
    if dtype.is_floating_point:
        return torch.inf if high else -torch.inf
    info = torch.iinfo(torch.int32 if dtype == torch.int64 else dtype)
    return info.max if high else info.min


@expands(aten.cummax.default)
def cummax(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Running maximum and its place."""
    return _extreme(x, dim, True)


@expands(aten.cummin.default)
def cummin(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Running minimum and its place."""
    return _extreme(x, dim, False)
