"""Restickify: the element map between two layouts of one tensor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import hosts

from torch_loom.layout import (
    DataFormats,
    SpyreTensorLayout,
    offsets,
    restickify_cost,
    restickify_layout,
    restickify_map,
)


def test_columns_to_rows_moves_every_element_as_published():
    source = SpyreTensorLayout((128, 192), "float16")
    target = restickify_layout(source, [128, 192], [192, 1], 0)
    assert source.device_size == [3, 128, 64]
    assert target.device_size == [2, 192, 64]
    a, b = restickify_map(source, target, [128, 192], [192, 1])
    row, column = np.divmod(np.arange(128 * 192), 192)
    assert np.array_equal(a, column // 64 * 128 * 64 + row * 64 + column % 64)
    assert np.array_equal(b, row // 64 * 192 * 64 + column * 64 + row % 64)
    assert restickify_cost(source, target) == 2 * 192 * 64


def test_compatible_layouts_cost_nothing_and_formats_do_not_mix():
    base = SpyreTensorLayout([2, 64], [64, 1], DataFormats.SEN169_FP16)
    assert restickify_cost(base, SpyreTensorLayout([2, 1, 64], [64, -1, 1], DataFormats.SEN169_FP16)) == 0
    assert restickify_cost(base, SpyreTensorLayout([4, 32], [32, 1], DataFormats.IEEE_FP32)) is None


@given(hosts(max_rank=3), st.sampled_from(["float16", "float32"]), st.data())
def test_the_map_carries_any_tensor_into_the_new_layout(drawn, dtype, data):
    size, strides = drawn
    if not size:
        return
    source = SpyreTensorLayout(size, strides, dtype, list(range(len(size))))
    target = restickify_layout(source, size, strides, data.draw(st.integers(0, len(size) - 1)))
    host, device = offsets(source, size, strides)
    memory = np.full(source.device_bytes, -1)
    memory[device] = host
    a, b = restickify_map(source, target, size, strides)
    moved = np.full(target.device_bytes, -1)
    moved[b] = memory[a]
    host, device = offsets(target, size, strides)
    assert np.array_equal(moved[device], host)
    assert len(a) == len(host)


def test_an_unknown_stick_dim_is_refused():
    with pytest.raises(ValueError, match="stick dim 2"):
        restickify_layout(SpyreTensorLayout((4, 4), "float16"), [4, 4], [4, 1], 2)
