"""Elementwise operations of Inductor's loop language, as a table from name to KTIR.

Rows are either a KTIR operation per register type or a small function built from other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .special import special
from .values import Algebra, Number, Operand, Value
from .wide import followed, held, plain, selected, span_of

FLOAT = {
    "exp": "math.exp", "exp2": "math.exp2", "expm1": "math.expm1", "log": "math.log", "log2": "math.log2",
    "log1p": "math.log1p", "sqrt": "math.sqrt", "rsqrt": "math.rsqrt", "sin": "math.sin", "cos": "math.cos",
    "tan": "math.tan", "tanh": "math.tanh", "erf": "math.erf", "erfc": "math.erfc", "asin": "math.asin",
    "acos": "math.acos", "atan": "math.atan", "sinh": "math.sinh", "cosh": "math.cosh", "asinh": "math.asinh",
    "acosh": "math.acosh", "atanh": "math.atanh", "atan2": "math.atan2",
    "fmod": "arith.remf",
}  # fmt: skip

ROUNDING = {"floor": "math.floor", "ceil": "math.ceil", "round": "math.roundeven", "trunc": "math.trunc"}

TYPED = {
    "add": {"f32": "arith.addf", "i32": "arith.addi"},
    "sub": {"f32": "arith.subf", "i32": "arith.subi"},
    "mul": {"f32": "arith.mulf", "i32": "arith.muli"},
    "maximum": {"f32": "arith.maximumf", "i32": "arith.maxsi"},
    "minimum": {"f32": "arith.minimumf", "i32": "arith.minsi"},
    "bitwise_and": {"i32": "arith.andi", "i1": "arith.andi"},
    "bitwise_or": {"i32": "arith.ori", "i1": "arith.ori"},
    "bitwise_xor": {"i32": "arith.xori", "i1": "arith.xori"},
    "bitwise_left_shift": {"i32": "arith.shli"},
    "bitwise_right_shift": {"i32": "arith.shrsi"},
    "eq": {"f32": "arith.cmpf oeq", "i32": "arith.cmpi eq", "i1": "arith.cmpi eq"},
    "ne": {"f32": "arith.cmpf une", "i32": "arith.cmpi ne", "i1": "arith.cmpi ne"},
    "lt": {"f32": "arith.cmpf olt", "i32": "arith.cmpi slt"},
    "le": {"f32": "arith.cmpf ole", "i32": "arith.cmpi sle"},
    "gt": {"f32": "arith.cmpf ogt", "i32": "arith.cmpi sgt"},
    "ge": {"f32": "arith.cmpf oge", "i32": "arith.cmpi sge"},
    "truncdiv": {"i32": "arith.divsi"},
}
ALIASES = {
    "and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "div_rn": "truediv", "int_truediv": "truediv", "mul_rn": "mul",
}  # fmt: skip


def neg(a: Algebra, x: Operand) -> Operand:
    """-x"""
    if x.kind == "f32":
        return a.apply("arith.negf", [x])
    return a.apply("arith.subi", [Number(0, "i32"), x], "i32")


def absolute(a: Algebra, x: Operand) -> Operand:
    """|x|"""
    return a.table({"f32": "math.absf", "i32": "math.absi"}, [x])


def truediv(a: Algebra, x: Operand, y: Operand) -> Operand:
    """x / y in float"""
    return a.apply("arith.divf", [x, y], "f32")


def reciprocal(a: Algebra, x: Operand) -> Operand:
    """1 / x"""
    return truediv(a, Number(1.0, "f32"), x)


def sigmoid(a: Algebra, x: Operand) -> Operand:
    """1 / (1 + exp(-x))"""
    e = a.apply("math.exp", [neg(a, a.cast(x, "f32"))])
    return reciprocal(a, a.apply("arith.addf", [Number(1.0, "f32"), e]))


def select(a: Algebra, c: Operand, x: Operand, y: Operand) -> Operand:
    """c ? x : y"""
    wide = "f32" if "f32" in (x.kind, y.kind) else "i32" if "i32" in (x.kind, y.kind) else "i1"
    dims = a.union([c, x, y])
    if isinstance(c, Number) and isinstance(x, Number) and isinstance(y, Number):
        return x if c.value else y
    parts = [a.materialise(a.cast(v, k), dims) for v, k in ((c, "i1"), (x, wide), (y, wide))]
    out = Value(a.b.op("arith.select", *(p.tensor for p in parts)), dims)
    return selected(a, c, x, y, out) if wide == "i32" and (followed(x) or followed(y)) else out


def relu(a: Algebra, x: Operand) -> Operand:
    """max(x, 0)"""
    return a.table(TYPED["maximum"], [x, Number(0, x.kind)])


def square(a: Algebra, x: Operand) -> Operand:
    """x * x"""
    return a.table(TYPED["mul"], [x, x])


def sign(a: Algebra, x: Operand) -> Operand:
    """-1, 0 or 1"""
    zero = Number(0, x.kind)
    up = a.cast(a.table(TYPED["gt"], [x, zero]), x.kind)
    down = a.cast(a.table(TYPED["lt"], [x, zero]), x.kind)
    out = a.table(TYPED["sub"], [up, down])
    return held(out, (-1, 1)) if followed(x) else out


def logical_not(a: Algebra, x: Operand) -> Operand:
    """x == 0"""
    return a.apply("arith.xori", [a.cast(x, "i1"), Number(True, "i1")])


def bitwise_not(a: Algebra, x: Operand) -> Operand:
    """All bits flipped"""
    return logical_not(a, x) if x.kind == "i1" else a.apply("arith.xori", [x, Number(-1, "i32")])


def isnan(a: Algebra, x: Operand) -> Operand:
    """x is not equal to itself"""
    return a.apply("arith.cmpf uno", [x, x], "f32")


def isinf(a: Algebra, x: Operand) -> Operand:
    """|x| is infinite"""
    return a.apply("arith.cmpf oeq", [absolute(a, a.cast(x, "f32")), Number(math.inf, "f32")])


def floordiv(a: Algebra, x: Operand, y: Operand) -> Operand:
    """floor(x / y)"""
    if "f32" in (x.kind, y.kind):
        return a.apply("math.floor", [truediv(a, x, y)])
    return a.apply("arith.floordivsi", [x, y], "i32")


def remainder(a: Algebra, x: Operand, y: Operand) -> Operand:
    """x - y * floor(x / y): sign of the divisor"""
    if "f32" in (x.kind, y.kind):
        r = a.apply("arith.remf", [x, y], "f32")
        zero = Number(0.0, "f32")
        wrong = a.apply(
            "arith.andi",
            [
                a.apply("arith.cmpf une", [r, zero]),
                a.apply(
                    "arith.xori",
                    [a.apply("arith.cmpf olt", [r, zero]), a.apply("arith.cmpf olt", [y, zero], "f32")],
                ),
            ],
        )
        return select(a, wrong, a.apply("arith.addf", [r, y], "f32"), r)
    exact, (low, high) = followed(x) or followed(y), span_of(y)
    x, y = plain(a, x), plain(a, y)  # the product leaves 32 bits no further than x
    q = floordiv(a, x, y)
    out = a.apply("arith.subi", [x, a.apply("arith.muli", [q, y], "i32")], "i32")
    return held(out, (min(low + 1, 0), max(high - 1, 0))) if exact else out


def mod(a: Algebra, x: Operand, y: Operand) -> Operand:
    """Remainder with the sign of the dividend"""
    return a.table({"f32": "arith.remf", "i32": "arith.remsi"}, [x, y])


def fma(a: Algebra, x: Operand, y: Operand, z: Operand) -> Operand:
    """x * y + z, rounded once"""
    return a.apply("math.fma", [x, y, z], "f32")


def power(a: Algebra, x: Operand, y: Operand) -> Operand:
    """x to the power y; integers by squaring, modulo 2^32"""
    if "f32" in (x.kind, y.kind):
        return a.apply("math.powf", [x, y], "f32")
    base, out = a.cast(x, "i32"), Number(1, "i32")
    bits = int(y.value).bit_length() if isinstance(y, Number) else 31
    for k in range(bits):
        times = a.apply("arith.muli", [out, base], "i32")
        if isinstance(y, Number):
            out = times if int(y.value) >> k & 1 else out  # type: ignore[assignment]
        else:
            bit = a.apply("arith.andi", [a.apply("arith.shrsi", [y, Number(k, "i32")], "i32"), Number(1, "i32")])
            out = select(a, a.cast(bit, "i1"), times, out)  # type: ignore[assignment]
        base = a.apply("arith.muli", [base, base], "i32")
    return out


def log10(a: Algebra, x: Operand) -> Operand:
    """Decimal logarithm"""
    return a.apply("arith.mulf", [a.apply("math.log", [x], "f32"), Number(1.0 / math.log(10.0), "f32")])


def logical(name: str) -> Callable[..., Operand]:
    """and, or, xor of truth values"""
    return lambda a, x, y: a.apply(name, [a.cast(x, "i1"), a.cast(y, "i1")], "i1")


BUILT: dict[str, Callable[..., Operand]] = {
    "neg": neg, "abs": absolute, "truediv": truediv, "reciprocal": reciprocal, "sigmoid": sigmoid,
    "where": select, "relu": relu, "square": square, "sign": sign, "logical_not": logical_not,
    "bitwise_not": bitwise_not, "isnan": isnan, "isinf": isinf, "floordiv": floordiv, "remainder": remainder,
    "mod": mod, "pow": power, "fma": fma, "log10": log10, "logical_and": logical("arith.andi"),
    "logical_or": logical("arith.ori"), "logical_xor": logical("arith.xori"),
}  # fmt: skip


# Operations whose value at zero is an infinity that programs rely on.
INFINITE = {"log", "log2", "log10", "log1p", "reciprocal", "rsqrt"}


def elementwise(a: Algebra, name: str, operands: list[Operand]) -> Operand | None:
    """Apply the named operation; None when there is no such row."""
    name = ALIASES.get(name, name)
    a.infinite |= name in INFINITE
    if name in BUILT:
        return BUILT[name](a, *operands)
    if name in FLOAT:
        return a.apply(FLOAT[name], operands, "f32")
    if name in ROUNDING:
        return operands[0] if operands[0].kind != "f32" else a.apply(ROUNDING[name], operands)
    if name in TYPED:
        return a.table(TYPED[name], operands)
    return special(a, name, operands)
