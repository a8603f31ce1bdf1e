"""Element types: what is a float, what is an integer, how wide it is. One row per type."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2FNUZType,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    TensorType,
    VectorType,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition


@irdl_attr_definition
class Df16Type(ParametrizedAttribute, TypeAttribute):
    """``!spyreop.df16``: 16-bit DLFloat, 1 sign, 6 exponent and 9 fraction bits."""

    name = "spyreop.df16"


FLOAT_BYTES: dict[type[Attribute], int] = {
    Float16Type: 2,
    BFloat16Type: 2,
    Float32Type: 4,
    Float64Type: 8,
    Df16Type: 2,
    Float8E4M3FNType: 1,
    Float8E5M2FNUZType: 1,
}


def element_of(kind: Attribute) -> Attribute:
    """The element type of a tensor, memref or vector; the type itself otherwise."""
    if isinstance(kind, TensorType | MemRefType | VectorType):
        return kind.element_type
    return kind


def is_float(kind: Attribute) -> bool:
    """A float element type, df16 included."""
    return type(kind) in FLOAT_BYTES


def is_integer(kind: Attribute) -> bool:
    """An integer or index element type."""
    return isinstance(kind, IntegerType | IndexType)


def element_bits(kind: Attribute) -> int | None:
    """Width of an element in bits; index counts 64; None for types without a width."""
    if type(kind) in FLOAT_BYTES:
        return 8 * FLOAT_BYTES[type(kind)]
    if isinstance(kind, IntegerType):
        return kind.width.data
    return 64 if isinstance(kind, IndexType) else None


def element_bytes(kind: Attribute) -> int | None:
    """Bytes that an element takes in memory; None for types without a size."""
    bits = element_bits(kind)
    return None if bits is None else max(1, (bits + 7) // 8)


def shape_of(kind: Attribute) -> tuple[int, ...] | None:
    """Shape of a tensor, memref or vector; None for scalars."""
    if isinstance(kind, TensorType | MemRefType | VectorType):
        return kind.get_shape()
    return None


def with_element(kind: Attribute, element: Attribute) -> Attribute:
    """The same shape with another element type."""
    if isinstance(kind, TensorType):
        return TensorType(element, kind.get_shape())
    if isinstance(kind, VectorType):
        return VectorType(element, kind.get_shape())
    return element
