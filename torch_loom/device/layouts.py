"""``SpyreTensorLayout``: the public description of a storage's layout, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, init=False)
class SpyreTensorLayout:
    """device_size: extents of the device dims, outermost first, the last one a stick; stride_map: host
    elements per step of each device dim (-1: padding or size-1); device_dtype: name of the data format."""

    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    device_dtype: str

    def __init__(self, device_size: list[int], stride_map: list[int], device_dtype: str) -> None:
        object.__setattr__(self, "device_size", tuple(device_size))
        object.__setattr__(self, "stride_map", tuple(stride_map))
        object.__setattr__(self, "device_dtype", device_dtype)

    def __repr__(self) -> str:
        return (
            f"SpyreTensorLayout(device_size={list(self.device_size)}, stride_map ={list(self.stride_map)}, "
            f"device_dtype=DataFormats.{self.device_dtype})"
        )
