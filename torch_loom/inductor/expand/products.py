"""Products that aten spells as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import expands

aten = torch.ops.aten


@expands(aten.addbmm.default, early=True)
def addbmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    """beta * x + alpha * sum of a[i] @ b[i]"""
    out = torch.mm(a.permute(1, 0, 2).flatten(1), b.flatten(0, 1))
    if alpha != 1:
        out = out * alpha
    if beta == 0:
        return out
    return (x * beta if beta != 1 else x) + out


@expands(aten._trilinear.default)
def trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Sum over ``sumdim`` of the product of three tensors that lack the dims of their expand lists."""

    def spread(t: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        for d in sorted(dims):
            t = t.unsqueeze(d)
        return t.float()

    product = spread(a, expand1) * spread(b, expand2) * spread(c, expand3)
    return product.sum(list(sumdim)).to(a.dtype)


@expands(aten.pow.Tensor_Tensor)
def pow_of_integers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Integer powers by squaring. From 32 on only the parity of an exponent matters: bases other than -1, 0 and 1
    have left the range. A negative exponent gives 0 for all but 1 and -1, as in PyTorch."""
    if x.is_floating_point() or y.is_floating_point() or torch.bool in (x.dtype, y.dtype):
        return NotImplemented  # type: ignore[no-any-return]
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = torch.broadcast_tensors(x.to(dtype), y.to(dtype))
    left = torch.where(y < 32, y, 32 + (y & 1))
    out, base = torch.ones_like(x), x
    for k in range(6):
        out = torch.where((left >> k) & 1 == 1, out * base, out)
        base = base * base
    unit = torch.where(x == 1, 1, torch.where(x == -1, 1 - 2 * (y & 1), 0))
    return torch.where(y < 0, unit, out).to(dtype)
