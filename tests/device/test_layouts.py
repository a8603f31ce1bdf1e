"""Where elements lie in device memory: the public vectors, and the identity over every device coordinate."""

import itertools

import numpy as np
import pytest
import torch

from torch_loom import _device

VECTORS = [
    # host shape, dtype, device_size, stride_map (layouts page, section 5)
    ((), torch.float16, [1, 64], [-1, -1]),
    ((150,), torch.float16, [3, 64], [64, 1]),
    ((1024, 256), torch.float16, [4, 1024, 64], [64, 256, 1]),
    ((5, 100, 150), torch.float16, [100, 3, 5, 64], [150, 64, 15000, 1]),
    ((128, 256, 512), torch.float16, [256, 8, 128, 64], [512, 64, 131072, 1]),
    ((2, 3, 4, 100), torch.float16, [3, 4, 2, 2, 64], [400, 100, 64, 1200, 1]),
    ((5, 100, 150), torch.float32, [100, 5, 5, 32], [150, 32, 15000, 1]),
    ((256, 256), torch.float8_e4m3fn, [2, 256, 128], [128, 256, 1]),
    ((512, 1), torch.float16, [8, 64], [64, 1]),
    ((7, 70), torch.bool, [2, 7, 64], [64, 70, 1]),
    ((7, 70), torch.int64, [3, 7, 32], [32, 70, 1]),
    ((7, 70), torch.int8, [1, 7, 128], [128, 70, 1]),
]


@pytest.mark.parametrize(("shape", "dtype", "device_size", "stride_map"), VECTORS)
def test_default_layout(shape, dtype, device_size, stride_map):
    layout = _device.layout(torch.empty(shape, dtype=dtype, device="spyre"))
    assert layout["kind"] == "default"
    assert layout["device_size"] == device_size
    assert layout["stride_map"] == stride_map
    item = 128 // device_size[-1]
    assert layout["bytes"] == int(np.prod(device_size)) * item


@pytest.mark.parametrize(("shape", "bytes_"), [((5, 100, 150), 192_000), ((), 128), ((0, 5), 0)])
def test_bytes_on_the_device(shape, bytes_):
    x = torch.empty(shape, dtype=torch.float16, device="spyre")
    assert _device.layout(x)["bytes"] == bytes_
    assert x.untyped_storage().nbytes() == x.numel() * 2


@pytest.mark.parametrize(
    ("size", "stride", "device_size", "stride_map"),
    [
        ((4, 10, 100), (1000, 100, 1), [40, 2, 64], [100, 64, 1]),
        ((100,), (1,), [1, 2, 64], [-1, 64, 1]),
        ((10, 4, 100), (100, 1000, 1), [40, 2, 64], [100, 64, 1]),  # permuted dims of the same bytes
        ((), (), [1, 1, 64], [-1, -1, -1]),
    ],
)
def test_row_major_layout(size, stride, device_size, stride_map):
    x = _device.empty_strided(size, stride, torch.float16, 0, "row_major")
    layout = _device.layout(x)
    assert (layout["kind"], layout["device_size"], layout["stride_map"]) == (
        "row_major",
        device_size,
        stride_map,
    )
    assert _device.expect(x, "row_major")


@pytest.mark.parametrize("kind", ["default", "row_major"])
@pytest.mark.parametrize("shape", [(3, 70), (150,), (2, 3, 40), (2, 3, 2, 65), (1, 5, 1, 33)])
def test_every_device_coordinate_holds_its_host_element(shape, kind):
    host = torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape)
    x = _device.empty_strided(host.shape, host.stride(), torch.int32, 0, kind)
    x.copy_(host)
    layout = _device.layout(x)
    raw = np.frombuffer(_device.device_bytes(x), np.int32)
    columns = [n for n in shape if n != 1][-1]
    tile_dim = -3 if kind == "default" and sum(n != 1 for n in shape) > 1 else -2
    seen = set()
    for c in itertools.product(*map(range, layout["device_size"])):
        if 32 * c[tile_dim] + c[-1] >= columns:
            continue  # padding lanes
        offset = sum(at * step for at, step in zip(c, layout["stride_map"], strict=True) if step > 0)
        assert raw.reshape(layout["device_size"])[c] == offset
        seen.add(offset)
    assert seen == set(range(host.numel()))


@pytest.mark.parametrize("shape", [(24, 64), (24, 100), (2, 3, 70), (5,), (), (4, 4, 4, 4)])
@pytest.mark.parametrize("source", ["default", "row_major"])
@pytest.mark.parametrize("target", ["default", "row_major"])
def test_relayout_keeps_values(shape, source, target):
    host = torch.randn(shape)
    x = _device.empty_strided(host.shape, host.stride(), torch.float32, 0, source)
    x.copy_(host)
    y = _device.relayout(x, target)
    assert _device.expect(y, target)
    assert torch.equal(y.cpu(), host)
    assert _device.relayout(y, target) is y or _device.relayout(y, target).data_ptr() == y.data_ptr()


def test_expect_looks_at_bytes_not_at_names():
    whole = _device.empty_strided((24, 128), (128, 1), torch.float16, 0, "row_major")
    assert _device.expect(whole.view(4, 6, 128), "row_major")
    assert _device.expect(whole.view(24, 2, 64), "row_major")  # full sticks: the rows only split
    assert not _device.expect(whole.view(12, 256).view(24, 4, 32), "row_major")
    assert not _device.expect(whole, "default")
    one_stick = _device.empty_strided((24, 64), (64, 1), torch.float16, 0, "row_major")
    assert _device.expect(one_stick, "default")  # one stick a row: both kinds are the same bytes


def test_expect_refuses_views_of_a_part():
    x = torch.empty(8, 64, dtype=torch.float16, device="spyre")
    assert _device.expect(x, "default")
    assert _device.expect(x.t(), "default")  # same storage, same geometry
    assert not _device.expect(x[1:], "default")
    assert not _device.expect(x[:4], "default")
    assert not _device.expect(x[:, ::2], "default")
    assert not _device.expect(x.expand(2, 8, 64), "default")
    assert not _device.expect(torch.empty(8, 64), "default")
    f = torch.empty(8, 64, device="spyre")
    assert not _device.expect(f.view(torch.int32), "default")


@pytest.mark.parametrize("kind", ["default", "row_major"])
def test_relayout_of_views(kind):
    x = torch.arange(6 * 5 * 70, dtype=torch.float32).reshape(6, 5, 70)
    d = x.to("spyre")
    for view in (
        lambda t: t[1:4, ::2, 3:69],
        lambda t: t.transpose(0, 2),
        lambda t: t[2],
        lambda t: t[:, :, 5],
        lambda t: t.unfold(2, 8, 3),
        lambda t: t[:1].expand(4, 5, 70),
        lambda t: t.reshape(-1)[7:2007:3],
        lambda t: t.as_strided((3, 4), (71, 2), 11),
    ):
        y = _device.relayout(view(d), kind)
        assert torch.equal(y.cpu(), view(x))
        assert _device.expect(y, kind)


def test_relayout_of_another_typed_view_converts_the_bytes():
    x = torch.randn(4, 64)
    y = _device.relayout(x.to("spyre").view(torch.int32), "default")
    assert _device.layout(y)["format"] == "IEEE_INT32"
    assert torch.equal(y.cpu(), x.view(torch.int32))


def test_wrong_kind_is_refused():
    with pytest.raises(ValueError, match="'default' or 'row_major'"):
        _device.empty_strided((2,), (1,), torch.float16, 0, "rows")


def test_layout_of_tensors_elsewhere():
    assert torch.empty(3).device_tensor_layout() is None
    layout = torch.empty(5, 100, 150, dtype=torch.float16, device="spyre").device_tensor_layout()
    assert repr(layout) == (
        "SpyreTensorLayout(device_size=[100, 3, 5, 64], stride_map =[150, 64, 15000, 1], "
        "device_dtype=DataFormats.SEN169_FP16)"
    )
