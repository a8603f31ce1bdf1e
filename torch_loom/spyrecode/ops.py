"""Facts about the lane operations: operand counts, immediates, and what each register holds.

A register holds a float, an int32, or either (SELECT and COPY move bits). The types are checked when a
program is validated, so that a chip never reinterprets a float as an integer unnoticed.
"""

from __future__ import annotations

from torch_loom.spyrecode.model import VecOp

_O = VecOp

FLOAT, INT, ANY = "f", "i", "?"

# op -> (types of a, b, c; type of the result). "?" must be one type for all "?" of the op.
_SIGNATURES: dict[str, list[VecOp]] = {
    " f": [_O.CONST_F, _O.SCALAR_F],
    " i": [_O.CONST_I, _O.SCALAR_I, _O.IOTA],
    "f f": [
        *(_O.NEG_F, _O.ABS_F, _O.EXP, _O.EXP2, _O.EXPM1, _O.LOG, _O.LOG2, _O.LOG1P, _O.SQRT, _O.RSQRT),
        *(_O.RECIP, _O.TANH, _O.ERF, _O.SIGMOID, _O.SILU, _O.GELU, _O.SIN, _O.COS, _O.FLOOR, _O.CEIL),
        *(_O.ROUND, _O.TRUNC, _O.NOT_M, _O.ROUND_DF16, _O.ROUND_F16, _O.ROUND_BF16, _O.TAN, _O.ASIN),
        *(_O.ACOS, _O.ATAN, _O.SINH, _O.COSH, _O.ASINH, _O.ACOSH, _O.ATANH, _O.ISNAN, _O.ISINF),
        *(_O.ERFC, _O.LGAMMA),
    ],
    "ff f": [
        *(_O.ADD_F, _O.SUB_F, _O.MUL_F, _O.DIV_F, _O.MAX_F, _O.MIN_F, _O.MAXNUM_F, _O.MINNUM_F, _O.POW),
        *(_O.EQ_F, _O.NE_F, _O.LT_F, _O.LE_F, _O.GT_F, _O.GE_F, _O.AND_M, _O.OR_M, _O.XOR_M),
        *(_O.REM_F, _O.ATAN2),
    ],
    "fff f": [_O.FMA_F, _O.SOFTPLUS],
    "f?? ?": [_O.SELECT],
    "fi i": [_O.CHECK],
    "? ?": [_O.COPY],
    "ii i": [
        *(_O.ADD_I, _O.SUB_I, _O.MUL_I, _O.MIN_I, _O.MAX_I, _O.FLOORDIV_I, _O.DIV_I, _O.REM_I, _O.AND_I),
        *(_O.OR_I, _O.XOR_I, _O.SHL_I, _O.SHR_I, _O.SHRU_I, _O.UDIV_I, _O.UREM_I, _O.MULHI_I),
    ],
    "ii f": [_O.EQ_I, _O.NE_I, _O.LT_I, _O.LE_I, _O.GT_I, _O.GE_I, _O.ULT_I, _O.ULE_I],
    "f i": [_O.F_TO_I],
    "i f": [_O.I_TO_F, _O.U_TO_F],
}

SIGNATURE: dict[VecOp, tuple[str, str]] = {
    op: (sig.split(" ")[0], sig.split(" ")[1]) for sig, ops in _SIGNATURES.items() for op in ops
}

FLOAT_IMM = frozenset({_O.CONST_F})
INT_IMM = frozenset({_O.CONST_I, _O.SCALAR_F, _O.SCALAR_I, _O.IOTA})
