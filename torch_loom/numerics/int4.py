"""Signed 4-bit integers, two to a byte: even positions in the low half (quantised weights)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = -8, 7


def pack(values: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Bytes of int4 values along the last axis, whose length must be even."""
    values = np.asarray(values)
    if values.ndim == 0 or values.shape[-1] % 2:
        raise ValueError(f"int4 packing needs an even last dimension, got shape {values.shape}")
    if values.size and not (int(values.min()) >= LOWEST and int(values.max()) <= HIGHEST):
        raise ValueError(f"int4 values lie in {LOWEST}..{HIGHEST}, got {values.min()}..{values.max()}")
    nibbles = values.astype(np.int16) & 0xF
    return (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).astype(np.uint8)


def unpack(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """int4 values of packed bytes; the last axis doubles."""
    packed = np.asarray(packed, dtype=np.uint8)
    if packed.ndim == 0:
        raise ValueError("int4 unpacking needs at least one dimension")
    nibbles = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return ((nibbles.astype(np.int16) ^ 8) - 8).astype(np.int8)


def pack_scalar(values: Sequence[int]) -> bytes:
    """Reference of :func:`pack` for one row."""
    if len(values) % 2 or any(not LOWEST <= v <= HIGHEST for v in values):
        raise ValueError(f"int4 packing needs an even number of values in {LOWEST}..{HIGHEST}")
    pairs = zip(values[0::2], values[1::2], strict=True)
    return bytes((low % 16) + 16 * (high % 16) for low, high in pairs)


def unpack_scalar(packed: bytes) -> list[int]:
    """Reference of :func:`unpack` for one row."""
    out = []
    for byte in packed:
        for nibble in (byte % 16, byte // 16):
            out.append(nibble - 16 if nibble >= 8 else nibble)
    return out
