"""Norms and softmax over the rows of a product, in the kernel of the product."""

import pytest
import torch
import torch.nn.functional as F
from helpers import half

from torch_loom.inductor import config, runtime
from torch_loom.inductor.division import rows_pay


def run(fn, *args):
    """Results and launches of the compiled function, and float32 of the host on the values that the device holds."""
    torch._dynamo.reset()
    held = [a.to("spyre") for a in args]
    compiled = torch.compile(fn, dynamic=False)
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        before = runtime.counters["kernels_loaded"]
        out = compiled(*held)
        kernels = runtime.counters["kernels_loaded"] - before
    expected = fn(*(h.cpu().float() for h in held))
    return out, expected, kernels


@pytest.mark.parametrize("m, k, n", [(64, 96, 128), (37, 63, 65), (128, 2200, 384), (3, 64, 100), (1, 70, 64)])
def test_layer_norm_after_a_linear_layer_with_residual(m, k, n):
    args = half(m, k), half(n, k, seed=1, scale=k**-0.5), half(m, n, seed=2), half(n, seed=3), half(n, seed=4)
    out, expected, kernels = run(lambda x, w, r, g, b: F.layer_norm(F.linear(x, w) + r, (n,), g, b), *args)
    # Rounded once, and the norm of float32 sums over k and n; apart, the sum of product and residual is rounded too.
    between = 0.0 if kernels == 1 else 2.0**-10 * (expected - args[4].float()).abs().max().item()
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2.0**-9, atol=2e-4 + between)
    assert kernels == 1 or not rows_pay(m, n, k, 1, 32, 1_600_000, "spyre", True)


def test_several_results_of_one_product_and_its_rows():
    def fn(x, w):
        y = x @ w
        top = y.amax(-1, keepdim=True)
        e = (y - top).exp()
        return e / e.sum(-1, keepdim=True), top, y * 2

    out, expected, kernels = run(fn, half(70, 64), half(64, 96, seed=1, scale=0.2))
    for a, b in zip(out, expected, strict=True):
        torch.testing.assert_close(a.cpu().float(), b, rtol=2.0**-8, atol=1e-4)
    assert kernels == 1


def test_rows_of_a_batched_product_and_of_heads():
    def fn(q, k):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.2, -1)

    out, expected, kernels = run(fn, half(2, 3, 40, 32), half(2, 3, 72, 32, seed=1))
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2.0**-8, atol=1e-4)
    assert kernels == 1


def test_rows_that_lx_cannot_hold_and_the_switch_keep_their_own_kernel():
    assert not rows_pay(4096, 16384, 4096, 1, 32, 1_600_000, "spyre", False)
    with config.patch(fusion=False):
        _, _, kernels = run(lambda x, w: torch.softmax(x @ w, -1), half(64, 64), half(64, 128, seed=1))
    assert kernels == 2


def test_a_reduction_over_rows_is_not_taken_for_one_over_columns():
    out, expected, _ = run(lambda x, w: (x @ w).sum(0), half(64, 64), half(64, 64, seed=1, scale=0.1))
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2.0**-8, atol=64 * 2.0**-9)
