"""Scalar operations of KTIR as lane operations: one table row per operation.

The rows serve tensors, scalars and bodies of ``linalg.generic`` alike, since all of them are values of the
graph. Floats are computed in f32 and rounded once to the result type; integers live in 32-bit registers
and are wrapped to their width after operations that can leave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.graph import Graph
from torch_loom.scheduler.kernel import FLOATS, Value
from torch_loom.spyrecode.model import VecOp as V

FLOAT_OPS: dict[str, V] = {
    "arith.addf": V.ADD_F, "arith.subf": V.SUB_F, "arith.mulf": V.MUL_F, "arith.divf": V.DIV_F,
    "arith.remf": V.REM_F, "arith.negf": V.NEG_F, "arith.maximumf": V.MAX_F, "arith.minimumf": V.MIN_F,
    "arith.maxnumf": V.MAXNUM_F, "arith.minnumf": V.MINNUM_F,
    "math.exp": V.EXP, "math.exp2": V.EXP2, "math.expm1": V.EXPM1, "math.log": V.LOG, "math.log2": V.LOG2,
    "math.log1p": V.LOG1P, "math.sqrt": V.SQRT, "math.rsqrt": V.RSQRT, "math.tanh": V.TANH, "math.erf": V.ERF,
    "math.erfc": V.ERFC, "math.absf": V.ABS_F, "math.ceil": V.CEIL, "math.floor": V.FLOOR, "math.sin": V.SIN,
    "math.cos": V.COS, "math.tan": V.TAN, "math.asin": V.ASIN, "math.acos": V.ACOS, "math.atan": V.ATAN,
    "math.atan2": V.ATAN2, "math.sinh": V.SINH, "math.cosh": V.COSH, "math.asinh": V.ASINH,
    "math.acosh": V.ACOSH, "math.atanh": V.ATANH, "math.powf": V.POW, "math.fma": V.FMA_F,
    "math.roundeven": V.ROUND, "math.trunc": V.TRUNC,
    "spyreop.exp": V.EXP, "spyreop.sqrt": V.SQRT, "spyreop.rsqrt": V.RSQRT, "spyreop.reciprocal": V.RECIP,
    "spyreop.sigmoid": V.SIGMOID, "spyreop.silu": V.SILU, "spyreop.gelu": V.GELU, "spyreop.realdiv": V.DIV_F,
    "linalg.add": V.ADD_F, "linalg.sub": V.SUB_F, "linalg.mul": V.MUL_F, "linalg.div": V.DIV_F,
    "linalg.max": V.MAX_F, "linalg.min": V.MIN_F, "linalg.exp": V.EXP, "linalg.log": V.LOG,
    "linalg.sqrt": V.SQRT, "linalg.rsqrt": V.RSQRT, "linalg.tanh": V.TANH, "linalg.abs": V.ABS_F,
    "linalg.negf": V.NEG_F, "linalg.reciprocal": V.RECIP, "linalg.floor": V.FLOOR, "linalg.ceil": V.CEIL,
    "linalg.erf": V.ERF, "linalg.powf": V.POW, "linalg.round": V.ROUND,
}  # fmt: skip

INT_OPS: dict[str, V] = {
    "arith.addi": V.ADD_I, "arith.subi": V.SUB_I, "arith.muli": V.MUL_I, "arith.divsi": V.DIV_I,
    "arith.floordivsi": V.FLOORDIV_I, "arith.remsi": V.REM_I, "arith.divui": V.UDIV_I,
    "arith.remui": V.UREM_I,
    "arith.minsi": V.MIN_I, "arith.maxsi": V.MAX_I, "arith.andi": V.AND_I, "arith.ori": V.OR_I,
    "arith.xori": V.XOR_I, "arith.shli": V.SHL_I, "arith.shrsi": V.SHR_I, "arith.shrui": V.SHRU_I,
    "linalg.add": V.ADD_I, "linalg.sub": V.SUB_I, "linalg.mul": V.MUL_I, "linalg.max": V.MAX_I,
    "linalg.min": V.MIN_I, "spyreop.addi32toi32": V.ADD_I, "spyreop.muli32toi32": V.MUL_I,
}  # fmt: skip

MASK_OPS: dict[str, V] = {
    "arith.andi": V.AND_M, "arith.ori": V.OR_M, "arith.xori": V.XOR_M, "arith.muli": V.AND_M,
    "arith.addi": V.XOR_M, "arith.maxui": V.OR_M, "arith.minui": V.AND_M,
}  # fmt: skip

_WRAPS = {V.ADD_I, V.SUB_I, V.MUL_I, V.SHL_I}

_NARROW = ("i8", "i16")

#: Type of steps inside a row. A value may be put into LX anywhere, so a step has a type that holds all its bits.
_REGISTER = "i32"

CMPF = (
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)
CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")

FLAGS = {"equal": "oeq", "notequal": "une", "greaterthan": "ogt", "greaterequal": "oge", "lesserthan": "olt",
         "lesserequal": "ole"}  # fmt: skip
"""Predicates of spyreop.compare."""

_ORDERED = {"oeq": V.EQ_F, "ogt": V.GT_F, "oge": V.GE_F, "olt": V.LT_F, "ole": V.LE_F, "une": V.NE_F}
_UNORDERED = {"ugt": V.LE_F, "uge": V.LT_F, "ult": V.GE_F, "ule": V.GT_F}
_SIGNED = {"eq": V.EQ_I, "ne": V.NE_I, "slt": V.LT_I, "sle": V.LE_I, "sgt": V.GT_I, "sge": V.GE_I}


def elementwise(g: Graph, name: str, operands: list[Value], dtype: str) -> Value | None:
    """The value of one arith/math/spyreop/linalg elementwise operation, None if the name has no row."""
    first = operands[-1].dtype if operands else dtype
    if name in COMPOUND:
        return COMPOUND[name](g, operands, dtype)
    if first in FLOATS and name in FLOAT_OPS:
        return g.round(g.map(FLOAT_OPS[name], "f32", *operands), dtype)
    if first == "i1" and name in MASK_OPS:
        return g.map(MASK_OPS[name], "i1", *operands)
    if first not in FLOATS and name in INT_OPS:
        op = INT_OPS[name]
        if op in _WRAPS and dtype in _NARROW:
            return wrap(g, g.map(op, _REGISTER, *operands), dtype)
        return g.map(op, dtype, *operands)
    return None


def wrap(g: Graph, value: Value, dtype: str) -> Value:
    """Sign-extend the low bits of a register to the width of ``dtype``, which becomes the value's type."""
    if dtype not in _NARROW:
        return value if value.dtype == dtype else g.map(V.COPY, dtype, value)
    shift = g.const(24 if dtype == "i8" else 16, _REGISTER)
    return g.map(V.SHR_I, dtype, g.map(V.SHL_I, _REGISTER, value, shift), shift)


def compare_float(g: Graph, predicate: str, a: Value, b: Value) -> Value:
    """arith.cmpf"""
    if predicate in _ORDERED:
        return g.map(_ORDERED[predicate], "i1", a, b)
    if predicate in _UNORDERED:
        return negate(g, g.map(_UNORDERED[predicate], "i1", a, b))
    if predicate in ("one", "ueq"):
        differ = g.map(V.OR_M, "i1", g.map(V.LT_F, "i1", a, b), g.map(V.GT_F, "i1", a, b))
        return differ if predicate == "one" else negate(g, differ)
    if predicate in ("ord", "uno"):
        nan = g.map(V.OR_M, "i1", g.map(V.ISNAN, "i1", a), g.map(V.ISNAN, "i1", b))
        return nan if predicate == "uno" else negate(g, nan)
    return g.const(int(predicate == "true"), "i1", a.shape)


def compare_int(g: Graph, predicate: str, a: Value, b: Value) -> Value:
    """arith.cmpi"""
    if a.dtype == "i1":
        if predicate not in ("eq", "ne"):
            raise ScheduleError(f"cmpi {predicate} on masks is not supported", op="arith.cmpi", where=g.where)
        return g.map(V.EQ_F if predicate == "eq" else V.NE_F, "i1", a, b)
    if predicate in _SIGNED:
        return g.map(_SIGNED[predicate], "i1", a, b)
    if predicate in ("ugt", "uge"):
        a, b = b, a
    return g.map(V.ULT_I if predicate in ("ult", "ugt") else V.ULE_I, "i1", a, b)


def negate(g: Graph, mask: Value) -> Value:
    """Logical not."""
    return g.map(V.NOT_M, "i1", mask)


def select(g: Graph, cond: Value, a: Value, b: Value) -> Value:
    """arith.select"""
    return g.map(V.SELECT, a.dtype, cond, a, b)


# ---- rows that need more than one lane operation ---------------------------------------------------------

Row = Callable[[Graph, list[Value], str], Value]


def _copy(g: Graph, v: list[Value], dtype: str) -> Value:
    return g.map(V.COPY, dtype, v[0])


def _truncf(g: Graph, v: list[Value], dtype: str) -> Value:
    return g.round(v[0], dtype)


def _sitofp(g: Graph, v: list[Value], dtype: str) -> Value:
    if v[0].dtype == "i1":  # the signed value of a set bit is -1
        return g.map(V.NEG_F, dtype, v[0])
    return g.round(g.map(V.I_TO_F, "f32", v[0]), dtype)


def _uitofp(g: Graph, v: list[Value], dtype: str) -> Value:
    if v[0].dtype == "i1":
        return g.map(V.COPY, dtype, v[0])
    return g.round(g.map(V.U_TO_F, "f32", _zero_extended(g, v[0])), dtype)


def _fptosi(g: Graph, v: list[Value], dtype: str) -> Value:
    if dtype == "i1":
        return g.map(V.NE_F, "i1", v[0], g.const(0.0, v[0].dtype))
    return g.map(V.F_TO_I, dtype, v[0])


def _zero_extended(g: Graph, value: Value) -> Value:
    if value.dtype not in _NARROW:
        return value
    return g.map(V.AND_I, _REGISTER, value, g.const(0xFF if value.dtype == "i8" else 0xFFFF, _REGISTER))


def _extui(g: Graph, v: list[Value], dtype: str) -> Value:
    if v[0].dtype == "i1":
        return g.map(V.F_TO_I, dtype, v[0])
    return g.map(V.COPY, dtype, _zero_extended(g, v[0]))


def _extsi(g: Graph, v: list[Value], dtype: str) -> Value:
    if v[0].dtype == "i1":
        return g.map(V.F_TO_I, dtype, g.map(V.NEG_F, "f32", v[0]))
    return g.map(V.COPY, dtype, v[0])


def _trunci(g: Graph, v: list[Value], dtype: str) -> Value:
    if dtype == "i1":
        low = g.map(V.AND_I, "i32", v[0], g.const(1, v[0].dtype))
        return g.map(V.NE_I, "i1", low, g.const(0, "i32"))
    return wrap(g, v[0], dtype)


def _absi(g: Graph, v: list[Value], dtype: str) -> Value:
    negative = g.map(V.SUB_I, _REGISTER, g.const(0, _REGISTER), v[0])
    return wrap(g, g.map(V.MAX_I, _REGISTER, v[0], negative), dtype)


def _ceildivsi(g: Graph, v: list[Value], dtype: str) -> Value:
    zero = g.const(0, _REGISTER)
    floor = g.map(V.FLOORDIV_I, _REGISTER, g.map(V.SUB_I, _REGISTER, zero, v[0]), v[1])
    return wrap(g, g.map(V.SUB_I, _REGISTER, zero, floor), dtype)


def _unsigned_pick(larger: bool) -> Row:
    def row(g: Graph, v: list[Value], dtype: str) -> Value:
        a, b = (v[1], v[0]) if larger else (v[0], v[1])
        return g.map(V.SELECT, dtype, g.map(V.ULT_I, "i1", a, b), v[0], v[1])

    return row


def _copysign(g: Graph, v: list[Value], dtype: str) -> Value:
    size = g.map(V.ABS_F, "f32", v[0])
    negative = g.map(V.LT_F, "i1", v[1], g.const(0.0, v[1].dtype))
    return g.map(V.SELECT, dtype, negative, g.map(V.NEG_F, "f32", size), size)


def _log10(g: Graph, v: list[Value], dtype: str) -> Value:
    return g.round(g.map(V.MUL_F, "f32", g.map(V.LOG, "f32", v[0]), g.const(1 / math.log(10), "f32")), dtype)


def _square(g: Graph, v: list[Value], dtype: str) -> Value:
    return g.round(g.map(V.MUL_F, "f32", v[0], v[0]), dtype)


def _checked(g: Graph, v: list[Value], dtype: str) -> Value:
    return g.map(V.CHECK, dtype, v[0], v[1])


def _select(g: Graph, v: list[Value], dtype: str) -> Value:
    return select(g, v[0], v[1], v[2])


def _norm_scale(g: Graph, v: list[Value], dtype: str) -> Value:
    """1 / sqrt(x), or 1 / sqrt(squares - x * x)."""
    inside = v[0]
    if len(v) == 2:
        inside = g.map(V.SUB_F, "f32", v[1], g.map(V.MUL_F, "f32", v[0], v[0]))
    return g.round(g.map(V.RSQRT, "f32", inside), dtype)


def _norm(g: Graph, v: list[Value], dtype: str) -> Value:
    """(x - mean) * scale * weight + bias"""
    x, mean, scale, weight, bias = v
    scaled = g.map(V.MUL_F, "f32", g.map(V.MUL_F, "f32", g.map(V.SUB_F, "f32", x, mean), scale), weight)
    return g.round(g.map(V.ADD_F, "f32", scaled, bias), dtype)


def _half_up(g: Graph, v: list[Value], dtype: str) -> Value:
    """math.round: halves go away from zero."""
    size = g.map(V.FLOOR, "f32", g.map(V.ADD_F, "f32", g.map(V.ABS_F, "f32", v[0]), g.const(0.5, "f32")))
    return _copysign(g, [size, v[0]], dtype)


COMPOUND: dict[str, Row] = {
    "arith.extf": _copy, "arith.truncf": _truncf, "arith.sitofp": _sitofp, "arith.uitofp": _uitofp,
    "arith.fptosi": _fptosi, "arith.fptoui": _fptosi, "arith.extsi": _extsi, "arith.extui": _extui,
    "arith.trunci": _trunci, "arith.index_cast": _extsi, "arith.index_castui": _extui,
    "arith.ceildivsi": _ceildivsi, "arith.ceildivui": _ceildivsi, "arith.maxui": _unsigned_pick(True),
    "arith.minui": _unsigned_pick(False), "arith.select": _select, "linalg.select": _select,
    "spyreop.select": _select, "spyreop.layernormscale": _norm_scale,
    "spyreop.layernormnorm": _norm, "math.absi": _absi, "math.copysign": _copysign, "math.log10": _log10,
    "math.round": _half_up, "spyreop.checked": _checked, "linalg.square": _square, "linalg.copy": _copy,
}  # fmt: skip
