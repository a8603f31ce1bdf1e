"""Scans along any dim: short ones in one row, long ones by rows."""

import pytest
import torch
from helpers import check, half


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 129, 300])
def test_cumsum_of_any_length(length):
    check(lambda a: a.cumsum(-1), half(3, length), absolute=length * 1e-5)
    check(lambda a: a.cumsum(0), half(length, 3), absolute=length * 1e-5)


def test_cumsum_of_integers_is_exact():
    check(lambda a: a.cumsum(0), torch.arange(5000))
    check(lambda a: a.cumsum(1), torch.arange(300).reshape(3, 100) > 20)


def test_scan_of_a_symbolic_length():
    torch._dynamo.reset()
    fn = torch.compile(lambda a: a.cumsum(-1), dynamic=True)
    for n in (5, 70, 100):
        x = torch.arange(3 * n, dtype=torch.float32).reshape(3, n)
        assert torch.equal(fn(x.to("spyre")).cpu(), x.cumsum(-1))


def test_one_graph_scans_all_lengths():
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    fn = torch.compile(lambda a: a.cumsum(-1), dynamic=True)
    for n in (40000, 2, 63, 64, 65, 129, 4097):
        x = torch.arange(3 * n).reshape(3, n) % 7 - 3.0
        assert torch.equal(fn(x.to("spyre")).cpu(), x.cumsum(-1))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


def test_long_exponentials():
    x = half(2, 300)
    x[0, :70] = -torch.inf
    check(lambda a: a.logcumsumexp(1), x, absolute=1e-4)


def test_products_and_exponentials():
    check(lambda a: a.cumprod(1), half(5, 10), absolute=1e-5)
    check(lambda a: a.logcumsumexp(1), half(5, 40), absolute=1e-5)


@pytest.mark.parametrize("length", [7, 150])
def test_running_extremes_and_their_places(length):
    x = half(length, 3)
    for fn in (torch.cummax, torch.cummin):
        check(lambda a: fn(a, 0)[0], x)  # noqa: B023
        check(lambda a: fn(a, 0)[1], x)  # noqa: B023


def test_scan_of_one_element():
    check(lambda a: a.cumsum(0), torch.tensor(3.0))
