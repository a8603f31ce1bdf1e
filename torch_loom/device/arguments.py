"""Checks of what users pass to ``torch.spyre``: one sentence that names the call, what it takes and what it got."""

from __future__ import annotations

import operator
from typing import Any

import torch

from torch_loom.layout import SpyreTensorLayout


def expect(call: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> Any:
    """``value`` when it is of ``kind``; raises TypeError otherwise."""
    if not isinstance(value, kind):
        raise TypeError(f"{call} takes {wanted}, got {type(value).__name__}")
    return value


def expect_tensor(call: str, value: Any) -> torch.Tensor:
    """``value`` when it is a tensor."""
    return expect(call, value, torch.Tensor, "a tensor")


def expect_layout(call: str, value: Any) -> SpyreTensorLayout:
    """``value`` when it is a layout."""
    return expect(call, value, SpyreTensorLayout, "a SpyreTensorLayout")


def expect_spyre(call: str, value: Any, kind: type, wanted: str) -> Any:
    """``value`` when it is a stream or event of a card; raises ValueError for one of another device."""
    expect(call, value, kind, wanted)
    if value.device.type != "spyre":
        raise ValueError(f"{call} takes {wanted}, got one of {value.device}")
    return value


def expect_integer(call: str, value: Any) -> int:
    """``value`` as a Python int; raises TypeError for anything that is not a whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{call} takes a whole number, got {type(value).__name__}") from None
