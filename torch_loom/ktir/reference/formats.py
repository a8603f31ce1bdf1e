"""How values of each element type are held, rounded and stored by the reference interpreter.

Float tensors are float32 arrays whose values are representable in their element type; one rounding per operation
brings them there. Integers are NumPy integers of their width, i1 is bool. In memory every type has its own bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2FNUZType,
    Float16Type,
    Float32Type,
    IndexType,
    IntegerType,
)
from xdsl.ir import Attribute

from torch_loom.dialects.elements import Df16Type
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.numerics import df16, fp8

Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """One element type: computing dtype, bytes in memory, rounding and conversion to and from memory."""

    name: str
    dtype: np.dtype[Any]
    memory: np.dtype[Any]
    is_float: bool
    bits: int
    round: Callable[[Array], Array]
    encode: Callable[[Array], Array]
    decode: Callable[[Array], Array]

    @property
    def bytes(self) -> int:
        """Bytes of an element in memory."""
        return int(self.memory.itemsize)


F32 = np.dtype(np.float32)


def _same(values: Array) -> Array:
    return values


def _to_half(values: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(np.float16)


def _round_half(values: Array) -> Array:
    return _to_half(values).astype(np.float32)


def _encode_bf16(values: Array) -> Array:
    """Nearest even by integer arithmetic on the bits; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def _decode_bf16(codes: Array) -> Array:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _float_format(
    name: str, memory: Any, bits: int, encode: Callable[[Array], Array], decode: Callable[[Array], Array]
) -> Format:
    def round_(values: Array) -> Array:
        return decode(encode(np.asarray(values, np.float32))).reshape(np.shape(values))

    return Format(name, F32, np.dtype(memory), True, bits, round_, encode, decode)


def _as_f32(values: Array) -> Array:
    return np.asarray(values, np.float32)


def _fp8_format(name: str, fmt: fp8.Fp8Format) -> Format:
    return _float_format(name, np.uint8, 8, lambda v: fp8.encode(v, fmt), lambda c: fp8.decode(c, fmt))


F32_FORMAT = Format("f32", F32, F32, True, 32, _as_f32, _as_f32, _as_f32)
IEEE_F16 = Format("f16", F32, np.dtype(np.float16), True, 16, _round_half, _to_half, _as_f32)
BF16 = _float_format("bf16", np.uint16, 16, _encode_bf16, _decode_bf16)
DF16 = _float_format("df16", np.uint16, 16, df16.encode, df16.decode)


def integer_format(width: int, name: str | None = None) -> Format:
    """Two's complement of a width; widths without a NumPy type live in the next larger one and wrap."""
    name = name or f"i{width}"
    if width == 1:
        boolean = np.dtype(np.bool_)
        return Format(name, boolean, np.dtype(np.uint8), False, 1, _same, _bool_bytes, _bytes_bool)
    for size in (8, 16, 32, 64):
        if width <= size:
            dtype = np.dtype(f"int{size}")
            wrap = _same if width == size else _wrapper(width, dtype)
            return Format(name, dtype, dtype, False, width, wrap, _same, _same)
    raise ExecutionError("KT-X10", f"integers of {width} bits are not executed")


def _bool_bytes(values: Array) -> Array:
    return values.astype(np.uint8)


def _bytes_bool(values: Array) -> Array:
    return values != 0


def _wrapper(width: int, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    half, full = 1 << (width - 1), 1 << width

    def wrap(values: Array) -> Array:
        return (((values.astype(np.int64) + half) % full) - half).astype(dtype)

    return wrap


INDEX_FORMAT = integer_format(64, "index")

_FLOATS: dict[type[Attribute], Format] = {
    Float32Type: F32_FORMAT,
    Float16Type: IEEE_F16,
    BFloat16Type: BF16,
    Df16Type: DF16,
    Float8E4M3FNType: _fp8_format("f8E4M3FN", fp8.E4M3FN),
    Float8E5M2FNUZType: _fp8_format("f8E5M2FNUZ", fp8.E5M2FNUZ),
}


class Formats:
    """Formats by element type. ``numerics="df16"`` makes f16 and bf16 live as df16, as on the device."""

    def __init__(self, numerics: str = "ieee") -> None:
        if numerics not in ("ieee", "df16"):
            raise ValueError(f"numerics is 'ieee' or 'df16', got {numerics!r}")
        self.numerics = numerics
        self._known: dict[Attribute, Format] = {}

    def of(self, kind: Attribute) -> Format:
        """The format of an element type. Types that are only parsed (f64, complex) are refused by name."""
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = self._make(kind)
        return found

    def _make(self, kind: Attribute) -> Format:
        if isinstance(kind, IndexType):
            return INDEX_FORMAT
        if isinstance(kind, IntegerType):
            return integer_format(kind.width.data)
        if self.numerics == "df16" and isinstance(kind, Float16Type | BFloat16Type):
            return DF16
        found = _FLOATS.get(type(kind))
        if found is None:
            raise ExecutionError("KT-X10", f"values of type {kind} are not executed")
        return found
