"""Values inside a kernel: tensors over some tile dims (in any order), in registers of type f32, i32 or i1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .domain import Dim

if TYPE_CHECKING:
    from ..ktir.builder import Tensor

# Overflow and NaN share one code on the device (hardware page, 6.1). Where a kernel makes infinities on purpose, a
# store writes the largest finite df16 for them, which reads back as infinity in a half.
DF16_MAX = 8573157376.0
# Integers that registers hold in 32 bits: their arithmetic wraps at their own width.
NARROW = (torch.int8, torch.int16, torch.uint8)
# What a register of 32 bits holds.
LOWEST, HIGHEST = -(2**31), 2**31 - 1


@dataclass(frozen=True)
class Wide:
    """What is known of an int64 value in an i32 register (``wide.py``): it lies in [low, high], except in lanes where
    ``over`` is set: there the register has the low 32 bits of a value beyond them."""

    low: int
    high: int
    over: Value | None = None


@dataclass(frozen=True)
class Value:
    """``tensor`` over ``dims``; ``raw`` is the 16-bit tile it was widened from (operand of a matmul), ``narrow`` the
    integer dtype of less than 32 bits whose range an i32 value keeps to, ``wide`` the facts of an int64."""

    tensor: Tensor
    dims: tuple[Dim, ...]
    raw: Tensor | None = None
    narrow: torch.dtype | None = None
    wide: Wide | None = None

    @property
    def kind(self) -> str:
        """Register type: f32, i32 or i1."""
        return self.tensor.dtype


@dataclass(frozen=True)
class Number:
    """A number known while the kernel is written; ``wide`` if it is an int64."""

    value: float | int | bool
    kind: str
    wide: bool = False


Operand = Value | Number


def register_kind(dtype: torch.dtype) -> str:
    """Register type that computes a torch dtype."""
    if dtype == torch.bool:
        return "i1"
    return "f32" if dtype.is_floating_point else "i32"
