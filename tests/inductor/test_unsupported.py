"""What cannot be compiled is refused with the operator and the line that called it."""

from pathlib import Path

import pytest
import torch
from helpers import half


def doubled(a):
    return a.double() + 1


def narrowed_again(a):
    return (a.double() + 1).half()


def counted_in_doubles(a):
    return torch.arange(a.shape[-1], dtype=torch.float64, device=a.device).half() + a


def complex_numbers(a):
    return torch.complex(a.float(), a.float()).abs()


def float8_sum(a):
    return a.to(torch.float8_e4m3fn).float().sum()


@pytest.mark.parametrize(
    ("fn", "what", "operator"),
    [
        (doubled, "torch.float64", "aten._to_copy.default"),
        (narrowed_again, "torch.float64", "aten._to_copy.default"),
        (counted_in_doubles, "torch.float64", "aten.arange.default"),
        (complex_numbers, "torch.complex64", "aten.complex.default"),
        (float8_sum, "torch.float8_e4m3fn", "aten._to_copy.default"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_operator_and_its_line_are_named(fn, what, operator):
    torch._dynamo.reset()
    line = fn.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError, match="Spyre backend does not support") as caught:
        torch.compile(fn)(half(4, 64).to("spyre"))
    message = str(caught.value)
    assert what in message
    assert f"{operator} at {Path(__file__)}:{line}" in message
    with torch.no_grad():  # and the device goes on working
        assert torch.equal(torch.compile(torch.neg)(half(4, 64).to("spyre")).cpu(), -half(4, 64).to("spyre").cpu())
