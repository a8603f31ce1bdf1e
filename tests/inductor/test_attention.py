"""Attention against its definition in float32: grouped heads, masks, windows, one query row, rotation."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, close, half

from torch_loom import arch
from torch_loom.inductor import config
from torch_loom.profiler import launch_rows, recorded_launches

# q k^T, the weights and the result are rounded once each to df16; scores have unit variance after scaling.
ROUNDINGS, ABSOLUTE = 3, 4e-3


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def repeated(q, k, v):
    heads = q.shape[1] // k.shape[1]
    wide = [x[:, :, None].expand(-1, -1, heads, -1, -1).reshape(q.shape[0], q.shape[1], *x.shape[2:]) for x in (k, v)]
    return F.scaled_dot_product_attention(q, *wide)


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("fn", [grouped, repeated])
def test_heads_share_keys_and_values(fn, rows):
    q, k, v = half(2, 6, rows, 64), half(2, 2, 40, 64, seed=1), half(2, 2, 40, 64, seed=2)
    check(fn, q, k, v, roundings=ROUNDINGS, absolute=ABSOLUTE)


@pytest.mark.parametrize("size", [32, 48, 96, 128, 256])
def test_head_sizes(size):
    q, k, v = half(1, 2, 20, size), half(1, 2, 27, size, seed=1), half(1, 2, 27, size, seed=2)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v, roundings=ROUNDINGS, absolute=ABSOLUTE)


def test_a_window_of_keys():
    q = half(1, 2, 50, 64)

    def windowed(q):
        at = torch.arange(q.shape[2], device=q.device)
        near = (at[:, None] >= at[None]) & (at[:, None] - at[None] < 16)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=near[None, None])

    check(windowed, q, roundings=ROUNDINGS, absolute=ABSOLUTE)


@pytest.mark.parametrize("heads,size", [(4, 32), (3, 64), (2, 128)])
def test_rotary_embedding_of_projected_heads(heads, size):
    batch, length = 2, 21
    x, w = half(batch, length, 16), half(16, heads * size, scale=0.25)
    rates = 1 / (100 ** (torch.arange(0, size, 2) / size))

    def rotate(x, w, at, rates):
        q = (x @ w).view(batch, length, heads, size).transpose(1, 2)
        angles = at[:, None].float() * rates[None]
        angles = torch.cat((angles, angles), -1)
        half_turn = torch.cat((-q[..., size // 2 :], q[..., : size // 2]), -1)
        return q * angles.cos() + half_turn * angles.sin()

    check(rotate, x, w, torch.arange(length), rates, roundings=2, absolute=1e-2)


@pytest.mark.parametrize("computed", [False, True])
def test_rotation_fetches_a_head_once(computed):
    """The halves that change places are lanes of the same sticks, so the projected heads are read once, also where
    angles that repeat for both halves split a head into two loops."""
    rows, heads, size = 128, 4, 64

    def rotate(x, w, cos, sin):
        q = (x @ w).view(rows, heads, size)
        if computed:
            angles = torch.cat((cos, cos), -1)
            cos, sin = angles.cos(), angles.sin()
        return q * cos[:, None] + torch.cat((-q[..., size // 2 :], q[..., : size // 2]), -1) * sin[:, None]

    width = size // 2 if computed else size
    args = half(rows, 64), half(64, heads * size, seed=1, scale=0.125), half(rows, width), half(rows, width, seed=2)
    held = [a.to("spyre") for a in args]
    torch._dynamo.reset()
    with config.patch(residency=False), recorded_launches() as records:
        out = torch.compile(rotate, dynamic=False)(*held).cpu().float()
    # The projection is rounded (values up to 4.5, 2^-10 of them), and so is the sum of two of its products.
    torch.testing.assert_close(out, rotate(*(h.cpu().float() for h in held)), rtol=2.0**-9, atol=5e-2)
    last = launch_rows(records, arch.load("spyre"))[-1]
    assert last.ddr_bytes == 2 * (2 * rows * heads * size + (1 if computed else 2) * rows * 64)


def test_more_keys_than_a_block_holds():
    q = half(1, 2, 700, 64)
    check(lambda q: F.scaled_dot_product_attention(q, q, q), q, roundings=ROUNDINGS, absolute=ABSOLUTE)
    q = half(1, 2, 1100, 32)
    check(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q, roundings=ROUNDINGS, absolute=ABSOLUTE)


@pytest.mark.parametrize("causal", [False, True])
def test_one_compile_serves_all_lengths(causal):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(attend)
    for rows, keys in ((33, 40), (5, 7), (130, 600), (64, 64), (65, 129)):
        keys = rows if causal else keys
        parts = half(2, 6, rows, 64), half(2, 2, keys, 64, seed=1), half(2, 2, keys, 64, seed=2)
        device = [x.to("spyre") for x in parts]
        for x in device:
            torch._dynamo.mark_dynamic(x, 2)
        close(compiled(*device).cpu(), attend(*(x.cpu().float() for x in device)), ROUNDINGS, ABSOLUTE)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_no_scores_in_memory():
    from torch_loom.inductor import runtime

    q = half(1, 1, 777, 64)
    before = len(runtime.kernels())
    check(lambda q: F.scaled_dot_product_attention(q, q, q) * 2, q, roundings=ROUNDINGS, absolute=2 * ABSOLUTE)
    (kernel,) = [k for k in runtime.kernels()[before:] if "linalg.matmul" in k.ktir]
    assert kernel.ktir.count("linalg.matmul") == 2
    assert "777, 777" not in kernel.ktir


def test_keys_that_an_operand_splits():
    """A running count over the keys is made in blocks of 64, so its loads split the dim of the keys."""
    q = half(1, 2, 256, 32)
    marks = torch.zeros(1, 256, dtype=torch.int64)
    marks[:, [70, 200]] = 1

    def packed(q, marks):
        part = marks.cumsum(-1)
        same = part[:, None, :, None] == part[:, None, None, :]
        return F.scaled_dot_product_attention(q, q, q, attn_mask=same)

    check(packed, q, marks, roundings=ROUNDINGS, absolute=ABSOLUTE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys", "size"), [(1, 1, 40), (2, 1, 64), (1, 3, 1), (3, 3, 1)])
def test_shared_key_heads_with_single_keys_or_lanes(rows, keys, size, causal):
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        half(2, 6, rows, size),
        half(2, 2, keys, size, seed=1),
        half(2, 2, keys, size, seed=2),
        roundings=3,
        absolute=3e-3,
    )
