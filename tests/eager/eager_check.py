"""Compare an eager call on ``spyre`` with the same call on the host.

Inputs are first brought to the values that the device holds. Half results are compared with float32 on the host, up to
one rounding to df16 (9 fraction bits) per store; float32 results up to the error of sums of the given length.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

DF16_HALF_STEP = 2.0**-10
FP32_STEP = 2.0**-23


def move(value, device):
    return tree_map_only(torch.Tensor, lambda t: t.to(device) if t.dim() or t.device.type != "cpu" else t, value)


def exact(value):
    """Inputs as float32 on the host (what a kernel computes in)."""
    return tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t, value)


def assert_near(result, expected, roundings=1, absolute=1e-6, terms=1):
    """``result`` is ``expected`` up to ``roundings`` roundings of its dtype and sums of ``terms`` addends."""
    got, want = tree_leaves(result), tree_leaves(expected)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.device.type == "spyre" and a.shape == b.shape and a.stride() == b.stride(), (a.stride(), b.stride())
        a = a.cpu()
        if not a.is_floating_point():
            assert torch.equal(a, b.to(a.dtype))
            continue
        relative = 16 * terms * FP32_STEP if a.dtype == torch.float32 else roundings * DF16_HALF_STEP * 1.01
        torch.testing.assert_close(a.float(), b.float(), rtol=relative, atol=absolute)


def check(fn, *args, roundings=1, absolute=1e-6, terms=1, **kwargs):
    """Run ``fn`` on the device and on the host and compare; nothing may fall back. Returns the device result."""
    placed, keywords = move((args, kwargs), "spyre")
    held, held_keywords = move((placed, keywords), "cpu")
    torch.spyre.reset_fallbacks()
    result = fn(*placed, **keywords)
    assert torch.spyre.fallbacks() == {}, torch.spyre.fallbacks()
    host, host_keywords = exact((held, held_keywords))
    assert_near(result, fn(*host, **host_keywords), roundings, absolute, terms)
    return result


def half(*shape, seed=0, scale=1.0):
    """Random float16 values."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).half()
