"""Index expressions as values, and values as indices: the part of the kernel writer between numbers and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ..ktir.builder import Dim as Num
from ..ktir.builder import KernelBuilder
from ..layout import whole_sticks
from .access import Access
from .compat import DefaultHandler, Identity, number_kind, sizevars
from .domain import Dim, exact_div, linear
from .errors import Unsupported
from .irregular import masked_index
from .plan import KernelPlan
from .pointwise import elementwise
from .record import simplified
from .tiles import GatherIndex, Tiles
from .values import Algebra, Number, Operand, Value, register_kind
from .wide import FULL, Span, checked, fits, from_float, held, plain, span_of

# sympy's classes of arithmetic on integers, and on numbers.
INTEGER_OPS = {
    "Add": "add", "Mul": "mul", "FloorDiv": "floordiv", "Mod": "remainder", "PythonMod": "remainder", "Max": "maximum",
    "Min": "minimum", "Abs": "abs",
}  # fmt: skip
COMPARISONS = {
    "StrictLessThan": "lt", "LessThan": "le", "StrictGreaterThan": "gt", "GreaterThan": "ge", "Equality": "eq",
    "Unequality": "ne",
}  # fmt: skip
FLOAT_OPS = {"FloatPow": "pow", "FloatTrueDiv": "truediv", "IntTrueDiv": "truediv", "ToFloat": "cast"}
NUMBER_OPS = {**INTEGER_OPS, **FLOAT_OPS, "Pow": "pow", "PowByNatural": "pow", "TruncToInt": "trunc"}
OPAQUE = "OpaqueUnaryFn_"  # a function of Python's math module, such as the square root of a size


def is_number(expr: sympy.Expr) -> bool:
    """Is the expression arithmetic on numbers that a launch passes, or on floats, rather than on sizes?"""
    if any(number_kind(s) for s in expr.free_symbols) or expr.has(sympy.Float):
        return True
    names = {type(part).__name__ for part in sympy.preorder_traversal(expr)}
    return any(n in FLOAT_OPS or n.startswith(OPAQUE) for n in names)


@dataclass
class Gathered:
    """A value used as an index."""

    value: Value
    source: Access | None  # the i32 buffer it was loaded from unchanged, if so
    size: sympy.Expr  # it lies in [-size, size) if it wraps, else in [0, size)
    wraps: bool


class IndexHandler(DefaultHandler):
    """Ops handler of the indices of one kernel."""

    def __init__(self, plan: KernelPlan, builder: KernelBuilder, tiles: Tiles) -> None:
        self.plan = plan
        self.b = builder
        self.tiles = tiles
        self.algebra = Algebra(builder, plan.axis_order, lambda d: tiles.block[d])
        self.algebra.counted = self._counted
        self.sources: dict[int, Access] = {}
        self.gathered: dict[sympy.Symbol, Gathered] = {}
        self.index_bytes = 0
        self.masks: list[Operand] = []  # masks that the current load stands under

    def _counted(self, dims: Sequence[Dim]) -> list[Operand]:
        """Conditions under which a lane of a value over ``dims`` counts."""
        partial = [d for d in dims if exact_div(d.extent, self.plan.blocks.get(d, d.extent)) is None]
        ends = [(self.index_value(d.symbol), self.size_value(d.extent)) for d in partial]
        return [*self.masks, *(self.algebra.apply("arith.cmpi slt", [at, end]) for at, end in ends)]

    def indirect_indexing(
        self, value: Operand, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol | sympy.Expr:
        if isinstance(value, Number):
            at = int(value.value)
            return sympy.Integer(at) if at >= 0 else sympy.sympify(size) + at
        value = checked(self.algebra, value)
        symbol = sympy.Symbol(f"gathered{len(self.gathered)}", integer=True, nonnegative=True)
        source = self.sources.get(id(value))
        self.gathered[symbol] = Gathered(value, source, sympy.sympify(size), wrap_neg)
        return symbol

    def index_view(self, g: Gathered) -> GatherIndex:
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
                return GatherIndex(view, tuple(at), tuple(d for d in dims if d in walk), g.size)
        return replace(self.computed_view(self._wrapped(g)), size=g.size)

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
        self.index_bytes += whole_sticks(strides[0] * int(shape[0]) * 4)  # type: ignore[arg-type,operator]
        view = self.b.view(at, shape, strides, "i32", space="ct_local")
        self.b.store(value.tensor, view, [0] * len(shape), shape)
        return GatherIndex(view, tuple((d, 0) for d in dims) or ((None, 0),), dims)

    def size_value(self, size: sympy.Expr) -> Operand:
        """A size as an i32 value."""
        return self.splat_index(size, ())

    def splat_index(self, size: sympy.Expr, dims: tuple[Dim, ...]) -> Operand:
        """A size as an i32 value over ``dims``."""
        n = self.tiles.number(size)
        if isinstance(n, int):
            return Number(n, "i32")
        shape = [self.tiles.block[d] for d in dims] or [1]
        return Value(self.b.splat(self.b.from_index(n), shape), dims)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Operand:
        expr = sympy.sympify(expr)
        if is_number(expr):
            return self.converted(self._number_value(expr), dtype)
        expr = simplified(expr, self.plan.dims)
        if dtype != torch.int64:
            return self.algebra.cast(self.index_value(expr), register_kind(dtype))
        span = self._span(expr)
        return held(self.index_value(expr), span) if fits(span) else self.index_value(expr, exact=True)

    def converted(self, x: Operand, dtype: torch.dtype) -> Operand:
        """A value in the register of another dtype; int64 with what is known of it."""
        if dtype != torch.int64:
            return self.algebra.cast(plain(self.algebra, x), register_kind(dtype))
        if x.kind == "f32":
            return from_float(self.algebra, x)
        out = held(self.algebra.cast(x, "i32"), span_of(x))
        return replace(out, narrow=None) if isinstance(out, Value) else out

    def _span(self, expr: sympy.Expr) -> Span:
        """Range of an integer expression over the dims of the kernel and gathered values."""
        extents = {d.symbol: d.extent for d in self.plan.dims}
        return sizevars().span(expr, extents | {s: g.size for s, g in self.gathered.items()})

    def _number_value(self, expr: sympy.Expr) -> Operand:
        """An expression over numbers that the launch passes."""
        if expr.is_Integer:
            return Number(int(expr), "i32")
        if expr.is_number:
            return Number(float(expr), "f32")
        if isinstance(expr, sympy.Symbol):
            found = self.tiles.scalars.get(expr.name)
            if found is None:
                return held(self.index_value(expr), self._span(expr))
            value = self.launched(expr.name)
            return held(value) if value.kind == "i32" else value  # a Python int has 64 bits
        kind = type(expr).__name__
        name = kind.removeprefix(OPAQUE) if kind.startswith(OPAQUE) else NUMBER_OPS.get(kind)
        args = [self._number_value(a) for a in expr.args]
        if name == "cast":
            return self.algebra.cast(args[0], "f32")
        if name is not None and len(args) == 1:
            one = elementwise(self.algebra, name, args)
            if one is not None:
                return self.converted(one, torch.int64) if name == "trunc" else one
        if name is None or len(args) == 1:
            raise Unsupported(f"number {expr}")
        out = args[0]
        for a in args[1:]:
            out = elementwise(self.algebra, name, [out, a])  # type: ignore[assignment]
        return out

    def launched(self, name: str) -> Value:
        """A number that the launch passes; a float may be infinite."""
        value = Value(self.tiles.scalars[name], ())
        self.algebra.infinite |= value.kind == "f32"
        return value

    def index_value(self, expr: sympy.Expr, exact: bool = False) -> Operand:
        """An integer expression over the dims of the kernel and gathered values as an i32 value; as an int64 if it is
        to be ``exact``."""
        expr = sympy.sympify(expr).replace(Identity, lambda x: x)
        if expr in self.gathered:
            return self._wrapped(self.gathered[expr])
        parts = None if expr.free_symbols & set(self.gathered) else linear(expr, self.plan.dims)
        if parts is None:
            return self._computed_index(expr, exact)
        return self._affine_index(*parts, exact)

    def _computed_index(self, expr: sympy.Expr, exact: bool) -> Operand:
        kind = type(expr).__name__
        args = list(expr.args)
        if kind == "Add":  # what is affine is one sum
            plain = [a for a in args if not a.free_symbols & set(self.gathered) and linear(a, self.plan.dims)]
            args = [a for a in args if a not in plain] + ([sympy.Add(*plain)] if plain else [])
        if kind == "Where":
            return self._chosen_index(expr, exact)
        values = [self.index_value(a, exact) for a in args]
        if kind == "ModularIndexing":
            q = elementwise(self.algebra, "floordiv", values[:2])
            return elementwise(self.algebra, "remainder", [q, values[2]])  # type: ignore[return-value,list-item]
        if kind not in INTEGER_OPS:
            raise Unsupported(f"index expression {expr}")
        if kind == "Abs":
            return elementwise(self.algebra, "abs", values)  # type: ignore[return-value]
        out = values[0]
        for v in values[1:]:
            out = elementwise(self.algebra, INTEGER_OPS[kind], [out, v])  # type: ignore[assignment]
        return out

    def _chosen_index(self, expr: sympy.Expr, exact: bool) -> Operand:
        """``Where(a < b, c, d)``, as padding by reflection has it."""
        condition, *ways = expr.args
        name = COMPARISONS.get(type(condition).__name__)
        if name is None:
            raise Unsupported(f"index expression {expr}")
        holds = elementwise(self.algebra, name, [self.index_value(a, exact) for a in condition.args])
        chosen = [holds, *(self.index_value(a, exact) for a in ways)]
        return elementwise(self.algebra, "where", chosen)  # type: ignore[return-value,arg-type]

    def _affine_index(self, coefficients: dict[Dim, sympy.Expr], constant: sympy.Expr, exact: bool) -> Operand:
        """sum(coefficient * dim) + constant"""

        def leaf(x: Operand, span: Span) -> Operand:
            return held(x, span) if exact else x

        base: Num = self.tiles.number(constant)
        total: Operand | None = None
        for d, c in coefficients.items():
            step = self.tiles.number(c)
            base = self.b.add(base, self.b.mul(step, self.tiles.start[d]))
            if d in self.tiles.block:
                run = leaf(Value(self.b.iota(self.tiles.block[d]), (d,)), self._span(d.symbol))
                if step != 1:
                    scale = Number(step, "i32") if isinstance(step, int) else self.splat_index(c, (d,))
                    scale = leaf(scale, self._span(c))
                    run = self.algebra.apply("arith.muli", [run, scale], "i32")
                total = run if total is None else self.algebra.apply("arith.addi", [total, run], "i32")
        if isinstance(base, int):
            number = leaf(Number(base, "i32"), (base, base))
            if total is None:
                return number
            return total if base == 0 else self.algebra.apply("arith.addi", [total, number], "i32")
        dims = total.dims if isinstance(total, Value) else ()
        shape = [self.tiles.block[d] for d in dims] or [1]
        offset = leaf(Value(self.b.splat(self.b.from_index(base), shape), dims), FULL)
        return offset if total is None else self.algebra.apply("arith.addi", [total, offset], "i32")
