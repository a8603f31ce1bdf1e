"""Values inside a kernel and the elementwise operations on them.

A value is a tensor over some tile dims (in any order) of one of three register types: f32, i32, i1. Operands
are permuted and broadcast to the union of their dims only where they meet. Known numbers stay numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .domain import Dim
from .errors import Unsupported

if TYPE_CHECKING:
    from ..ktir.builder import KernelBuilder, Tensor

# Overflow and NaN share one code on the device (hardware page, 6.1). Where a kernel makes infinities on purpose, a
# store writes the largest finite df16 for them, which reads back as infinity in a half.
DF16_MAX = 8573157376.0
# Integers that registers hold in 32 bits: their arithmetic wraps at their own width.
NARROW = (torch.int8, torch.int16, torch.uint8)


@dataclass(frozen=True)
class Value:
    """``tensor`` over ``dims``; ``raw`` is the 16-bit tile it was widened from (operand of a matmul), ``narrow`` the
    integer dtype of less than 32 bits whose range an i32 value keeps to."""

    tensor: Tensor
    dims: tuple[Dim, ...]
    raw: Tensor | None = None
    narrow: torch.dtype | None = None

    @property
    def kind(self) -> str:
        """Register type: f32, i32 or i1."""
        return self.tensor.dtype


@dataclass(frozen=True)
class Number:
    """A number known while the kernel is written."""

    value: float | int | bool
    kind: str


Operand = Value | Number


def register_kind(dtype: torch.dtype) -> str:
    """Register type that computes a torch dtype."""
    if dtype == torch.bool:
        return "i1"
    return "f32" if dtype.is_floating_point else "i32"


class Algebra:
    """Elementwise operations over the dims of one kernel."""

    def __init__(self, builder: KernelBuilder, dims: Sequence[Dim], shape_of: Callable[[Dim], object]) -> None:
        self.b = builder
        self.order = {d: i for i, d in enumerate(dims)}
        self.shape_of = shape_of
        self.infinite = False  # does the kernel make infinities on purpose?

    # -- shapes ----

    def materialise(self, x: Operand, dims: Sequence[Dim]) -> Value:
        """``x`` as a tensor over exactly ``dims``."""
        dims = tuple(dims)
        shape = [self.shape_of(d) for d in dims] or [1]
        if isinstance(x, Number):
            return Value(self.b.splat(self.b.constant(x.value, x.kind), shape), dims)  # type: ignore[arg-type]
        if not x.tensor.shape:
            return Value(self.b.splat(x.tensor, shape), dims)  # type: ignore[arg-type]
        if x.dims == dims:
            return x
        missing = [d for d in x.dims if d not in dims]
        if missing:
            raise Unsupported(f"value over {x.dims} used where {dims} are wanted")
        have = [d for d in dims if d in x.dims]
        tensor = self.b.transpose(x.tensor, [x.dims.index(d) for d in have]) if x.dims else x.tensor
        if not x.dims:
            tensor = self.b.collapse(tensor, [], [])
        added = [i for i, d in enumerate(dims) if d not in x.dims]
        return Value(self.b.broadcast(tensor, shape, added), dims)  # type: ignore[arg-type]

    def union(self, operands: Sequence[Operand]) -> tuple[Dim, ...]:
        """All dims of the operands, in the order of the kernel, or as they are when all agree."""
        seen = [x.dims for x in operands if isinstance(x, Value)]
        if seen and all(d == seen[0] for d in seen):
            return seen[0]
        return self.ordered({d for dims in seen for d in dims})

    def ordered(self, dims: Iterable[Dim]) -> tuple[Dim, ...]:
        """Dims in the axis order of the kernel."""
        return tuple(sorted(dims, key=self.order.__getitem__))

    def cast(self, x: Operand, kind: str) -> Operand:
        """Change of register type: comparison with zero to i1, 0/1 from i1, toward zero from float."""
        if x.kind == kind:
            return x
        if isinstance(x, Number):
            if kind == "i1":
                return Number(bool(x.value), kind)
            return Number(float(x.value) if kind == "f32" else int(x.value), kind)
        if kind == "i1":
            zero = self.materialise(Number(0, x.kind), x.dims).tensor
            name = "arith.cmpf une" if x.kind == "f32" else "arith.cmpi ne"
            return Value(self.b.op(name, x.tensor, zero), x.dims)
        name = {
            ("i1", "f32"): "arith.uitofp",
            ("i1", "i32"): "arith.extui",
            ("i32", "f32"): "arith.sitofp",
            ("f32", "i32"): "arith.fptosi",
        }[(x.kind, kind)]
        return Value(self.b.op(name, x.tensor, result=kind), x.dims)

    def common(self, operands: Sequence[Operand], kind: str | None = None) -> tuple[list[Value], tuple[Dim, ...]]:
        """Operands over their union of dims and of one register type (the widest, or ``kind``)."""
        kinds = {x.kind for x in operands}
        wide = kind or ("f32" if "f32" in kinds else "i32" if "i32" in kinds else "i1")
        dims = self.union(operands)
        return [self.materialise(self.cast(x, wide), dims) for x in operands], dims

    # -- operations ----

    def apply(self, name: str, operands: Sequence[Operand], kind: str | None = None) -> Value:
        """One named operation of arith or math."""
        values, dims = self.common(operands, kind)
        return Value(self.b.op(name, *(v.tensor for v in values)), dims)

    def table(self, names: dict[str, str], operands: Sequence[Operand]) -> Value:
        """The operation of the operands' register type, e.g. {"f32": "arith.addf", "i32": "arith.addi"}."""
        kinds = {x.kind for x in operands}
        wide = "f32" if "f32" in kinds else "i32" if "i32" in kinds else "i1"
        if wide not in names:
            wide = next(k for k in ("i32", "f32", "i1") if k in names)
        return self.apply(names[wide], operands, wide)

    def literal(self, x: Any) -> Operand:
        """An operand as it is, or a Python number as a constant."""
        if not isinstance(x, (bool, int, float)):
            return x
        return Number(x, "i1" if isinstance(x, bool) else "f32" if isinstance(x, float) else "i32")

    def number(self, value: float | int | bool, dtype: torch.dtype) -> Number:
        """A constant of a torch dtype."""
        kind = register_kind(dtype)
        if kind == "f32":
            value = float(value)
            self.infinite |= math.isinf(value)
            return Number(value, kind)
        return Number(bool(value) if kind == "i1" else int(value), kind)
