"""Operators written in terms of others: sorts, accumulating scatters, convolutions, pools, random numbers."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, half


def integers(high, *shape, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [0, 1])
def test_sort_is_stable_and_puts_nan_last(dim):
    x = torch.tensor([3.0, 1.0, torch.nan, 1.0, -torch.inf, torch.inf, 3.0]).repeat(5, 1)
    x = x if dim else x.t()
    for descending in (False, True):
        fn = torch.compile(lambda a: torch.sort(a, dim=dim, descending=descending, stable=True), dynamic=False)  # noqa: B023
        values, places = fn(x.to("spyre"))
        expected = torch.sort(x, dim=dim, descending=descending, stable=True)
        assert torch.equal(places.cpu(), expected[1])
        assert torch.equal(values.cpu().nan_to_num(7), expected[0].nan_to_num(7))


@pytest.mark.parametrize("length", [70, 600])
def test_largest_and_smallest(length):
    x = half(3, length)
    check(lambda a: a.topk(5)[0], x)
    check(lambda a: a.topk(5, largest=False)[1], x.float().add(torch.arange(length) * 1e-4))
    check(lambda a: a.argmax(-1), x)
    check(lambda a: a.argmin(), x)
    check(lambda a: a.max(0)[1], x)


def test_order_statistics():
    check(lambda a: a.median(-1)[0], half(5, 70))
    check(lambda a: a.kthvalue(3)[0], half(5, 70))
    check(lambda a, e: torch.bucketize(a, e), half(5, 70), torch.tensor([-1.0, 0, 1]).half())
    check(lambda a: torch.histc(a, 10, -2, 2), half(500))


def test_accumulating_scatters():
    x = half(5, 70)
    check(lambda a, i, b: a.scatter_add(0, i, b), half(9, 70), integers(5, 5, 70), x, absolute=1e-3)
    check(lambda a, i, b: a.scatter_reduce(1, i, b, "amax"), half(5, 90), integers(90, 5, 70), x)
    check(lambda a, i, b: a.index_add(0, i, b), half(9, 70), integers(9, 20), half(20, 70), absolute=1e-3)
    check(
        lambda a, i, j, b: a.index_put((i, j), b, accumulate=True),
        half(9, 70), integers(9, 20), integers(70, 20), half(20), absolute=1e-3,
    )  # fmt: skip
    check(lambda a, m, b: a.masked_scatter(m, b), x, x > 0.1, half(5, 70, seed=3))


def test_gathers_from_a_flattened_tensor():
    # The index runs over all dims, not over the lanes of a row.
    check(lambda a, i: a.reshape(-1)[i], half(5, 7), integers(35, 20))
    check(lambda a, i: a.take(i), half(5, 70), integers(350, 20))


CONVOLUTIONS = {
    "1d": ((2, 6, 20), (4, 6, 3), dict(padding=1)),
    "2d strided": ((2, 6, 10, 11), (4, 6, 3, 3), dict(padding=1, stride=2)),
    "2d groups dilated": ((2, 6, 10, 11), (9, 2, 3, 3), dict(dilation=2, groups=3)),
    "depthwise": ((1, 6, 9, 9), (6, 1, 3, 3), dict(groups=6, padding=1)),
    "3d": ((1, 2, 5, 4, 6), (3, 2, 3, 3, 3), {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    shape, filters, options = CONVOLUTIONS[name]
    conv = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(shape)]
    # The products are exact in float32; their sum is as large as sqrt(depth), rounded once.
    check(lambda a, w: conv(a, w, **options), half(*shape), half(*filters), absolute=1e-4)


def test_transposed_convolution():
    fn = lambda a, w: F.conv_transpose2d(a, w, stride=2, padding=1, output_padding=1)  # noqa: E731
    check(fn, half(2, 6, 5, 7), half(6, 4, 3, 3), absolute=1e-4)


def test_gradients_of_a_convolution():
    x, w, b = half(2, 4, 7, 8).float(), half(6, 2, 3, 3).float(), half(6).float()

    def loss(a, f, c):
        return F.conv2d(a, f, c, stride=2, padding=1, groups=2).square().sum()

    host = [t.clone().requires_grad_() for t in (x, w, b)]
    loss(*host).backward()
    card = [t.to("spyre").requires_grad_() for t in (x, w, b)]
    torch._dynamo.reset()
    torch.compile(loss, dynamic=False)(*card).backward()
    for h, d in zip(host, card, strict=True):
        torch.testing.assert_close(d.grad.cpu(), h.grad, rtol=1e-5, atol=1e-4)


def test_pools_and_bags():
    check(lambda a: F.adaptive_avg_pool3d(a, (2, 3, 2)), half(2, 3, 5, 4, 6))
    check(lambda a: F.adaptive_max_pool3d(a, (2, 3, 2)), half(2, 3, 5, 4, 6))
    offsets = torch.tensor([0, 4, 4, 11])
    check(lambda i, o, w: F.embedding_bag(i, w, o, mode="mean"), integers(30, 20), offsets, half(30, 70))


def test_random_numbers_follow_the_generator():
    x = torch.zeros(100, 700).to("spyre")
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    fn = torch.compile(lambda a: (torch.rand_like(a), torch.randn_like(a), F.dropout(a + 1, 0.25)), dynamic=False)
    torch.manual_seed(3)
    first = [t.cpu() for t in fn(x)]
    second = [t.cpu() for t in fn(x)]
    torch.manual_seed(3)
    assert all(torch.equal(a, t.cpu()) for a, t in zip(first, fn(x), strict=True))
    assert not torch.equal(first[0], second[0])
    assert torch.spyre.fallbacks() == {}
    uniform, normal, dropped = first
    # 70000 samples: means lie within four standard errors.
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 4 * (1 / 12 / 70000) ** 0.5
    assert abs(normal.mean()) < 4 / 70000**0.5 and abs(normal.var() - 1) < 4 * (2 / 70000) ** 0.5
    assert abs((dropped == 0).float().mean() - 0.25) < 4 * (0.1875 / 70000) ** 0.5


def test_second_passes_over_extents_that_lx_cannot_hold():
    x = half(2, 200001)
    check(lambda a: a.argmax(-1), x.float())
    check(lambda a: torch.softmax(a, -1), x)
    check(lambda a: a.var(-1), x, absolute=1e-5)
