"""Special functions in float32 against the host's."""

import pytest
import torch
from helpers import check

X = torch.linspace(-6, 6, 401) + 0.013
P = torch.linspace(0.01, 20, 300)
ANY = ["i0", "i0e", "i1", "i1e", "erfcx", "ndtr", "log_ndtr", "bessel_j0", "bessel_j1", "spherical_bessel_j0"]
POSITIVE = [
    "gammaln", "psi", "bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
]  # fmt: skip


@pytest.mark.parametrize("name", ANY)
def test_functions_of_any_number(name):
    check(getattr(torch.special, name), X, absolute=4e-6)


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name):
    check(getattr(torch.special, name), P, absolute=4e-6)


def test_inverse_error_functions():
    u = torch.linspace(-0.999, 0.999, 301)
    check(torch.erfinv, u)
    check(torch.special.ndtri, u.abs().clamp(min=1e-3))


def wide(a):
    """The host's values in float64."""
    return a.double() if a.device.type == "cpu" else a


def test_zeta_and_polygamma():
    check(torch.special.zeta, P + 1.1, P.flip(0) + 0.1, absolute=1e-5)
    check(lambda a: torch.polygamma(1, a), P, absolute=1e-5)
    near_poles = torch.tensor([-3.004, -2.9985, -0.01, -5.99])  # the host's float32 is inexact there
    for n in (1, 2, 3):
        check(lambda a, n=n: torch.polygamma(n, wide(a)), torch.cat([X, near_poles]), absolute=1e-5)
    check(lambda a: torch.polygamma(12, a), P + 0.5, absolute=1e-5)
    for fn in (torch.digamma, torch.lgamma):
        check(lambda a, fn=fn: fn(wide(a)), near_poles)
    check(lambda a: torch.special.zeta(2.0, a), torch.tensor([0.0, -1.0, -2.0]))
    check(lambda a: torch.polygamma(3, a), P + 0.5, absolute=1e-5)


def test_shape_of_numbers():
    check(torch.hypot, X, X.flip(0))
    check(torch.copysign, X, X.flip(0))
    check(torch.signbit, X)
    check(lambda a: torch.frexp(a)[0], X * 100)
    check(lambda a: torch.frexp(a)[1], X * 100)


def test_powers_of_integers_are_exact():
    check(lambda a: a**5, torch.arange(-40, 40))
    check(lambda a, b: a**b, torch.arange(-40, 40), torch.arange(80) % 5)


def test_bytes():
    check(lambda a: a * 3 + 1, torch.arange(256, dtype=torch.uint8))
    check(lambda a: (a.int() * 3).to(torch.int8).int() + 1, torch.arange(-128, 128).to(torch.int8))
    check(lambda a: a.to(torch.uint8).int() + 1, torch.arange(300))
    check(lambda a: (a.int() + 77).to(torch.uint8), torch.arange(-300, 300))
    check(lambda a: (a - 7).amax(0), torch.arange(250, dtype=torch.uint8).view(50, 5))
    check(lambda a, i: a[i.int()], torch.arange(100, dtype=torch.uint8), torch.arange(65, dtype=torch.uint8))


def test_a_narrow_result_that_another_node_reads_has_wrapped():
    def twice(a):
        b = a * 3
        return b, b.int() + 1

    for dtype in (torch.uint8, torch.int8, torch.int16):
        check(lambda a: torch.stack([x.int() for x in twice(a)]), torch.arange(128).to(dtype))
        check(lambda a: (a * 300 - 5) // 3 + (~a > 7), torch.arange(128).to(dtype))
