"""Layouts as values: the worked vectors, construction, equality, printing, pickling, refusals."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from layout_strategies import layouts

from torch_loom.layout import (
    DataFormats,
    ElementArrangement,
    SpyreTensorLayout,
    UnsupportedDtype,
    default_layout,
    device_format,
    formats,
    row_major_geometry,
    row_major_layout,
)


def contiguous(size):
    return [math.prod(size[d + 1 :]) for d in range(len(size))]


@pytest.mark.parametrize(
    ("size", "dtype", "device_size", "stride_map"),
    [
        ((), torch.float16, [1, 64], [-1, -1]),
        ((150,), torch.float16, [3, 64], [64, 1]),
        ((1024, 256), torch.float16, [4, 1024, 64], [64, 256, 1]),
        ((5, 100, 150), torch.float16, [100, 3, 5, 64], [150, 64, 15000, 1]),
        ((128, 256, 512), torch.float16, [256, 8, 128, 64], [512, 64, 131072, 1]),
        ((2, 3, 4, 100), torch.float16, [3, 4, 2, 2, 64], [400, 100, 64, 1200, 1]),
        ((5, 100, 150), torch.float32, [100, 5, 5, 32], [150, 32, 15000, 1]),
        ((256, 256), torch.float8_e4m3fn, [2, 256, 128], [128, 256, 1]),
        ((512, 1), torch.float16, [8, 64], [64, 1]),
        ((512,), torch.float16, [8, 64], [64, 1]),
        (
            (2, 2, 2, 2, 2, 2, 65),
            torch.float16,
            [2, 2, 2, 2, 2, 2, 2, 64],
            [2080, 1040, 520, 260, 130, 64, 4160, 1],
        ),
    ],
)
def test_default_layouts(size, dtype, device_size, stride_map):
    if len(size) == 7:
        stride_map = [65 * 2**4, 65 * 2**3, 65 * 4, 65 * 2, 65, 64, 65 * 2**5, 1]
    layout = SpyreTensorLayout(size, dtype)
    assert layout.device_size == device_size
    assert layout.stride_map == stride_map
    assert layout == default_layout(size, dtype)


@pytest.mark.parametrize(
    ("size", "order", "device_size", "stride_map"),
    [
        ((8,), [0, -1], [1, 8, 64], [-1, 1, -1]),
        ((5, 100, 150), [1, 0, 2], [5, 3, 100, 64], [15000, 64, 150, 1]),
        ((64, 128), [1, 0], [1, 128, 64], [8192, 1, 128]),
    ],
)
def test_layouts_with_a_chosen_order(size, order, device_size, stride_map):
    layout = SpyreTensorLayout(size, contiguous(size), torch.float16, order)
    assert (layout.device_size, layout.stride_map) == (device_size, stride_map)


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (SpyreTensorLayout((5, 100, 150), torch.float16), 192_000),
        (SpyreTensorLayout([8], [1], torch.float16, [0, -1]), 1024),
        (SpyreTensorLayout((), torch.float16), 128),
        (SpyreTensorLayout((0, 64), torch.float16), 0),
    ],
)
def test_bytes_are_whole_sticks(layout, size):
    assert layout.device_bytes == size


def test_transposed_hosts_keep_their_real_strides():
    layout = SpyreTensorLayout([5, 70], [1, 5], torch.float16, [0, 1])
    assert layout.device_size == [2, 5, 64]
    assert layout.stride_map == [320, 1, 5]


def test_broadcast_dims_map_to_zero():
    layout = SpyreTensorLayout([4, 64], [0, 1], torch.float16, [0, 1])
    assert layout.stride_map == [64, 0, 1]


@pytest.mark.parametrize(
    ("size", "strides", "rows_columns"),
    [
        ([2, 3, 70], [210, 70, 1], (6, 70)),
        ([70, 6], [1, 70], (6, 70)),
        ([2, 1, 70], [70, 9, 1], (2, 70)),
        ([70], [1], (1, 70)),
        ([], [], (1, 1)),
        ([1, 1], [1, 1], (1, 1)),
    ],
)
def test_row_major_geometry_follows_the_strides(size, strides, rows_columns):
    assert row_major_geometry(size, strides) == rows_columns
    layout = row_major_layout(size, strides, torch.float16)
    rows, columns = rows_columns
    assert layout.device_size == [rows, -(-columns // 64), 64]


def test_row_major_layout_has_rows_of_sticks():
    layout = row_major_layout([2, 3, 70], [210, 70, 1], torch.float16)
    assert layout == SpyreTensorLayout([6, 2, 64], [70, 64, 1], DataFormats.SEN169_FP16)


@pytest.mark.parametrize(("size", "strides"), [([4, 8], [9, 1]), ([4, 8], [0, 1]), ([4, 8], [4, 1])])
def test_row_major_refuses_gaps_and_overlaps(size, strides):
    with pytest.raises(ValueError, match="dense"):
        row_major_geometry(size, strides)


def test_printing_has_the_public_form_and_evaluates_back():
    layout = SpyreTensorLayout((150,), torch.float16)
    assert repr(layout) == (
        "SpyreTensorLayout(device_size=[3, 64], stride_map =[64, 1], device_dtype=DataFormats.SEN169_FP16)"
    )
    arranged = SpyreTensorLayout([1, 2, 64], [64, 64, 1], DataFormats.SEN169_FP16, ElementArrangement.FP32_TO_DL16)
    for value in (layout, arranged):
        assert eval(repr(value)) == value


@given(layouts())
def test_layouts_are_values(drawn):
    layout, _, _ = drawn
    again = SpyreTensorLayout(layout.device_size, layout.stride_map, layout.device_dtype)
    assert again == layout and hash(again) == hash(layout) and len({again, layout}) == 1
    for other in (pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout), eval(repr(layout))):
        assert other == layout
    assert layout.same_bytes(layout.squeezed())


def test_each_field_takes_part_in_equality():
    base = SpyreTensorLayout([2, 64], [64, 1], DataFormats.SEN169_FP16)
    others = [
        SpyreTensorLayout([3, 64], [64, 1], DataFormats.SEN169_FP16),
        SpyreTensorLayout([2, 64], [128, 2], DataFormats.SEN169_FP16),
        SpyreTensorLayout([2, 64], [64, 1], DataFormats.IEEE_FP16),
        SpyreTensorLayout([2, 64], [64, 1], DataFormats.SEN169_FP16, ElementArrangement.FP32_TO_DL16),
    ]
    assert all(base != other for other in others)
    assert base != "something else"


def test_layouts_are_immutable():
    layout = SpyreTensorLayout((8,), torch.float16)
    with pytest.raises(AttributeError, match="immutable"):
        layout.device_size = [1, 64]
    layout.device_size.append(3)
    assert layout.device_size == [1, 64]


def test_dims_of_extent_one_do_not_change_the_bytes():
    dropped = SpyreTensorLayout([2, 64], [64, 1], DataFormats.SEN169_FP16)
    kept = SpyreTensorLayout([2, 1, 64], [64, -1, 1], DataFormats.SEN169_FP16)
    assert dropped != kept
    assert dropped.same_bytes(kept)


def test_pickle_state_is_version_3_and_reads_version_2():
    layout = SpyreTensorLayout((150,), torch.float16)
    state = layout.__getstate__()
    assert state == (3, [3, 64], [64, 1], "SEN169_FP16", "STANDARD")
    old = SpyreTensorLayout.__new__(SpyreTensorLayout)
    old.__setstate__((2, *state[1:4]))
    assert old == layout


@pytest.mark.parametrize("state", [(1, [3, 64], [0, 0], "SEN169_FP16"), (4,), (), "text", None])
def test_other_pickle_versions_are_refused(state):
    with pytest.raises(ValueError, match="version"):
        SpyreTensorLayout.__new__(SpyreTensorLayout).__setstate__(state)


@pytest.mark.parametrize(
    ("kwargs"),
    [
        {"host_size": [5, 100], "dtype": torch.float16},
        {"host_size": [5, 100], "host_strides": [100, 1], "dtype": torch.float16, "dim_order": [0, 1]},
        {"device_size": [2, 5, 64], "stride_map": [64, 100, 1], "device_dtype": DataFormats.SEN169_FP16},
    ],
)
def test_every_form_takes_keywords(kwargs):
    assert SpyreTensorLayout(**kwargs) == SpyreTensorLayout((5, 100), torch.float16)


@pytest.mark.parametrize(
    ("args", "error", "match"),
    [
        (([8, 8], torch.float64), UnsupportedDtype, "does not support dtype torch.float64"),
        (([8], torch.complex64), UnsupportedDtype, "does not support dtype torch.complex64"),
        (([8], [1, 1], torch.float16, [0]), ValueError, "one entry per dim"),
        (([8, 8], [8, 1], torch.float16, [0, 0]), ValueError, "dim_order"),
        (([8, 8], [8, 1], torch.float16, [0]), ValueError, "dim_order"),
        (([-1], torch.float16), ValueError, "negative"),
        (([2, 32], [64, 1], DataFormats.SEN169_FP16), ValueError, "stick"),
        (([2, 64], [64], DataFormats.SEN169_FP16), ValueError, "one entry per device dim"),
        (([], [], DataFormats.SEN169_FP16), ValueError, "one entry per device dim"),
        (([2, 64], [64, -2], DataFormats.SEN169_FP16), ValueError, "negative"),
        (([2, 64], [64, 1], DataFormats.INVALID), ValueError, "not a format"),
        (([2, 64],), TypeError, "takes"),
        ((), TypeError, "takes"),
    ],
)
def test_impossible_layouts_are_refused(args, error, match):
    with pytest.raises(error, match=match):
        SpyreTensorLayout(*args)


@pytest.mark.parametrize(
    ("dtype", "fmt", "elems"),
    [
        (torch.float16, DataFormats.SEN169_FP16, 64),
        (torch.bfloat16, DataFormats.SEN169_FP16, 64),
        (torch.bool, DataFormats.SEN169_FP16, 64),
        (torch.float32, DataFormats.IEEE_FP32, 32),
        (torch.int64, DataFormats.IEEE_INT32, 32),
        (torch.int32, DataFormats.IEEE_INT32, 32),
        (torch.int16, DataFormats.SENINT16, 64),
        (torch.int8, DataFormats.SENINT8, 128),
        (torch.uint8, DataFormats.SENUINT32, 32),
        (torch.float8_e4m3fn, DataFormats.SEN143_FP8, 128),
        (torch.float8_e5m2fnuz, DataFormats.SEN152_FP8, 128),
    ],
)
def test_each_dtype_has_its_device_format(dtype, fmt, elems):
    assert device_format(dtype) is fmt
    assert fmt.elems_per_stick() == elems


def test_ieee_numerics_keep_the_16_bit_host_formats():
    assert device_format(torch.float16, ieee=True) is DataFormats.IEEE_FP16
    assert device_format("bfloat16", ieee=True) is DataFormats.BFLOAT16
    assert formats(torch.int64).host is DataFormats.IEEE_INT64
