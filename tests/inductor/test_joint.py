"""Products of one left operand in one kernel: gated layers, projections of equal width."""

import pytest
import torch
import torch.nn.functional as F
from helpers import half
from test_chain import run

from torch_loom.inductor import config


def gated(x, g, u):
    return F.silu(F.linear(x, g)) * F.linear(x, u)


def weights(h, k):
    return half(h, k, seed=1, scale=k**-0.5), half(h, k, seed=2, scale=k**-0.5)


# One rounding of the result; sums of k products in float32 lie far below it.
CLOSE = {"rtol": 2.0**-10 * 1.01, "atol": 1e-4}


@pytest.mark.parametrize("m, k, h", [(256, 128, 256), (37, 63, 65), (1, 512, 320), (65, 6464, 100)])
def test_both_products_of_a_gated_layer_share_a_kernel(m, k, h):
    out, expected, rows = run(gated, half(m, k), *weights(h, k))
    torch.testing.assert_close(out, expected, **CLOSE)
    assert len(rows) == 1
    if m == 256:  # neither product reaches memory, x is read once
        assert rows[0].ddr_bytes == 2 * (m * k + 2 * h * k + m * h)
    with config.patch(joint_products=False):
        out, expected, rows = run(gated, half(m, k), *weights(h, k))
        torch.testing.assert_close(out, expected, rtol=2.0**-8, atol=2.0**-8)
    assert len(rows) == 2


def test_a_gated_mlp_is_one_kernel_where_that_is_faster():
    def mlp(x, g, u, d):
        return x + F.linear(gated(x, g, u), d)

    args = half(130, 128), *weights(256, 128), half(128, 256, seed=3, scale=1 / 16)
    out, expected, rows = run(mlp, *args)
    # The hidden layer is rounded once: 256 terms of size below 2^-10 / 16 each.
    torch.testing.assert_close(out, expected, rtol=2.0**-10 * 1.01, atol=4 * 2.0**-10)
    assert len(rows) == 1


def test_projections_of_equal_width_are_stored_by_one_kernel():
    def project(x, q, k, v, b):
        return F.linear(x, q, b), F.linear(x, k) * 2, F.linear(x, v)

    m, k, n = 70, 128, 96
    args = half(m, k), *weights(n, k), half(n, k, seed=4, scale=k**-0.5), half(n, seed=5)
    out, expected, rows = run(project, *args)
    for a, b in zip(out, expected, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    assert len(rows) == 1


def test_results_of_which_lx_holds_only_some_are_made_apart(monkeypatch):
    def project(x, q, k, v):
        return (F.linear(x, q) + 1).sum(), (F.linear(x, k) + 1).sum(), (F.linear(x, v) + 1).sum()

    monkeypatch.setenv("SENCORES", "1")
    m, k, n = 512, 128, 640  # one result takes 0.66 MB, LX has room for 1.6 MB
    args = half(m, k), *weights(n, k), half(n, k, seed=4, scale=k**-0.5)
    alone = len(run(project, *args)[2])
    with config.patch(residency=False):
        together = len(run(project, *args)[2])
    assert alone > together


def test_products_that_need_one_another_or_have_other_operands_stay_apart():
    def chained(x, w):
        y = x @ w
        return y + x @ y

    x, w = half(64, 64, scale=0.125), half(64, 64, seed=1, scale=0.125)
    out, expected, _ = run(chained, x, w)
    torch.testing.assert_close(out, expected, rtol=2.0**-8, atol=2.0**-8)

    def crossed(x, w):
        return x @ w, w @ x, x.T @ w

    out, expected, _ = run(crossed, x, w)
    for a, b in zip(out, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2.0**-10 * 1.01, atol=1e-5)


def test_a_symbolic_number_of_rows():
    out, expected, rows = run(gated, half(77, 128), *weights(192, 128), dynamic=True)
    torch.testing.assert_close(out, expected, **CLOSE)
    assert len(rows) == 1
