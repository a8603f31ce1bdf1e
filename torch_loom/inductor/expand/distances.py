"""Distances between rows."""

from __future__ import annotations

import math

import torch

from . import expands

aten = torch.ops.aten


@expands(aten._cdist_forward.default)
def cdist(a: torch.Tensor, b: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    """out[.., i, j] = p-norm of a[.., i] - b[.., j]"""
    far = (a.float().unsqueeze(-2) - b.float().unsqueeze(-3)).abs()
    if p == 0:
        out = (far != 0).float().sum(-1)
    elif p == 1:
        out = far.sum(-1)
    elif p == 2:
        out = (far * far).sum(-1).sqrt()
    elif p == math.inf:
        out = far.amax(-1)
    else:
        out = far.pow(p).sum(-1).pow(1 / p)
    return out.to(a.dtype)


@expands(aten._cdist_backward.default)
def cdist_backward(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, p: float, distance: torch.Tensor
) -> torch.Tensor:
    """Gradient of the distances by the first rows; 0 where rows are equal."""
    near = a.float().unsqueeze(-2) - b.float().unsqueeze(-3)
    whole = distance.float().unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(a)
    if p == 1:
        slope = near.sign()
    elif p == 2:
        slope = near / whole
    elif p == math.inf:
        slope = torch.where(near.abs() == whole, near.sign(), 0.0)
    else:
        slope = near.sign() * (near.abs() / whole).pow(p - 1)
    slope = torch.where(whole == 0, 0.0, slope)
    return (slope * grad.float().unsqueeze(-1)).sum(-2).to(a.dtype)
