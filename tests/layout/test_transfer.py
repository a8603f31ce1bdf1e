"""Transfers: the walking oracle, the arrays and the loop nests describe one relation."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import hosts, layouts

from torch_loom.layout import (
    DataFormats,
    ElementArrangement,
    SpyreTensorLayout,
    describe,
    offsets,
    oracle,
    row_major_geometry,
    row_major_layout,
)

F16 = DataFormats.IEEE_FP16
DF16 = DataFormats.SEN169_FP16


def pairs(layout, size, strides):
    return list(oracle(layout, size, strides))


def test_a_padded_tensor_needs_a_main_and_a_remainder_nest():
    layout = SpyreTensorLayout((5, 100, 150), "float16")
    conversion = describe(layout, [5, 100, 150], [15000, 150, 1], F16, name="x")
    main, remainder = conversion.dcsi_
    assert (main.size_, main.stride_src_, main.stride_dst_) == (
        [64, 5, 2, 100],
        [1, 15000, 64, 150],
        [1, 64, 320, 960],
    )
    assert (main.offset_src_, main.offset_dst_) == (0, 0)
    assert remainder.size_ == [22, 5, 1, 100]
    assert (remainder.stride_src_, remainder.stride_dst_) == (main.stride_src_, main.stride_dst_)
    assert (remainder.offset_src_, remainder.offset_dst_) == (128, 640)
    assert (conversion.input_shape_, conversion.output_shape_) == ([150, 100, 5], [64, 5, 3, 100])
    assert (conversion.dataformat_src_, conversion.dataformat_dst_) == (F16, DF16)
    assert conversion.isHostToSen_ and conversion.dci_dsName_ == "x"


def test_a_dividing_tensor_needs_one_nest():
    (nest,) = describe(SpyreTensorLayout((1024, 256), "float16"), [1024, 256], [256, 1], F16).dcsi_
    assert (nest.size_, nest.stride_src_, nest.stride_dst_) == ([64, 1024, 4], [1, 256, 64], [1, 64, 65536])
    assert (nest.offset_src_, nest.offset_dst_) == (0, 0)


def test_towards_the_host_source_and_destination_swap():
    layout = SpyreTensorLayout((5, 100, 150), "float16")
    back = describe(layout, [5, 100, 150], [15000, 150, 1], F16, to_device=False)
    assert back.dcsi_[1].offset_src_ == 640 and back.dcsi_[1].offset_dst_ == 128
    assert (back.dataformat_src_, back.dataformat_dst_) == (DF16, F16)


def test_a_scalar_counts_as_one_element():
    layout = SpyreTensorLayout((), "float16")
    conversion = describe(layout, [], [], F16)
    assert conversion.input_shape_ == [1]
    assert [list(nest.pairs()) for nest in conversion.dcsi_] == [[(0, 0)]]
    assert pairs(layout, [], []) == [(0, 0)]


def test_an_empty_tensor_moves_nothing():
    layout = SpyreTensorLayout((3, 0, 5), "float16")
    assert pairs(layout, [3, 0, 5], [5, 5, 1]) == []
    assert offsets(layout, [3, 0, 5], [5, 5, 1])[0].size == 0
    assert describe(layout, [3, 0, 5], [5, 5, 1], F16).dcsi_ == []


def test_the_end_of_a_row_is_padding_and_not_the_next_row():
    device = {d: h for h, d in pairs(SpyreTensorLayout((5, 100, 150), "float16"), [5, 100, 150], [15000, 150, 1])}
    # Row 0, tile 2, lane 21 is column 149; lane 40 would be column 168.
    assert device[2 * 320 + 21] == 149
    assert 2 * 320 + 40 not in device


@given(layouts(), st.booleans())
def test_the_three_descriptions_agree(drawn, to_device):
    layout, size, strides = drawn
    expected = pairs(layout, size, strides)
    host, device = offsets(layout, size, strides)
    assert list(zip(host.tolist(), device.tolist(), strict=True)) == expected
    nests = describe(layout, size, strides, F16, to_device=to_device).dcsi_
    moved = [pair if to_device else pair[::-1] for nest in nests for pair in nest.pairs()]
    assert len(moved) == len(expected)
    assert sorted(moved) == sorted(expected)


@given(layouts())
def test_every_element_has_exactly_one_place(drawn):
    layout, size, strides = drawn
    elements = sorted(
        sum(x * s for x, s in zip(point, strides, strict=True)) for point in itertools.product(*map(range, size))
    )
    found = pairs(layout, size, strides)
    assert sorted(host for host, _ in found) == elements
    places = [device for _, device in found]
    assert len(set(places)) == len(places)
    assert all(0 <= place < layout.device_bytes * layout.elems_per_stick() // 128 for place in places)


@given(hosts(), st.sampled_from(["float16", "float32"]))
def test_row_major_layouts_serve_the_tensor_and_its_rows(drawn, dtype):
    size, strides = drawn
    try:
        rows, columns = row_major_geometry(size, strides)
    except ValueError:
        return
    layout = row_major_layout(size, strides, dtype)
    by_rows = pairs(layout, [rows, columns], [columns, 1])
    assert by_rows == pairs(layout, size, strides)
    elems = layout.elems_per_stick()
    pitch = -(-columns // elems) * elems
    assert by_rows == [(r * columns + c, r * pitch + c) for r in range(rows) for c in range(columns)]


@settings(max_examples=30)
@given(layouts(), st.integers(0, 2**32 - 1))
def test_data_survives_the_round_trip_and_padding_is_untouched(drawn, seed):
    layout, size, strides = drawn
    host, device = offsets(layout, size, strides)
    data = np.random.default_rng(seed).integers(1, 1000, int(host.max()) + 1)
    memory = np.full(layout.device_bytes * layout.elems_per_stick() // 128, -7)
    memory[device] = data[host]
    back = np.zeros_like(data)
    back[host] = memory[device]
    assert np.array_equal(back[host], data[host])
    assert (memory == -7).sum() == memory.size - host.size


def test_broadcast_dims_are_written_everywhere_and_read_once():
    layout = SpyreTensorLayout([3, 64], [0, 1], "float16", [0, 1])
    written = pairs(layout, [3, 64], [0, 1])
    assert sorted(written) == sorted((lane, row * 64 + lane) for row in range(3) for lane in range(64))
    (nest,) = describe(layout, [3, 64], [0, 1], F16, to_device=False).dcsi_
    assert list(nest.pairs()) == [(lane, lane) for lane in range(64)]


def test_a_layout_may_be_wider_than_its_tensor():
    layout = SpyreTensorLayout([3, 8, 64], [64, 100, 1], DF16)
    found = pairs(layout, [5, 100], [100, 1])
    assert sorted(host for host, _ in found) == list(range(500))
    nests = describe(layout, [5, 100], [100, 1], F16).dcsi_
    assert sorted(pair for nest in nests for pair in nest.pairs()) == sorted(found)


def test_a_device_dim_that_fits_no_host_dim_is_refused():
    layout = SpyreTensorLayout([2, 3, 64], [64, 100, 2], DF16)
    with pytest.raises(ValueError, match="fits no dim"):
        pairs(layout, [3, 50], [150, 3])


@pytest.mark.parametrize(
    ("arrangement", "fmt", "column", "position"),
    [
        (ElementArrangement.DL16_TO_FP32, DataFormats.IEEE_FP32, 0, (0, 0)),
        (ElementArrangement.DL16_TO_FP32, DataFormats.IEEE_FP32, 4, (1, 0)),
        (ElementArrangement.DL16_TO_FP32, DataFormats.IEEE_FP32, 8, (0, 4)),
        (ElementArrangement.DL16_TO_FP32, DataFormats.IEEE_FP32, 64 + 8 * 3 + 4 + 2, (3, 14)),
        (ElementArrangement.FP32_TO_DL16, DF16, 4, (0, 8)),
        (ElementArrangement.FP32_TO_DL16, DF16, 32, (0, 4)),
        (ElementArrangement.FP32_TO_DL16, DF16, 64 + 32 + 4 * 5 + 3, (1, 47)),
    ],
)
def test_arrangements_place_columns_as_published(arrangement, fmt, column, position):
    elems = fmt.elems_per_stick()
    layout = SpyreTensorLayout([256 // elems, elems], [elems, 1], fmt, arrangement)
    tile, lane = position
    assert (column, tile * elems + lane) in pairs(layout, [256], [1])
    assert arrangement.column(tile, lane, elems) == column
    assert arrangement.position(column, elems) == position


@pytest.mark.parametrize(
    ("arrangement", "fmt"),
    [(ElementArrangement.DL16_TO_FP32, DataFormats.IEEE_FP32), (ElementArrangement.FP32_TO_DL16, DF16)],
)
def test_arranged_arrays_agree_with_the_oracle(arrangement, fmt):
    elems = fmt.elems_per_stick()
    layout = SpyreTensorLayout([256 // elems, 3, elems], [elems, 200, 1], fmt, arrangement)
    host, device = offsets(layout, [3, 200], [200, 1])
    found = pairs(layout, [3, 200], [200, 1])
    assert list(zip(host.tolist(), device.tolist(), strict=True)) == found
    assert len({place for _, place in found}) == 600


def test_the_two_width_arrangements_are_inverse():
    for position in range(128):
        column = ElementArrangement.DL16_TO_FP32.column(*divmod(position, 32), 32)
        assert ElementArrangement.FP32_TO_DL16.column(*divmod(column, 64), 64) == position


def test_arrangements_that_cannot_hold_are_refused():
    odd = SpyreTensorLayout([3, 32], [32, 1], DataFormats.IEEE_FP32, ElementArrangement.DL16_TO_FP32)
    with pytest.raises(ValueError, match="pairs of sticks"):
        pairs(odd, [96], [1])
    unknown = SpyreTensorLayout([2, 64], [64, 1], DF16, ElementArrangement.QFP8CH)
    with pytest.raises(ValueError, match="not known"):
        pairs(unknown, [128], [1])
    with pytest.raises(ValueError, match="not known"):
        ElementArrangement.EXX2.column(0, 0, 64)
    with pytest.raises(ValueError, match="needs sticks of 32"):
        pairs(SpyreTensorLayout([2, 64], [64, 1], DF16, ElementArrangement.DL16_TO_FP32), [128], [1])
    with pytest.raises(ValueError, match="standard order"):
        describe(odd, [96], [1], F16)
