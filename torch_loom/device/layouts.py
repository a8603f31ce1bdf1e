"""Layouts of device tensors under their public names: look at, choose, reinterpret.

The algebra is ``torch_loom.layout``; this module only carries layouts to and from storages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_loom import _device
from torch_loom.device.arguments import expect_layout, expect_tensor
from torch_loom.layout import (
    DataFormats,
    ElementArrangement,
    SpyreTensorLayout,
    contiguous_strides,
    device_format,
)

__all__ = [
    "DataFormats",
    "ElementArrangement",
    "SpyreTensorLayout",
    "as_strided_with_layout",
    "copy_tensor",
    "device_tensor_layout",
    "encode_constant",
    "empty_with_layout",
    "get_device_dtype",
    "get_elem_in_stick",
    "get_spyre_tensor_layout",
    "reinterpret_tensor",
    "reinterpret_tensor_with_layout",
    "set_spyre_tensor_layout",
    "to_layout",
]

_BYTES = {"SENUINT8": DataFormats.SENINT8}
"""Storages of plain bytes (as files make them) have no public format; a layout only needs its width."""


def _index(device: Any) -> int:
    from torch_loom.device.module import _index as index

    return index(device)


def device_tensor_layout(tensor: torch.Tensor) -> SpyreTensorLayout | None:
    """Layout of the storage of a spyre tensor; None for tensors of other devices and fake tensors."""
    expect_tensor("device_tensor_layout", tensor)
    if tensor.device.type != "spyre" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    raw = _device.layout(tensor)
    fmt = _BYTES.get(raw["format"]) or DataFormats[raw["format"]]
    return SpyreTensorLayout(raw["device_size"], raw["stride_map"], fmt)


def get_spyre_tensor_layout(tensor: torch.Tensor) -> SpyreTensorLayout:
    """Layout of the storage of a spyre tensor."""
    layout = device_tensor_layout(tensor)
    if layout is None:
        raise TypeError(f"a tensor on {tensor.device} has no device layout")
    return layout


def standard_fields(call: str, layout: SpyreTensorLayout) -> tuple[list[int], list[int]]:
    """Device sizes and stride map of a layout that a storage can have. Raises TypeError for what is no layout,
    RuntimeError for another element arrangement."""
    expect_layout(call, layout)
    if layout.element_arrangement != ElementArrangement.STANDARD:
        raise RuntimeError(
            f"Spyre backend does not support: storages in element arrangement {layout.element_arrangement}; "
            "copy to a layout in standard order"
        )
    return layout.device_size, layout.stride_map


def empty_with_layout(
    size: Sequence[int],
    layout: SpyreTensorLayout,
    dtype: torch.dtype | None = None,
    device: Any = None,
    stride: Sequence[int] | None = None,
) -> torch.Tensor:
    """Tensor with undefined content whose storage lies in ``layout``; host strides are contiguous unless given.

    Raises ValueError when the layout has another format than ``dtype`` on the device, or leaves an element without
    a place of its own."""
    fields = standard_fields("empty_with_layout", layout)
    dtype = dtype or torch.get_default_dtype()
    wanted = get_device_dtype(dtype)
    if layout.device_dtype != wanted:
        raise ValueError(f"{dtype} lies on the device as {wanted}, the layout is for {layout.device_dtype}")
    size = list(size)
    stride = contiguous_strides(size) if stride is None else list(stride)
    return _device.empty_with_layout(size, stride, dtype, _index(device), *fields)


def to_layout(tensor: torch.Tensor, layout: SpyreTensorLayout) -> torch.Tensor:
    """The tensor itself when its storage already lies in ``layout``, else a copy that does."""
    expect_tensor("to_layout", tensor)
    expect_layout("to_layout", layout)
    if device_tensor_layout(tensor) == layout and tensor.storage_offset() == 0:
        return tensor
    dense = tensor if tensor.is_contiguous() else tensor.contiguous()
    device = tensor.device if tensor.device.type == "spyre" else None
    out = empty_with_layout(dense.shape, layout, tensor.dtype, device)
    return out.copy_(dense)


def set_spyre_tensor_layout(tensor: torch.Tensor, layout: SpyreTensorLayout) -> None:
    """Declare that the bytes of the tensor's storage lie in ``layout``; nothing moves."""
    _device.set_layout(
        expect_tensor("set_spyre_tensor_layout", tensor), *standard_fields("set_spyre_tensor_layout", layout)
    )


def reinterpret_tensor_with_layout(
    tensor: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    layout: SpyreTensorLayout,
) -> torch.Tensor:
    """The tensor's bytes as an allocation of the given geometry and layout. ``offset`` is added to the tensor's own."""
    fields = standard_fields("reinterpret_tensor_with_layout", layout)
    offset += int(expect_tensor("reinterpret_tensor_with_layout", tensor).storage_offset())
    return _device.alias_with_layout(tensor, list(size), list(stride), offset, *fields)


def as_strided_with_layout(
    tensor: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    layout: SpyreTensorLayout,
) -> torch.Tensor:
    """Like ``reinterpret_tensor_with_layout``, with ``offset`` in place of the tensor's own."""
    fields = standard_fields("as_strided_with_layout", layout)
    expect_tensor("as_strided_with_layout", tensor)
    return _device.alias_with_layout(tensor, list(size), list(stride), offset, *fields)


def reinterpret_tensor(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    """A view with the given sizes and strides, ``offset`` added to the tensor's own; the layout stays."""
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def get_device_dtype(dtype: torch.dtype) -> DataFormats:
    """Device format of a torch dtype."""
    return device_format(dtype, ieee=_device.ieee_numerics())


def encode_constant(value: float, device_dtype: DataFormats) -> int:
    """Bits of a number in a device format, as an unsigned integer of the format's width.

    Raises ValueError for formats that no dtype of PyTorch has on the device."""
    for dtype in _ENCODABLE:
        if get_device_dtype(dtype) == device_dtype:
            one = torch.tensor([value], dtype=dtype, device="spyre")
            bits = 1024 // _device.layout(one)["device_size"][-1]
            return int.from_bytes(_device.device_bytes(one)[: bits // 8], "little")
    raise ValueError(f"no constants of {device_dtype}: no dtype lies on the device in it")


_ENCODABLE = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
)


def get_elem_in_stick(dtype: torch.dtype) -> int:
    """Elements of a torch dtype in a stick."""
    probe = torch.empty(0, dtype=dtype, device="spyre")
    return _device.layout(probe)["device_size"][-1]


def copy_tensor(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between host and device, or inside the device; returns ``target``."""
    return expect_tensor("copy_tensor", target).copy_(expect_tensor("copy_tensor", source), non_blocking)
