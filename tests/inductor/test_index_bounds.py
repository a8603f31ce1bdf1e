"""Indices outside of their dim: an error when the launch runs, in eager mode and compiled; valid ones are untouched."""

import pytest
import torch

X = torch.arange(16.0).reshape(4, 4)


def add(x, i):
    return x.index_add(0, i, x[:2])


def add_along(x, i):
    return x.scatter_add(1, i.reshape(1, 2), x)


def largest(x, i):
    return x.scatter_reduce(0, i.reshape(1, 2), x, "amax")


def put(x, i):
    return x.index_put((i * 0, i), x[0, :2], accumulate=True)


def reduce(x, i):
    return x.index_reduce(0, i, x[:2], "prod")


def scatter(x, i):
    return x.scatter(1, i.reshape(1, 2), x + 1)


def gather(x, i):
    return x.gather(1, i.reshape(1, 2))


def part(x, i):
    return x[:3][i % 5]


def columns(x, i):
    return x[:, :3][:, i % 5]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("fn", [add, add_along, largest, put, reduce, scatter, gather])
def test_indices_stay_in_their_dim(fn, compiled):
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    run = torch.compile(fn, dynamic=False) if compiled else fn
    x, good = X.to("spyre"), torch.tensor([1, 3])
    assert torch.equal(run(x, good.to("spyre")).cpu(), fn(X, good))
    with pytest.raises(RuntimeError, match="DEV-03"):
        run(x, torch.tensor([1, 5]).to("spyre")).cpu()
    assert torch.equal(run(x, good.to("spyre")).cpu(), fn(X, good))
    assert torch.spyre.fallbacks() == {}


@pytest.mark.parametrize("fn", [part, columns])
def test_indices_stay_in_a_part_of_a_buffer(fn):
    torch._dynamo.reset()
    run, x, good = torch.compile(fn, dynamic=False), X.to("spyre"), torch.tensor([1, 2])
    assert torch.equal(run(x, good.to("spyre")).cpu(), fn(X, good))
    with pytest.raises(RuntimeError, match="DEV-03"):
        run(x, torch.tensor([1, 3]).to("spyre")).cpu()


def test_no_negative_places_to_add_to():
    for fn in (add, add_along):
        with pytest.raises(RuntimeError, match="DEV-03"):
            fn(X.to("spyre"), torch.tensor([0, -1]).to("spyre")).cpu()
    i = torch.tensor([0, -4])
    assert torch.equal(put(X.to("spyre"), i.to("spyre")).cpu(), put(X, i))


def test_classes_of_one_hot():
    with pytest.raises(RuntimeError, match="DEV-03"):
        torch.nn.functional.one_hot(torch.tensor([0, 5]).to("spyre"), 4).cpu()


def test_a_masked_scatter_needs_enough_sources():
    with pytest.raises(RuntimeError, match="DEV-03"):
        X.to("spyre").masked_scatter((X > 2).to("spyre"), X[0].to("spyre")).cpu()


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_indices(dynamic):
    def none(x, i):
        return x.index_add(0, i, x[:0]) + x.index_put((i,), x[:0], accumulate=True)

    torch._dynamo.reset()
    i = torch.empty(0, dtype=torch.int64)
    assert torch.equal(torch.compile(none, dynamic=dynamic)(X.to("spyre"), i.to("spyre")).cpu(), none(X, i))
