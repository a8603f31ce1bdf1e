"""Write one kernel: loops over work items, then the bodies of its nodes, as KTIR.

The handler receives Inductor's loop language and answers with tile values. Reductions see the whole
reduced extent in one tile, so a fused softmax or norm needs no second pass over DDR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ..ktir.builder import Carried, KernelBuilder, Tensor
from ..ktir.builder import Dim as Num
from . import random
from .access import Access, format_of, geometry, resolve
from .compat import DefaultHandler, SchedulerNode, V, buffer_of, host_scalar, number_kind, real_place, sizevars
from .domain import Dim, exact_div, linear, product
from .errors import Unsupported
from .irregular import load_elements, masked_index, store_elements
from .plan import KernelPlan, bound_of, in_reduction, is_dot
from .pointwise import elementwise
from .record import Limits, node_variables, simplified, widest
from .special import Term, frexp
from .tiles import GatherIndex, Tiles
from .values import DF16_MAX, NARROW, Algebra, Number, Operand, Value, register_kind

NEUTRAL: dict[str, dict[str, float | int]] = {
    "sum": {"f32": 0.0, "i32": 0},
    "prod": {"f32": 1.0, "i32": 1},
    "max": {"f32": -math.inf, "i32": -(2**31)},
    "min": {"f32": math.inf, "i32": 2**31 - 1},
}

COMBINERS = {
    "sum": {"f32": "arith.addf", "i32": "arith.addi"},
    "prod": {"f32": "arith.mulf", "i32": "arith.muli"},
    "max": {"f32": "arith.maximumf", "i32": "arith.maxsi", "i1": "arith.ori"},
    "min": {"f32": "arith.minimumf", "i32": "arith.minsi", "i1": "arith.andi"},
    "any": {"i1": "arith.ori"},
    "xor_sum": {"i32": "arith.xori", "i1": "arith.xori"},
}

# sympy's classes of arithmetic on numbers.
NUMBER_OPS = {"Add": "add", "Mul": "mul", "Pow": "pow", "FloatPow": "pow", "FloatTrueDiv": "truediv", "ToFloat": "cast"}


@dataclass
class Gathered:
    """A value used as an index."""

    value: Value
    source: Access | None  # the i32 buffer it was loaded from unchanged, if so
    size: sympy.Expr  # it lies in [-size, size) if it wraps, else in [0, size)
    wraps: bool


class Emitter(DefaultHandler):
    """Ops handler of one kernel."""

    def __init__(self, plan: KernelPlan, builder: KernelBuilder, tiles: Tiles, removed: set[str]) -> None:
        self.plan = plan
        self.b = builder
        self.tiles = tiles
        self.removed = removed
        self.algebra = Algebra(builder, plan.axis_order, lambda d: tiles.block[d])
        self.loaded: dict[tuple[Any, ...], Operand] = {}
        self.stored: dict[str, Operand] = {}
        self.sources: dict[int, Access] = {}
        self.gathered: dict[sympy.Symbol, Gathered] = {}
        self.index_bytes = 0
        self.masks: list[Operand] = []  # masks that the current load stands under
        self.attending: Carried | None = None  # running values of an attention
        self.partial: Tensor | None = None  # partial sums of a contraction that goes block by block
        self.held: list[tuple[str, sympy.Expr]] | None = None  # stores to be done after the last block
        self.running: Carried | None = None  # running values of reductions that go block by block
        self.guards = _guards(plan)
        self.prologue: Callable[[], None] | None = None  # makes operands of a block of a contraction
        self.over = [d for d in plan.dims if d in plan.reduced]  # dims that a reduction of the current node folds

    # -- memory ----

    def _access(self, name: str, index: sympy.Expr) -> Access:
        name, start = real_place(name)
        index = simplified(index + start, self.plan.dims)
        limits = self.guards.get((name, index), {}) if self.masks else None
        sizes = {s: g.size for s, g in self.gathered.items()}
        return resolve(geometry(name), index, self.plan.dims, sizes, limits)

    def load(self, name: str, index: sympy.Expr) -> Operand:
        if name in self.stored:
            return self.stored[name]
        if name in self.tiles.scalars:
            return Value(self.tiles.scalars[name], ())
        key = (name, sympy.expand(index), *map(id, self.masks))
        if key not in self.loaded:
            self.loaded[key] = self._load(self._access(name, index))
        return self.loaded[key]

    def _load(self, access: Access) -> Operand:
        wanted = [s for c in access.coordinates for s in c.indirect]
        if not self.tiles.regular(access):
            tensor, dims = load_elements(self, access.by_element(self.plan.dims))
        elif wanted:
            tensor, dims = self.tiles.gather(access, {s: self._index_view(self.gathered[s]) for s in wanted})
        else:
            tensor, dims = self.tiles.load(access)
        value = self._widen(tensor, dims, access.geometry.dtype)
        if access.coordinates and not wanted and access.geometry.format.element == "i32":
            self.sources[id(value)] = access
        return value

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
        access = self._access(name, index)
        walked = {d for c in access.coordinates for s in c.indirect for d in self.gathered[s].value.dims}
        if not self.tiles.regular(access, store=True) or walked & access.dims:
            store_elements(self, access.by_element(self.plan.dims), value)
            return
        indices = {s: self._index_view(self.gathered[s]) for c in access.coordinates for s in c.indirect}
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

    # -- indices ----

    def indirect_indexing(
        self, value: Operand, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol | sympy.Expr:
        if isinstance(value, Number):
            at = int(value.value)
            return sympy.Integer(at) if at >= 0 else sympy.sympify(size) + at
        symbol = sympy.Symbol(f"gathered{len(self.gathered)}", integer=True, nonnegative=True)
        source = self.sources.get(id(value))
        self.gathered[symbol] = Gathered(value, source, sympy.sympify(size), wrap_neg)
        return symbol

    def elementwise(self, name: str, operands: list[Operand]) -> Operand:
        """A named elementwise operation on values of this kernel."""
        out = elementwise(self.algebra, name, operands)
        if out is None:
            raise Unsupported(f"operation {name}")
        dtypes = {x.narrow for x in operands if isinstance(x, Value) and x.kind == "i32"}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        return out if dtype is None else self.wrapped(out, dtype)

    def _index_view(self, g: Gathered) -> GatherIndex:
        """Where the transfer unit reads its indices: the index buffer itself, or LX for computed ones."""
        dims = g.value.dims
        access = g.source if not g.wraps and not self.masks else None
        if access is not None and all(c.dim.tile_stride is None for c in access.coordinates):
            walk = {c.terms[0][0]: c for c in access.coordinates if len(c.terms) == 1}
            if all(len(c.terms) <= 1 and all(s == 1 for _, s in c.terms) for c in access.coordinates):
                view = self.b.view(
                    self.tiles.bases[access.geometry.name],
                    [self.tiles.number(c.dim.extent) for c in access.coordinates] or [1],
                    [self.tiles.number(c.dim.device_stride) for c in access.coordinates] or [1],
                    "i32",
                )
                at: list[tuple[Dim | None, Num]] = [
                    (
                        c.terms[0][0] if c.terms and c.terms[0][0] in self.tiles.block else None,
                        self.tiles.base_of(c),
                    )
                    for c in access.coordinates
                ] or [(None, 0)]
                return GatherIndex(view, tuple(at), tuple(d for d in dims if d in walk))
        return self.computed_view(self._wrapped(g))

    def _wrapped(self, g: Gathered) -> Operand:
        """The value of an index, counted from the end where it is negative."""
        if not g.wraps:
            return g.value
        low = self.algebra.apply("arith.cmpi slt", [g.value, Number(0, "i32")], "i32")
        wrapped = self.algebra.apply("arith.addi", [g.value, self.size_value(g.size)], "i32")
        return elementwise(self.algebra, "where", [low, wrapped, g.value])  # type: ignore[return-value]

    def computed_view(self, value: Operand) -> GatherIndex:
        """Indices written to LX for the gather unit."""
        value = masked_index(self, value)
        dims = value.dims if isinstance(value, Value) else ()
        for d in dims:  # lanes beyond the extent hold padding, which must not be taken for an index
            if exact_div(d.extent, self.plan.blocks.get(d, d.extent)) is None:
                inside = self.algebra.apply("arith.cmpi slt", [self.index_value(d.symbol), self.size_value(d.extent)])
                value = elementwise(self.algebra, "where", [inside, value, Number(0, "i32")])  # type: ignore[assignment]
        value = self.algebra.materialise(self.algebra.cast(value, "i32"), dims)
        shape = [self.tiles.block[d] for d in dims] or [1]
        if any(not isinstance(s, int) for s in shape):
            raise Unsupported("computed index over a dim of symbolic extent")
        strides = [1] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * int(shape[i + 1])  # type: ignore[arg-type]
        at = self.index_bytes // 4
        self.index_bytes += -(-strides[0] * int(shape[0]) * 4 // 128) * 128  # type: ignore[arg-type]
        view = self.b.view(at, shape, strides, "i32", space="ct_local")
        self.b.store(value.tensor, view, [0] * len(shape), shape)
        return GatherIndex(view, tuple((d, 0) for d in dims) or ((None, 0),), dims)

    def size_value(self, size: sympy.Expr) -> Operand:
        """A size as an i32 value."""
        return self._splat_index(size, ())

    def _splat_index(self, size: sympy.Expr, dims: tuple[Dim, ...]) -> Operand:
        n = self.tiles.number(size)
        if isinstance(n, int):
            return Number(n, "i32")
        shape = [self.tiles.block[d] for d in dims] or [1]
        return Value(self.b.splat(self.b.from_index(n), shape), dims)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Operand:
        expr = sympy.sympify(expr)
        if any(number_kind(s) for s in expr.free_symbols) or expr.has(sympy.Float):
            return self.algebra.cast(self._number_value(expr), register_kind(dtype))
        expr = simplified(expr, self.plan.dims)
        return self.algebra.cast(self.index_value(expr), register_kind(dtype))

    def _number_value(self, expr: sympy.Expr) -> Operand:
        """An expression over numbers that the launch passes."""
        if expr.is_Integer:
            return Number(int(expr), "i32")
        if expr.is_number:
            return Number(float(expr), "f32")
        if isinstance(expr, sympy.Symbol):
            found = self.tiles.scalars.get(expr.name)
            return Value(found, ()) if found is not None else self.index_value(expr)
        name = NUMBER_OPS.get(type(expr).__name__)
        if name is None:
            raise Unsupported(f"number {expr}")
        args = [self._number_value(a) for a in expr.args]
        if name == "cast":
            return self.algebra.cast(args[0], "f32")
        out = args[0]
        for a in args[1:]:
            out = elementwise(self.algebra, name, [out, a])  # type: ignore[assignment]
        return out

    def index_value(self, expr: sympy.Expr) -> Operand:
        """An integer expression over the dims of the kernel and gathered values as an i32 value."""
        expr = sympy.sympify(expr)
        if expr in self.gathered:
            return self._wrapped(self.gathered[expr])
        parts = None if expr.free_symbols & set(self.gathered) else linear(expr, self.plan.dims)
        if parts is None:
            return self._computed_index(expr)
        return self._affine_index(*parts)

    def _computed_index(self, expr: sympy.Expr) -> Operand:
        names = {
            "FloorDiv": "floordiv",
            "Mod": "remainder",
            "PythonMod": "remainder",
            "Add": "add",
            "Mul": "mul",
            "Max": "maximum",
            "Min": "minimum",
        }
        kind = type(expr).__name__
        args = list(expr.args)
        if kind == "Add":  # what is affine is one sum
            plain = [a for a in args if not a.free_symbols & set(self.gathered) and linear(a, self.plan.dims)]
            args = [a for a in args if a not in plain] + ([sympy.Add(*plain)] if plain else [])
        values = [self.index_value(a) for a in args]
        if kind == "ModularIndexing":
            q = elementwise(self.algebra, "floordiv", values[:2])
            return elementwise(self.algebra, "remainder", [q, values[2]])  # type: ignore[return-value,list-item]
        if kind not in names and kind != "Abs":
            raise Unsupported(f"index expression {expr}")
        if kind == "Abs":
            return elementwise(self.algebra, "abs", values)  # type: ignore[return-value]
        out = values[0]
        for v in values[1:]:
            out = elementwise(self.algebra, names[kind], [out, v])  # type: ignore[assignment]
        return out

    def _affine_index(self, coefficients: dict[Dim, sympy.Expr], constant: sympy.Expr) -> Operand:
        """sum(coefficient * dim) + constant"""
        base: Num = self.tiles.number(constant)
        total: Operand | None = None
        for d, c in coefficients.items():
            step = self.tiles.number(c)
            base = self.b.add(base, self.b.mul(step, self.tiles.start[d]))
            if d in self.tiles.block:
                run: Operand = Value(self.b.iota(self.tiles.block[d]), (d,))
                if step != 1:
                    scale = Number(step, "i32") if isinstance(step, int) else self._splat_index(c, (d,))
                    run = self.algebra.apply("arith.muli", [run, scale], "i32")
                total = run if total is None else self.algebra.apply("arith.addi", [total, run], "i32")
        if isinstance(base, int):
            number = Number(base, "i32")
            if total is None:
                return number
            return total if base == 0 else self.algebra.apply("arith.addi", [total, number], "i32")
        dims = total.dims if isinstance(total, Value) else ()
        shape = [self.tiles.block[d] for d in dims] or [1]
        offset = Value(self.b.splat(self.b.from_index(base), shape), dims)
        return offset if total is None else self.algebra.apply("arith.addi", [total, offset], "i32")

    def check_bounds(self, expr: Any, size: Any, lower: bool, upper: bool) -> None:
        """The transfer unit checks every index it reads; nothing to add."""

    def device_assert_async(self, condition: Any, message: str) -> None:
        """See ``check_bounds``."""

    # -- random numbers ----

    def load_seed(self, name: str, offset: Any) -> Operand:
        return self.load(name, sympy.sympify(offset))

    def rand(self, seed: Operand, offset: Operand) -> Operand:
        return random.uniform(self.algebra, seed, offset)

    def randn(self, seed: Operand, offset: Operand) -> Operand:
        return random.normal(self.algebra, seed, offset)

    def randint64(self, seed: Operand, offset: Operand, low: Operand, high: Operand) -> Operand:
        return random.integers(self.algebra, seed, offset, low, high)

    # -- values ----

    def constant(self, value: Any, dtype: torch.dtype) -> Operand:
        if isinstance(value, sympy.Expr) and not value.is_number:
            return self.index_expr(value, dtype)
        return self.algebra.number(value, dtype)

    def to_dtype(
        self, x: Operand, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True
    ) -> Operand:
        format_of(dtype, "conversion")
        out = self.algebra.cast(x, register_kind(dtype))
        if isinstance(out, Value) and out.narrow is not None and dtype not in NARROW:
            return replace(out, narrow=None)
        return self.wrapped(out, dtype)

    def trunc_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.algebra.cast(elementwise(self.algebra, "trunc", [x]), "i32")  # type: ignore[arg-type]

    def floor_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.algebra.cast(elementwise(self.algebra, "floor", [x]), "i32")  # type: ignore[arg-type]

    def ceil_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.algebra.cast(elementwise(self.algebra, "ceil", [x]), "i32")  # type: ignore[arg-type]

    def round_to_int(self, x: Operand, dtype: torch.dtype) -> Operand:
        return self.algebra.cast(elementwise(self.algebra, "round", [x]), "i32")  # type: ignore[arg-type]

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
        from .matmul import emit_dot

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
            return self._welford(value, reduced)
        if kind not in COMBINERS:
            raise Unsupported(f"reduction {kind}")
        if kind == "any":
            value = self.algebra.cast(value, "i1")
        elif kind in ("sum", "prod") and value.kind == "i1":
            value = self.algebra.cast(value, register_kind(dtype))
        if self.running is None:
            return self._fold(COMBINERS[kind], value, reduced)
        return self._continue(kind, value, reduced)

    def _continue(self, kind: str, value: Operand, reduced: Sequence[Dim]) -> Operand:
        """Fold one block of a reduction into its running value; what stands beyond the extent is neutral."""
        assert self.running is not None and self.plan.blocked is not None
        d = self.plan.blocked
        if exact_div(d.extent, self.plan.blocks[d]) is None:
            end = self._splat_index(d.extent, ())
            inside = self.algebra.apply("arith.cmpi slt", [self.index_value(d.symbol), end])
            neutral = Number(NEUTRAL[kind][value.kind], value.kind)
            value = elementwise(self.algebra, "where", [inside, value, neutral])  # type: ignore[assignment]
        block = self._fold(COMBINERS[kind], value, reduced)
        before = self.running.values[len(self.running.results)]
        whole = self.algebra.materialise(block, self.algebra.ordered(block.dims))
        self.running.results.append(self.b.op(COMBINERS[kind][block.kind], before, whole.tensor))
        return whole

    def _fold(self, combiner: dict[str, str], value: Operand, reduced: Sequence[Dim]) -> Value:
        have = self.algebra.union([value])
        kept = [d for d in have if d not in reduced]
        wanted = have if set(reduced) <= set(have) else self.algebra.ordered([*kept, *reduced])
        whole = self.algebra.materialise(value, wanted)
        axes = [i for i, d in enumerate(wanted) if d in reduced]
        if not kept:  # a value over no dims has one element
            tensor = self.b.expand_front(whole.tensor)
            return Value(self.b.reduce(combiner[whole.kind], tensor, [a + 1 for a in axes]), ())
        return Value(self.b.reduce(combiner[whole.kind], whole.tensor, axes), tuple(kept))

    def _welford(self, value: Operand, reduced: Sequence[Dim]) -> tuple[Operand, Operand, Operand]:
        """Mean, sum of squared deviations and count, in two passes over the tile in LX."""
        count = product(d.extent for d in reduced)
        n = self.tiles.number(count)
        weight: Operand = (
            Number(float(n), "f32") if isinstance(n, int) else self.algebra.cast(self._splat_index(count, ()), "f32")
        )
        value = self.algebra.cast(value, "f32")
        total = self._fold(COMBINERS["sum"], value, reduced)
        mean = elementwise(self.algebra, "truediv", [total, weight])
        delta = elementwise(self.algebra, "sub", [value, mean])  # type: ignore[list-item]
        square = elementwise(self.algebra, "mul", [delta, delta])  # type: ignore[list-item]
        return mean, self._fold(COMBINERS["sum"], square, reduced), weight  # type: ignore[arg-type,return-value]

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


def emit_kernel(
    plan: KernelPlan, name: str, arguments: Sequence[str], removed: set[str]
) -> tuple[str, list[sympy.Symbol]]:
    """KTIR text of a kernel whose buffers are ``arguments`` in call order, and the size symbols that
    follow them."""
    b = KernelBuilder(name, plan.cores)
    bases = {a: b.buffer(f"a{i}") for i, a in enumerate(arguments)}
    symbols = size_symbols(plan, arguments)
    bounds = [bound_for(plan, s) for s in symbols]
    sizes, numbers = {}, {}
    for s, bound in zip(symbols, bounds, strict=True):
        kind = number_kind(s)
        if kind is None:
            sizes[s] = b.size(str(s), bound)
        else:
            numbers[s.name] = b.scalar(s.name, kind)
    tiles = Tiles(b, sizes)
    tiles.scalars.update(numbers)
    for i, scalar in enumerate(plan.record.scalars):
        dtype = host_scalar(scalar)
        assert dtype is not None
        tiles.scalars[scalar] = b.scalar(f"c{i}", register_kind(dtype))
    tiles.bases = bases
    tiles.written = {t.name for t in plan.record.touches if t.store}
    tiles.extent = {d: tiles.number(d.extent) for d in plan.dims}
    from .attention import emit_attention
    from .matmul import emit_blocked, enter_loops

    emitter = Emitter(plan, b, tiles, removed)
    with ExitStack() as stack:
        if plan.matmul is not None:
            enter_loops(plan, tiles, stack)
        else:
            _enter_items(plan, tiles, stack)
        with V.set_ops_handler(emitter):
            nodes = list(plan.nodes)
            if plan.blocked is not None:
                nodes = _reduce_by_blocks(emitter)
            for node in nodes:
                if plan.attention is not None and node.is_reduction():
                    emit_attention(emitter, node)
                    continue
                if plan.matmul is not None:
                    if plan.matmul.k_steps is not None and is_dot(node):
                        emit_blocked(emitter, node)
                        continue
                    emitter.over = plan.matmul.k if is_dot(node) else plan.matmul.n
                node._body(*node_variables(node, plan.numel, plan.rnumel, plan.dims))
    return b.text(), symbols


def _reduce_by_blocks(emitter: Emitter) -> list[SchedulerNode]:
    """Run the nodes of the reduced extent block by block; returns the nodes that are left."""
    plan, tiles, b = emitter.plan, emitter.tiles, emitter.b
    d = plan.blocked
    assert d is not None
    inits, kept = [], []
    for kind, dtype, symbols in plan.record.reductions:
        register = register_kind(dtype)
        dims = emitter.algebra.ordered(x for x in plan.blocks if x not in plan.reduced and x.symbol in symbols)
        start = b.constant(NEUTRAL[kind][register], register)
        inits.append(b.splat(start, [tiles.block[x] for x in dims] or [1]))
        kept.append(dims)
    steps = b.ceildiv(tiles.extent[d], tiles.block[d])
    inside = [n for n in plan.nodes if in_reduction(plan, n)]
    with b.accumulate(0, steps, inits) as carried:
        tiles.start[d] = b.mul(carried.index, tiles.block[d])
        emitter.running, emitter.held = carried, []
        for node in inside:
            node._body(*node_variables(node, plan.numel, plan.rnumel, plan.dims))
        stores, emitter.running, emitter.held = emitter.held, None, None
        emitter.loaded.clear()
        emitter.stored.clear()
    tiles.start[d] = 0
    for (name, index), total, dims in zip(stores, carried.results, kept, strict=True):
        emitter.store(name, index, Value(total, dims))
    return [n for n in plan.nodes if n not in inside]


def bound_for(plan: KernelPlan, symbol: sympy.Symbol) -> int | None:
    """Largest value of a size the kernel is planned for; None where only loop counts depend on it."""
    if number_kind(symbol) is not None:
        return None
    if any(symbol in sympy.sympify(block).free_symbols for block in plan.blocks.values()):
        return bound_of(symbol)
    return sizevars().upper_bound(symbol)


def size_symbols(plan: KernelPlan, arguments: Sequence[str]) -> list[sympy.Symbol]:
    """Size symbols that the kernel needs, in a fixed order."""
    own = {d.symbol for d in plan.dims}
    found: set[sympy.Symbol] = {s for s in plan.record.values if s not in own}
    for d in plan.dims:
        found |= sympy.sympify(d.extent).free_symbols
    for t in plan.record.touches:
        found |= {s for s in t.index.free_symbols if s not in own and s not in t.indirect}
    for a in arguments:
        for h in geometry(a).dims:
            found |= h.extent.free_symbols
    return sorted((s for s in found if not str(s).startswith("gathered")), key=str)


def _enter_items(plan: KernelPlan, tiles: Tiles, stack: ExitStack) -> None:
    """Loop over this core's share of the work items and give every dim its start and block."""
    b = tiles.b
    counts: list[tuple[Dim, Num]] = []
    for d in plan.dims:
        if d in plan.blocks:
            tiles.block[d] = tiles.number(plan.blocks[d])
            tiles.start[d] = 0
            if plan.blocks[d] != d.extent and d not in plan.stepped:
                counts.append((d, b.ceildiv(tiles.extent[d], tiles.block[d])))
        elif d not in plan.stepped:
            counts.append((d, tiles.extent[d]))
    total: Num = 1
    for _, n in counts:
        total = b.mul(total, n)
    me = b.tile_id()
    per = b.ceildiv(total, plan.cores)
    low = b.mul(me, per)
    item: Num = stack.enter_context(b.loop(low, b.min(b.add(low, per), total)))
    for i, (d, n) in reversed(list(enumerate(counts))):
        at = item if i == 0 else b.mod(item, n)
        if i:
            item = b.floordiv(item, n)
        tiles.start[d] = b.mul(at, tiles.block[d]) if d in tiles.block else at
