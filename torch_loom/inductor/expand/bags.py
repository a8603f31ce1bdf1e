"""Bags of embeddings: sums, means or maxima of rows that lie together, and their gradients."""

from __future__ import annotations

from typing import Any

import torch

from . import expands
from .scans import lowest

aten = torch.ops.aten


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
    where = torch.zeros_like(size)
    if mode == 2:
        candidates = torch.where(mine.unsqueeze(-1), rows, lowest(rows.dtype))
        total = candidates.amax(1)
        first = torch.where(candidates == total.unsqueeze(1), at.unsqueeze(-1), indices.shape[0] - 1).amin(1)
        where = indices[first]
        total = torch.where((size > 0).unsqueeze(-1), total, 0.0)
    else:
        total = torch.where(mine.unsqueeze(-1), rows, 0.0).sum(1)
        if mode == 1:
            total = total / size.clamp(min=1).unsqueeze(-1)
    return total.to(weight.dtype), bag, size, where


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
    """Sum (0), mean (1) or maximum (2) of the rows of each bag, 0 for empty ones; the bag of each index; sizes of the
    bags; for maxima the row that each came from."""
    return _bags(weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding_idx)


@expands(aten._embedding_bag_dense_backward.default)
def embedding_bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    bag: torch.Tensor,
    size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """Each row of the weights collects the gradients of the bags that it is in, of maxima those that it gave."""
    if mode == 2:
        own = torch.where((size > 0).unsqueeze(-1), grad.float(), 0.0).unsqueeze(0)
        every = torch.arange(num_weights, device=grad.device).reshape(-1, 1, 1)
        return torch.where(maximum_indices.unsqueeze(0) == every, own, 0.0).sum(1).to(grad.dtype)
    rows = grad.float().index_select(0, bag)
    if scale_grad_by_freq:
        times = (indices.unsqueeze(0) == indices.unsqueeze(1)).to(torch.int32).sum(-1)
        rows = rows / times.unsqueeze(-1)
    if mode == 1:
        rows = rows / size.index_select(0, bag).clamp(min=1).unsqueeze(-1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.float().unsqueeze(-1)
    if padding_idx >= 0:
        rows = torch.where((indices != padding_idx).unsqueeze(-1), rows, 0.0)
    out = torch.zeros([num_weights, grad.shape[1]], dtype=torch.float32, device=grad.device)
    return out.index_add(0, indices, rows).to(grad.dtype)


@expands(aten._embedding_bag_backward.default)
def embedding_bag_backward_of_any_kind(
    grad: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *rest: Any
) -> torch.Tensor:
    """The same where PyTorch leaves the choice between dense and sparse gradients open; there are no sparse ones."""
    sparse = 6  # among the arguments after those; the dense operator lacks it and the offsets
    if rest[sparse]:
        return NotImplemented  # type: ignore[no-any-return]
    return embedding_bag_backward(grad, indices, *rest[:sparse], *rest[sparse + 1 :])


@expands(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(
    grad: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bag: torch.Tensor,
    mode: int,
    padding_idx: int = -1,
) -> torch.Tensor:
    """Products of the rows with the gradients of their bags."""
    out = (grad.float().index_select(0, bag) * weight.float().index_select(0, indices)).sum(-1)
    if padding_idx >= 0:
        out = torch.where(indices != padding_idx, out, 0.0)
    return out.to(grad.dtype)
