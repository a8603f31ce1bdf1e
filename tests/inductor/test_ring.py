"""Work that cores share along a reduced extent: partial results added up over the ring."""

import pytest
import torch
import torch.nn.functional as F
from helpers import half
from test_epilogues import run

from torch_loom import arch
from torch_loom.inductor import matmul, runtime
from torch_loom.inductor.division import share_axis, timed
from torch_loom.inductor.shares import Folding, shared_cycles


def exchanges() -> int:
    """Exchanges of the kernel prepared last."""
    return runtime.kernels()[-1].ktir.count("inter_tile_produce")


def products(m, k, n):
    return half(m, k), half(n, k, seed=1, scale=k**-0.5)


@pytest.mark.parametrize(
    "m, k, n",
    [
        (1, 512, 512),  # shares of 16 columns
        (1, 640, 100),  # ten sticks of K, the second stick of columns is not full
        (3, 704, 64),  # eleven sticks of K
        (5, 6400, 64),  # LX holds no tile of all K
    ],
)
def test_cores_share_k_of_a_product(m, k, n):
    x, w = products(m, k, n)
    bias = half(n, seed=3)
    out, expected, _ = run(lambda x, w, b: F.relu(F.linear(x, w, b)), x, w, bias)
    assert exchanges() == 1
    # One rounding of the result, sums of k products in float32.
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2.0**-10 * 1.01, atol=k * 2.0**-24)


def test_shares_of_a_tile():
    assert share_axis(1, 64, 1, 4) == 1  # 16 columns each
    assert share_axis(20, 64, 1, 5) == 0  # a fifth of a stick is no share, four rows are
    assert share_axis(11, 64, 1, 3) is None


@pytest.mark.parametrize("grid, tile", [((1, 2, 1, 5), (20, 64)), ((1, 1, 2, 4), (33, 64)), ((1, 3, 2, 3), (11, 64))])
def test_every_way_to_share_a_tile(monkeypatch, grid, tile):
    """Five cores share rows of a tile, four its columns, three keep it whole, of which the first writes."""
    monkeypatch.setattr(matmul, "divide", lambda c, *_: (timed(c, grid, *tile, True, arch.load("spyre")),))
    out, expected, _ = run(lambda x, w, r: x @ w.T + r, *products(33, 640, 70), half(33, 70, seed=2))
    assert exchanges() == 1
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2.0**-10 * 1.01, atol=640 * 2.0**-24)


@pytest.mark.parametrize("heads, size", [(8, 64), (6, 32), (12, 128)])
def test_cores_share_heads_of_the_rows_of_a_product(heads, size):
    """The left operand has heads before rows, so K is two dims of it."""

    def fn(x, w):
        return (x * 2).transpose(0, 1).reshape(2, heads * size) @ w

    x, w = half(heads, 2, size), half(heads * size, 64, seed=1, scale=(heads * size) ** -0.5)
    out, expected, _ = run(fn, x, w)
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2.0**-9, atol=heads * size * 2.0**-24)


def test_rows_of_a_symbolic_number_share_k():
    torch._dynamo.reset()
    fn = torch.compile(lambda x, w: x @ w, dynamic=True)
    w = half(768, 64, seed=1, scale=768**-0.5)
    for m in (2, 9, 65, 200):
        x = half(m, 768)
        held = x.to("spyre"), w.to("spyre")
        out, expected = fn(*held).cpu().float(), held[0].cpu().float() @ held[1].cpu().float()
        torch.testing.assert_close(out, expected, rtol=2.0**-10 * 1.01, atol=768 * 2.0**-24)


@pytest.mark.parametrize("m, n", [(160, 512), (7 * 64 + 3, 3 * 64 + 1)])
def test_last_cores_run_past_the_end_without_a_trace(m, n):
    """Tiles that do not divide evenly over the cores, in results that are parts of a larger buffer."""

    def fn(x, w, y):
        return torch.cat([x @ w, y], 0), torch.cat([y, x @ w], 1 if y.shape[0] == x.shape[0] else 0)

    x, w, y = half(m, 64), half(64, n, seed=1, scale=0.125), half(m, n, seed=2)
    out, expected, _ = run(fn, x, w, y)
    for a, b in zip(out, expected, strict=True):
        torch.testing.assert_close(a.cpu().float(), b, rtol=2.0**-10 * 1.01, atol=64 * 2.0**-24)


@pytest.mark.parametrize(
    "fn, shape, roundings",
    [
        (lambda x: x.sum(), (40000,), 1),  # 625 sticks
        (lambda x: x.amax(-1), (2, 20011), 0),  # the last core's part reaches past the end, so does its last stick
        (lambda x: x.sum(0), (1024, 100), 1),  # rows are reduced, sticks are not
        (lambda x: x.argmax(-1), (1, 40001), 0),
        (lambda x: F.softmax(x, -1), (1, 20480), 2),  # each core goes on with its part of the row
        (lambda x: F.layer_norm(x, x.shape[-1:]), (2, 16384), 2),
    ],
)
def test_cores_share_a_reduction_of_few_results(fn, shape, roundings):
    """Sums of n terms in float32 are off by n * 2^-24 of the sum of their sizes, which here is at most n."""
    x = half(*shape)
    out, expected, _ = run(fn, x)
    assert exchanges() >= 1
    n = x.numel() // max(expected.numel(), 1)
    absolute = 2.0**-24 * n * n**0.5 if roundings == 1 else 4e-6
    torch.testing.assert_close(out.cpu().float(), expected.float(), rtol=roundings * 2.0**-10 * 1.01, atol=absolute)


@pytest.mark.parametrize("rows", [2048, 40 * 64])
def test_a_reduction_of_many_results_exchanges_nothing(rows):
    run(lambda x: x.sum(-1), half(rows, 64))
    assert exchanges() == 0


def test_more_cores_make_a_long_reduction_faster():
    long = Folding(1, 1 << 20, 2.0, 4.0, 2.0**21, 128.0, 1, 1)
    times = [shared_cycles(long, parts, False, 32, "spyre") for parts in (1, 4, 32)]
    assert times == sorted(times, reverse=True)
    short = Folding(1, 512, 2.0, 4.0, 1024.0, 1024.0, 1, 1)
    assert shared_cycles(short, 1, False, 32, "spyre") < shared_cycles(short, 4, False, 32, "spyre")


@pytest.mark.parametrize(
    "fn, shapes, shared",
    [
        (lambda p, g: p.sub_(g.sum(0)), ((100,), (1024, 100)), False),  # whole rows: the first core stores them
        (lambda p, g: p.add_(g.amax()), ((1,), (40000,)), False),
        (lambda x: x.sub_(x.amax(-1, keepdim=True)), ((1, 20480),), True),  # each core its own part
        (lambda x: x.copy_(x.flip(-1) - x.amax(-1, keepdim=True)), ((1, 20480),), False),  # each core another's
    ],
)
def test_cores_share_a_reduction_that_changes_what_it_reads(fn, shapes, shared):
    args = [torch.randint(-4, 5, s, generator=torch.Generator().manual_seed(len(s))).half() for s in shapes]
    expected = fn(*(a.clone().float() for a in args))
    placed = [a.to("spyre") for a in args]
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, dynamic=False)(*placed)
    assert any(k.ktir.count("inter_tile_produce") for k in runtime.kernels()[-1:]) == shared
    torch.testing.assert_close(placed[0].cpu().float(), expected, rtol=2.0**-10, atol=0)
