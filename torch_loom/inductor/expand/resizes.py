"""Resizing, and gradients of resizing and padding: along each dim an element collects what the outputs took from it.

All are separable. Per dim, output ``o`` is a sum of few *taps*: elements of the input with weights that depend on
``o`` alone (after PyTorch's rules for coordinates: half pixels, or corners on corners).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from . import expands

aten = torch.ops.aten
Taps = list[tuple[torch.Tensor, torch.Tensor | float]]  # place and weight for every output
CUBIC = -0.75  # the coefficient of PyTorch's cubic convolution (Keys 1981)


def _ratio(size: Any, count: Any, corners: bool, scale: float | None) -> Any:
    """Input elements for each step of the output."""
    if corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / count


def _centres(size: Any, count: Any, corners: bool, scale: float | None, device: torch.device) -> torch.Tensor:
    at = torch.arange(count, device=device).float()
    ratio = _ratio(size, count, corners, scale)
    return at * ratio if corners else (at + 0.5) * ratio - 0.5


def _nearest(size: Any, count: Any, scale: float | None, device: torch.device, exact: bool) -> Taps:
    at = torch.arange(count, device=device).float() + (0.5 if exact else 0.0)
    place = (at * _ratio(size, count, False, scale)).floor().to(torch.int64).clamp(max=size - 1)
    return [(place, 1.0)]


def _linear(size: Any, count: Any, scale: float | None, device: torch.device, corners: bool) -> Taps:
    centre = _centres(size, count, corners, scale, device).clamp(min=0.0)
    low = centre.floor().to(torch.int64).clamp(max=size - 1)
    part = (centre - low).clamp(min=0.0, max=1.0)
    return [(low, 1.0 - part), ((low + 1).clamp(max=size - 1), part)]


def _cubic(size: Any, count: Any, scale: float | None, device: torch.device, corners: bool) -> Taps:
    centre = _centres(size, count, corners, scale, device)
    low = centre.floor()
    part = centre - low

    def near(x: torch.Tensor) -> torch.Tensor:
        return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1

    def far(x: torch.Tensor) -> torch.Tensor:
        return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC

    weights = [far(part + 1), near(part), near(1 - part), far(2 - part)]
    base = low.to(torch.int64) - 1
    return [((base + k).clamp(min=0, max=size - 1), w) for k, w in enumerate(weights)]


def _collect(grad: torch.Tensor, dim: int, size: Any, taps: Taps) -> torch.Tensor:
    """out[i] = sum over o of grad[o] times the weight with which output o took element i."""
    at = torch.arange(size, device=grad.device).unsqueeze(-1)
    share = torch.zeros([], device=grad.device)
    for place, weight in taps:
        share = share + torch.where(place == at, weight, 0.0)  # [size, count]
    return (grad.movedim(dim, -1).unsqueeze(-2) * share).sum(-1).movedim(-1, dim)


def _backward(
    grad: torch.Tensor, input_size: Sequence[Any], taps_of: Callable[..., Taps], scales: Sequence[Any]
) -> Any:
    out = grad.float()
    for d, scale in enumerate(scales, start=2):
        out = _collect(out, d, input_size[d], taps_of(input_size[d], grad.shape[d], scale, grad.device))
    return out.to(grad.dtype).contiguous()


def _take(x: torch.Tensor, dim: int, taps: Taps) -> torch.Tensor:
    """out[o] = sum over the taps of output o of x[place] times the weight."""
    shape = [1] * dim + [-1] + [1] * (x.dim() - 1 - dim)
    parts = [x.index_select(dim, place) * (w.reshape(shape) if isinstance(w, torch.Tensor) else w) for place, w in taps]
    return reduce(torch.add, parts)


def _register_forward(target: Any, taps: Callable[..., Taps]) -> None:
    def forward(x: torch.Tensor, output_size: Sequence[Any], align_corners: bool, *scales: Any) -> torch.Tensor:
        out = x.float()
        every = (*scales, *[None] * (x.dim() - 2 - len(scales)))
        for d, (count, scale) in enumerate(zip(output_size, every, strict=True), start=2):
            out = _take(out, d, taps(x.shape[d], count, scale, x.device, align_corners))
        return out.to(x.dtype).contiguous(memory_format=suggest_memory_format(x))

    expands(target, early=True)(forward)


def _register_nearest(target: Any, exact: bool) -> None:
    def backward(grad: torch.Tensor, output_size: Any, input_size: Any, *scales: Any) -> torch.Tensor:
        every = (*scales, *[None] * (grad.dim() - 2 - len(scales)))
        return _backward(grad, input_size, lambda n, o, s, d: _nearest(n, o, s, d, exact), every)

    expands(target, early=True)(backward)


def _register(target: Any, taps: Callable[..., Taps]) -> None:
    def backward(
        grad: torch.Tensor, output_size: Any, input_size: Any, align_corners: bool, *scales: Any
    ) -> torch.Tensor:
        every = (*scales, *[None] * (grad.dim() - 2 - len(scales)))
        return _backward(grad, input_size, lambda n, o, s, d: taps(n, o, s, d, align_corners), every)

    expands(target, early=True)(backward)


def _register_pad(target: Any, taps: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
    def backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[Any]) -> torch.Tensor:
        out = grad.float()
        for k in range(len(padding) // 2):
            at = torch.arange(grad.shape[-1 - k], device=grad.device) - padding[2 * k]
            out = _collect(out, out.dim() - 1 - k, x.shape[-1 - k], [(taps(at, x.shape[-1 - k]), 1.0)])
        return out.to(grad.dtype).contiguous()

    expands(target, early=True)(backward)


def _reflected(at: torch.Tensor, size: Any) -> torch.Tensor:
    return (size - 1) - ((size - 1) - at.abs()).abs()


for _rank in ("1d", "2d", "3d"):
    _register_pad(getattr(aten, f"reflection_pad{_rank}_backward").default, _reflected)
    _register_pad(
        getattr(aten, f"replication_pad{_rank}_backward").default, lambda at, size: at.clamp(min=0, max=size - 1)
    )
for _rank in ("1d", "2d", "3d"):
    _register_nearest(getattr(aten, f"upsample_nearest{_rank}_backward").default, exact=False)
    _register_nearest(getattr(aten, f"_upsample_nearest_exact{_rank}_backward").default, exact=True)
for _name, _taps in {
    "upsample_linear1d": _linear,
    "upsample_bilinear2d": _linear,
    "upsample_trilinear3d": _linear,
    "upsample_bicubic2d": _cubic,
}.items():
    _register_forward(getattr(aten, _name).default, _taps)
    _register(getattr(aten, f"{_name}_backward").default, _taps)
