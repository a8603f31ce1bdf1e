"""int64 in compiled kernels: exact where 32 bits hold it, one error where they do not, never a wrapped value."""

import itertools
import operator

import pytest
import torch
from helpers import check

from torch_loom.inductor.operand import HIGHEST, LOWEST
from torch_loom.inductor.wide import RANGES, fits

BEYOND = "int64 value does not fit in the 32 bits"
TOP, BOTTOM = 2**31 - 1, -(2**31)


def refused(fn, *args, match=BEYOND):
    """``fn`` compiles, its launch stops with an error that names the kernel and the line, and the device goes on."""
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(RuntimeError, match=match) as caught:
        torch.compile(fn, dynamic=False)(*(a.to("spyre") for a in args)).cpu()
    assert "loom_fused" in str(caught.value) and "test_int64.py" in str(caught.value)


def edges():
    return torch.tensor([0, 1, -1, 46340, -46340, TOP, BOTTOM, BOTTOM + 1]).repeat(9)[:70]


def together(*fns):
    """All results in one tensor, from one graph."""
    return lambda *args: torch.stack([f(*args) for f in fns])


def test_values_at_the_edges_of_32_bits_are_exact():
    x, small = edges(), torch.arange(70) % 9 - 4
    check(together(lambda a: a // 7, lambda a: a % 7, lambda a: a % -11, lambda a: a & 12345, lambda a: ~a), x)
    check(together(lambda a, b: a ^ b, lambda a, b: a >> 40, lambda a, b: a >> b.abs()), x, small)
    check(together(torch.minimum, lambda a, b: a.clamp(-5, 2**40), lambda a, b: torch.where(a > 0, b, a)), x, small)
    check(together(lambda a: a < 2**40, lambda a: a == -(2**40), lambda a: a > 2**31, lambda a: a != 2**31), x)
    check(together(lambda a: a - 1, lambda a: a * -1, torch.abs, lambda a: a + 5 - 6), x.clamp(BOTTOM + 1, TOP - 5))
    check(
        together(lambda a: a * a, lambda a: a**2, lambda a: (a // 36) ** 3, lambda a: (a // 23000) << 29),
        x.clamp(-46340, 46340),
    )


OVERFLOWS = {
    "add": (lambda a: a + 1, TOP),
    "add of tensors": (lambda a: a + a.flip(0), -(2**30) - 1),
    "sub": (lambda a: a - 3, BOTTOM + 2),
    "neg": (operator.neg, BOTTOM),
    "abs": (torch.abs, BOTTOM),
    "mul": (lambda a: a * 65536, 32768),
    "mul of tensors": (lambda a: a * a, 46341),
    "pow": (lambda a: a**5, 74),
    "shift": (lambda a: a << 20, 2048),
    "division": (lambda a: a // -1, BOTTOM),
    "sum": (lambda a: a.sum(), 2**31 // 70 + 1),
    "sum of rows": (lambda a: a.view(7, 10).sum(1), 2**31 // 10 + 1),
    "cumsum": (lambda a: a.cumsum(0), 2**31 // 70 + 1),
    "prod": (lambda a: a.prod(), 2),
    "product of matrices": (lambda a: a.view(7, 10) @ a.view(10, 7), 14655),
    "from float": (lambda a: (a.float() * 2).long(), 2**30),
    "comparison": (lambda a: a * 2 > 0, 2**30),
    "to float": (lambda a: (a * 2).float(), 2**30),
    "index": (lambda a: a[a * 4], 2**30),
    "arange": (lambda a: torch.arange(0, 70 * 2**26, 2**26, device=a.device) + a, 0),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_what_leaves_32_bits_is_refused(name):
    fn, value = OVERFLOWS[name]
    refused(fn, torch.full((70,), value))


def test_what_is_not_selected_may_overflow():
    check(lambda a: torch.where(a.abs() < 1000, a * 1000, a), torch.tensor([5, TOP, -999, -TOP]))
    check(lambda a: a.clamp(max=1000) * 1000, torch.tensor([5, TOP, 999]))


def test_a_float_that_is_no_int64_of_the_device():
    check(lambda a: a.long(), torch.tensor([1.9, -1.9, 2.0**31 - 128, -(2.0**31)]))
    for value in (float("nan"), float("inf"), -(2.0**31) - 256):
        refused(lambda a: a.long(), torch.tensor([1.0, value]))


def test_sums_of_any_length_and_sign_are_exact():
    generator = torch.Generator().manual_seed(3)
    for shape in ((3, 20000), (70, 334), (2, 300000)):
        x = torch.randint(BOTTOM, TOP, shape, generator=generator)
        x[:, 1::2] = -x[:, 0::2] + 7  # sums of large terms that cancel
        check(lambda a: a.sum(-1), x)
    refused(lambda a: a.sum(-1), torch.full((2, 300000), 7200))


def test_a_number_beyond_32_bits_is_refused_when_compiling():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="does not support: the integer 1099511627776"):
        torch.compile(lambda a: a + 2**40, dynamic=False)(torch.arange(4).to("spyre"))


def test_int32_wraps_as_in_torch():
    x = edges().int()
    check(lambda a: torch.stack([a + 1, a * a, a - 2, -a, a.abs()]), x)
    check(lambda a: a.view(7, 10).sum(1, dtype=torch.int32), x)
    check(lambda a: a.view(7, 10) @ a.view(10, 7), x)


def test_matrices_of_integers():
    x, y = torch.arange(60).view(2, 5, 6) - 30, torch.arange(84).view(2, 6, 7)
    check(torch.bmm, x, y)
    check(lambda a, b: torch.addmm(b[0, :5, :1], a[0], b[0]), x, y)


@pytest.mark.parametrize("name", RANGES)
def test_ranges_hold_all_results(name):
    exact = {
        "arith.addi": operator.add,
        "arith.subi": operator.sub,
        "arith.muli": operator.mul,
        "arith.minsi": min,
        "arith.maxsi": max,
        "arith.andi": operator.and_,
        "arith.ori": operator.or_,
        "arith.xori": operator.xor,
        "arith.shli": lambda a, b: a << b if 0 <= b < 32 else 0,
        "arith.shrsi": lambda a, b: a >> b if 0 <= b < 32 else a >> 31,
        "arith.divsi": lambda a, b: (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0,
        "arith.floordivsi": lambda a, b: a // b if b else 0,
        "arith.remsi": lambda a, b: a - b * ((abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)) if b else 0,
    }[name]
    spans = [(-3, 4), (0, 5), (-5, -2), (2, 2), (-1, -1), (0, 31), (1, 40)]
    for x, y in itertools.product(spans, spans):
        low, high = RANGES[name](x, y)
        results = [exact(a, b) for a in range(x[0], x[1] + 1) for b in range(y[0], y[1] + 1)]
        assert low <= min(results) and max(results) <= high, (x, y)
    assert fits((LOWEST, HIGHEST)) and not fits((LOWEST, HIGHEST + 1))
