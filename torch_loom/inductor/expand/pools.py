"""Pools: windows that cover a dim evenly, and gradients of maxima and means over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from . import expands

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


def _share(grad: torch.Tensor, x: torch.Tensor, rank: int) -> torch.Tensor:
    """Each element collects the means over its windows of the last ``rank`` dims."""
    out = grad.float()
    for d in range(-rank, 0):
        held = _windows(x.shape[d], grad.shape[d], x.device)
        share = out.movedim(d, -1) / held.to(torch.int32).sum(-1)
        out = torch.where(held.t(), share.unsqueeze(-2), 0.0).sum(-1).movedim(-1, d)
    return out.to(x.dtype).contiguous()


@expands(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Gradient of means over windows of the last three dims."""
    return _share(grad, x, 3)


@expands(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Gradient of means over windows of the last two dims."""
    return _share(grad, x, 2)


def _each(value: Sequence[Any], rank: int) -> Sequence[Any]:
    """One number for each dim, where one may stand for all."""
    return list(value) * rank if len(value) == 1 else value


def _register_average(target: Any, rank: int) -> None:
    """Gradient of means over windows of the last ``rank`` dims where the last window may reach past the padding: what
    it covers beyond does not count. Inductor divides by the whole window there; the other cases are left to it."""

    def backward(
        grad: torch.Tensor,
        x: torch.Tensor,
        kernel: Sequence[Any],
        stride: Sequence[Any],
        padding: Sequence[Any],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: Any,
    ) -> Any:
        if not (ceil_mode and count_include_pad and divisor_override is None):
            return NotImplemented
        out = grad.float()
        ways = zip(range(-rank, 0), *(_each(v, rank) for v in (kernel, stride or kernel, padding)), strict=True)
        for d, size, step, pad in ways:
            at = torch.arange(x.shape[d], device=x.device)
            begin = (torch.arange(grad.shape[d], device=x.device) * step - pad).unsqueeze(-1)
            end = (begin + size).clamp(max=x.shape[d] + pad)
            share = out.movedim(d, -1) / (end - begin).squeeze(-1)
            held = ((at >= begin) & (at < end)).t()
            out = torch.where(held, share.unsqueeze(-2), 0.0).sum(-1).movedim(-1, d)
        return out.to(x.dtype).contiguous(memory_format=suggest_memory_format(x))

    expands(target)(backward)


_register_average(aten.avg_pool2d_backward.default, 2)
_register_average(aten.avg_pool3d_backward.default, 3)


def _to_places(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor, rank: int) -> torch.Tensor:
    """Each maximum hands its gradient to the place of its plane where it stood."""
    lead, size = x.shape[:-rank], x.shape[-rank:]
    flat = size[0]
    for n in size[1:]:
        flat = flat * n
    zeros = torch.zeros([*lead, flat], dtype=grad.dtype, device=x.device)
    out = zeros.scatter_add(-1, places.reshape(*lead, -1), grad.reshape(*lead, -1))
    return out.reshape(x.shape).to(x.dtype)


def _register_backward(adaptive: Any, windowed: Any, dims: int) -> None:
    """Gradients of maxima over windows of the last ``dims`` dims: where the windows lie is in ``places``."""

    def of_even_windows(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return _to_places(grad, x, places, dims)

    def of_windows(
        grad: torch.Tensor,
        x: torch.Tensor,
        kernel: Sequence[Any],
        stride: Sequence[Any],
        padding: Sequence[Any],
        dilation: Sequence[Any],
        ceil_mode: bool,
        places: torch.Tensor,
    ) -> torch.Tensor:
        return _to_places(grad, x, places, dims)

    expands(adaptive)(of_even_windows)
    expands(windowed)(of_windows)


_register_backward(aten.adaptive_max_pool2d_backward.default, aten.max_pool2d_with_indices_backward.default, 2)
_register_backward(aten.adaptive_max_pool3d_backward.default, aten.max_pool3d_with_indices_backward.default, 3)


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
