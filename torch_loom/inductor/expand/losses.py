"""Gradients of activations and losses whose shape rules know no symbols, or that have none."""

from __future__ import annotations

from typing import Any

import torch

from . import expands

aten = torch.ops.aten


@expands(aten.softshrink_backward.default, aten.hardshrink_backward.default, early=True)
def shrink_backward(grad: torch.Tensor, x: torch.Tensor, lambd: float) -> torch.Tensor:
    """Gradient of both shrinkages: 0 where |x| is at most ``lambd``."""
    return torch.where((x >= -lambd) & (x <= lambd), 0.0, grad)


def _per_sample(grad: torch.Tensor, reduction: int, samples: Any) -> torch.Tensor:
    """Gradient of each sample's own loss from that of the reduced one (0 none, 1 mean, 2 sum)."""
    wide = grad.float()
    return wide / samples if reduction == 1 else wide


@expands(aten.multi_margin_loss_backward.default, early=True)
def multi_margin_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    p: float,
    margin: float,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """Gradient of mean over classes c other than the target of max(0, margin - x[target] + x[c]) ** p."""
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    goal = target.reshape(-1, 1)
    n, classes = rows.shape
    wide = rows.float()
    own = torch.arange(classes, device=x.device) == goal
    gap = margin - wide.gather(1, goal) + wide
    slope = torch.where((gap > 0) & ~own, 1.0 if p == 1 else 2 * gap, 0.0) / classes
    if weight is not None:
        slope = slope * weight.float()[goal]
    slope = torch.where(own, -slope.sum(1, keepdim=True), slope)
    return (slope * _per_sample(grad, reduction, n).reshape(-1, 1)).to(x.dtype).reshape(x.shape)


@expands(aten.multilabel_margin_loss_backward.default, early=True)
def multilabel_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> torch.Tensor:
    """Gradient of the sum, over the targets t before the first negative one and all classes c that are no targets, of
    max(0, 1 - x[t] + x[c]), by the number of classes."""
    rows, goals, own = (t.reshape(1, -1) if t.dim() < 2 else t for t in (x, target, is_target))
    n, classes = rows.shape
    wide = rows.float()
    counts = (goals < 0).to(torch.int32).cumsum(1) == 0
    place = torch.where(counts, goals, 0)
    gap = 1 - wide.gather(1, place).unsqueeze(2) + wide.unsqueeze(1)  # [n, target, class]
    hit = (gap > 0) & counts.unsqueeze(2) & (own == 0).unsqueeze(1)
    slope = torch.where(hit, 1.0, 0.0) / classes
    at = torch.arange(classes, device=x.device).reshape(1, 1, -1)
    back = torch.where(place.unsqueeze(2) == at, slope.sum(2, keepdim=True), 0.0).sum(1)
    return ((slope.sum(1) - back) * _per_sample(grad, reduction, n).reshape(-1, 1)).to(x.dtype).reshape(x.shape)
