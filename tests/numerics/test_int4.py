"""int4 packing: all pairs, shapes, and refusals."""

import numpy as np
import pytest

from torch_loom.numerics import int4


def test_all_pairs_pack_like_the_reference_and_come_back():
    pairs = np.array([(a, b) for a in range(-8, 8) for b in range(-8, 8)], np.int8)
    packed = int4.pack(pairs)
    assert packed.tobytes() == b"".join(int4.pack_scalar(p.tolist()) for p in pairs)
    assert np.array_equal(int4.unpack(packed), pairs)
    assert int4.unpack_scalar(packed.tobytes()) == pairs.ravel().tolist()
    assert sorted(packed.ravel().tolist()) == list(range(256))


def test_the_even_position_is_the_low_half():
    assert int4.pack(np.array([1, -1])).tolist() == [0xF1]


def test_leading_dimensions_are_kept():
    values = np.arange(2 * 3 * 8).reshape(2, 3, 8) % 16 - 8
    assert int4.pack(values).shape == (2, 3, 4)
    assert np.array_equal(int4.unpack(int4.pack(values)), values)


@pytest.mark.parametrize("bad", [np.zeros(3), np.array([8, 0]), np.array([-9, 0]), np.array(1)])
def test_odd_or_out_of_range_values_are_refused(bad):
    with pytest.raises(ValueError, match="int4"):
        int4.pack(bad.astype(np.int64))


@pytest.mark.parametrize("bad", [[1], [8, 0]])
def test_the_reference_refuses_them_too(bad):
    with pytest.raises(ValueError, match="int4"):
        int4.pack_scalar(bad)
