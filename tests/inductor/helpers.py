"""Compare a compiled function on ``spyre`` with float32 on the host.

Inputs are first brought to the values that the device holds (a round trip through df16 is exact), so that
what remains is the arithmetic of the kernels: float32 inside, one rounding to df16 at each store.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

DF16_HALF_STEP = 2.0**-10  # relative error of one rounding to 9 fraction bits


def half(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Random float16 values."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).half()


def check(
    fn: Callable[..., torch.Tensor],
    *args: torch.Tensor,
    roundings: int = 1,
    absolute: float = 1e-6,
    dynamic: bool | None = False,
) -> torch.Tensor:
    """Compile ``fn`` for spyre and compare; returns the device result on the host.

    ``roundings`` counts the df16 roundings on the way to the result; ``absolute`` is the error that
    sums of terms larger than the result may leave (fp32 accumulation, roundings of intermediates)."""
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    device_args = [a.to("spyre") for a in args]
    held = [d.cpu() for d in device_args]
    expected = fn(*(h.float() if h.is_floating_point() else h for h in held))
    with torch.no_grad():
        result = torch.compile(fn, dynamic=dynamic)(*device_args)
    assert result.device.type == "spyre"
    assert torch.spyre.fallbacks() == {}, torch.spyre.fallbacks()
    out = result.cpu()
    assert out.shape == expected.shape
    close(out, expected, roundings, absolute)
    return out


def close(out: torch.Tensor, expected: torch.Tensor, roundings: int = 1, absolute: float = 1e-6) -> None:
    """Assert that ``out`` is ``expected`` up to ``roundings`` df16 roundings (exactly, for integers)."""
    if not out.is_floating_point():
        assert torch.equal(out, expected.to(out.dtype))
        return
    relative = roundings * DF16_HALF_STEP * 1.01 if out.dtype != torch.float32 else 4e-6
    torch.testing.assert_close(out.float(), expected.float(), rtol=relative, atol=absolute)


def moved(fn: Callable[..., torch.Tensor], *args: torch.Tensor, dynamic: bool | None = False) -> None:
    """Compile ``fn``, which changes its first argument and returns a tensor, and compare both exactly with the
    host: for functions that move data and compute nothing that rounds."""
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    device_args = [a.to("spyre") for a in args]
    held = [d.cpu() for d in device_args]
    expected = fn(*held)
    with torch.no_grad():
        result = torch.compile(fn, dynamic=dynamic)(*device_args)
    assert torch.spyre.fallbacks() == {}, torch.spyre.fallbacks()
    assert torch.equal(result.cpu(), expected)
    assert torch.equal(device_args[0].cpu(), held[0])
