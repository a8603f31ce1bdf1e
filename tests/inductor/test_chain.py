"""Two products in one kernel, with the layer between them in LX."""

import pytest
import torch
import torch.nn.functional as F
from helpers import half

from torch_loom import arch
from torch_loom.inductor import config
from torch_loom.inductor.chain_cost import Chained, Layers, chain_pays, chained
from torch_loom.profiler import launch_rows, recorded_launches


def run(fn, *args, dynamic=False):
    """Result on the host, float32 of the host on the values that the device holds, launches."""
    torch._dynamo.reset()
    held = [a.to("spyre") for a in args]
    compiled = torch.compile(fn, dynamic=dynamic)
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        compiled(*held)
        with recorded_launches() as records:
            out = compiled(*held)
            out = [o.cpu().float() for o in out] if isinstance(out, tuple) else out.cpu().float()
    return out, fn(*(h.cpu().float() for h in held)), launch_rows(records, arch.load("spyre"))


def mlp(x, w, b, v):
    return F.linear(F.gelu(F.linear(x, w, b)), v)


def weights(k, h, n):
    return half(h, k, seed=1, scale=k**-0.5), half(h, seed=2), half(n, h, seed=3, scale=h**-0.5)


@pytest.mark.parametrize("m, k, h, n", [(256, 128, 512, 128), (130, 70, 192, 65), (33, 64, 256, 100)])
def test_hidden_layer_stays_in_lx(m, k, h, n):
    out, expected, rows = run(mlp, half(m, k), *weights(k, h, n))
    # The hidden layer is rounded once (2^-10 of each of h terms of size about 1/sqrt(h)), and so is the result.
    torch.testing.assert_close(out, expected, rtol=2.0**-10 * 1.01, atol=6 * 2.0**-10)
    assert len(rows) == 1
    if (m, k, h, n) == (256, 128, 512, 128):
        assert rows[0].ddr_bytes == 2 * (m * k + k * h + h + h * n + m * n)


def test_switched_off_and_what_the_hidden_layer_is_needed_for():
    args = half(256, 128), *weights(128, 512, 128)
    with config.patch(chains=False):
        assert len(run(mlp, *args)[2]) == 2

    def kept(x, w, b, v):
        hidden = F.gelu(F.linear(x, w, b))
        return F.linear(hidden, v), hidden

    out, expected, rows = run(kept, *args)
    for a, e in zip(out, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=2.0**-10 * 1.01, atol=6 * 2.0**-10)
    assert len(rows) == 2


def test_hidden_layer_as_right_operand_or_used_twice_is_stored():
    def right(x, w, y):
        return y @ (x @ w)

    out, expected, rows = run(
        right, half(128, 128), half(128, 128, seed=1, scale=0.1), half(128, 128, seed=2, scale=0.1)
    )
    torch.testing.assert_close(out, expected, rtol=2.0**-9, atol=6 * 2.0**-10)
    assert len(rows) == 2

    def square(x, w):
        y = x @ w
        return y @ y

    out, expected, rows = run(square, half(128, 128), half(128, 128, seed=1, scale=0.1))
    # 256 rounding errors of at most 2^-10 of 1.28, uniform, times factors of deviation 1.13; five deviations.
    torch.testing.assert_close(out, expected, rtol=2.0**-9, atol=5 * (256 / 3) ** 0.5 * 1.28 * 2.0**-10)
    assert len(rows) == 2


@pytest.mark.parametrize("grid, tile", [((2, 3), (48, 64)), ((1, 4), (132, 128)), ((5, 1), (16, 256))])
def test_cores_share_the_hidden_layer(monkeypatch, grid, tile):
    from torch_loom.inductor import chain, chain_trial, scheduling

    monkeypatch.setattr(chain, "chained", lambda *_: Chained(1.0, *grid, *tile, 0))
    monkeypatch.setattr(scheduling, "rows_pay", lambda *_: True)
    monkeypatch.setattr(chain_trial, "judged", lambda *_: chain_trial.Verdict(True))
    m, k, h, n = 132 if tile[0] == 132 else 73, 70, 768 if tile[1] == 64 else 1024, 100
    args = half(m, k), *weights(k, h, n), half(m, n, seed=7)
    norm = (n,)
    out, expected, rows = run(lambda x, w, b, v, r: F.layer_norm(mlp(x, w, b, v) + r, norm), *args)
    torch.testing.assert_close(out, expected, rtol=2.0**-9, atol=8 * 2.0**-10)
    assert len(rows) == 1


def test_layers_in_a_row_and_a_symbolic_batch():
    def tower(x, a, b, c):
        return F.relu(F.relu(x @ a) @ b) @ c

    args = [half(96, 64), *(half(64, 64, seed=s, scale=0.125) for s in (1, 2, 3))]
    for dynamic in (False, True):
        out, expected, _ = run(tower, *args, dynamic=dynamic)
        torch.testing.assert_close(out, expected, rtol=2.0**-9, atol=6 * 2.0**-10)


def test_cost_refuses_what_lx_cannot_hold_or_weights_would_pass_by_too_often():
    def cost(*sizes):
        layers = Layers(*sizes, products=1, epilogue=8.0, extra=1)
        return layers, chained(layers, 32, 1_600_000, "spyre")

    assert cost(4096, 4096, 16384, 8192)[1] is None
    # A wide layer and many rows: each row tile would fetch all weights again.
    layers, way = cost(65536, 2048, 8192, 2048)
    assert not chain_pays(layers, way, 32, 1_600_000, "spyre")
    layers, way = cost(4096, 384, 1536, 384)
    assert way is not None and chain_pays(layers, way, 32, 1_600_000, "spyre")


@pytest.mark.parametrize(
    "sizes, kernels", [((1024, 768, 3072, 768), 2), ((128, 384, 1536, 384), 1), ((70, 96, 256, 33), None)]
)
def test_the_clock_decides_about_chains_whose_layer_lx_could_keep(sizes, kernels):
    m, k, h, n = sizes
    args = half(m, k), *weights(k, h, n)
    us = []
    for patch in ({}, {"chains": False}, {"ring_sums": False}):
        with config.patch(patch):
            out, expected, rows = run(mlp, *args)
        torch.testing.assert_close(out, expected, rtol=2.0**-9, atol=6 * 2.0**-10)
        us.append(sum(row.modelled_us for row in rows))
        assert kernels is None or patch or len(rows) == kernels
    assert us[0] <= 1.01 * min(us)
