"""Tiled (stick) layouts of tensors in device memory: a pure algebra, without torch and without a device."""

from torch_loom.layout.arrangement import ElementArrangement
from torch_loom.layout.coordinates import Aligned, Loop, align, coordinates, stick_compatible
from torch_loom.layout.formats import (
    STICK_BYTES,
    DataFormats,
    UnsupportedDtype,
    device_format,
    dtype_name,
    formats,
    whole_sticks,
)
from torch_loom.layout.index import Index, bounds, const, evaluate, floordiv, mod, substitute, var
from torch_loom.layout.restickify import restickify_cost, restickify_layout, restickify_map
from torch_loom.layout.stick import (
    SpyreTensorLayout,
    contiguous_strides,
    default_layout,
    row_major_geometry,
    row_major_layout,
)
from torch_loom.layout.transfer import DataConversion, LoopNest, attribute, describe, offsets, oracle

__all__ = [
    "STICK_BYTES",
    "Aligned",
    "DataConversion",
    "DataFormats",
    "ElementArrangement",
    "Index",
    "Loop",
    "LoopNest",
    "SpyreTensorLayout",
    "UnsupportedDtype",
    "align",
    "attribute",
    "bounds",
    "const",
    "contiguous_strides",
    "coordinates",
    "default_layout",
    "describe",
    "device_format",
    "dtype_name",
    "evaluate",
    "floordiv",
    "formats",
    "mod",
    "offsets",
    "oracle",
    "restickify_cost",
    "restickify_layout",
    "restickify_map",
    "row_major_geometry",
    "row_major_layout",
    "stick_compatible",
    "substitute",
    "var",
    "whole_sticks",
]
