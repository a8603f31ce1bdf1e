"""Number formats: df16 for every code and around every rounding boundary, the other formats by sampling."""

import numpy as np
import pytest
import torch
from chip_run import df16_code, df16_value, run
from spyrecode_samples import map_program

from torch_loom import _chip
from torch_loom.numerics import df16
from torch_loom.spyrecode.model import Elem, VecOp, VOp


def test_every_df16_code_reads_as_its_value():
    values = _chip.df16_to_f32(np.arange(65536, dtype=np.uint16))
    expected = np.array([df16_value(c) for c in range(65536)])
    np.testing.assert_array_equal(values, expected.astype(np.float32))
    np.testing.assert_array_equal(values.astype(np.float64), expected)


def test_every_df16_value_rounds_to_its_own_code():
    codes = np.arange(65536, dtype=np.uint16)
    back = _chip.f32_to_df16(_chip.df16_to_f32(codes))
    magnitude = codes & 0x7FFF
    canonical = np.where((magnitude == 0) | (magnitude == 0x7FFF), magnitude, codes)
    np.testing.assert_array_equal(back, canonical)


def test_df16_rounds_to_nearest_with_ties_away_from_zero():
    codes = np.arange(1, 0x7FFE)
    low = np.array([df16_value(c) for c in codes])
    high = np.array([df16_value(c + 1) for c in codes])
    middle = ((low + high) / 2).astype(np.float32)
    assert (middle.astype(np.float64) == (low + high) / 2).all()
    for sign in (1, -1):
        got = _chip.f32_to_df16(sign * middle)
        np.testing.assert_array_equal(got, (codes + 1) | (0x8000 if sign < 0 else 0))
        below = _chip.f32_to_df16(sign * np.nextafter(middle, np.float32(0)))
        np.testing.assert_array_equal(below, codes | (0x8000 if sign < 0 else 0))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.0, 0),
        (-0.0, 0),
        (2.0**-31 * (1 + 1 / 512), 1),
        (2.0**-31, 1),  # not representable; nearer to the smallest positive value than to zero
        (2.0**-32 * (1 + 1 / 512), 1),  # the exact half goes up
        (np.nextafter(np.float32(2.0**-32 * (1 + 1 / 512)), np.float32(0)), 0),
        (1e-45, 0),
        (1.0, 31 << 9),
        (65504.0, (31 + 16) << 9),  # an odd fp16 significand is a tie
        (2.0**32 * (1 + 510 / 512), 0x7FFE),
        (2.0**32 * (1 + 510.5 / 512), 0x7FFF),
        (1e38, 0x7FFF),
        (np.inf, 0x7FFF),
        (-np.inf, 0x7FFF),
        (np.nan, 0x7FFF),
    ],
)
def test_df16_edges(value, code):
    assert df16_code(float(np.float32(value))) == code
    for n in (1, 9):  # scalar tail and vector body
        assert (_chip.f32_to_df16(np.full(n, value, np.float32)) == code).all()


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0x7FFFDFFF, 0x7FFFE000, 0x7FFFFFFF, 0xFFFFE000, 0xFFFFFFFF])
@pytest.mark.parametrize("n", [1, 9])
def test_every_pattern_of_nan_becomes_the_merged_code(bits, n):
    values = np.full(n, bits, np.uint32).view(np.float32)
    assert (_chip.f32_to_df16(values) == 0x7FFF).all()
    assert np.isnan(df16.round_f32(values)).all()


def test_random_floats_round_as_the_scalar_rules_say():
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 4000, dtype=np.uint32)
    values = np.concatenate(
        [
            bits.view(np.float32),
            (rng.standard_normal(4000) * 2.0 ** rng.integers(-34, 34, 4000)).astype(np.float32),
        ]
    )
    expected = np.array([df16_code(float(v)) for v in values], dtype=np.uint16)
    np.testing.assert_array_equal(_chip.f32_to_df16(values), expected)


def convert(values: np.ndarray, source: Elem, target: Elem, dtype: type) -> np.ndarray:
    out = np.zeros(len(values), dtype)
    return run(map_program([VOp(VecOp.COPY, 1, 0)], [source], target, len(values)), [values, out])[-1]


def test_ieee_half_matches_numpy_for_every_code_and_rounds_to_even():
    for start in range(0, 65536, 2048):
        halves = np.arange(start, start + 2048).astype(np.uint16).view(np.float16)
        np.testing.assert_array_equal(convert(halves, Elem.F16, Elem.F32, np.float32), halves.astype(np.float32))
    rng = np.random.default_rng(2)
    values = (rng.standard_normal(2048) * 2.0 ** rng.integers(-28, 18, 2048)).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(convert(values, Elem.F32, Elem.F16, np.float16), expected)


def test_bf16_matches_torch():
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.standard_normal(500), [np.inf, -np.inf, 3.4e38, 1e-40, 0]]).astype(np.float32)
    codes = convert(values, Elem.F32, Elem.BF16, np.uint16)
    expected = torch.from_numpy(values).bfloat16()
    np.testing.assert_array_equal(codes, expected.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(convert(codes, Elem.BF16, Elem.F32, np.float32), expected.float().numpy())


@pytest.mark.parametrize(
    ("elem", "dtype"),
    [
        (Elem.I16, np.int16),
        (Elem.I8, np.int8),
        (Elem.U8, np.uint8),
        (Elem.I64, np.int64),
        (Elem.I32, np.int32),
    ],
)
def test_integers_keep_their_value_and_narrow_stores_keep_low_bits(elem, dtype):
    info = np.iinfo(dtype)
    low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    values = np.array([low, high, 0, 1, high // 3, low // 3], dtype)
    np.testing.assert_array_equal(convert(values, elem, Elem.I32, np.int32), values.astype(np.int32))
    wide = np.array([-1, 70000, -(2**31), 2**31 - 1, 300], np.int32)
    np.testing.assert_array_equal(convert(wide, Elem.I32, elem, dtype), wide.astype(dtype))


def test_an_int64_beyond_32_bits_is_refused():
    with pytest.raises(_chip.ChipError, match="int64 element does not fit") as error:
        convert(np.array([1, 1 << 31], np.int64), Elem.I64, Elem.I32, np.int32)
    assert error.value.code == "DEV-06"
