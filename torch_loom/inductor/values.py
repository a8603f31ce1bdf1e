"""Elementwise operations on the values of a kernel.

Operands are permuted and broadcast to the union of their dims only where they meet. Known numbers stay numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .domain import Dim
from .errors import Unsupported
from .operand import DF16_MAX, HIGHEST, LOWEST, NARROW, Number, Operand, Value, Wide, register_kind
from .wide import RANGES, checked, follow, followed, nearest, settle

if TYPE_CHECKING:
    from ..ktir.builder import KernelBuilder

__all__ = ["DF16_MAX", "NARROW", "Algebra", "Number", "Operand", "Value", "register_kind"]


class Algebra:
    """Elementwise operations over the dims of one kernel."""

    def __init__(self, builder: KernelBuilder, dims: Sequence[Dim], shape_of: Callable[[Dim], object]) -> None:
        self.b = builder
        self.order = {d: i for i, d in enumerate(dims)}
        self.shape_of = shape_of
        self.infinite = False  # does the kernel make infinities on purpose?
        # Conditions under which a lane of a value over some dims counts: inside of the extents, not masked out.
        self.counted: Callable[[Sequence[Dim]], Sequence[Operand]] = lambda dims: ()

    # -- shapes ----

    def materialise(self, x: Operand, dims: Sequence[Dim]) -> Value:
        """``x`` as a tensor over exactly ``dims``."""
        dims = tuple(dims)
        shape = [self.shape_of(d) for d in dims] or [1]
        if isinstance(x, Number):
            if x.kind == "i32" and not LOWEST <= x.value <= HIGHEST:
                raise Unsupported(f"the integer {x.value}: the device holds 32 bits of an int64")
            wide = Wide(int(x.value), int(x.value)) if x.wide else None
            return Value(self.b.splat(self.b.constant(x.value, x.kind), shape), dims, wide=wide)  # type: ignore[arg-type]
        if not x.tensor.shape:
            return Value(self.b.splat(x.tensor, shape), dims, wide=x.wide)  # type: ignore[arg-type]
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
        return Value(self.b.broadcast(tensor, shape, added), dims, wide=x.wide)  # type: ignore[arg-type]

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
        x = checked(self, x)
        if kind == "i1":
            x = self.materialise(x, x.dims)  # a number of the launch is a scalar
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
        """One named operation of arith or math. Integer arithmetic on int64 is followed, see ``wide.py``."""
        exact = any(followed(x) for x in operands)
        if exact and len(operands) == 2:
            name, operands = nearest(name, operands)
        if exact and (name not in RANGES and name != "math.absi"):
            operands = [settle(self, x) for x in operands]
        values, dims = self.common(operands, kind)
        out = Value(self.b.op(name, *(v.tensor for v in values)), dims)
        return follow(self, name, operands, out) if exact and out.kind == "i32" else out

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
        return Number(bool(value) if kind == "i1" else int(value), kind, dtype == torch.int64)
