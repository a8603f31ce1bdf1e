"""df16 (1 sign, 6 exponent, 9 fraction bits): how fp16 and bf16 tensors live on the device.

The magnitude bits of a float32 shifted right by 14 are the magnitude bits of a df16 plus a constant:
both formats store (exponent, fraction) with the fraction's top bits first. Rounding to nearest with
ties away from zero is therefore one integer addition, which carries into the exponent by itself. What
the addition cannot give are the two ends: the code that would mean 2^-31 is zero, and the last code is
the one value for infinity and NaN. The sign of both is a don't-care; this module writes it as 0 and
reads the last code as NaN, since nothing on the chip can tell an infinity from a NaN.

The scalar functions follow the definition with exact fractions and share no code with the arrays.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

FRACTION_BITS = 9
EXPONENT_BIAS = 31
ZERO = 0x0000
MERGED = 0x7FFF
"""The code of infinity and NaN."""

MAX = float(2**32 * Fraction(512 + 510, 512))
"""Largest finite value, 8573157376."""

TINY = float(Fraction(513, 512) / 2**31)
"""Smallest positive value; there are no subnormals and 2^-31 has no code."""

EPS = 2.0**-9
"""Distance from 1.0 to the next value; rounding errs by at most half of it, relative."""

_SHIFT = 23 - FRACTION_BITS
_HALF = 1 << (_SHIFT - 1)
_REBIAS = (127 - EXPONENT_BIAS) << FRACTION_BITS
_HALF_TINY_BITS = int(np.float32(TINY / 2).view(np.uint32))


def encode(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """df16 codes of float32 values: nearest, ties away from zero, beyond the range the merged code."""
    bits = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    rounded = ((magnitude + np.uint32(_HALF)) >> np.uint32(_SHIFT)).astype(np.int32) - _REBIAS
    code = np.clip(rounded, 1, MERGED).astype(np.uint16)
    sign = ((bits >> np.uint32(16)) & np.uint32(0x8000)).astype(np.uint16)
    code = np.where(code == MERGED, np.uint16(MERGED), code | sign)
    return np.where(magnitude < _HALF_TINY_BITS, np.uint16(ZERO), code)


def decode(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    """float32 values of df16 codes, exact; the merged code of either sign is NaN."""
    wide = np.asarray(codes, dtype=np.uint16).astype(np.uint32)
    magnitude = wide & np.uint32(0x7FFF)
    bits = ((magnitude + np.uint32(_REBIAS)) << np.uint32(_SHIFT)) | ((wide & np.uint32(0x8000)) << np.uint32(16))
    bits = np.where(magnitude == ZERO, np.uint32(0), bits)
    return np.where(magnitude == MERGED, np.uint32(0x7FC00000), bits).view(np.float32)


def round_f32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The df16 value nearest to each float32 value, as float32 (infinities become NaN)."""
    return decode(encode(values))


def decode_scalar(code: int) -> float:
    """Value of one code by the table of the format's definition."""
    if not 0 <= code <= 0xFFFF:
        raise ValueError(f"a df16 code lies in 0..65535, got {code}")
    sign = -1 if code & 0x8000 else 1
    exponent, fraction = (code >> 9) & 0x3F, code & 0x1FF
    if exponent == 0 and fraction == 0:
        return 0.0
    if exponent == 63 and fraction == 511:
        return math.nan
    return float(sign * Fraction(2) ** (exponent - 31) * (1 + Fraction(fraction, 512)))


def encode_scalar(value: float) -> int:
    """Code nearest to one value, found by comparing exact distances; ties go up in magnitude."""
    if math.isnan(value) or math.isinf(value):
        return MERGED
    sign = 0x8000 if value < 0 else 0
    exact = abs(Fraction(value))
    tiny = Fraction(513, 512) / 2**31
    if exact < tiny:
        return ZERO if exact < tiny / 2 else sign | 1
    exponent = -31
    while Fraction(2) ** (exponent + 1) <= exact and exponent < 33:
        exponent += 1
    fraction = math.floor((exact / Fraction(2) ** exponent - 1) * 512 + Fraction(1, 2))
    if fraction == 512:
        exponent, fraction = exponent + 1, 0
    code = ((exponent + 31) << 9) + fraction
    return MERGED if code >= MERGED else sign | code
