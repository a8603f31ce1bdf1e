"""Pooling with windows that depend on the place, and bags of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import expands
from .scans import lowest

aten = torch.ops.aten


def _windows(size: Any, count: Any, device: torch.device) -> torch.Tensor:
    """[count, size]: does window o = [floor(o size / count), ceil((o + 1) size / count)) hold element i?"""
    at = torch.arange(size, device=device)
    out = torch.arange(count, device=device).unsqueeze(-1)
    return (at >= out * size // count) & (at < ((out + 1) * size + count - 1) // count)


@expands(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(x: torch.Tensor, output_size: Sequence[Any]) -> torch.Tensor:
    """Means over windows that cover each of the last three dims evenly."""
    out = x.float()
    for d, count in zip((-3, -2, -1), output_size, strict=True):
        held = _windows(x.shape[d], count, x.device)
        row = out.movedim(d, -1).unsqueeze(-2)
        total = torch.where(held, row, 0.0).sum(-1) / held.to(torch.int32).sum(-1)
        out = total.movedim(-1, d)
    return out.to(x.dtype).contiguous()


@expands(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Each element collects the means that it is part of."""
    out = grad.float()
    for d in (-3, -2, -1):
        held = _windows(x.shape[d], grad.shape[d], x.device)
        share = out.movedim(d, -1) / held.to(torch.int32).sum(-1)
        out = torch.where(held.t(), share.unsqueeze(-2), 0.0).sum(-1).movedim(-1, d)
    return out.to(x.dtype).contiguous()


@expands(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(x: torch.Tensor, output_size: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima over windows that cover each of the last three dims evenly, and their flat places."""
    sizes = x.shape[-3:]
    flat = sizes[0] * sizes[1] * sizes[2]
    held = [_windows(n, c, x.device) for n, c in zip(sizes, output_size, strict=True)]
    d, h, w = output_size
    inside = (
        held[0].reshape(d, 1, 1, sizes[0], 1, 1)
        & held[1].reshape(1, h, 1, 1, sizes[1], 1)
        & held[2].reshape(1, 1, w, 1, 1, sizes[2])
    ).reshape(d, h, w, flat)
    row = x.float().reshape(*x.shape[:-3], 1, 1, 1, flat)
    best = torch.where(inside, row, -torch.inf).amax(-1)
    hit = inside & ((row == best.unsqueeze(-1)) | row.isnan())
    place = torch.where(hit, torch.arange(flat, device=x.device), flat).amin(-1)
    return best.to(x.dtype), place


def _bags(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    count = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    at = torch.arange(indices.shape[0], device=weight.device)
    starts = offsets[:count]
    bag = (starts.unsqueeze(0) <= at.unsqueeze(1)).to(torch.int64).sum(-1) - 1
    rows = weight.index_select(0, indices).float()
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.float().unsqueeze(-1)
    kept = indices != padding_idx if padding_idx >= 0 else indices >= 0
    mine = (bag.unsqueeze(0) == torch.arange(count, device=weight.device).unsqueeze(1)) & kept
    size = mine.to(torch.int64).sum(-1)
    if mode == 2:
        total = torch.where(mine.unsqueeze(-1), rows, lowest(rows.dtype)).amax(1)
        total = torch.where((size > 0).unsqueeze(-1), total, 0.0)
    else:
        total = torch.where(mine.unsqueeze(-1), rows, 0.0).sum(1)
        if mode == 1:
            total = total / size.clamp(min=1).unsqueeze(-1)
    return total.to(weight.dtype), bag, size, torch.zeros_like(size)


@expands(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum (0), mean (1) or maximum (2) of the rows of each bag; empty bags give 0."""
    return _bags(weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding_idx)


@expands(aten.nonzero_static.default)
def nonzero_static(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """Coordinates of the first ``size`` elements that are not zero, in order; the rest is ``fill_value``."""
    flat = (x != 0).reshape(-1)
    if x.dim() == 0 or x.numel() == 0 or size == 0:
        return NotImplemented  # type: ignore[no-any-return]
    rank = flat.to(torch.int64).cumsum(0)
    slot = torch.arange(1, size + 1, device=x.device).unsqueeze(-1)
    hit = (rank == slot) & flat
    place = torch.where(hit, torch.arange(flat.shape[0], device=x.device), -1).amax(-1)
    columns, rest = [], place
    for n in reversed(x.shape):
        columns.append(torch.where(place < 0, fill_value, rest % n))
        rest = rest // n
    return torch.stack(columns[::-1], -1)
