"""``math`` as KTIR uses it: xDSL's ops on scalars and tensors with the assembly and checks of upstream_arith."""

from __future__ import annotations

from typing import cast

from xdsl.dialects import math as xm
from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, traits_def
from xdsl.traits import Pure

from torch_loom.dialects.upstream_arith import float_op, int_op

_FLOAT_UNARY: list[type[IRDLOperation]] = [
    op for op in xm.Math.operations if issubclass(op, xm.FloatingPointLikeUnaryMathOperation)
]
_FLOAT_BINARY: list[type[IRDLOperation]] = [
    op for op in xm.Math.operations if issubclass(op, xm.FloatingPointLikeBinaryMathOperation)
]
_INT_UNARY: list[type[IRDLOperation]] = [
    op for op in xm.Math.operations if issubclass(op, xm.SignlessIntegerLikeUnaryMathOperation)
]
_INT_BINARY: list[type[IRDLOperation]] = [
    op for op in xm.Math.operations if issubclass(op, xm.SignlessIntegerLikeBinaryMathOperation)
]


@irdl_op_definition
class _ErfcOp(xm.FloatingPointLikeUnaryMathOperation):
    """Complementary error function."""

    name = "math.erfc"

    traits = traits_def(Pure())


_REFINED: list[type[IRDLOperation]] = [
    *(float_op(base, 1) for base in _FLOAT_UNARY),
    float_op(_ErfcOp, 1),
    *(float_op(base, 2) for base in _FLOAT_BINARY),
    *(int_op(base, 1) for base in _INT_UNARY),
    *(int_op(base, 2) for base in _INT_BINARY),
    float_op(cast(type[IRDLOperation], xm.FmaOp), 3),
]
MATH_OPS = {op.name: op for op in _REFINED}

Math = Dialect("math", [*MATH_OPS.values(), xm.FPowIOp], [])

__all__ = ["MATH_OPS", "Math"]
