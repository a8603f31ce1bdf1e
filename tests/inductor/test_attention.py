"""Attention against its definition in float32: grouped heads, masks, windows, one query row, rotation."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, half

# q k^T, the weights and the result are rounded once each to df16; scores have unit variance after scaling.
ROUNDINGS, ABSOLUTE = 3, 4e-3


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def repeated(q, k, v):
    heads = q.shape[1] // k.shape[1]
    wide = [x[:, :, None].expand(-1, -1, heads, -1, -1).reshape(q.shape[0], q.shape[1], *x.shape[2:]) for x in (k, v)]
    return F.scaled_dot_product_attention(q, *wide)


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("fn", [repeated])
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
