"""``arith``: floats in f32 with one rounding to the result type, integers exact at their width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr

from torch_loom.dialects.elements import element_of
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array, Format
from torch_loom.ktir.reference.machine import Tile, Values, handles, tensor


def number(value: Any) -> Any:
    """A plain Python integer for scalars, the array otherwise."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    return value


def result_format(tile: Tile, op: Any) -> Format:
    """The format of the (first) result's elements."""
    return tile.machine.formats.of(element_of(op.results[0].type))


def _float_min(a: Array, b: Array) -> Array:
    return np.minimum(a, b)


_FLOAT: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
}


@handles(*_FLOAT)
def float_op(tile: Tile, op: Any, values: Values) -> Values:
    """An elementwise float op."""
    with np.errstate(all="ignore"):
        result = _FLOAT[op.name](*(np.asarray(tensor(v), np.float32) for v in values))
    return [result_format(tile, op).round(result)]


# ---- integers ----------------------------------------------------------------------------------


def _unsigned(values: Array, fmt: Format) -> Array:
    """The value of the bits as an unsigned number, one width up where that keeps it exact."""
    wide = values.astype(np.uint64)
    if fmt.bits < 64:
        wide = wide & np.uint64((1 << fmt.bits) - 1)
    return wide


def _nonzero(b: Array) -> None:
    if not np.all(b):
        raise ExecutionError("KT-X07", "division by zero")


def _trunc_div(a: Array, b: Array) -> Array:
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a))


def _div_signed(a: Array, b: Array) -> Array:
    _nonzero(b)
    return _trunc_div(a, b)


def _rem_signed(a: Array, b: Array) -> Array:
    _nonzero(b)
    return np.fmod(a, b)


def _floor_div(a: Array, b: Array) -> Array:
    _nonzero(b)
    return a // b


def _ceil_div(a: Array, b: Array) -> Array:
    _nonzero(b)
    return a // b + (a % b != 0)


def _shift(count: Array, bits: int) -> None:
    if np.any((count < 0) | (count >= bits)):
        raise ExecutionError("KT-X07", f"shift by a count outside 0..{bits - 1}")


_SIGNED: dict[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _div_signed,
    "arith.remsi": _rem_signed,
    "arith.floordivsi": _floor_div,
    "arith.ceildivsi": _ceil_div,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}


def _div_unsigned(a: Array, b: Array) -> Array:
    _nonzero(b)
    return a // b


def _ceil_unsigned(a: Array, b: Array) -> Array:
    _nonzero(b)
    return a // b + (a % b != 0)


def _rem_unsigned(a: Array, b: Array) -> Array:
    _nonzero(b)
    return a % b


_UNSIGNED: dict[str, Callable[[Array, Array], Array]] = {
    "arith.divui": _div_unsigned,
    "arith.ceildivui": _ceil_unsigned,
    "arith.remui": _rem_unsigned,
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
}
_SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")


def _as_int(value: Any, fmt: Format) -> Array:
    """An integer array to compute with; i1 becomes 0/1 of 8 bits (all its ops are bitwise or wrap to one bit)."""
    array = np.asarray(tensor(value))
    return array.astype(np.int8) if fmt.bits == 1 else array.astype(fmt.dtype, copy=False)


def to_format(values: Array, fmt: Format) -> Array:
    """Integers cut to the width of a format."""
    if fmt.bits == 1:
        return (values & 1).astype(bool)
    return fmt.round(values.astype(fmt.dtype, copy=False))


def integers(tile: Tile, name: str, fmt: Format, a: Any, b: Any) -> Array:
    """An integer op on arrays of one format."""
    x, y = _as_int(a, fmt), _as_int(b, fmt)
    with np.errstate(all="ignore"):
        if name in _SIGNED:
            if fmt.bits == 1 and name not in ("arith.andi", "arith.ori", "arith.xori", "arith.addi", "arith.muli"):
                x, y = -x, -y  # a signed i1 is 0 or -1
            return to_format(_SIGNED[name](x, y), fmt)
        if name in _UNSIGNED:
            return to_format(_UNSIGNED[name](_unsigned(x, fmt), _unsigned(y, fmt)), fmt)
        _shift(y, fmt.bits)
        if name == "arith.shli":
            return to_format(np.left_shift(x, y), fmt)
        if name == "arith.shrsi":
            return to_format(np.right_shift(x, y), fmt)
        return to_format(np.right_shift(_unsigned(x, fmt), y.astype(np.uint64)), fmt)


# Index arithmetic on plain Python integers is what kernels do most between loads.
_FAST: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.floordivsi": lambda a, b: a // b,
    "arith.ceildivsi": lambda a, b: -(-a // b),
}
_FAST_POSITIVE: dict[str, Callable[[int, int], int]] = {
    "arith.divsi": lambda a, b: a // b,
    "arith.divui": lambda a, b: a // b,
    "arith.remsi": lambda a, b: a % b,
    "arith.remui": lambda a, b: a % b,
    "arith.ceildivui": lambda a, b: -(-a // b),
}
_SMALL = 1 << 62


@handles(*_SIGNED, *_UNSIGNED, *_SHIFTS)
def int_op(tile: Tile, op: Any, values: Values) -> Values:
    """An elementwise integer op."""
    a, b = values
    fmt = result_format(tile, op)
    if type(a) is int and type(b) is int and fmt.bits == 64:
        fast = _FAST.get(op.name)
        if fast is None and a >= 0 and b > 0:
            fast = _FAST_POSITIVE.get(op.name)
        if fast is not None and (b != 0 or "div" not in op.name):
            result = fast(a, b)
            if -_SMALL < result < _SMALL:
                return [result]
    return [number(integers(tile, op.name, fmt, a, b))]


_INT_PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@handles("arith.cmpi")
def compare_ints(tile: Tile, op: Any, values: Values) -> Values:
    """Integer comparison; unsigned predicates read the bits as unsigned."""
    fmt = tile.machine.formats.of(element_of(op.operands[0].type))
    predicate = op.what
    x, y = (_as_int(v, fmt) for v in values)
    if predicate[0] == "u":
        x, y, predicate = _unsigned(x, fmt), _unsigned(y, fmt), predicate[1:]
    elif predicate[0] == "s":
        predicate = predicate[1:]
        if fmt.bits == 1:
            x, y = -x, -y
    return [number(np.asarray(_INT_PREDICATES[predicate](x, y)))]


_FLOAT_PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@handles("arith.cmpf")
def compare_floats(tile: Tile, op: Any, values: Values) -> Values:
    """Float comparison; ``o`` predicates are false and ``u`` predicates true when an operand is NaN."""
    x, y = (np.asarray(tensor(v), np.float32) for v in values)
    nan = np.isnan(x) | np.isnan(y)
    predicate = op.what
    if predicate in ("true", "false"):
        result = np.full(nan.shape, predicate == "true")
    elif predicate in ("ord", "uno"):
        result = nan if predicate == "uno" else ~nan
    else:
        plain = _FLOAT_PREDICATES[predicate[1:]](x, y)
        result = (plain | nan) if predicate[0] == "u" else (plain & ~nan)
    return [number(np.asarray(result))]


@handles("arith.select")
def select(tile: Tile, op: Any, values: Values) -> Values:
    """Choose by a scalar or elementwise."""
    condition, a, b = values
    if isinstance(condition, np.ndarray) and condition.ndim:
        return [np.where(condition, tensor(a), tensor(b))]
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and isinstance(condition, np.ndarray):
        return [np.where(condition, a, b)]
    return [a if bool(condition) else b]


# ---- casts and constants -----------------------------------------------------------------------


@handles("arith.extf", "arith.truncf")
def cast_float(tile: Tile, op: Any, values: Values) -> Values:
    """Between float types: round to nearest even (df16: ties away)."""
    return [result_format(tile, op).round(np.asarray(tensor(values[0]), np.float32))]


@handles("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui")
def cast_int(tile: Tile, op: Any, values: Values) -> Values:
    """Between integer types."""
    source = tile.machine.formats.of(element_of(op.operands[0].type))
    target = result_format(tile, op)
    array = _as_int(values[0], source)
    unsigned = op.name in ("arith.extui", "arith.index_castui")
    if unsigned:
        array = _unsigned(array, source)
    elif source.bits == 1:
        array = -array
    with np.errstate(all="ignore"):
        return [number(to_format(array.astype(np.int64), target))]


@handles("arith.sitofp", "arith.uitofp")
def int_to_float(tile: Tile, op: Any, values: Values) -> Values:
    """Integers to floats, rounded once."""
    source = tile.machine.formats.of(element_of(op.operands[0].type))
    array = _as_int(values[0], source)
    if op.name == "arith.uitofp":
        array = _unsigned(array, source)
    elif source.bits == 1:
        array = -array
    return [result_format(tile, op).round(array.astype(np.float32))]


@handles("arith.fptosi", "arith.fptoui")
def float_to_int(tile: Tile, op: Any, values: Values) -> Values:
    """Floats to integers toward zero; out of range is KT-X08."""
    target = result_format(tile, op)
    whole = np.trunc(np.asarray(tensor(values[0]), np.float32)).astype(np.float64)
    signed = op.name == "arith.fptosi"
    low = -(2.0 ** (target.bits - 1)) if signed else 0.0
    high = 2.0 ** (target.bits - 1 if signed else target.bits)
    fits = (whole >= low) & (whole < high)
    if not np.all(fits):
        worst = np.asarray(whole)[~np.asarray(fits)].ravel()[0]
        raise ExecutionError("KT-X08", f"{worst} does not fit into {element_of(op.results[0].type)}")
    array = whole.astype(np.int64 if signed else np.uint64)
    return [number(to_format(np.asarray(array), target))]


@handles("arith.bitcast")
def bitcast(tile: Tile, op: Any, values: Values) -> Values:
    """The same bits under another type."""
    source = tile.machine.formats.of(element_of(op.operands[0].type))
    target = result_format(tile, op)
    raw = source.encode(np.asarray(tensor(values[0]), source.dtype))
    if raw.dtype.itemsize != target.memory.itemsize:
        raise ExecutionError("KT-X10", f"bitcast between {source.name} and {target.name} is not implemented")
    return [number(np.asarray(target.decode(np.asarray(raw).view(target.memory))))]


@handles("arith.constant")
def constant(tile: Tile, op: Any, values: Values) -> Values:
    """A scalar or a dense tensor."""
    cache = tile.machine.caches
    found = cache.get(op)
    if found is None:
        found = cache[op] = _constant(tile, op)
    return [found]


def _constant(tile: Tile, op: Any) -> Any:
    value = op.properties["value"]
    fmt = result_format(tile, op)
    if isinstance(value, IntegerAttr):
        return bool(value.value.data) if fmt.bits == 1 else value.value.data
    if isinstance(value, FloatAttr):
        return fmt.round(np.asarray(value.value.data, np.float32))
    assert isinstance(value, DenseIntOrFPElementsAttr)
    shape = value.get_shape()
    flat = np.asarray(list(value.get_values()))
    if fmt.is_float:
        return fmt.round(flat.astype(np.float32)).reshape(shape)
    return to_format(flat.astype(np.int64), fmt).reshape(shape)


_EXTENDED = {"arith.mulsi_extended", "arith.mului_extended"}


@handles(*_EXTENDED)
def multiply_extended(tile: Tile, op: Any, values: Values) -> Values:
    """Low and high halves of a product."""
    fmt = result_format(tile, op)
    x, y = (np.asarray(v).astype(object) for v in values)
    if op.name == "arith.mului_extended":
        mask = (1 << fmt.bits) - 1
        x, y = x & mask, y & mask
    product = x * y
    halves = (product, product >> fmt.bits)
    return [number(_from_objects(half, fmt)) for half in halves]


@handles("arith.addui_extended")
def add_extended(tile: Tile, op: Any, values: Values) -> Values:
    """Sum and overflow bit."""
    fmt = result_format(tile, op)
    mask = (1 << fmt.bits) - 1
    total = (np.asarray(values[0]).astype(object) & mask) + (np.asarray(values[1]).astype(object) & mask)
    overflow = np.asarray(total > mask).astype(bool)
    return [number(_from_objects(total, fmt)), number(overflow)]


def _from_objects(values: Any, fmt: Format) -> Array:
    half, full = 1 << (fmt.bits - 1), 1 << fmt.bits
    wrapped = (np.asarray(values, dtype=object) + half) % full - half
    return np.asarray(wrapped, dtype=object).astype(fmt.dtype)
