"""Lane operations and element formats in NumPy, for the DataflowIR interpreter.

Registers are float32 or int32 arrays over the iteration space, masks are float 0.0 / 1.0, as the chip
has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_loom.numerics import df16

Array = NDArray[Any]
F = np.float32


class LaneError(Exception):
    """A CHECK found a value that the registers cannot hold."""


def _each(scalar: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's math module on every lane; outside its domain the result is NaN."""

    def guarded(x: float) -> float:
        try:
            return scalar(x)
        except (ValueError, OverflowError):
            return math.nan

    return lambda a: np.vectorize(guarded, otypes=[np.float64])(a).astype(F)


def _mask(condition: Array) -> Array:
    return condition.astype(F)


def _to_int(a: Array) -> Array:
    wide = np.where(np.isnan(a), 0.0, np.trunc(a.astype(np.float64)))
    return np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(np.int32)


def _unsigned(a: Array) -> Array:
    return a.astype(np.int64) & 0xFFFFFFFF


def _signed(a: Array) -> Array:
    return a.astype(np.int64).astype(np.uint32).astype(np.int32) if a.size else a.astype(np.int32)


def _bits32(a: Array) -> Array:
    return (np.asarray(a, dtype=np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def _int(op: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: _bits32(op(a.astype(np.int64), b.astype(np.int64)))


def _divide(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe)
    return np.where(b == 0, 0, np.where((a < 0) != (safe < 0), -quotient, quotient))


def _shift(a: Array) -> Array:
    return a & 31


def round_bf16(a: Array) -> Any:
    """Nearest bf16 value, ties to even, as float32."""
    bits = np.ascontiguousarray(a, dtype=F).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(a), F(np.nan), (rounded & np.uint32(0xFFFF0000)).view(F))


def _select(c: Array, a: Array, b: Array) -> Array:
    return np.where(c != 0, a, b)


def _check(over: Array, value: Array) -> Array:
    if over.any():
        low = int(np.broadcast_to(value, over.shape)[over != 0].flat[0])
        raise LaneError(f"an int64 value does not fit in 32 bits (its low 32 bits are {low})")
    return value


def _gelu(x: Array) -> Array:
    return (0.5 * x.astype(np.float64) * (1 + _each(math.erf)(x / F(math.sqrt(2))).astype(np.float64))).astype(F)


def _softplus(x: Array, beta: Array, limit: Array) -> Array:
    return np.where(beta * x > limit, x, np.log1p(np.exp(beta * x)) / beta).astype(F)


LANES: dict[str, Callable[..., Array]] = {
    "add_f": np.add, "sub_f": np.subtract, "mul_f": np.multiply, "div_f": np.divide,
    "max_f": np.maximum, "min_f": np.minimum, "maxnum_f": np.fmax, "minnum_f": np.fmin,
    "neg_f": np.negative, "abs_f": np.abs,
    "fma_f": lambda a, b, c: (a.astype(np.float64) * b + c).astype(F),
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sqrt": np.sqrt, "rsqrt": lambda a: F(1) / np.sqrt(a), "recip": lambda a: F(1) / a, "tanh": np.tanh,
    "erf": _each(math.erf), "erfc": _each(math.erfc), "lgamma": _each(math.lgamma),
    "sigmoid": lambda a: F(1) / (F(1) + np.exp(-a)), "silu": lambda a: a / (F(1) + np.exp(-a)), "gelu": _gelu,
    "softplus": _softplus, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.power, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "trunc": np.trunc, "rem_f": np.fmod,
    "eq_f": lambda a, b: _mask(a == b), "ne_f": lambda a, b: _mask(a != b), "lt_f": lambda a, b: _mask(a < b),
    "le_f": lambda a, b: _mask(a <= b), "gt_f": lambda a, b: _mask(a > b), "ge_f": lambda a, b: _mask(a >= b),
    "isnan": lambda a: _mask(np.isnan(a)), "isinf": lambda a: _mask(np.isinf(a)),
    "select": _select, "check": _check,
    "and_m": lambda a, b: _mask((a != 0) & (b != 0)), "or_m": lambda a, b: _mask((a != 0) | (b != 0)),
    "xor_m": lambda a, b: _mask((a != 0) ^ (b != 0)), "not_m": lambda a: _mask(a == 0),
    "add_i": _int(np.add), "sub_i": _int(np.subtract), "mul_i": _int(np.multiply), "min_i": _int(np.minimum),
    "max_i": _int(np.maximum), "and_i": _int(np.bitwise_and), "or_i": _int(np.bitwise_or),
    "xor_i": _int(np.bitwise_xor), "div_i": _int(_divide),
    "floordiv_i": _int(lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b))),
    "rem_i": _int(lambda a, b: a - _divide(a, b) * b),
    "shl_i": _int(lambda a, b: a << _shift(b)), "shr_i": _int(lambda a, b: a >> _shift(b)),
    "shru_i": lambda a, b: _bits32(_unsigned(a) >> _shift(b)),
    "udiv_i": lambda a, b: _bits32(_unsigned(a) // np.where(b == 0, 1, _unsigned(b))),
    "urem_i": lambda a, b: _bits32(_unsigned(a) % np.where(b == 0, 1, _unsigned(b))),
    "mulhi_i": lambda a, b: _bits32((a.astype(np.int64) * b.astype(np.int64)) >> 32),
    "eq_i": lambda a, b: _mask(a == b), "ne_i": lambda a, b: _mask(a != b), "lt_i": lambda a, b: _mask(a < b),
    "le_i": lambda a, b: _mask(a <= b), "gt_i": lambda a, b: _mask(a > b), "ge_i": lambda a, b: _mask(a >= b),
    "ult_i": lambda a, b: _mask(_unsigned(a) < _unsigned(b)),
    "ule_i": lambda a, b: _mask(_unsigned(a) <= _unsigned(b)),
    "f_to_i": _to_int, "i_to_f": lambda a: a.astype(F), "u_to_f": lambda a: _unsigned(a).astype(F),
    "round_df16": df16.round_f32, "round_bf16": round_bf16,
    "round_f16": lambda a: a.astype(np.float16).astype(F),
    "copy": lambda a: a,
}  # fmt: skip

REDUCE: dict[str, tuple[Callable[..., Array], float | int]] = {
    "add": (np.add, 0.0), "mul": (np.multiply, 1.0),
    "max": (np.maximum, -math.inf), "min": (np.minimum, math.inf),
    "add_i": (np.add, 0), "mul_i": (np.multiply, 1),
    "max_i": (np.maximum, -(2**31)), "min_i": (np.minimum, 2**31 - 1),
    "or_m": (np.maximum, 0.0), "and_m": (np.minimum, 1.0),
}  # fmt: skip

STORAGE: dict[str, Any] = {
    "DF16": np.uint16, "F32": F, "I32": np.int32, "F16": np.float16, "BF16": np.uint16, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8, "I64": np.int64,
}  # fmt: skip


def to_registers(stored: Array, elem: str) -> Array:
    """Register values of elements as they lie in LX."""
    if elem == "DF16":
        return df16.decode(stored)
    if elem == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(F)
    if elem in ("F32", "F16"):
        return stored.astype(F)
    return stored.astype(np.int32)


def to_storage(registers: Array, elem: str) -> Array:
    """Elements of register values, rounded as the store unit rounds."""
    if elem == "DF16":
        return df16.encode(registers)
    if elem == "BF16":
        return (np.ascontiguousarray(round_bf16(registers)).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return registers.astype(STORAGE[elem])


def reduce_lanes(values: Array, how: str, dims: tuple[int, ...]) -> Array:
    """Fold over dims, keeping them with extent 1."""
    function, identity = REDUCE[how]
    kind = np.int64 if how.endswith("_i") else F
    folded = function.reduce(values.astype(kind), axis=dims, keepdims=True, initial=kind(identity))  # type: ignore[attr-defined]
    return _bits32(folded) if how.endswith("_i") else folded.astype(F)
