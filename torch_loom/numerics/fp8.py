"""The two 8-bit float formats of the chip: 1-4-3 (torch float8_e4m3fn) and 1-5-2 (float8_e5m2fnuz).

Both have subnormals, no infinity, and round to nearest even. Beyond the range, torch saturates the first
and makes NaN of the second; so does this module, since the host side of a transfer is torch. Encoding
rounds to the quantum of the value's binade in float64, where every step is exact, and assembles the bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fp8Format:
    """An 8-bit float. ``nan`` holds its NaN codes; what rounds beyond ``largest`` becomes ``largest`` if the
    format saturates, else NaN."""

    name: str
    fraction_bits: int
    bias: int
    largest: float
    nan: tuple[int, ...]
    signed_zero: bool
    saturates: bool

    @property
    def exponent_min(self) -> int:
        """Exponent of the smallest normal value, shared by the subnormals."""
        return 1 - self.bias


E4M3FN = Fp8Format("SEN143_FP8", 3, 7, 448.0, (0x7F, 0xFF), signed_zero=True, saturates=True)
E5M2FNUZ = Fp8Format("SEN152_FP8", 2, 16, 57344.0, (0x80,), signed_zero=False, saturates=False)


def decode_scalar(code: int, fmt: Fp8Format) -> float:
    """Value of one code, straight from the definition."""
    if not 0 <= code <= 0xFF:
        raise ValueError(f"an fp8 code lies in 0..255, got {code}")
    if code in fmt.nan:
        return math.nan
    sign = -1 if code & 0x80 else 1
    exponent = (code & 0x7F) >> fmt.fraction_bits
    fraction = Fraction(code & ((1 << fmt.fraction_bits) - 1), 1 << fmt.fraction_bits)
    if exponent == 0:
        magnitude = fraction * Fraction(2) ** fmt.exponent_min
    else:
        magnitude = (1 + fraction) * Fraction(2) ** (exponent - fmt.bias)
    return math.copysign(float(magnitude), sign)


def encode_scalar(value: float, fmt: Fp8Format) -> int:
    """Code nearest to one value by search over all codes; ties go to the even code."""
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    not_a_number = fmt.nan[0] | (sign if fmt.signed_zero else 0)
    if math.isnan(value):
        return not_a_number
    positive = [Fraction(decode_scalar(c, fmt)) for c in range(0x80) if c not in fmt.nan]
    last = len(positive) - 1
    # One step past the largest value decides where rounding leaves the range.
    candidates = [*positive, 2 * positive[last] - positive[last - 1]]
    exact = candidates[-1] if math.isinf(value) else min(abs(Fraction(value)), candidates[-1])
    code = min(range(len(candidates)), key=lambda c: (abs(candidates[c] - exact), c & 1))
    if code > last:
        return sign | last if fmt.saturates else not_a_number
    return code | (sign if code or fmt.signed_zero else 0)


def decode(codes: NDArray[np.uint8], fmt: Fp8Format) -> NDArray[np.float32]:
    """float32 values of fp8 codes, exact."""
    wide = np.asarray(codes, dtype=np.uint8).astype(np.int32)
    exponent = (wide & 0x7F) >> fmt.fraction_bits
    fraction = wide & ((1 << fmt.fraction_bits) - 1)
    significand = np.where(exponent == 0, fraction, fraction + (1 << fmt.fraction_bits))
    scale = np.where(exponent == 0, fmt.exponent_min, exponent - fmt.bias) - fmt.fraction_bits
    magnitude = np.ldexp(significand.astype(np.float32), scale)
    values = np.where(wide & 0x80, -magnitude, magnitude)
    return np.where(np.isin(wide, fmt.nan), np.float32(np.nan), values).astype(np.float32)


def encode(values: NDArray[np.float32], fmt: Fp8Format) -> NDArray[np.uint8]:
    """fp8 codes of float32 values: nearest, ties to even; see the module on what lies beyond the range."""
    exact = np.asarray(values, dtype=np.float32).astype(np.float64)
    nan = np.isnan(exact)
    # Twice the largest value is beyond the range for certain and keeps infinities out of the arithmetic.
    magnitude = np.where(nan, 0.0, np.minimum(np.abs(exact), 2 * fmt.largest))
    binade = np.where(magnitude == 0, fmt.exponent_min, np.frexp(magnitude)[1] - 1)
    exponent = np.maximum(binade, fmt.exponent_min)
    steps = np.rint(np.ldexp(magnitude, fmt.fraction_bits - exponent))
    if fmt.saturates:
        largest_exponent = int(np.frexp(fmt.largest)[1]) - 1
        largest_steps = np.ldexp(fmt.largest, fmt.fraction_bits - largest_exponent)
        beyond = np.ldexp(steps, exponent - fmt.fraction_bits) > fmt.largest
        exponent = np.where(beyond, largest_exponent, exponent)
        steps = np.where(beyond, largest_steps, steps)
    else:
        nan |= np.ldexp(steps, exponent - fmt.fraction_bits) > fmt.largest
    # ``steps`` holds the implicit bit, so adding it to the field below carries into the exponent.
    code = ((exponent - fmt.exponent_min) << fmt.fraction_bits) + steps.astype(np.int64)
    code = np.where(nan, fmt.nan[0], code)
    signed = np.signbit(exact) & (fmt.signed_zero | ((code != 0) & ~nan))
    return (code | np.where(signed, 0x80, 0)).astype(np.uint8)
