"""df16 against its definition, exhaustively over codes and over the inputs that matter."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_loom.numerics import df16

ALL_CODES = np.arange(65536, dtype=np.uint16)
ALL_F16 = ALL_CODES.view(np.float16).astype(np.float32)


def same(a, b):
    """Numeric equality with NaN equal to NaN."""
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def test_every_code_decodes_by_definition():
    assert same(df16.decode(ALL_CODES), [df16.decode_scalar(int(c)) for c in ALL_CODES])


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x0000, 0.0),
        (0x8000, 0.0),
        (0x0001, 2.0**-31 * (1 + 1 / 512)),
        (31 << 9, 1.0),
        ((31 << 9) | 1, 1.001953125),
        (0x8000 | (32 << 9), -2.0),
        (63 << 9, 2.0**32),
        (0x7FFE, 8573157376.0),
        (0x7FFF, math.nan),
        (0xFFFF, math.nan),
    ],
)
def test_known_codes(code, value):
    assert same(df16.decode(np.array([code], np.uint16)), [value])


def test_every_finite_code_survives_a_round_trip():
    values = df16.decode(ALL_CODES)
    codes = df16.encode(values)
    expected = ALL_CODES.copy()
    expected[0x8000] = 0
    expected[0xFFFF] = 0x7FFF
    assert np.array_equal(codes, expected)
    assert [df16.encode_scalar(float(v)) for v in values] == expected.tolist()


def test_every_fp16_value_converts_as_the_reference_says():
    expected = [df16.encode_scalar(float(v)) for v in ALL_F16]
    assert np.array_equal(df16.encode(ALL_F16), expected)


def test_fp16_values_change_as_the_format_implies():
    finite = ALL_F16[np.isfinite(ALL_F16)]
    rounded = df16.round_f32(finite)
    # Exact unless the 11-bit significand is odd; then one fp16 step up in magnitude.
    mantissa, exponent = np.frexp(finite)
    significand = np.abs(mantissa) * 2048
    odd = (np.abs(finite) >= 2.0**-14) & (significand % 2 == 1)
    step = np.where(odd, np.ldexp(1.0, exponent - 11), 0.0)
    assert np.array_equal(np.abs(rounded), np.abs(finite) + step)
    assert np.array_equal(np.signbit(rounded), np.signbit(finite) & (finite != 0))
    assert df16.round_f32(np.array([65504.0], np.float32))[0] == 65536.0


def test_every_bf16_value_converts_as_the_reference_says():
    values = (ALL_CODES.astype(np.uint32) << 16).view(np.float32)
    codes = df16.encode(values)
    assert np.array_equal(codes, [df16.encode_scalar(float(v)) for v in values])
    inside = (np.abs(values) > 2.0**-31) & (np.abs(values) <= 2.0**32 * (2 - 2.0**-7))
    assert same(df16.decode(codes)[inside], values[inside])
    assert df16.decode(df16.encode(np.array([2.0**-31], np.float32)))[0] == np.float32(df16.TINY)


def test_halfway_points_between_all_neighbours_go_up_in_magnitude():
    values = df16.decode(np.arange(0, 0x7FFF, dtype=np.uint16)).astype(np.float64)
    middle = (values[:-1] + values[1:]) / 2
    assert np.array_equal(middle.astype(np.float32), middle)
    up = np.arange(1, 0x7FFF, dtype=np.uint16)
    assert np.array_equal(df16.encode(middle.astype(np.float32)), up)
    below = np.nextafter(middle.astype(np.float32), np.float32(0))
    assert np.array_equal(df16.encode(below), up - 1)
    assert np.array_equal(df16.encode(-middle.astype(np.float32)), up | 0x8000)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.0, 0),
        (-0.0, 0),
        (2.0**-31, 1),
        (df16.TINY / 2, 1),
        (float(np.nextafter(np.float32(df16.TINY / 2), np.float32(0))), 0),
        (1e-45, 0),
        (-(2.0**-31), 0x8001),
        (df16.MAX, 0x7FFE),
        (2.0**32 * (1 + 510.5 / 512), 0x7FFF),
        (2.0**32 * (1 + 510.49 / 512), 0x7FFE),
        (3.4e38, 0x7FFF),
        (-3.4e38, 0x7FFF),
        (math.inf, 0x7FFF),
        (-math.inf, 0x7FFF),
        (math.nan, 0x7FFF),
    ],
)
def test_ends_of_the_range(value, code):
    assert df16.encode(np.array([value], np.float32))[0] == code
    assert df16.encode_scalar(float(np.float32(value))) == code


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_any_float32_bits_convert_as_the_reference_says(bits):
    values = np.array(bits, np.uint32).view(np.float32)
    assert df16.encode(values).tolist() == [df16.encode_scalar(float(v)) for v in values]


@given(st.floats(min_value=df16.TINY, max_value=df16.MAX, width=32))
def test_relative_error_is_at_most_half_a_step(value):
    rounded = float(df16.round_f32(np.array([value], np.float32))[0])
    assert abs(Fraction(rounded) - Fraction(value)) <= Fraction(value) / 1024


def test_shape_is_kept_and_views_are_taken():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    assert df16.encode(values).shape == (4, 3)
    assert np.array_equal(df16.round_f32(values), values)
    assert df16.encode(np.float32(1.0)).shape == ()


def test_a_code_outside_16_bits_is_refused():
    with pytest.raises(ValueError, match="0..65535"):
        df16.decode_scalar(65536)
