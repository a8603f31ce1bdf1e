"""Every lane operation against NumPy/SciPy in double precision; tolerances in ulps of fp32."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.special as sp
from chip_run import df16, df16_value, run
from spyrecode_samples import ex, map_program

from torch_loom.spyrecode.model import Arg, ArgKind, Elem, Scope, Slot, Symbol, SymbolKind, VecOp, VOp
from torch_loom.spyrecode.ops import SIGNATURE

rng = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38], np.float32)


def spread(low: float, high: float, n: int = 900) -> np.ndarray:
    """Floats between powers of ten, both signs, plus small integers and halves."""
    values = 10.0 ** rng.uniform(low, high, n) * rng.choice([-1, 1], n)
    return np.concatenate([values, np.arange(-10, 10, 0.5)]).astype(np.float32)


def evaluate(op: VecOp, *inputs: np.ndarray) -> np.ndarray:
    """The operation on arrays of one length; integers travel as int32."""
    count = len(inputs[0])
    elems = [Elem.I32 if a.dtype == np.int32 else Elem.F32 for a in inputs]
    result = Elem.I32 if SIGNATURE[op][1] == "i" or (op in BITS and elems[-1] is Elem.I32) else Elem.F32
    out = np.zeros(count, np.int32 if result is Elem.I32 else np.float32)
    regs = (*range(len(inputs)), 0, 0, 0)[:3]
    program = map_program([VOp(op, len(inputs), *regs)], elems, result, count)
    return run(program, [*inputs, out])[-1]


BITS = {VecOp.SELECT, VecOp.COPY}


def assert_ulps(got: np.ndarray, exact: np.ndarray, ulps: float, absolute: float = 0.0) -> None:
    """|got - exact| within ulps of fp32 at the exact value; NaN and infinity exactly."""
    with np.errstate(all="ignore"):
        expected = exact.astype(np.float32)
        special = ~np.isfinite(expected)
        np.testing.assert_array_equal(got[special], expected[special])
        error = np.abs(got.astype(np.float64) - exact)[~special]
        spacing = np.spacing(np.maximum(np.abs(expected[~special]), np.finfo(np.float32).tiny)).astype(np.float64)
        worst = (error - absolute) / spacing
    assert np.isfinite(error).all()
    at = int(np.argmax(worst)) if len(worst) else 0
    assert not len(worst) or worst[at] <= ulps, (worst[at], exact[~special][at], got[~special][at])


# op -> (function in double precision, range of the argument as powers of ten, ulps, special values too)
UNARY: dict[VecOp, tuple[Callable, tuple[float, float], float]] = {
    VecOp.NEG_F: (np.negative, (-30, 30), 0),
    VecOp.ABS_F: (np.abs, (-30, 30), 0),
    VecOp.EXP: (np.exp, (-8, 1.94), 2),
    VecOp.EXP2: (np.exp2, (-8, 2.09), 2),
    VecOp.EXPM1: (np.expm1, (-8, 1.94), 2),
    VecOp.LOG: (np.log, (-37, 37), 1.5),
    VecOp.LOG2: (np.log2, (-37, 37), 2.5),
    VecOp.LOG1P: (np.log1p, (-10, 30), 3),
    VecOp.SQRT: (np.sqrt, (-37, 37), 0.5),
    VecOp.RSQRT: (lambda x: 1 / np.sqrt(x), (-37, 37), 1.5),
    VecOp.RECIP: (lambda x: 1 / x, (-30, 30), 0.5),
    VecOp.TANH: (np.tanh, (-8, 2), 3),
    VecOp.ERF: (sp.erf, (-8, 1), 3),
    VecOp.SIGMOID: (sp.expit, (-8, 1.9), 3.5),
    VecOp.SIN: (np.sin, (-8, 3), 2.5),
    VecOp.COS: (np.cos, (-8, 3), 2.5),
    VecOp.FLOOR: (np.floor, (-3, 10), 0),
    VecOp.CEIL: (np.ceil, (-3, 10), 0),
    VecOp.ROUND: (np.rint, (-3, 10), 0),
    VecOp.TRUNC: (np.trunc, (-3, 10), 0),
    VecOp.TAN: (np.tan, (-8, 3), 2),
    VecOp.ASIN: (np.arcsin, (-8, 0.2), 2),
    VecOp.ACOS: (np.arccos, (-8, 0.2), 2),
    VecOp.ATAN: (np.arctan, (-8, 8), 2),
    VecOp.SINH: (np.sinh, (-8, 1.9), 3),
    VecOp.COSH: (np.cosh, (-8, 1.9), 3),
    VecOp.ASINH: (np.arcsinh, (-8, 8), 3),
    VecOp.ACOSH: (np.arccosh, (-1, 8), 3),
    VecOp.ATANH: (np.arctanh, (-8, 0.1), 3),
    VecOp.ISNAN: (lambda x: np.isnan(x) * 1.0, (-3, 3), 0),
    VecOp.ISINF: (lambda x: np.isinf(x) * 1.0, (-3, 3), 0),
    VecOp.ERFC: (sp.erfc, (-8, 0.95), 4),
    VecOp.NOT_M: (lambda x: (x == 0) * 1.0, (-3, 3), 0),
    VecOp.COPY: (lambda x: x, (-30, 30), 0),
}


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.name)
def test_unary_operations(op):
    exact, (low, high), ulps = UNARY[op]
    x = np.concatenate([spread(low, high), SPECIAL])
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64))
    # sin and cos near their zeros: the reduction keeps an absolute error of a few 1e-7 of pi / 2's tail.
    absolute = 1e-7 if op in (VecOp.SIN, VecOp.COS) else 0.0
    assert_ulps(evaluate(op, x), expected, ulps, absolute)


def test_sine_of_large_arguments():
    x = np.array([1e4, -3e5, 1e10, 3e30], np.float32)
    assert_ulps(evaluate(VecOp.SIN, x), np.sin(x.astype(np.float64)), 1)
    assert_ulps(evaluate(VecOp.COS, x), np.cos(x.astype(np.float64)), 1)


@pytest.mark.parametrize(
    ("op", "exact", "relative_to"),
    [
        (VecOp.SILU, lambda x: x * sp.expit(x), lambda x: np.abs(x)),
        (VecOp.GELU, lambda x: 0.5 * x * (1 + sp.erf(x / np.sqrt(2))), lambda x: np.abs(x)),
        (VecOp.LGAMMA, sp.gammaln, lambda x: np.abs(sp.gammaln(x)) + 1),
    ],
    ids=["SILU", "GELU", "LGAMMA"],
)
def test_activations(op, exact, relative_to):
    """GELU and SILU cancel for large negative arguments: the error is relative to the argument."""
    x = spread(-6, 1.5)
    x = x[x != 0]
    x = np.abs(x) + 0.01 if op is VecOp.LGAMMA else x
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    error = np.abs(evaluate(op, x) - exact(wide)) / relative_to(wide)
    assert error.max() <= 3e-7


def test_softplus_and_its_threshold():
    x = np.linspace(-30, 40, 500).astype(np.float32)
    beta, threshold = np.full_like(x, 2.0), np.full_like(x, 20.0)
    wide = x.astype(np.float64)
    exact = np.where(2 * wide > 20, wide, np.log1p(np.exp(2 * wide)) / 2)
    assert_ulps(evaluate(VecOp.SOFTPLUS, x, beta, threshold), exact, 4)


def pairs() -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    x, y = spread(-5, 5, 700), spread(-5, 5, 700)
    x[:50] = y[:50]
    return np.concatenate([a.ravel(), x]), np.concatenate([b.ravel(), y])


def fmax(a, b):  # NaN if either is
    return np.maximum(a, b)


FLOAT2: dict[VecOp, tuple[Callable, float]] = {
    VecOp.ADD_F: (np.add, 0.5),
    VecOp.SUB_F: (np.subtract, 0.5),
    VecOp.MUL_F: (np.multiply, 0.5),
    VecOp.DIV_F: (np.divide, 0.5),
    VecOp.MAX_F: (np.maximum, 0),
    VecOp.MIN_F: (np.minimum, 0),
    VecOp.MAXNUM_F: (np.fmax, 0),
    VecOp.MINNUM_F: (np.fmin, 0),
    VecOp.EQ_F: (np.equal, 0),
    VecOp.NE_F: (np.not_equal, 0),
    VecOp.LT_F: (np.less, 0),
    VecOp.LE_F: (np.less_equal, 0),
    VecOp.GT_F: (np.greater, 0),
    VecOp.GE_F: (np.greater_equal, 0),
    VecOp.AND_M: (lambda a, b: (a != 0) & (b != 0), 0),
    VecOp.OR_M: (lambda a, b: (a != 0) | (b != 0), 0),
    VecOp.XOR_M: (lambda a, b: (a != 0) ^ (b != 0), 0),
    VecOp.REM_F: (np.fmod, 0),
    VecOp.ATAN2: (np.arctan2, 2),
}


@pytest.mark.parametrize("op", FLOAT2, ids=lambda op: op.name)
def test_binary_float_operations(op):
    exact, ulps = FLOAT2[op]
    a, b = pairs()
    with np.errstate(all="ignore"):
        expected = np.asarray(exact(a.astype(np.float64), b.astype(np.float64)), np.float64)
    assert_ulps(evaluate(op, a, b), expected, ulps + 1e-6)


def test_power():
    a, b = np.abs(spread(-2, 2, 500)), spread(-2, 0.9, 500)
    with np.errstate(all="ignore"):
        assert_ulps(evaluate(VecOp.POW, a, b), a.astype(np.float64) ** b.astype(np.float64), 1)


def test_fma_rounds_once():
    a = np.full(16, np.float32(1 + 2**-12))
    c = np.full(16, np.float32(-(1 + 2**-11)))
    assert (evaluate(VecOp.FMA_F, a, a, c) == np.float32(2.0**-24)).all()


def integers() -> tuple[np.ndarray, np.ndarray]:
    edge = np.array([0, 1, -1, 2, -2, 7, -7, 31, 32, 33, -33, 2**31 - 1, -(2**31)], np.int32)
    a, b = np.meshgrid(edge, edge)
    x = rng.integers(-(2**31), 2**31, 500, dtype=np.int64).astype(np.int32)
    y = rng.integers(-1000, 1000, 500).astype(np.int32)
    return np.concatenate([a.ravel(), x]), np.concatenate([b.ravel(), y])


def wrap(values: np.ndarray) -> np.ndarray:
    return (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def quotient(a, b):  # toward zero, 0 for a divisor of 0
    safe = np.where(b == 0, 1, b)
    q = np.abs(a) // np.abs(safe)
    return np.where(b == 0, 0, np.where((a < 0) != (safe < 0), -q, q))


def unsigned(a):
    return a & 0xFFFFFFFF


INT2: dict[VecOp, Callable] = {
    VecOp.ADD_I: lambda a, b: a + b,
    VecOp.SUB_I: lambda a, b: a - b,
    VecOp.MUL_I: lambda a, b: a * b,
    VecOp.MIN_I: np.minimum,
    VecOp.MAX_I: np.maximum,
    VecOp.FLOORDIV_I: lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b)),
    VecOp.DIV_I: quotient,
    VecOp.REM_I: lambda a, b: np.where(b == 0, 0, a - quotient(a, b) * b),
    VecOp.AND_I: lambda a, b: a & b,
    VecOp.OR_I: lambda a, b: a | b,
    VecOp.XOR_I: lambda a, b: a ^ b,
    VecOp.SHL_I: lambda a, b: np.where((b < 0) | (b > 31), 0, unsigned(a) << np.clip(b, 0, 31)),
    VecOp.SHR_I: lambda a, b: a >> np.where((b < 0) | (b > 31), 31, b),
    VecOp.SHRU_I: lambda a, b: np.where((b < 0) | (b > 31), 0, unsigned(a) >> np.clip(b, 0, 31)),
    VecOp.UDIV_I: lambda a, b: np.where(b == 0, 0, unsigned(a) // np.where(b == 0, 1, unsigned(b))),
    VecOp.UREM_I: lambda a, b: np.where(b == 0, 0, unsigned(a) % np.where(b == 0, 1, unsigned(b))),
    VecOp.MULHI_I: lambda a, b: (a * b) >> 32,
    VecOp.EQ_I: np.equal,
    VecOp.NE_I: np.not_equal,
    VecOp.LT_I: np.less,
    VecOp.LE_I: np.less_equal,
    VecOp.GT_I: np.greater,
    VecOp.GE_I: np.greater_equal,
    VecOp.ULT_I: lambda a, b: unsigned(a) < unsigned(b),
    VecOp.ULE_I: lambda a, b: unsigned(a) <= unsigned(b),
}


@pytest.mark.parametrize("op", INT2, ids=lambda op: op.name)
def test_binary_integer_operations(op):
    a, b = integers()
    expected = INT2[op](a.astype(np.int64), b.astype(np.int64))
    got = evaluate(op, a, b)
    if SIGNATURE[op][1] == "f":
        np.testing.assert_array_equal(got, expected.astype(np.float32))
    else:
        np.testing.assert_array_equal(got, wrap(expected))


def test_float_to_int_is_toward_zero_and_saturates():
    x = np.array([1.9, -1.9, 0.5, 2**31, -(2**31), 3e9, -3e9, np.inf, -np.inf, np.nan, 2147483520], np.float32)
    top, bottom = 2**31 - 1, -(2**31)
    expected = [1, -1, 0, top, bottom, top, bottom, top, bottom, 0, 2147483520]
    np.testing.assert_array_equal(evaluate(VecOp.F_TO_I, x), np.array(expected, np.int32))


def test_int_to_float_signed_and_unsigned():
    x, _ = integers()
    np.testing.assert_array_equal(evaluate(VecOp.I_TO_F, x), x.astype(np.float32))
    np.testing.assert_array_equal(evaluate(VecOp.U_TO_F, x), x.view(np.uint32).astype(np.float32))


def test_select_moves_floats_and_integers():
    mask = np.array([0, 1, 2, np.nan, -0.0], np.float32)
    a, b = np.arange(5, dtype=np.int32), -np.arange(5, dtype=np.int32)
    np.testing.assert_array_equal(evaluate(VecOp.SELECT, mask, a, b), np.array([0, 1, 2, 3, -4], np.int32))
    x, y = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal(evaluate(VecOp.SELECT, mask, x, y), np.array([0, 1, 2, 3, -4], np.float32))


def test_a_check_passes_values_and_stops_at_a_flag():
    from torch_loom import _chip

    value = np.arange(1100, dtype=np.int32) - 5
    flags = np.zeros(1100, np.float32)
    np.testing.assert_array_equal(evaluate(VecOp.CHECK, flags, value), value)
    flags[1099] = 1
    with pytest.raises(_chip.ChipError, match="int64 value does not fit .* are 1094") as caught:
        evaluate(VecOp.CHECK, flags, value)
    assert caught.value.code == "DEV-10"


def test_rounding_to_narrow_formats_in_a_register():
    x = spread(-5, 5)
    expected = np.array([df16_value(int(c)) for c in df16(x)], np.float32)
    np.testing.assert_array_equal(evaluate(VecOp.ROUND_DF16, x), expected)
    np.testing.assert_array_equal(
        evaluate(VecOp.ROUND_F16, np.clip(x, -6e4, 6e4)),
        np.clip(x, -6e4, 6e4).astype(np.float16).astype(np.float32),
    )
    import torch

    np.testing.assert_array_equal(evaluate(VecOp.ROUND_BF16, x), torch.from_numpy(x).bfloat16().float().numpy())


def test_constants_scalars_and_index():
    """Constants, a float argument, an integer argument and the index along the nest."""
    n = 300
    ops = [
        VOp(VecOp.CONST_F, 1, imm=0.1),
        VOp(VecOp.SCALAR_F, 2, imm=2),
        VOp(VecOp.IOTA, 3, imm=0),
        VOp(VecOp.CONST_I, 4, imm=-3),
        VOp(VecOp.SCALAR_I, 5, imm=3),
        VOp(VecOp.MUL_I, 6, 3, 4),
        VOp(VecOp.ADD_I, 7, 6, 5),
        VOp(VecOp.I_TO_F, 8, 7),
        VOp(VecOp.MUL_F, 9, 1, 2),
        VOp(VecOp.ADD_F, 10, 8, 9),
        VOp(VecOp.ADD_F, 11, 10, 0),
    ]
    program = map_program(
        ops,
        [Elem.F32],
        Elem.F32,
        n,
        symbols=(
            Symbol("f", SymbolKind.SCALAR, 2),
            Symbol("k", SymbolKind.SCALAR, 3, minimum=-100),
        ),
        slots=(Slot(ex("s2"), Scope.LAUNCH), Slot(ex("s3", 1, "+"), Scope.LAUNCH)),
        extra_args=(Arg("f", ArgKind.FLOAT), Arg("k", ArgKind.INT)),
    )
    x = rng.standard_normal(n).astype(np.float32)
    got = run(program, [x, np.zeros(n, np.float32), -2.5, -7])[1]
    product = np.float32(0.1) * np.float32(-2.5)
    expected = (np.arange(n) * -3 - 6).astype(np.float32) + product + x
    np.testing.assert_array_equal(got, expected)


def test_every_operation_has_a_test():
    tested = {*UNARY, *FLOAT2, *INT2, VecOp.SILU, VecOp.GELU, VecOp.LGAMMA, VecOp.SOFTPLUS, VecOp.POW}
    tested |= {VecOp.FMA_F, VecOp.F_TO_I, VecOp.I_TO_F, VecOp.U_TO_F, VecOp.SELECT, VecOp.ROUND_DF16}
    tested |= {VecOp.ROUND_F16, VecOp.ROUND_BF16, VecOp.CONST_F, VecOp.CONST_I, VecOp.SCALAR_F}
    tested |= {VecOp.SCALAR_I, VecOp.IOTA, VecOp.CHECK}
    assert tested == set(VecOp)
