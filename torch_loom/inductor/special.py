"""Special functions in float32, built from the elementary ones.

Formulas: Abramowitz and Stegun (A&S), Handbook of Mathematical Functions, with the numbers of their equations; the
inverse error function after M. Giles, Approximating the erfinv function (2010). Errors are a few float32 roundings of
the largest term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .values import Algebra, Number, Operand


@dataclass(frozen=True)
class Term:
    """A float32 value with Python's operators, so that formulas read as in the book."""

    a: Algebra
    x: Operand

    def _two(self, name: str, y: Term | float, turned: bool = False) -> Term:
        other = y.x if isinstance(y, Term) else Number(float(y), "f32")
        operands = [other, self.x] if turned else [self.x, other]
        return Term(self.a, self.a.apply(name, operands, "f32"))

    def __add__(self, y: Term | float) -> Term:
        return self._two("arith.addf", y)

    def __radd__(self, y: float) -> Term:
        return self._two("arith.addf", y)

    def __sub__(self, y: Term | float) -> Term:
        return self._two("arith.subf", y)

    def __rsub__(self, y: float) -> Term:
        return self._two("arith.subf", y, turned=True)

    def __mul__(self, y: Term | float) -> Term:
        return self._two("arith.mulf", y)

    def __rmul__(self, y: float) -> Term:
        return self._two("arith.mulf", y)

    def __truediv__(self, y: Term | float) -> Term:
        return self._two("arith.divf", y)

    def __rtruediv__(self, y: float) -> Term:
        return self._two("arith.divf", y, turned=True)

    def __neg__(self) -> Term:
        return 0.0 - self

    def __lt__(self, y: Term | float) -> Term:
        return self._two("arith.cmpf olt", y)

    def __le__(self, y: Term | float) -> Term:
        return self._two("arith.cmpf ole", y)

    def __gt__(self, y: Term | float) -> Term:
        return self._two("arith.cmpf ogt", y)

    def same(self, y: Term | float) -> Term:
        """x == y"""
        return self._two("arith.cmpf oeq", y)

    def power(self, y: Term | float) -> Term:
        """x to the power y"""
        return self._two("math.powf", y)

    def one(self, name: str) -> Term:
        """A function of the math dialect."""
        return Term(self.a, self.a.apply(f"math.{name}", [self.x], "f32"))

    def choose(self, yes: Term | float, no: Term | float) -> Term:
        """yes where this truth value holds, else no"""
        from .pointwise import select

        parts = [v.x if isinstance(v, Term) else Number(float(v), "f32") for v in (yes, no)]
        return Term(self.a, select(self.a, self.x, *parts))


def poly(t: Term, coefficients: Sequence[float]) -> Term:
    """c0 + c1 t + c2 t^2 + .."""
    total = t * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        total = total * t + c
    return total


# ---- gamma and its kin ------------------------------------------------------------------------------------

# Bernoulli numbers B2, B4, .. of the asymptotic series.
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _reflected(x: Term) -> tuple[Term, Term]:
    """(is x left of 1/2?, 1 - x there and x elsewhere)"""
    left = x < 0.5
    return left, left.choose(1.0 - x, x)


def _beside(x: Term) -> Term:
    """pi times the distance from the nearest integer, which is exact where sines are near 0"""
    return (x - (x + 0.5).one("floor")) * math.pi


def lgamma(x: Term) -> Term:
    """log |gamma(x)|: A&S 6.1.41 beyond 8, 6.1.15 below, 6.1.17 left of 1/2; infinite at the poles."""
    left, z = _reflected(x)
    small = z < 8.0
    product = poly(z, (0.0, 5040.0, 13068.0, 13132.0, 6769.0, 1960.0, 322.0, 28.0, 1.0))  # z (z+1) .. (z+7)
    big = small.choose(z + 8.0, z)
    r = 1.0 / big
    tail = r * poly(r * r, (1 / 12, -1 / 360, 1 / 1260, -1 / 1680))
    value = (big - 0.5) * big.one("log") - big + (0.5 * math.log(2 * math.pi)) + tail
    value = small.choose(value - product.one("log"), value)
    whole = x.one("floor").same(x)
    sine = _beside(x).one("absf").one("sin")
    turned = math.log(math.pi) - sine.one("log") - value
    turned = whole.choose(math.inf, turned)
    return x.one("absf").same(math.inf).choose(math.inf, left.choose(turned, value))


def digamma(x: Term) -> Term:
    """A&S 6.3.18 beyond 6, 6.3.5 below, 6.3.7 left of 1/2; -inf at 0, NaN at the other poles."""
    left, z = _reflected(x)
    total, small = Term(x.a, Number(0.0, "f32")), z < 6.0
    for k in range(6):
        total = total + 1.0 / (z + float(k))
    big = small.choose(z + 6.0, z)
    r = 1.0 / (big * big)
    value = big.one("log") - 0.5 / big - r * poly(r, (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132))
    value = small.choose(value - total, value)
    angle = _beside(x)
    turned = value - math.pi * angle.one("cos") / angle.one("sin")
    turned = x.one("floor").same(x).choose(x.same(0.0).choose(-math.inf, math.nan), turned)
    return left.choose(turned, value)


def zeta(s: Term, q: Term) -> Term:
    """Hurwitz zeta for s > 1, q > 0: A&S 23.1.5 by Euler and Maclaurin (3.6.28) from the ninth term; inf at the
    poles, NaN left of zero."""
    total = q.power(-s)
    for k in range(1, 9):
        total = total + (q + float(k)).power(-s)
    far = q + 9.0
    last = far.power(-s)
    total = total + last * far / (s - 1.0) + 0.5 * last
    factor, step = s, last / far
    for j, b in enumerate(BERNOULLI[:6]):
        total = total + factor * step * (b / math.factorial(2 * j + 2))
        factor = factor * (s + float(2 * j + 1)) * (s + float(2 * j + 2))
        step = step / (far * far)
    left = q.one("floor").same(q).choose(math.inf, math.nan)
    total = (q < 0.0).choose(left, q.same(0.0).choose(math.inf, total))
    return s.same(1.0).choose(math.inf, (s < 1.0).choose(math.nan, total))


FACTORIALS = 34  # the first that is no float32 any more is that of 35


def polygamma(n: Term, x: Term) -> Term:
    """n-th derivative of digamma: A&S 6.4.10; left of zero 6.4.7 for n up to 3 and NaN beyond."""
    factorial = (n < 2.0).choose(1.0, 2.0)
    for k in range(3, FACTORIALS + 1):
        factorial = factorial * (n < float(k)).choose(1.0, float(k))
    factorial = (n > float(FACTORIALS)).choose(math.inf, factorial)
    sign = ((n * 0.5).one("floor") * 2.0).same(n).choose(-1.0, 1.0)
    turned = (x < 0.0).choose((n < 4.0).choose(1.0 - x, x), x)
    value = sign * factorial * zeta(n + 1.0, turned)
    angle = _beside(x)
    sine, cosine = angle.one("sin") * (1.0 / math.pi), angle.one("cos")
    square = sine * sine
    one = 1.0 / square - value
    two = value - 2.0 * cosine / (square * sine)
    three = 2.0 * (1.0 + 2.0 * cosine * cosine) / (square * square) - value
    left = n.same(1.0).choose(one, n.same(2.0).choose(two, three))
    return n.same(0.0).choose(digamma(x), turned.same(x).choose(value, left))


# ---- error functions --------------------------------------------------------------------------------------

GILES_NEAR = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
GILES_FAR = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
    0.000100950558, -0.000200214257,
)  # fmt: skip


def _inverse(x: Term, product: Term) -> Term:
    """erfinv(x) with the product (1 - x)(1 + x) given."""
    w = -product.one("log")
    near = w < 5.0
    value = near.choose(poly(w - 2.5, GILES_NEAR), poly(w.one("sqrt") - 3.0, GILES_FAR)) * x
    return product.same(0.0).choose(x * math.inf, value)


def erfinv(x: Term) -> Term:
    """Inverse of erf."""
    return _inverse(x, (1.0 - x) * (1.0 + x))


def ndtri(p: Term) -> Term:
    """Quantile of the normal distribution."""
    return math.sqrt(2.0) * _inverse(2.0 * p - 1.0, 4.0 * p * (1.0 - p))


def erfcx(x: Term) -> Term:
    """exp(x^2) erfc(x): A&S 7.1.23 beyond 5."""
    r = 1.0 / (x * x)
    far = poly(r, (1.0, -0.5, 0.75, -1.875, 6.5625)) / (x * math.sqrt(math.pi))
    return (x > 5.0).choose(far, (x * x).one("exp") * x.one("erfc"))


def ndtr(x: Term) -> Term:
    """Normal distribution function."""
    return 0.5 * (x * -math.sqrt(0.5)).one("erfc")


def log_ndtr(x: Term) -> Term:
    """log of the normal distribution function, without cancellation on the left."""
    t = x * -math.sqrt(0.5)
    left = (0.5 * erfcx(t)).one("log") - t * t
    return (x < -1.0).choose(left, (-0.5 * (-t).one("erfc")).one("log1p"))


# ---- Bessel functions: A&S 9.4 and 9.8 ----------------------------------------------------------------------

I0_NEAR = (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813)
I0_FAR = (
    0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537, -0.01647633, 0.00392377,
)  # fmt: skip
I1_NEAR = (0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411)
I1_FAR = (
    0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312, 0.01787654, -0.00420059,
)  # fmt: skip
K0_NEAR = (-0.57721566, 0.42278420, 0.23069756, 0.03488590, 0.00262698, 0.00010750, 0.00000740)
K0_FAR = (1.25331414, -0.07832358, 0.02189568, -0.01062446, 0.00587872, -0.00251540, 0.00053208)
K1_NEAR = (1.0, 0.15443144, -0.67278579, -0.18156897, -0.01919402, -0.00110404, -0.00004686)
K1_FAR = (1.25331414, 0.23498619, -0.03655620, 0.01504268, -0.00780353, 0.00325614, -0.00068245)
J0_NEAR = (1.0, -2.2499997, 1.2656208, -0.3163866, 0.0444479, -0.0039444, 0.0002100)
F0 = (0.79788456, -0.00000077, -0.00552740, -0.00009512, 0.00137237, -0.00072805, 0.00014476)
T0 = (-0.78539816, -0.04166397, -0.00003954, 0.00262573, -0.00054125, -0.00029333, 0.00013558)
J1_NEAR = (0.5, -0.56249985, 0.21093573, -0.03954289, 0.00443319, -0.00031761, 0.00001109)
F1 = (0.79788456, 0.00000156, 0.01659667, 0.00017105, -0.00249511, 0.00113653, -0.00020033)
T1 = (-2.35619449, 0.12499612, 0.00005650, -0.00637879, 0.00074348, 0.00079824, -0.00029166)
Y0_NEAR = (0.36746691, 0.60559366, -0.74350384, 0.25300117, -0.04261214, 0.00427916, -0.00024846)
Y1_NEAR = (-0.6366198, 0.2212091, 2.1682709, -1.3164827, 0.3123951, -0.0400976, 0.0027873)


def _modified(x: Term, near: Sequence[float], far: Sequence[float], odd: bool, scaled: bool) -> Term:
    """I0 or I1, times exp(-|x|) if scaled."""
    size = x.one("absf")
    t = x * (1 / 3.75)
    inside = poly(t * t, near)
    outside = poly(3.75 / size, far) / size.one("sqrt")
    if scaled:
        inside = inside * (-size).one("exp")
    else:
        outside = outside * size.one("exp")
    if odd:
        inside, outside = inside * x, (x < 0.0).choose(-outside, outside)
    return (size < 3.75).choose(inside, outside)


def _second(x: Term, order: int, scaled: bool) -> Term:
    """K0 or K1, times exp(x) if scaled."""
    t = x * x * 0.25
    log = (0.5 * x).one("log")
    if order == 0:
        inside = poly(t, K0_NEAR) - log * _modified(x, I0_NEAR, I0_FAR, False, False)
    else:
        inside = poly(t, K1_NEAR) / x + log * _modified(x, I1_NEAR, I1_FAR, True, False)
    outside = poly(2.0 / x, K0_FAR if order == 0 else K1_FAR) / x.one("sqrt")
    if scaled:
        inside = inside * x.one("exp")
    else:
        outside = outside * (-x).one("exp")
    value = (x <= 2.0).choose(inside, outside)
    return x.same(0.0).choose(math.inf, (x < 0.0).choose(math.nan, value))


def _wave(x: Term, size: Sequence[float], phase: Sequence[float], sine: bool) -> Term:
    """Amplitude and phase form for x >= 3."""
    u = 3.0 / x
    angle = x + poly(u, phase)
    return poly(u, size) * angle.one("sin" if sine else "cos") / x.one("sqrt")


def bessel_j0(x: Term) -> Term:
    """J0: A&S 9.4.1, 9.4.3"""
    size, t = x.one("absf"), x * (1 / 3)
    return (size < 3.0).choose(poly(t * t, J0_NEAR), _wave(size, F0, T0, False))


def bessel_j1(x: Term) -> Term:
    """J1: A&S 9.4.4, 9.4.6"""
    size, t = x.one("absf"), x * (1 / 3)
    far = _wave(size, F1, T1, False)
    return (size < 3.0).choose(x * poly(t * t, J1_NEAR), (x < 0.0).choose(-far, far))


def bessel_y0(x: Term) -> Term:
    """Y0: A&S 9.4.2, 9.4.3"""
    t = x * (1 / 3)
    near = (2 / math.pi) * (0.5 * x).one("log") * bessel_j0(x) + poly(t * t, Y0_NEAR)
    value = (x < 3.0).choose(near, _wave(x, F0, T0, True))
    return x.same(0.0).choose(-math.inf, (x < 0.0).choose(math.nan, value))


def bessel_y1(x: Term) -> Term:
    """Y1: A&S 9.4.5, 9.4.6"""
    t = x * (1 / 3)
    near = (2 / math.pi) * (0.5 * x).one("log") * bessel_j1(x) + poly(t * t, Y1_NEAR) / x
    value = (x < 3.0).choose(near, _wave(x, F1, T1, True))
    return x.same(0.0).choose(-math.inf, (x < 0.0).choose(math.nan, value))


def spherical_bessel_j0(x: Term) -> Term:
    """sin(x) / x: A&S 10.1.2 near 0"""
    near = poly(x * x, (1.0, -1 / 6, 1 / 120, -1 / 5040))
    return (x.one("absf") < 0.5).choose(near, x.one("absf").same(math.inf).choose(0.0, x.one("sin") / x))


# ---- orthogonal polynomials: A&S 22.3.15, 22.3.16 -----------------------------------------------------------


def _chebyshev(kind: str, shift: bool = False) -> Callable[..., Term]:
    def value(x: Term, n: Term) -> Term:
        if shift:
            x = 2.0 * x - 1.0
        n = n.one("trunc")
        odd = ((n * 0.5).one("floor") * 2.0).same(n).choose(1.0, -1.0)
        size = x.one("absf")
        flat, steep = size.one("acos"), size.one("acosh")
        circle = {
            "t": lambda f, s, g: (n * f).one(g),
            "u": lambda f, s, g: ((n + 1.0) * f).one(s) / f.one(s),
            "v": lambda f, s, g: ((n + 0.5) * f).one(g) / (0.5 * f).one(g),
            "w": lambda f, s, g: ((n + 0.5) * f).one(s) / (0.5 * f).one(s),
        }
        at_one = {"t": n * 0.0 + 1.0, "u": n + 1.0, "v": n * 0.0 + 1.0, "w": 2.0 * n + 1.0}

        def right(which: str) -> Term:
            inside = circle[which](flat, "sin", "cos")
            outside = circle[which](steep, "sinh", "cosh")
            return size.same(1.0).choose(at_one[which], (size < 1.0).choose(inside, outside))

        mirror = {"t": "t", "u": "u", "v": "w", "w": "v"}[kind]
        value = (x < 0.0).choose(odd * right(mirror), right(kind))
        return (n < 0.0).choose(0.0, value)

    return value


# ---- shape of numbers -------------------------------------------------------------------------------------


def signbit(x: Term) -> Term:
    """Is the sign negative? Zero tells by its reciprocal."""
    return x.same(0.0).choose(1.0 / x, x) < 0.0


def copysign(x: Term, y: Term) -> Term:
    """|x| with the sign of y"""
    size = x.one("absf")
    return signbit(y).choose(-size, size)


def hypot(x: Term, y: Term) -> Term:
    """sqrt(x^2 + y^2) without overflow"""
    p, q = x.one("absf"), y.one("absf")
    high, low = (p < q).choose(q, p), (p < q).choose(p, q)
    ratio = low / high
    value = high * (1.0 + ratio * ratio).one("sqrt")
    return high.same(0.0).choose(0.0, high.same(math.inf).choose(math.inf, value))


def ldexp(x: Term, n: Term) -> Term:
    """x * 2^n"""
    return x * n.one("exp2")


def frexp(x: Term) -> tuple[Term, Term]:
    """(m, e) with x = m * 2^e and 1/2 <= |m| < 1; (x, 0) for zero, infinities and NaN"""
    size = x.one("absf")
    plain = (size > 0.0).choose((size < math.inf).choose(1.0, 0.0), 0.0)
    e = (plain > 0.0).choose(size, 1.0).one("log2").one("floor") + 1.0
    m = x * (-e).one("exp2")
    for low in (True, False):  # the logarithm is rounded
        wrong = m.one("absf") < 0.5 if low else 1.0 - m.one("absf") <= 0.0
        m = wrong.choose(m * (2.0 if low else 0.5), m)
        e = wrong.choose(e + (-1.0 if low else 1.0), e)
    return (plain > 0.0).choose(m, x), (plain > 0.0).choose(e, 0.0)


UNARY: dict[str, Callable[[Term], Term]] = {
    "lgamma": lgamma, "digamma": digamma, "erfinv": erfinv, "ndtri": ndtri, "erfcx": erfcx, "ndtr": ndtr,
    "log_ndtr": log_ndtr, "bessel_j0": bessel_j0, "bessel_j1": bessel_j1, "bessel_y0": bessel_y0,
    "bessel_y1": bessel_y1, "spherical_bessel_j0": spherical_bessel_j0, "signbit": signbit,
    "i0": lambda x: _modified(x, I0_NEAR, I0_FAR, False, False),
    "i0e": lambda x: _modified(x, I0_NEAR, I0_FAR, False, True),
    "i1": lambda x: _modified(x, I1_NEAR, I1_FAR, True, False),
    "i1e": lambda x: _modified(x, I1_NEAR, I1_FAR, True, True),
    "modified_bessel_i0": lambda x: _modified(x, I0_NEAR, I0_FAR, False, False),
    "modified_bessel_i1": lambda x: _modified(x, I1_NEAR, I1_FAR, True, False),
    "modified_bessel_k0": lambda x: _second(x, 0, False), "modified_bessel_k1": lambda x: _second(x, 1, False),
    "scaled_modified_bessel_k0": lambda x: _second(x, 0, True),
    "scaled_modified_bessel_k1": lambda x: _second(x, 1, True),
}  # fmt: skip
BINARY: dict[str, Callable[[Term, Term], Term]] = {
    "zeta": zeta, "polygamma": polygamma, "copysign": copysign, "hypot": hypot, "ldexp": ldexp,
    **{f"chebyshev_polynomial_{k}": _chebyshev(k) for k in "tuvw"},
    **{f"shifted_chebyshev_polynomial_{k}": _chebyshev(k, shift=True) for k in "tuvw"},
}  # fmt: skip


def special(a: Algebra, name: str, operands: Sequence[Operand]) -> Operand | None:
    """Apply a special function; None when there is no such row."""
    row: Callable[..., Term] | None = UNARY.get(name) or BINARY.get(name)
    if row is None:
        return None
    a.infinite = True  # poles
    return row(*(Term(a, a.cast(x, "f32")) for x in operands)).x
