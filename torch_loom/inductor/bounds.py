"""Indices that no transfer reads: checked by looking them up in a table of all valid ones.

The transfer unit refuses an index outside of the dim that it gathers from or scatters to. An index that is only
compared, as where sources are collected by their targets, passes nothing that checks it, so an expansion sends it
through ``checked_index`` first: a gather of ``[0, 1, .., size)`` at the index, of which the result is the index itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .compat import Pointwise, TensorBox, ir, ops, register_lowering


@torch.library.custom_op("spyre::looked_up", mutates_args=())
def looked_up(table: torch.Tensor, index: torch.Tensor, wraps: bool) -> torch.Tensor:
    """The elements of a row at the places of an index, counted from the end where it is negative and may be."""
    return table[index]


@looked_up.register_fake
def _(table: torch.Tensor, index: torch.Tensor, wraps: bool) -> torch.Tensor:
    return torch.empty_like(index, memory_format=torch.contiguous_format)


@register_lowering(torch.ops.spyre.looked_up.default, type_promotion_kind=None)
def lower_looked_up(table: TensorBox, index: TensorBox, wraps: bool) -> TensorBox:
    """A gather from a table in memory, once for all readers: neither is computed in place of its reads."""
    table.realize()
    with ir.ComputedBuffer.force_realize():
        read = table.make_loader()
    at = index.make_loader()
    size = table.get_size()[0]

    def inner(place: Sequence[Any]) -> Any:
        return read([ops.indirect_indexing(at(place), size, wrap_neg=wraps)])

    out = Pointwise.create(
        device=index.get_device_or_error(),
        dtype=index.get_dtype(),
        inner_fn=inner,
        ranges=list(index.get_size()),
    )
    out.realize()
    return out


def checked_index(index: torch.Tensor, size: Any, wraps: bool = False) -> torch.Tensor:
    """The index in [0, size), given in that range or, if it ``wraps``, in [-size, size); anything else stops the
    launch."""
    if 0 in index.shape or (isinstance(size, int) and size == 0):
        return index
    table = torch.arange(size, dtype=index.dtype, device=index.device)
    return torch.ops.spyre.looked_up(table, index, wraps)  # type: ignore[no-any-return]
