"""Making, moving, viewing, printing and storing tensors."""

import copy
import io
import pickle

import pytest
import torch

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.float64,
    torch.complex64,
]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request, device):
    try:
        torch.empty(1, dtype=request.param, device=device)
    except (RuntimeError, TypeError):
        pytest.skip("the device refuses this dtype")
    return request.param


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 100).reshape(shape).to(dtype)


def test_round_trip(device, dtype):
    for shape in ((), (0,), (1,), (7,), (3, 5), (2, 1, 9), (4, 33, 65)):
        host = sample(dtype, *shape)
        there = host.to(device)
        assert there.device == device and there.dtype == dtype and there.shape == host.shape
        assert torch.equal(there.cpu(), host)


def test_factories(device, dtype):
    assert (torch.zeros(3, 4, dtype=dtype, device=device).cpu() == 0).all()
    assert (torch.ones(3, 4, dtype=dtype, device=device).cpu() == 1).all()
    assert (torch.full((5,), 1, dtype=dtype, device=device).cpu() == 1).all()
    x = torch.empty(2, 3, dtype=dtype, device=device)
    for like in (torch.empty_like(x), torch.zeros_like(x), x.new_ones(2, 3)):
        assert like.device == device and like.dtype == dtype and like.shape == (2, 3)
    s = torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=device)
    assert s.stride() == (1, 2)


def test_non_contiguous_copies(device, dtype):
    host = sample(dtype, 6, 8)
    for view in (lambda t: t.t(), lambda t: t[::2, 1:7:3], lambda t: t[2], lambda t: t[:, 3]):
        assert torch.equal(view(host).to(device).cpu(), view(host))
        assert torch.equal(view(host.to(device)).cpu(), view(host))
        there, expected = torch.zeros(6, 8, dtype=dtype, device=device), torch.zeros(6, 8, dtype=dtype)
        view(there).copy_(view(host))
        view(expected).copy_(view(host))
        assert torch.equal(there.cpu(), expected)


def test_views_share_memory(device):
    x = torch.zeros(4, 6, device=device)
    x.view(-1)[5] = 1
    x.t()[0, 1] = 2
    x[2].fill_(3)
    x.expand(2, 4, 6)
    x.narrow(1, 4, 2).zero_()
    expected = torch.zeros(4, 6)
    expected[0, 5], expected[1, 0], expected[2] = 1, 2, 3
    expected[:, 4:] = 0
    assert torch.equal(x.cpu(), expected)


def test_conversions(device):
    host = torch.tensor([-2.0, 0.0, 1.0, 100.0])
    for dtype in (torch.float16, torch.int32, torch.int64, torch.bool):
        assert torch.equal(host.to(device).to(dtype).cpu(), host.to(dtype))
        assert torch.equal(host.to(device, dtype).cpu(), host.to(dtype))


def test_non_blocking_copies_from_pageable_memory_are_safe(device):
    host = torch.ones(1 << 16)
    there = host.to(device, non_blocking=True)
    host.zero_()
    torch.accelerator.synchronize()
    assert (there.cpu() == 1).all()


def test_pinned_memory(device):
    host = torch.arange(1000.0).pin_memory()
    assert host.is_pinned()
    there = host.to(device, non_blocking=True)
    back = torch.empty(1000).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(back, host)


def test_scalars(device):
    assert torch.tensor(3.5, device=device).item() == 3.5
    assert torch.tensor([1, 2, 3], device=device).tolist() == [1, 2, 3]
    assert bool(torch.tensor(True, device=device)) and int(torch.tensor(4, device=device)) == 4


def test_printing(device):
    text = repr(torch.tensor([1.0, 2.5], device=device))
    assert "2.5" in text and device.type in text


def test_save_and_load(device, dtype):
    there = sample(dtype, 3, 5).to(device)
    file = io.BytesIO()
    torch.save({"whole": there, "part": there[1:]}, file)
    for location, wanted in ((None, device.type), ("cpu", "cpu"), (device, device.type)):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["whole"].device.type == wanted
        assert torch.equal(loaded["whole"].cpu(), there.cpu())
        assert loaded["part"].untyped_storage().data_ptr() == loaded["whole"].untyped_storage().data_ptr()


def test_pickle_and_deepcopy(device):
    there = torch.arange(6.0).reshape(2, 3).t().to(device)
    for other in (pickle.loads(pickle.dumps(there)), copy.deepcopy(there)):
        assert other.device == device and other.stride() == there.stride()
        assert torch.equal(other.cpu(), there.cpu())


def test_mixed_devices_are_refused(device):
    with pytest.raises(RuntimeError):
        torch.ones(2, device=device) + torch.ones(2)


def test_use_after_resize(device):
    x = torch.arange(4.0, device=device)
    y = x.view(2, 2)
    x.resize_(100)
    assert x[:4].tolist() == [0, 1, 2, 3]
    assert y.tolist() == [[0, 1], [2, 3]]


def test_bad_index(device):
    with pytest.raises(IndexError):
        torch.zeros(3, device=device)[5]
    with pytest.raises(RuntimeError):
        torch.empty(1, device=torch.device(device.type, torch.accelerator.device_count()))
