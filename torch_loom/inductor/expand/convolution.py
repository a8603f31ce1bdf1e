"""Convolutions as matrix products over windows.

``windows[n, c, k.., o..] = x[n, c, o * stride + k * dilation]`` is a strided view of the padded input; the product with
the filters over (c, k) is PT's work. A transposed convolution is the plain one over an input with zeros between its
elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import Unsupported
from ..options import current as options
from . import expands

aten = torch.ops.aten


def _listed(values: Sequence[Any], rank: int) -> list[Any]:
    """One value for each of ``rank`` dims."""
    return [values[0]] * rank if len(values) == 1 else list(values)


def _windows(
    x: torch.Tensor, kernel: Sequence[Any], stride: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any]
) -> torch.Tensor:
    """[n, c, k.., o..] of x[n, c, size..].

    Raises Unsupported in eager mode for open sizes: overlapping windows have no common tiles for all of them, so
    programs are made for the sizes at hand."""
    if options().public_outputs and not all(isinstance(n, int) for n in x.shape):
        raise Unsupported("windows over sizes that are not known")
    open_sizes = not all(isinstance(n, int) for n in x.shape[2:])
    if open_sizes or (any(k != 1 for k in kernel) and not any(padding)):
        x = torch.ops.spyre.staged(x)
    if any(padding):
        x = aten.constant_pad_nd(x, [p for side in reversed(padding) for p in (side, side)], 0)
    x = x.contiguous()
    sizes, steps = x.shape[2:], [1] * len(kernel)
    for i in range(len(kernel) - 2, -1, -1):
        steps[i] = steps[i + 1] * sizes[i + 1]
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    plane = steps[0] * sizes[0]
    return x.as_strided(
        [x.shape[0], x.shape[1], *kernel, *out],
        [
            x.shape[1] * plane,
            plane,
            *(d * s for d, s in zip(dilation, steps, strict=True)),
            *(d * s for d, s in zip(stride, steps, strict=True)),
        ],
    )


def _plain(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    groups: int,
) -> torch.Tensor:
    """[n, o, l..] = sum over (c, k) of w[o, c, k..] * windows, in ``groups`` of channels."""
    batch, filters, kernel = x.shape[0], w.shape[0], w.shape[2:]
    rank = len(kernel)
    columns = _windows(x, kernel, stride, padding, dilation)
    out = columns.shape[2 + rank :]
    depth = w[0].numel()
    columns = columns.reshape(batch * groups, depth, -1)
    rows = w.reshape(groups, filters // groups, depth)
    rows = rows.expand(batch, *rows.shape).reshape(batch * groups, filters // groups, depth)
    return torch.bmm(rows, columns).reshape(batch, filters, *out)


def _stuffed(x: torch.Tensor, stride: Sequence[Any]) -> torch.Tensor:
    """x with stride - 1 zeros between neighbours."""
    for d, s in enumerate(stride):
        if s == 1:
            continue
        dim = d + 2
        size = x.shape[dim]
        wide = aten.constant_pad_nd(x.unsqueeze(dim + 1), [0, 0] * (x.dim() - dim - 1) + [0, s - 1], 0)
        x = wide.flatten(dim, dim + 1).narrow(dim, 0, (size - 1) * s + 1)
    return x


def _transposed(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    output_padding: Sequence[Any],
    groups: int,
) -> torch.Tensor:
    """The gradient of a convolution by its input; w is [in, out / groups, k..]."""
    kernel = w.shape[2:]
    rank = len(kernel)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = [(r - p, r - p + e) for r, p, e in zip(reach, padding, output_padding, strict=True)]
    x = aten.constant_pad_nd(_stuffed(x, stride), [v for pair in reversed(pads) for v in pair], 0)
    w = w.reshape(groups, w.shape[0] // groups, w.shape[1], *kernel).transpose(1, 2)
    w = w.flip(list(range(3, 3 + rank))).flatten(0, 1)
    return _plain(x, w, [1] * rank, [0] * rank, dilation, groups)


@expands(aten.convolution.default)
def convolution(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
) -> torch.Tensor:
    """Convolution of x[n, c, size..] with w, in one to three dims."""
    rank = w.dim() - 2
    single = x.dim() == rank + 1
    if single:
        x = x.unsqueeze(0)
    stride, padding, dilation = (_listed(v, rank) for v in (stride, padding, dilation))
    if transposed:
        out = _transposed(x, w, stride, padding, dilation, _listed(output_padding, rank), groups)
    else:
        out = _plain(x, w, stride, padding, dilation, groups)
    if bias is not None:
        out = out + bias.reshape(-1, *[1] * rank)
    return out.squeeze(0) if single else out


def _by_weight(
    small: torch.Tensor, large: torch.Tensor, w: torch.Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> torch.Tensor:
    """sum over (n, l) of small[n, i, l] * windows of large[n, j, k, l], per group: [i, j / groups, k..]."""
    kernel = w.shape[2:]
    rank = len(kernel)
    columns = _windows(large, kernel, stride, padding, dilation)
    for d in range(rank):  # windows that the product does not reach
        columns = columns.narrow(2 + rank + d, 0, small.shape[2 + d])
    batch, channels = small.shape[:2]
    left = small.reshape(batch, groups, channels // groups, -1).permute(1, 2, 0, 3).flatten(2)
    depth = large.shape[1] // groups
    for k in kernel:
        depth = depth * k
    right = columns.reshape(batch, groups, depth, -1).permute(1, 0, 3, 2).flatten(1, 2)
    return torch.bmm(left, right).reshape(w.shape)


@expands(aten.convolution_backward.default)
def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias_sizes: Sequence[Any] | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of a convolution by its input, its filters and its bias."""
    rank = w.dim() - 2
    stride, padding, dilation = (_listed(v, rank) for v in (stride, padding, dilation))
    by_input = by_weight = by_bias = None
    if output_mask[0] and transposed:
        by_input = _plain(grad, w, stride, padding, dilation, groups)
        for d in range(rank):
            by_input = by_input.narrow(2 + d, 0, x.shape[2 + d])
    elif output_mask[0]:
        rest = [
            n - ((o - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, o, s, p, d, k in zip(
                x.shape[2:], grad.shape[2:], stride, padding, dilation, w.shape[2:], strict=True
            )
        ]
        by_input = _transposed(grad, w, stride, padding, dilation, rest, groups)
    if output_mask[1]:
        small, large = (x, grad) if transposed else (grad, x)
        by_weight = _by_weight(small, large, w, stride, padding, dilation, groups)
    if output_mask[2]:
        by_bias = grad.sum([0, *range(2, 2 + rank)])
    return by_input, by_weight, by_bias
