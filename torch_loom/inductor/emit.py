"""The handler that writes the body of a kernel: loads, stores, values, reductions.

It receives Inductor's loop language and answers with tile values. Reductions see the whole
reduced extent in one tile, so a fused softmax or norm needs no second pass over DDR.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import sympy
import torch

from ..ktir.builder import Carried, KernelBuilder, Tensor
from . import random
from .access import Access, format_of, geometry, resolve
from .compat import buffer_of, dense_strides, host_scalar, real_place
from .domain import Dim
from .errors import Unsupported
from .folds import COMBINERS, fold, fold_block, welford
from .indices import IndexHandler
from .irregular import load_elements, store_elements
from .plan import KernelPlan
from .pointwise import elementwise
from .record import Limits, simplified, widest
from .special import Term, frexp
from .tiles import Tiles
from .values import DF16_MAX, NARROW, Number, Operand, Value, register_kind
from .wide import held, plain, settle, span_of


class Emitter(IndexHandler):
    """Ops handler of one kernel."""

    def __init__(
        self, plan: KernelPlan, builder: KernelBuilder, tiles: Tiles, removed: set[str], stack: ExitStack
    ) -> None:
        super().__init__(plan, builder, tiles)
        self.stack = stack  # loops that stay open until the end of the kernel
        self.removed = removed
        self.loaded: dict[tuple[Any, ...], Operand] = {}
        self.stored: dict[str, Operand] = {}
        self.attending: Carried | None = None  # running values of an attention
        self.partial: Tensor | None = None  # sums of the contraction at hand
        self.held: list[tuple[str, sympy.Expr]] | None = None  # stores that wait for the end of a contraction or a loop
        self.running: Carried | None = None  # running values of reductions that go block by block
        self.guards = _guards(plan)
        self.prologue: Callable[[], None] | None = None  # makes operands of a block of a contraction
        self.over = [d for d in plan.dims if d in plan.reduced]  # dims that a reduction of the current node folds

    def only_first(self) -> None:
        """What follows is done by the first of the cores that share a reduced extent."""
        self.stack.enter_context(self._first())

    def _first(self) -> AbstractContextManager[Any]:
        """A loop that the first of the cores which share a reduced extent runs once, the others not at all."""
        return self.b.loop(0, self.b.sub(1, self.b.min(1, self.tiles.part)))

    # -- memory ----

    def _access(self, name: str, index: sympy.Expr) -> Access:
        name, start = real_place(name)
        index = simplified(dense_strides(index + start), self.plan.dims)
        limits = self.guards.get((name, index), {}) if self.masks else None
        sizes = {s: g.size for s, g in self.gathered.items()}
        return resolve(geometry(name), index, self.plan.dims, sizes, limits)

    def load(self, name: str, index: sympy.Expr) -> Operand:
        if name in self.stored:
            return self.stored[name]
        if name in self.tiles.scalars:
            return self._typed(self.launched(name), host_scalar(name))
        key = (name, sympy.expand(index), *map(id, self.masks))
        if key not in self.loaded:
            self.loaded[key] = self._load(self._access(name, index))
        return self.loaded[key]

    def _load(self, access: Access) -> Operand:
        wanted = [s for c in access.coordinates for s in c.indirect]
        if not self.tiles.regular(access) or (wanted and self._walked(access) & self.tiles.stick_and_lane(access)):
            tensor, dims = load_elements(self, access.by_element(self.plan.dims))
        elif wanted:
            tensor, dims = self.tiles.gather(access, {s: self.index_view(self.gathered[s]) for s in wanted})
        else:
            tensor, dims = self.tiles.load(access)
        value = self._typed(self._widen(tensor, dims, access.geometry.dtype), access.geometry.dtype)
        if access.coordinates and not wanted and access.geometry.format.element == "i32":
            self.sources[id(value)] = access
        return value

    def _walked(self, access: Access) -> set[Dim]:
        """Dims along which the indices of an access change."""
        return {d for c in access.coordinates for s in c.indirect for d in self.gathered[s].value.dims}

    def _typed(self, value: Value, dtype: torch.dtype | None) -> Operand:
        """A value that is an int64 from now on, if ``dtype`` is."""
        return held(value, span_of(value)) if dtype == torch.int64 and value.kind == "i32" else value

    def wrapped(self, value: Operand, dtype: torch.dtype) -> Operand:
        """An i32 value modulo the width of its dtype; values of other registers and dtypes as they are."""
        if dtype not in NARROW or value.kind != "i32":
            return value
        if isinstance(value, Number):
            return Number(torch.tensor(int(value.value)).to(dtype).item(), "i32")
        if value.narrow == dtype:
            return value
        if dtype == torch.uint8:
            out = self.algebra.apply("arith.andi", [value, Number(255, "i32")], "i32")
        else:
            shift = Number(24 if dtype == torch.int8 else 16, "i32")
            out = self.algebra.apply("arith.shli", [value, shift], "i32")
            out = self.algebra.apply("arith.shrsi", [out, shift], "i32")
        return replace(out, narrow=dtype)

    def _widen(self, tensor: Any, dims: tuple[Dim, ...], dtype: torch.dtype) -> Value:
        if tensor.dtype in ("f16", "bf16"):
            wide = Value(self.b.op("arith.extf", tensor, result="f32"), dims, tensor)
            return self.algebra.cast(wide, "i1") if dtype == torch.bool else wide  # type: ignore[return-value]
        if tensor.dtype in ("i8", "i16"):
            return Value(self.b.op("arith.extsi", tensor, result="i32"), dims, tensor, dtype)
        return Value(tensor, dims, tensor, dtype if dtype in NARROW else None)

    def narrow(self, value: Value, dtype: torch.dtype, element: str) -> Any:
        value = self.algebra.cast(value, register_kind(dtype))  # type: ignore[assignment]
        if value.kind == "i1":
            return self.b.op("arith.uitofp", value.tensor, result=element)
        if value.kind == "f32" and element != "f32":
            if self.algebra.infinite:  # the format has no infinity: the largest finite value stands for it
                for name, end in (("arith.maximumf", -DF16_MAX), ("arith.minimumf", DF16_MAX)):
                    value = self.algebra.apply(name, [value, Number(end, "f32")])
            return self.b.op("arith.truncf", value.tensor, result=element)
        if value.kind == "i32" and element != "i32":
            return self.b.op("arith.trunci", value.tensor, result=element)
        return value.tensor

    def store(self, name: str, index: sympy.Expr, value: Operand, mode: str | None = None) -> None:
        if mode is not None:
            raise Unsupported(f"store to {name} with mode {mode}")
        if self.held is not None and self.running is None:
            self.held.append((name, index))
            return
        value = self.wrapped(value, buffer_of(real_place(name)[0])[2])
        self.stored[name] = value
        if name in self.removed:
            return
        value = self.stored[name] = settle(self.algebra, value)
        with nullcontext() if self.plan.shared is None or self._parted(name, index) else self._first():
            self._write(name, index, value)

    def _parted(self, name: str, index: sympy.Expr) -> bool:
        """Has each of the cores that share a reduced extent a part of the store of its own?"""
        return self.plan.shared in self._access(name, index).dims

    def _write(self, name: str, index: sympy.Expr, value: Operand) -> None:
        access = self._access(name, index)
        if not self.tiles.regular(access, store=True) or self._walked(access) & access.dims:
            store_elements(self, access.by_element(self.plan.dims), value)
            return
        indices = {s: self.index_view(self.gathered[s]) for c in access.coordinates for s in c.indirect}
        written = access.dims.union(*(i.dims for i in indices.values()))
        dims = [d for d in self.plan.axis_order if d in self.plan.blocks and d in written]
        whole = self.algebra.materialise(value, dims)
        out = self.narrow(whole, access.geometry.dtype, access.geometry.format.element)
        if indices:
            self.tiles.scatter(access, indices, out, dims)
        else:
            self.tiles.store(access, out, dims)

    def store_reduction(self, name: str, index: sympy.Expr, value: Operand) -> None:
        if self.running is not None:
            assert self.held is not None
            self.held.append((name, index))
            return
        self.store(name, index, value)

    def elementwise(self, name: str, operands: list[Operand]) -> Operand:
        """A named elementwise operation on values of this kernel."""
        out = elementwise(self.algebra, name, operands)
        if out is None:
            raise Unsupported(f"operation {name}")
        dtypes = {x.narrow for x in operands if isinstance(x, Value) and x.kind == "i32"}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        return out if dtype is None else self.wrapped(out, dtype)

    def check_bounds(self, expr: Any, size: Any, lower: bool, upper: bool) -> None:
        """The transfer unit checks every index it reads; nothing to add."""

    def device_assert_async(self, condition: Any, message: str) -> None:
        """See ``check_bounds``."""

    # -- random numbers ----

    def load_seed(self, name: str, offset: Any) -> Operand:
        return plain(self.algebra, self.load(name, sympy.sympify(offset)))

    def rand(self, seed: Operand, offset: Operand) -> Operand:
        return random.uniform(self.algebra, seed, plain(self.algebra, offset))

    def randn(self, seed: Operand, offset: Operand) -> Operand:
        return random.normal(self.algebra, seed, plain(self.algebra, offset))

    def randint64(self, seed: Operand, offset: Operand, low: Operand, high: Operand) -> Operand:
        place, low, high = (plain(self.algebra, x) for x in (offset, low, high))
        return held(random.integers(self.algebra, seed, place, low, high))

    # -- values ----

    def constant(self, value: Any, dtype: torch.dtype) -> Operand:
        if isinstance(value, sympy.Expr) and not value.is_number:
            return self.index_expr(value, dtype)
        return self.algebra.number(value, dtype)

    def to_dtype(
        self, x: Operand, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True
    ) -> Operand:
        format_of(dtype, "conversion")
        out = self.converted(x, dtype)
        if isinstance(out, Value) and out.narrow is not None and dtype not in NARROW:
            return replace(out, narrow=None)
        return self.wrapped(out, dtype)

    def trunc_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.to_dtype(self.elementwise("trunc", [x]), dtype)

    def floor_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.to_dtype(self.elementwise("floor", [x]), dtype)

    def ceil_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.to_dtype(self.elementwise("ceil", [x]), dtype)

    def round_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.to_dtype(self.elementwise("round", [x]), dtype)

    def identity(self, x: Operand) -> Operand:
        return x

    def frexp(self, x: Operand) -> tuple[Operand, Operand]:
        mantissa, exponent = frexp(Term(self.algebra, self.algebra.cast(x, "f32")))
        return mantissa.x, self.algebra.cast(exponent.x, "i32")

    def masked(self, mask: Operand, body: Any, other: Any) -> Operand:
        self.masks.append(mask)
        inside = body()
        self.masks.pop()
        fill = self.algebra.cast(Number(other, "f32" if isinstance(other, float) else "i32"), inside.kind)
        return self.elementwise("where", [mask, inside, fill])

    def dot(self, a: Operand, b: Operand) -> Operand:
        from .attention import emit_scores
        from .products import emit_dot

        return emit_scores(self, a, b) if self.attending is not None else emit_dot(self, a, b)

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: Any) -> Any:
        if kind == "dot":
            return value
        if self.attending is not None:
            from .attention import update

            update(self, *value)
            return None
        reduced = self.over
        if kind == "welford_reduce":
            return welford(self, value, reduced)
        if kind not in COMBINERS:
            raise Unsupported(f"reduction {kind}")
        if kind == "any":
            value = self.algebra.cast(value, "i1")
        elif kind in ("sum", "prod") and value.kind == "i1":
            value = self.to_dtype(value, dtype)
        if self.running is None:
            return fold(self, kind, value, reduced)
        return fold_block(self, kind, value, reduced)

    def output(self, *args: Any) -> None:
        """End of a body."""

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            raise Unsupported(f"operation {name}")
        return self.elementwise(name, [self.algebra.literal(x) for x in args])


def _guards(plan: KernelPlan) -> dict[tuple[str, sympy.Expr], Limits]:
    """Limits under which each guarded load is used: the widest, where several masks guard the same one."""
    out: dict[tuple[str, sympy.Expr], Limits] = {}
    for t in plan.record.touches:
        if t.guarded:
            key = (t.name, t.index)
            out[key] = widest(out[key], t.limits) if key in out else t.limits
    return out
