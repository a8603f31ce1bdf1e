"""Bodies of named ``linalg`` ops, as upstream's generic form spells them."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, IntegerType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from torch_loom.dialects import upstream_arith as arith
from torch_loom.dialects import upstream_math as math
from torch_loom.dialects.elements import element_bits, element_of, is_float
from torch_loom.dialects.upstream_linalg_base import YieldOp

SCALARS: dict[str, type[Operation]] = {op.name: op for op in (*arith.Arith.operations, *math.Math.operations)}


def scalar_op(name: str, operands: Sequence[SSAValue], kind: Attribute) -> Operation:
    """An elementwise scalar op with its default flags."""
    cls = SCALARS[name]
    properties = dict(getattr(cls, "DEFAULTS", {}))
    return cls.create(operands=operands, result_types=[kind], properties=properties)


def _cast(value: SSAValue, kind: Attribute, ops: list[Operation]) -> SSAValue:
    """``value`` in the element type ``kind``, as upstream casts the inputs of named ops (signed)."""
    source = value.type
    if source == kind:
        return value
    wider = (element_bits(kind) or 0) > (element_bits(source) or 0)
    if is_float(source) and is_float(kind):
        name = "arith.extf" if wider else "arith.truncf"
    elif is_float(source):
        name = "arith.fptosi"
    elif is_float(kind):
        name = "arith.sitofp"
    elif isinstance(source, IntegerType) and isinstance(kind, IntegerType):
        name = "arith.extsi" if wider else "arith.trunci"
    else:
        name = "arith.index_cast"
    ops.append(scalar_op(name, [value], kind))
    return ops[-1].results[0]


def elementwise_body(name: str, types: Sequence[Attribute]) -> Region:
    """The body of an elementwise op over operands of these types (the output last)."""
    block = Block(arg_types=[element_of(t) for t in types])
    kind = block.args[-1].type
    ops: list[Operation] = []
    inputs: list[SSAValue] = list(block.args[:-1])
    first = 1 if name == "arith.select" else 0
    values = [*inputs[:first], *(_cast(v, kind, ops) for v in inputs[first:])]
    if name == "copy":
        result = values[0]
    else:
        if name == "reciprocal":
            one = FloatAttr(1.0, kind)  # type: ignore[call-overload]
            ops.append(arith.ConstantOp.create(result_types=[kind], properties={"value": one}))
            name, values = "arith.divf", [ops[-1].results[0], values[0]]
        elif name == "square":
            name, values = "arith.mulf", [values[0], values[0]]
        ops.append(scalar_op(name, values, kind))
        result = ops[-1].results[0]
    block.add_ops([*ops, YieldOp.create(operands=[result])])
    return Region(block)


def contraction_body(types: Sequence[Attribute]) -> Region:
    """The body of a contraction over lhs, rhs and output of these types."""
    block = Block(arg_types=[element_of(t) for t in types])
    a, b, c = block.args
    kind = c.type
    ops: list[Operation] = []
    lhs, rhs = _cast(a, kind, ops), _cast(b, kind, ops)
    multiply, add = ("arith.mulf", "arith.addf") if is_float(kind) else ("arith.muli", "arith.addi")
    ops.append(scalar_op(multiply, [lhs, rhs], kind))
    ops.append(scalar_op(add, [c, ops[-1].results[0]], kind))
    block.add_ops([*ops, YieldOp.create(operands=[ops[-1].results[0]])])
    return Region(block)
