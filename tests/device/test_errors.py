"""Wrong uses of the device: one clear error each, and everything works afterwards."""

import pytest
import torch


@pytest.fixture(autouse=True)
def works_afterwards():
    yield
    assert (torch.arange(4.0, device="spyre") * 2).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128, torch.float8_e5m2])
@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.empty(3, dtype=d, device="spyre"),
        lambda d: torch.zeros((2, 0), dtype=d, device="spyre"),
        lambda d: torch.ones(3).to(d).to("spyre"),
        lambda d: torch.ones(3, device="spyre").to(d),
        lambda d: torch.empty_strided((2, 2), (1, 2), dtype=d, device="spyre"),
    ],
)
def test_dtypes_without_a_device_format(dtype, make):
    with pytest.raises(RuntimeError, match=f"does not support dtype {dtype}"):
        make(dtype)


def test_a_float64_copy_into_device_memory_converts():
    x = torch.zeros(3, device="spyre")
    x.copy_(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert x.tolist() == [1, 2, 3]
    host = torch.zeros(3, dtype=torch.float64)
    assert host.copy_(x).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "work",
    [
        lambda a, b: a + b,
        lambda a, b: torch.mm(a, b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: a.add_(b),
        lambda a, b: torch.add(a, a, out=b),
    ],
)
def test_operands_on_different_devices(work):
    with pytest.raises(RuntimeError, match="device"):
        work(torch.ones(2, 2, device="spyre"), torch.ones(2, 2))


def test_views_of_a_storage_that_was_resized():
    x = torch.arange(8.0, device="spyre")
    view = x[4:]
    x.untyped_storage().resize_(16)
    with pytest.raises(RuntimeError, match="out of bounds|storage"):
        view.cpu()
    x.untyped_storage().resize_(32)
    assert view.shape == (4,) and view.cpu().shape == (4,)
    assert x[:4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("index", [5, -6, (0, 0), [7]])
def test_bad_indices(index):
    x = torch.arange(5.0, device="spyre")
    with pytest.raises((IndexError, RuntimeError), match="index|indices"):
        x[index].cpu()


def test_bad_index_tensors():
    x = torch.arange(5.0, device="spyre")
    with pytest.raises((IndexError, RuntimeError), match="index"):
        x[torch.tensor([0, 9], device="spyre")]
    with pytest.raises((IndexError, RuntimeError), match="index"):
        x.index_select(0, torch.tensor([5], device="spyre"))
    with pytest.raises((IndexError, RuntimeError), match="index"):
        x.gather(0, torch.tensor([-1], device="spyre"))


def test_streams_that_do_not_exist():
    from torch_loom import _device

    kind = int(torch._C._autograd.DeviceType.PrivateUse1.value)
    stranger = torch.Stream(stream_id=99, device_index=0, device_type=kind)
    with pytest.raises(RuntimeError, match="no stream 99 on spyre:0"):
        torch.spyre.set_stream(stranger)
    with pytest.raises(RuntimeError, match="stream 99 does not exist"):
        stranger.synchronize()
    assert _device.current_stream(0) == 0


def test_a_stream_of_a_stopped_runtime_works_in_the_next_one():
    import subprocess
    import sys

    code = (
        "import torch, torch_loom\n"
        "stream, event = torch.spyre.Stream(), torch.spyre.Event(enable_timing=True)\n"
        "x = torch.ones(3, device='spyre'); event.record(stream); torch.spyre.synchronize()\n"
        "try:\n    torch.spyre.free_runtime()\n"
        "except RuntimeError as e:\n    assert 'allocations are alive' in str(e)\n"
        "else:\n    raise SystemExit('freed under a live tensor')\n"
        "del x\ntorch.spyre.free_runtime()\n"
        "assert not torch.spyre.is_initialized() and event.query()\n"
        "with torch.spyre.stream(stream):\n    assert torch.ones(3, device='spyre').tolist() == [1, 1, 1]\n"
        "event.record(stream); stream.synchronize(); event.synchronize()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.Generator("spyre:100"),
        lambda: torch.Stream("spyre:100"),
        lambda: torch.spyre.Stream(100),
        lambda: torch.accelerator.current_stream(100),
        lambda: torch.accelerator.memory_allocated(100),
        lambda: torch.empty(1, device="spyre:100"),
    ],
)
def test_cards_that_do_not_exist(make):
    with pytest.raises(RuntimeError, match="spyre device 100 does not exist: 1 visible"):
        make()


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("sparse", torch.Tensor.to_sparse),
        ("sparse", torch.Tensor.to_sparse_csr),
        ("sparse", torch.Tensor.to_sparse_csc),
        ("sparse", lambda x: x.to_sparse_bsr((2, 2))),
        ("nested", lambda x: torch.nested.nested_tensor([x, x[:2]])),
        ("quantized", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
    ],
)
def test_tensors_that_are_not_strided_are_refused_in_one_sentence(kind, make):
    x = torch.randn(4, 64)
    # Compressed tensors are put together from dense ones without asking the device; it refuses to compute with them.
    for attempt in (lambda: make(x.to("spyre")).sum(), lambda: make(x).to("spyre").sum()):
        with pytest.raises(NotImplementedError, match=rf"Spyre backend does not support {kind} tensors \("):
            attempt()


def test_storages_of_negative_size_are_refused():
    storage = torch.ones(4, device="spyre").untyped_storage()
    for attempt in (lambda: storage.resize_(-1), lambda: torch.UntypedStorage(-16, device="spyre")):
        with pytest.raises(RuntimeError, match="a storage cannot have -1"):
            attempt()
    assert storage.nbytes() == 16


def test_a_stream_that_does_not_exist_cannot_use_a_tensor():
    x = torch.ones(64, device="spyre")
    with pytest.raises(RuntimeError, match="stream 9999 does not exist"):
        x.record_stream(torch.Stream(stream_id=9999, device_index=0, device_type=torch.Stream(x.device).device_type))
    del x
