"""Transfers large enough to be shared by several host threads and written past the caches."""

import pytest
import torch

VIEWS = {
    "whole": lambda t: t,
    "transposed": lambda t: t.t(),
    "ragged slice": lambda t: t[5:, 33:1471],
    "transposed slice": lambda t: t[7:, 70:1463].t(),
    "every third": lambda t: t[:, 1::3],
    "every second row": lambda t: t[::2],
    "heads": lambda t: t.reshape(-1, 30, 50).transpose(0, 1),
    "split sticks": lambda t: t.reshape(-1, 12, 125).permute(2, 0, 1),
    "flat": lambda t: t.reshape(-1),
    "heads of a batch": lambda t: t.reshape(38, 79, 12, 125).permute(0, 2, 1, 3),
    "heads, transposed": lambda t: t.reshape(38, 12, 79, 125).transpose(2, 3),
    "channels last": lambda t: t.reshape(19, 125, 158, 12).permute(0, 2, 3, 1),
}


def numbers(dtype: torch.dtype, rows: int = 3002) -> torch.Tensor:
    """Values that the device holds exactly: small integers, different in every row and column."""
    t = torch.arange(rows * 1500).reshape(rows, 1500) * 7919 % 255
    return (t % 2 == 0) if dtype == torch.bool else (t % 127).to(dtype)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bool, torch.uint8])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_either_side(name, dtype):
    view = VIEWS[name]
    host = numbers(dtype)
    assert torch.equal(view(host).to("spyre").cpu(), view(host))
    there = host.to("spyre")
    assert torch.equal(view(there).cpu(), view(host))
    target = torch.zeros_like(host)
    view(target).copy_(view(there))
    expected = torch.zeros_like(host)
    view(expected).copy_(view(host))
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("name", ["whole", "transposed slice", "heads of a batch", "channels last"])
def test_bytes_that_two_threads_share(name, dtype):
    host = torch.cat([numbers(dtype), numbers(dtype).flip(0)])
    view = VIEWS[name]
    batches = [view(part) for part in host.split(3002)]
    there = torch.cat(batches).to("spyre")
    assert torch.equal(there.cpu(), torch.cat(batches))
    target = torch.empty_like(host)
    target.t().copy_(host.t().to("spyre"))
    assert torch.equal(target, host)


@pytest.mark.parametrize("name", VIEWS)
def test_results_narrower_than_a_host_tensor(name):
    """int64 lies on the device in 32 bits: the way there meets what bytes meet on the way back."""
    view = VIEWS[name]
    host = numbers(torch.int64) - 63
    assert torch.equal(view(host).to("spyre").cpu(), view(host))


def test_a_value_that_does_not_fit_is_named_whatever_thread_meets_it():
    for row in (0, 1499, 2999):
        host = torch.zeros(3000, 1500, dtype=torch.int64)
        host[row, 7] = 2**40 + row
        with pytest.raises(RuntimeError, match=f"value {2**40 + row} does not fit"):
            host.to("spyre")
