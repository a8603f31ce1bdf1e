"""fp8 formats against their scalar definition and against torch's own dtypes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_loom.numerics import fp8

FORMATS = [(fp8.E4M3FN, torch.float8_e4m3fn), (fp8.E5M2FNUZ, torch.float8_e5m2fnuz)]
CODES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize(("fmt", "dtype"), FORMATS, ids=lambda p: str(p))
def test_every_code_decodes_like_torch_and_like_the_reference(fmt, dtype):
    expected = torch.from_numpy(CODES.copy()).view(dtype).to(torch.float32).numpy()
    assert np.array_equal(fp8.decode(CODES, fmt), expected, equal_nan=True)
    scalar = np.array([fp8.decode_scalar(int(c), fmt) for c in CODES], np.float32)
    assert np.array_equal(scalar, expected, equal_nan=True)


@pytest.mark.parametrize(("fmt", "dtype"), FORMATS, ids=lambda p: str(p))
def test_every_fp16_value_encodes_like_torch(fmt, dtype):
    values = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values.copy()).to(dtype).view(torch.uint8).numpy()
    assert np.array_equal(fp8.encode(values, fmt), expected)


@pytest.mark.parametrize(("fmt", "dtype"), FORMATS, ids=lambda p: str(p))
def test_neighbours_halfway_points_and_ends_encode_by_reference(fmt, dtype):
    values = np.sort(fp8.decode(CODES, fmt)[~np.isnan(fp8.decode(CODES, fmt))]).astype(np.float64)
    middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    ends = np.array([fmt.largest, 464.0, 480.0, 61440.0, 65536.0, math.inf, -math.inf, math.nan], np.float32)
    probe = np.concatenate([values.astype(np.float32), middle, np.nextafter(middle, np.float32(0)), ends])
    assert fp8.encode(probe, fmt).tolist() == [fp8.encode_scalar(float(v), fmt) for v in probe]


@given(st.floats(width=32, allow_nan=False))
def test_any_float32_encodes_like_torch(value):
    for fmt, dtype in FORMATS:
        expected = torch.tensor([value]).to(dtype).view(torch.uint8).item()
        assert fp8.encode(np.array([value], np.float32), fmt)[0] == expected


def test_a_code_outside_8_bits_is_refused():
    with pytest.raises(ValueError, match="0..255"):
        fp8.decode_scalar(256, fp8.E4M3FN)
