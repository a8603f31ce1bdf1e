"""Storages in chosen layouts: the public functions, the oracle of the layouts room, and every view on top."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_loom import _device
from torch_loom.layout import DataFormats, SpyreTensorLayout, contiguous_strides, oracle

VECTORS = [
    # host shape, dim order, device_size, stride_map (layouts page, section 5)
    ((5, 100, 150), [1, 0, 2], [5, 3, 100, 64], [15000, 64, 150, 1]),
    ((64, 128), [1, 0], [1, 128, 64], [8192, 1, 128]),
    ((8,), [0, -1], [1, 8, 64], [-1, 1, -1]),
]


@pytest.mark.parametrize(("shape", "order", "device_size", "stride_map"), VECTORS)
def test_chosen_dim_orders(shape, order, device_size, stride_map):
    layout = SpyreTensorLayout(list(shape), contiguous_strides(shape), torch.float16, order)
    x = torch.spyre.empty_with_layout(shape, layout, torch.float16)
    assert x.device_tensor_layout().device_size == device_size
    assert [m for m in x.device_tensor_layout().stride_map if m > 0] == [m for m in stride_map if m > 0]
    assert _device.layout(x)["bytes"] == layout.device_bytes
    host = (torch.arange(x.numel()) % 100).half().reshape(shape)
    x.copy_(host)
    assert torch.equal(x.cpu(), host)
    raw = np.frombuffer(_device.device_bytes(x), np.uint16)
    one = 31 << 9
    first_one = next(i for i, v in enumerate(host.reshape(-1).tolist()) if v == 1)
    index = np.unravel_index(first_one, shape)
    assert np.count_nonzero(raw == one) >= 1 and x[tuple(int(i) for i in index)].item() == 1


@st.composite
def layouts(draw):
    shape = draw(st.lists(st.integers(1, 70), min_size=1, max_size=4))
    while np.prod(shape) > 5000:
        shape.pop()
    order = draw(st.permutations(range(len(shape))))
    if draw(st.booleans()) and draw(st.booleans()):
        order = [*order, -1]
    return shape, SpyreTensorLayout(shape, contiguous_strides(shape), torch.int32, order)


@given(case=layouts())
def test_bytes_are_where_the_oracle_puts_them(case):
    shape, layout = case
    host = torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape)
    x = torch.spyre.empty_with_layout(shape, layout, torch.int32)
    x.copy_(host)
    raw = np.frombuffer(_device.device_bytes(x), np.int32)
    pairs = list(oracle(layout, shape, contiguous_strides(shape)))
    assert len(pairs) == host.numel()
    flat = host.reshape(-1).numpy()
    for host_offset, device_offset in pairs:
        assert raw[device_offset] == flat[host_offset]
    assert torch.equal(x.cpu(), host)
    view = x.transpose(0, -1)[..., ::2]
    assert torch.equal(view.cpu(), host.transpose(0, -1)[..., ::2])
    assert torch.equal(view.clone().cpu(), host.transpose(0, -1)[..., ::2])
    for kind in ("default", "row_major"):
        assert torch.equal(_device.relayout(x, kind).cpu(), host)


def test_to_layout():
    host = torch.randn(64, 128).bfloat16()
    layout = SpyreTensorLayout([64, 128], [128, 1], torch.bfloat16, [1, 0])
    x = host.to("spyre")
    y = torch.spyre.to_layout(x, layout)
    assert y.device_tensor_layout() == layout and torch.equal(y.cpu(), host)
    assert torch.spyre.to_layout(y, layout) is y
    assert torch.equal(torch.spyre.to_layout(host, layout).cpu(), host)
    assert not _device.expect(y, "default")
    assert torch.equal(_device.relayout(y, "default").cpu(), host)


def test_reinterpretation_shares_bytes():
    x = torch.arange(2 * 64, dtype=torch.float32).reshape(2, 64).to("spyre")  # [2 tiles, 2 rows, 32]
    flat = SpyreTensorLayout([4, 32], [32, 1], DataFormats.IEEE_FP32)
    y = torch.spyre.as_strided_with_layout(x, [128], [1], 0, flat)
    expected = torch.cat([x.cpu()[:, :32].reshape(-1), x.cpu()[:, 32:].reshape(-1)])
    assert torch.equal(y.cpu(), expected)
    y[0] = -1
    assert x[0, 0].item() == -1
    z = torch.spyre.reinterpret_tensor_with_layout(y[32:], [64], [1], 32, flat)
    assert torch.equal(z.cpu(), y.cpu()[64:])
    del x
    assert y[0].item() == -1  # the bytes live as long as one view of them
    assert torch.spyre.reinterpret_tensor(y, [2], [64]).tolist() == [-1, expected[64].item()]


def test_set_layout_moves_nothing():
    x = torch.arange(128, dtype=torch.float32).reshape(2, 64).to("spyre")
    before = _device.device_bytes(x)
    rows = SpyreTensorLayout([2, 2, 32], [64, 32, 1], DataFormats.IEEE_FP32)
    torch.spyre.set_spyre_tensor_layout(x, rows)
    assert _device.device_bytes(x) == before and _device.expect(x, "row_major")


@pytest.mark.parametrize(
    ("device_size", "stride_map", "message"),
    [
        ([1, 2, 64], [64, 128, 1], "last device dim|holds"),
        ([2, 2, 16], [16, 64, 1], "stick of 32"),
        ([1, 2, 32], [32, 64, 1], "holds 32 of 64"),
        ([2, 2, 32], [48, 64, 1], "matches no host dim|one place"),
        ([2, 32], [1], "same number"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(device_size, stride_map, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        _device.empty_with_layout([2, 64], [64, 1], torch.float32, 0, device_size, stride_map)


def test_a_layout_larger_than_the_storage_is_refused():
    x = torch.empty(4, device="spyre")
    big = SpyreTensorLayout([4, 32], [32, 1], DataFormats.IEEE_FP32)
    with pytest.raises(RuntimeError, match="512 bytes, the storage has 128"):
        torch.spyre.as_strided_with_layout(x, [128], [1], 0, big)


def test_layout_queries():
    assert torch.spyre.get_elem_in_stick(torch.float16) == 64
    assert torch.spyre.get_elem_in_stick(torch.float32) == 32
    assert torch.spyre.get_device_dtype(torch.float16) == DataFormats.SEN169_FP16
    with pytest.raises(TypeError, match="no device layout"):
        torch.spyre.get_spyre_tensor_layout(torch.ones(2))
    x = torch.zeros(3, 5, device="spyre")
    assert torch.spyre.get_spyre_tensor_layout(copy.deepcopy(x)) == x.device_tensor_layout()
    assert x.detach().device_tensor_layout() == torch.nn.Parameter(x).device_tensor_layout()
