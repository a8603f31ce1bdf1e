"""``device_layout=`` in a graph: an operator that a compiler keeps, and layouts as constants of a graph.

Compilers trace with tensors that have no memory, so what the eager keyword does (choose where a storage lies) would be
lost there. The operator takes the fields of the layout; Inductor calls it like any operator that it does not compile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._library.opaque_object import register_opaque_type

from torch_loom.device import layouts
from torch_loom.layout import DataFormats, SpyreTensorLayout


@torch.library.custom_op("torch_loom::to_layout", mutates_args=())
def _to_layout(tensor: torch.Tensor, device_size: list[int], stride_map: list[int], data_format: str) -> torch.Tensor:
    layout = SpyreTensorLayout(device_size, stride_map, DataFormats[data_format])
    return layouts.empty_with_layout(tensor.shape, layout, tensor.dtype, tensor.device).copy_(tensor)


@_to_layout.register_fake
def _(tensor: torch.Tensor, device_size: list[int], stride_map: list[int], data_format: str) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _backward(_: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return gradient, None, None, None


_to_layout.register_autograd(_backward)
# Dynamo guards on the equality of such constants.
register_opaque_type(SpyreTensorLayout, typ="value")


def place(tensor: torch.Tensor, layout: SpyreTensorLayout) -> torch.Tensor:
    """A contiguous copy of ``tensor`` in ``layout``, as an operator. Raises RuntimeError for layouts that no storage
    can have."""
    fields = layouts.standard_fields("to", layout)
    return torch.ops.torch_loom.to_layout(tensor, *fields, layout.device_dtype.name)
