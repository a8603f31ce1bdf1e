"""Streams, events, memory, random numbers, modules and autograd."""

import gc

import pytest
import torch


def test_device_selection(device):
    assert torch.accelerator.device_count() >= 1
    torch.accelerator.set_device_index(device.index)
    assert torch.accelerator.current_device_index() == device.index
    with torch.accelerator.device_index(device.index):
        assert torch.empty(1, device=device.type).device == device


def test_streams(device):
    stream = torch.Stream(device=device)
    before = torch.accelerator.current_stream()
    with stream:
        assert torch.accelerator.current_stream() == stream
        x = torch.ones(1000, device=device)
    assert torch.accelerator.current_stream() == before
    stream.synchronize()
    assert stream.query() and (x.cpu() == 1).all()
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_stream() == stream
    torch.accelerator.set_stream(before)


def test_events(device):
    first, second = (torch.Event(device.type, enable_timing=True) for _ in range(2))
    assert first.query()
    first.record()
    torch.ones(1000, device=device)
    second.record()
    second.synchronize()
    assert first.query() and second.query() and first.elapsed_time(second) >= 0


def test_a_stream_waits_for_an_event(device):
    one, two = torch.Stream(device=device), torch.Stream(device=device)
    x = torch.zeros(1 << 16, device=device)
    torch.accelerator.synchronize()
    with one:
        for i in range(20):
            x.fill_(i)
        done = one.record_event()
    two.wait_event(done)
    with two:
        y = x.clone()
    two.wait_stream(one)
    two.synchronize()
    assert (y.cpu() == 19).all()


def test_record_stream_keeps_memory(device):
    stream = torch.Stream(device=device)
    x = torch.ones(1 << 12, device=device)
    torch.accelerator.synchronize()
    with stream:
        y = x.clone()
        x.record_stream(stream)
    del x
    torch.zeros(1 << 12, device=device)
    stream.synchronize()
    assert (y.cpu() == 1).all()


def test_memory_statistics(device):
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    assert torch.accelerator.memory_allocated() - before >= 1 << 20
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    del x
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() >= before + (1 << 20)
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == before


def test_out_of_memory_is_recoverable(device):
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    assert torch.ones(3, device=device).tolist() == [1, 1, 1]


def test_random_numbers_repeat(device):
    torch.manual_seed(7)
    first = [torch.rand(100, device=device).cpu(), torch.randn(100, device=device).cpu()]
    torch.manual_seed(7)
    assert torch.equal(torch.rand(100, device=device).cpu(), first[0])
    assert torch.equal(torch.randn(100, device=device).cpu(), first[1])
    g = torch.Generator(device=device).manual_seed(3)
    state = g.get_state()
    a = torch.randint(0, 1000, (50,), generator=g, device=device).cpu()
    g.set_state(state)
    assert torch.equal(torch.randint(0, 1000, (50,), generator=g, device=device).cpu(), a)
    assert first[0].min() >= 0 and first[0].max() <= 1 and abs(first[1].mean()) < 0.5


def test_modules_and_autograd(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    x = torch.randn(10, 6)
    there = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).to(device)
    there.load_state_dict(model.state_dict())
    loss, expected = there(x.to(device)).square().mean(), model(x).square().mean()
    torch.testing.assert_close(loss.cpu(), expected, atol=1e-4, rtol=1e-4)
    loss.backward()
    expected.backward()
    for a, b in zip(there.parameters(), model.parameters(), strict=True):
        assert a.grad.device == device
        torch.testing.assert_close(a.grad.cpu(), b.grad, atol=1e-4, rtol=1e-4)
    optimizer = torch.optim.SGD(there.parameters(), lr=0.1)
    optimizer.step()
    assert there(x.to(device)).square().mean().item() < loss.item()


def test_no_grad_and_inference_mode(device):
    x = torch.ones(3, device=device, requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        assert (x * 2).is_inference()


def test_meta_tensors_materialise(device):
    with torch.device("meta"):
        model = torch.nn.Linear(4, 4)
    model = model.to_empty(device=device)
    assert model.weight.device == device


def test_default_device(device):
    with torch.device(device):
        assert torch.zeros(2).device == device


def test_autocast_computes_in_half_precision(device):
    x, w = torch.ones(4, 8, device=device), torch.ones(8, 2, device=device)
    with torch.autocast(device.type, dtype=torch.float16):
        assert (x @ w).dtype == torch.float16
        with torch.autocast(device.type, enabled=False):
            assert (x @ w).dtype == torch.float32
    assert (x @ w).dtype == torch.float32


def test_a_data_loader_pins_its_batches(device):
    rows = torch.arange(12.0).reshape(6, 2)
    batches = list(torch.utils.data.DataLoader(rows, batch_size=3, pin_memory=True))
    assert all(batch.is_pinned() for batch in batches)
    moved = [batch.to(device, non_blocking=True) for batch in batches]
    torch.accelerator.synchronize()
    assert torch.equal(torch.cat(moved).cpu(), rows)


def test_numpy_and_dlpack_do_not_reach_into_device_memory(device):
    x = torch.ones(3, device=device)
    with pytest.raises(TypeError):
        x.numpy()
    assert torch.from_dlpack(x.cpu()).tolist() == [1, 1, 1]
