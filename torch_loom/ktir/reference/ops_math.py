"""``math`` and ``spyreop``: computed in f32, rounded once to the result type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FloatAttr

from torch_loom.dialects.elements import element_of
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array
from torch_loom.ktir.reference.machine import Tile, Values, handles, tensor
from torch_loom.ktir.reference.ops_arith import integers, number, result_format, to_format

# Coefficients of erfc(x) = t * exp(-x^2 + P(t)), t = 1 / (1 + x/2), x >= 0 (W. J. Cody's and N. Press's form; the
# fractional error is below 1.2e-7 everywhere, one ulp of f32).
_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)


def erfc(values: Array) -> Array:
    """Complementary error function in f64."""
    x = np.asarray(values, np.float64)
    z = np.abs(x)
    t = 1.0 / (1.0 + 0.5 * z)
    poly = np.zeros_like(t)
    for coefficient in reversed(_ERFC):
        poly = poly * t + coefficient
    tail = t * np.exp(-z * z + poly)
    return np.where(x >= 0, tail, 2.0 - tail)


def erf(values: Array) -> Array:
    """Error function; near zero by its series, where 1 - erfc would lose digits."""
    x = np.asarray(values, np.float64)
    s = x * x
    near = x * 1.1283791670955126 * (1 + s * (-1 / 3 + s * (1 / 10 + s * (-1 / 42 + s * (1 / 216 - s / 1320)))))
    return np.where(np.abs(x) < 0.4, near, 1.0 - erfc(x))


def _rsqrt(x: Array) -> Array:
    return np.float32(1) / np.sqrt(x)


def _round_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "absf": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "erfc": erfc,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "round": _round_away,
    "roundeven": np.rint,
    "rsqrt": _rsqrt,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "powf": np.power,
}


@handles(*(f"math.{name}" for name in (*_UNARY, *_BINARY)))
def float_function(tile: Tile, op: Any, values: Values) -> Values:
    """A float function of one or two operands."""
    name = op.name.removeprefix("math.")
    arrays = [np.asarray(tensor(v), np.float32) for v in values]
    with np.errstate(all="ignore"):
        result = _UNARY[name](arrays[0]) if name in _UNARY else _BINARY[name](*arrays)
    return [result_format(tile, op).round(np.asarray(result, np.float32))]


@handles("math.fma")
def fma(tile: Tile, op: Any, values: Values) -> Values:
    """a * b + c with one rounding: exact in f64 up to the final rounding to f32."""
    a, b, c = (np.asarray(tensor(v), np.float64) for v in values)
    with np.errstate(all="ignore"):
        return [result_format(tile, op).round((a * b + c).astype(np.float32))]


@handles("math.fpowi")
def fpowi(tile: Tile, op: Any, values: Values) -> Values:
    """Float to an integer power."""
    base = np.asarray(tensor(values[0]), np.float64)
    with np.errstate(all="ignore"):
        result = np.power(base, np.asarray(tensor(values[1]), np.float64))
    return [result_format(tile, op).round(result.astype(np.float32))]


@handles("math.absi", "math.ctlz", "math.ctpop", "math.cttz", "math.ipowi")
def int_function(tile: Tile, op: Any, values: Values) -> Values:
    """Integer functions."""
    fmt = result_format(tile, op)
    if op.name == "math.absi":
        with np.errstate(all="ignore"):
            return [number(to_format(np.abs(np.asarray(values[0], fmt.dtype)), fmt))]
    if op.name == "math.ipowi":
        return [number(_int_power(tile, np.asarray(values[0], fmt.dtype), np.asarray(values[1], fmt.dtype), fmt))]
    bits = np.asarray(values[0]).astype(np.int64) & ((1 << fmt.bits) - 1 if fmt.bits < 64 else -1)
    unsigned = np.asarray(bits).astype(np.uint64)
    planes = [(unsigned >> np.uint64(k)) & np.uint64(1) for k in range(fmt.bits)]
    if op.name == "math.ctpop":
        total = sum(planes[1:], planes[0])
    else:
        order = planes if op.name == "math.cttz" else planes[::-1]
        total = np.zeros_like(unsigned)
        still = np.ones_like(unsigned)
        for plane in order:
            still = still & (plane ^ np.uint64(1))
            total = total + still
    return [number(to_format(np.asarray(total).astype(np.int64), fmt))]


def _int_power(tile: Tile, base: Array, power: Array, fmt: Any) -> Array:
    if np.any(power < 0):
        raise ExecutionError("KT-X07", "negative power of an integer")
    result = np.ones(np.broadcast_shapes(base.shape, power.shape), fmt.dtype)
    while np.any(power > 0):
        result = np.where(power & 1, integers(tile, "arith.muli", fmt, result, base), result)
        base = integers(tile, "arith.muli", fmt, base, base)
        power = power >> 1
    return result


# ---- spyreop -----------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def _gelu(x: Array) -> Array:
    return x * (0.5 * (1.0 + erf(np.asarray(x, np.float64) / np.sqrt(2.0))))


_INTRINSICS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": lambda x: np.float32(1) / x,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "realdiv": lambda a, b: a / b,
    "select": lambda c, t, f: np.where(c != 0, t, f),
    "layernormnorm": lambda x, q, s, w, b: (x - q) * s * w + b,
}


@handles(*(f"spyreop.{name}" for name in _INTRINSICS))
def intrinsic(tile: Tile, op: Any, values: Values) -> Values:
    """An intrinsic on floats."""
    arrays = [np.asarray(tensor(v), np.float32) for v in values]
    with np.errstate(all="ignore"):
        result = _INTRINSICS[op.name.removeprefix("spyreop.")](*arrays)
    return [result_format(tile, op).round(np.asarray(result, np.float32))]


@handles("spyreop.softplus")
def softplus(tile: Tile, op: Any, values: Values) -> Values:
    """log(1 + exp(beta x)) / beta, x itself above the threshold."""
    x = np.asarray(tensor(values[0]), np.float32)
    beta, threshold = np.float32(op.literal("beta")), np.float32(op.literal("threshold"))
    with np.errstate(all="ignore"):
        result = np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta)
    return [result_format(tile, op).round(result.astype(np.float32))]


@handles("spyreop.compare")
def compare(tile: Tile, op: Any, values: Values) -> Values:
    """A float flag."""
    a, b = (np.asarray(tensor(v), np.float32) for v in values)
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "equal": np.equal,
        "notequal": np.not_equal,
        "greaterthan": np.greater,
        "greaterequal": np.greater_equal,
        "lesserthan": np.less,
        "lesserequal": np.less_equal,
    }
    return [np.asarray(functions[op.predicate](a, b)).astype(np.float32)]


_WRAPPING = {
    "spyreop.addi32toi32": ("arith.addi", 32),
    "spyreop.addi64toi64": ("arith.addi", 64),
    "spyreop.muli32toi32": ("arith.muli", 32),
}


@handles(*_WRAPPING)
def fixed_width(tile: Tile, op: Any, values: Values) -> Values:
    """Fixed-width integer arithmetic."""
    return [number(integers(tile, _WRAPPING[op.name][0], result_format(tile, op), *values))]


@handles("spyreop.checked")
def checked(tile: Tile, op: Any, values: Values) -> Values:
    """The second operand; an error where the first is set."""
    over, value = (np.asarray(tensor(v)) for v in values)
    if over.any():
        low = int(value[over.astype(bool)].flat[0])
        raise ExecutionError("KT-X12", f"an int64 value does not fit in 32 bits (its low 32 bits are {low})")
    return [values[1]]


@handles("spyreop.idx32toaddr")
def index_to_address(tile: Tile, op: Any, values: Values) -> Values:
    """base + stride * index."""
    rest = iter(values[1:])
    base, stride = (v if isinstance(v := op.parameter(word), int) else next(rest) for word in ("base", "stride"))
    result = np.asarray(base).astype(np.int64) + np.asarray(stride).astype(np.int64) * np.asarray(values[0]).astype(
        np.int64
    )
    return [number(to_format(np.asarray(result), tile.machine.formats.of(element_of(op.results[0].type))))]


@handles("spyreop.exx2")
def mean_and_squares(tile: Tile, op: Any, values: Values) -> Values:
    """Mean and mean of squares of one element; over a reduction the enclosing generic takes the means."""
    x = np.asarray(tensor(values[0]), np.float32)
    fmt = result_format(tile, op)
    with np.errstate(all="ignore"):
        return [fmt.round(x), fmt.round(x * x)]


@handles("spyreop.layernormscale")
def layernorm_scale(tile: Tile, op: Any, values: Values) -> Values:
    """1 / sqrt(q - mean^2 + eps) of (mean, q), or 1 / sqrt(variance + eps) of one operand."""
    eps = op.attributes.get("eps")
    offset = np.float32(eps.value.data if isinstance(eps, FloatAttr) else 0.0)
    x, *rest = (np.asarray(tensor(v), np.float32) for v in values)
    with np.errstate(all="ignore"):
        variance = rest[0] - x * x if rest else x
        return [result_format(tile, op).round(_rsqrt(variance + offset))]


@handles("spyreop.exx2_fused", "spyreop.layernormscale_fused", "spyreop.slice_reduction")
def unpublished(tile: Tile, op: Any, values: Values) -> Values:
    """Ops whose exact meaning depends on the lanes of a stick, which is not published."""
    raise ExecutionError("KT-X10", f"the lane layout of '{op.name}' is not published; use linalg.reduce or exx2")
