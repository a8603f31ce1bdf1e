"""Views as functions of a storage's value, against what PyTorch does with memory."""

import random

import pytest
import torch

from torch_loom.eager.views import Geometry, NoView, put, take


def geometry(x):
    return Geometry(tuple(x.shape), tuple(x.stride()), x.storage_offset())


def random_view(rng, x):
    d = rng.randrange(x.dim())
    kind = rng.choice(["narrow", "step", "select", "transpose", "diagonal", "expand", "flat"])
    if kind == "narrow":
        start = rng.randrange(x.shape[d])
        return x.narrow(d, start, rng.randint(1, x.shape[d] - start))
    if kind == "step":
        return x[(slice(None),) * d + (slice(rng.randrange(x.shape[d]), None, 2),)]
    if kind == "select":
        return x.select(d, rng.randrange(x.shape[d]))
    if kind == "transpose":
        return x.transpose(d, rng.randrange(x.dim()))
    if kind == "diagonal" and x.dim() > 1:
        return x.diagonal()
    if kind == "flat" and x.is_contiguous():
        return x.view(-1)
    return x.unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:])


def test_random_views_are_taken_and_put_as_in_memory():
    rng = random.Random(0)
    without = 0
    for _ in range(600):
        sizes = [rng.randint(1, 5) for _ in range(rng.randint(0, 3))]
        base = torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)
        view = base
        for _ in range(rng.randint(0, 3)):
            view = random_view(rng, view) if view.dim() else view
        value = base.reshape([n for n in sizes if n != 1])
        try:
            assert torch.equal(take(value, geometry(view)), view)
        except NoView:
            without += 1
            continue
        if any(step == 0 and n > 1 for n, step in zip(view.shape, view.stride(), strict=True)):
            continue
        new = torch.rand(view.shape)
        after = put(value, value.shape, geometry(view), new)
        memory = base.clone()
        memory.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(new)
        assert torch.equal(after, memory.reshape(after.shape))
    assert without < 20


@pytest.mark.parametrize(
    "make", [lambda x: x, lambda x: x.t(), lambda x: x.reshape(2, 2, 6).permute(2, 0, 1)], ids=["same", "t", "permuted"]
)
def test_a_view_of_everything_needs_no_old_value(make):
    base = torch.zeros(4, 6)
    new = torch.rand(make(base).shape)
    after = put(None, base.shape, geometry(make(base)), new)
    make(base).copy_(new)
    assert torch.equal(after, base)


def test_an_expanded_view_shows_one_element_several_times():
    base = torch.zeros(4)
    after = put(base, base.shape, geometry(base[1:3].expand(3, 2)), torch.full((3, 2), 5.0))
    assert after.tolist() == [0, 5, 5, 0]


def test_overlapping_windows_are_no_slices():
    with pytest.raises(NoView, match="strides"):
        take(torch.arange(9.0), Geometry((4, 3), (2, 1), 0))
