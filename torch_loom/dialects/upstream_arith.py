"""``arith`` and ``math`` as KTIR uses them: every elementwise op on scalars and on tensors.

Each class refines xDSL's class of the same op, so code written against ``xdsl.dialects.arith`` keeps working. The
refinement is one table: xDSL restricts comparisons, casts and select to scalars and lacks a few ops; and a shared
hand-written assembly reads these ops, which are most of a kernel, several times faster than the declarative one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast

from xdsl.dialects import arith as xa
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    TensorType,
    UnitAttr,
    i1,
    i64,
)
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.elements import element_bits, element_of, is_float, is_integer, shape_of, with_element
from torch_loom.dialects.errors import parse_error, require

NO_FASTMATH = xa.FastMathFlagsAttr("none")
NO_OVERFLOW = xa.IntegerOverflowAttr("none")

OpT = TypeVar("OpT", bound=IRDLOperation)


# ---- shared assembly ---------------------------------------------------------------------------


def parse_flags(parser: Parser, properties: dict[str, Attribute]) -> dict[str, Attribute]:
    """Read the optional flags between operands and types, and the attribute dictionary."""
    while True:
        word = parser._current_token.text
        if word == "fastmath":
            parser._consume_token()
            properties["fastmath"] = xa.FastMathFlagsAttr(xa.FastMathFlagsAttr.parse_parameter(parser))
        elif word == "overflow":
            parser._consume_token()
            flags = xa.IntegerOverflowAttr.parse_parameter(parser)
            properties["overflowFlags"] = xa.IntegerOverflowAttr(flags)
        elif word == "exact":
            parser._consume_token()
            properties["isExact"] = UnitAttr()
        elif word == "nneg":
            parser._consume_token()
            properties["nonNeg"] = UnitAttr()
        elif word == "to_nearest_even":
            parser._consume_token()
        elif word in ("downward", "upward", "toward_zero", "to_nearest_away"):
            parse_error(parser, "KT-P00", f"rounding mode '{word}' does not exist on the device; use to_nearest_even")
        else:
            return parser.parse_optional_attr_dict() if word == "{" else {}


def print_flags(printer: Printer, op: Operation) -> None:
    fastmath = op.properties.get("fastmath")
    if isinstance(fastmath, xa.FastMathFlagsAttr) and fastmath.data:
        printer.print_string(f" fastmath<{_flag_text(fastmath.data, FastMathFlag, 'fast')}>")
    overflow = op.properties.get("overflowFlags")
    if isinstance(overflow, xa.IntegerOverflowAttr) and overflow.data:
        printer.print_string(f" overflow<{_flag_text(overflow.data, xa.IntegerOverflowFlag, None)}>")
    if "isExact" in op.properties:
        printer.print_string(" exact")
    if "nonNeg" in op.properties:
        printer.print_string(" nneg")
    asm.print_dictionary(printer, op.attributes)


def _flag_text(flags: frozenset[Any], kind: Any, everything: str | None) -> str:
    if everything is not None and len(flags) == len(kind):
        return everything
    return ",".join(str(f.value) for f in kind if f in flags)


class _SameType:
    """``op %a, %b flags : T`` where operands and result have one type."""

    DEFAULTS: ClassVar[dict[str, Attribute]]
    ARITY: ClassVar[int]

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Parse operands, flags and the common type."""
        names = [parser.parse_unresolved_operand()]
        for _ in range(cls.ARITY - 1):
            parser.parse_punctuation(",")
            names.append(parser.parse_unresolved_operand())
        properties = dict(cls.DEFAULTS)
        attributes = parse_flags(parser, properties)
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        operands = [parser.resolve_operand(name, kind) for name in names]
        return cls.create(  # type: ignore[attr-defined]
            operands=operands, result_types=[kind], properties=properties, attributes=attributes
        )

    def print(self: Any, printer: Printer) -> None:
        """Print operands, flags and the common type."""
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_flags(printer, self)
        printer.print_string(" : ")
        printer.print_attribute(self.results[0].type)

    def check(self: Any) -> None:
        """Operand count, one type, element kind."""
        operands, results = self.operands, self.results
        _require_counts(self, self.ARITY)
        kind = results[0].type
        for operand in operands:
            if operand.type is not kind and operand.type != kind:
                raise_types(self, f"takes operands and result of one type, got {operand.type} and {kind}")
        if not self.ELEMENTS(element_of(kind)):
            raise_types(self, f"does not take {kind}")


def raise_types(op: Operation, message: str) -> None:
    """A type error of an upstream op."""
    require(False, "KT-V19", f"{op.name} {message}")


def _require_counts(op: Operation, operands: int) -> None:
    require(
        len(op.operands) == operands and len(op.results) == 1 and not op.regions and not op.successors,
        "KT-V19",
        f"{op.name} takes {operands} operands and has one result, got {len(op.operands)} and {len(op.results)}",
    )


class _Cast:
    """``op %a flags : T to U``, shapes equal."""

    DEFAULTS: ClassVar[dict[str, Attribute]]

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Parse the operand, flags and both types."""
        name = parser.parse_unresolved_operand()
        properties = dict(cls.DEFAULTS)
        attributes = parse_flags(parser, properties)
        parser.parse_punctuation(":")
        operand = parser.resolve_operand(name, parser.parse_type())
        parser.parse_keyword("to")
        return cls.create(  # type: ignore[attr-defined]
            operands=[operand], result_types=[parser.parse_type()], properties=properties, attributes=attributes
        )

    def print(self: Any, printer: Printer) -> None:
        """Print the operand, flags and both types."""
        printer.print_string(" ")
        printer.print_ssa_value(self.operands[0])
        print_flags(printer, self)
        printer.print_string(" : ")
        printer.print_attribute(self.operands[0].type)
        printer.print_string(" to ")
        printer.print_attribute(self.results[0].type)

    def check(self: Any) -> None:
        """Shapes equal, element kinds and widths as the cast demands."""
        _require_counts(self, 1)
        source, target = self.operands[0].type, self.results[0].type
        if shape_of(source) != shape_of(target):
            raise_types(self, f"keeps the shape, got {source} to {target}")
        if not self.ELEMENTS(element_of(source), element_of(target)):
            raise_types(self, f"cannot turn {source} into {target}")


def derive(base: type[OpT], mixin: type[Any], **members: Any) -> type[OpT]:
    """A refinement of an xDSL op: the mixin's assembly and its ``check`` as verifier."""
    namespace = {"__module__": __name__, "__doc__": base.__doc__, "verify_": mixin.check, **members}
    return cast(type[OpT], type(base)(base.__name__.removeprefix("_"), (mixin, base), namespace))  # type: ignore[misc]


def float_op(base: type[OpT], arity: int) -> type[OpT]:
    return derive(base, _SameType, ARITY=arity, DEFAULTS={"fastmath": NO_FASTMATH}, ELEMENTS=staticmethod(is_float))


def int_op(base: type[OpT], arity: int = 2, wraps: bool = False) -> type[OpT]:
    defaults = {"overflowFlags": NO_OVERFLOW} if wraps else {}
    return derive(base, _SameType, ARITY=arity, DEFAULTS=defaults, ELEMENTS=staticmethod(is_integer))


def _cast(
    base: type[OpT], rule: Callable[[Attribute, Attribute], bool], flags: dict[str, Attribute] | None = None
) -> type[OpT]:
    defaults = flags or {}
    return derive(base, _Cast, DEFAULTS=defaults, ELEMENTS=staticmethod(rule))


# ---- arith -------------------------------------------------------------------------------------

AddfOp = float_op(xa.AddfOp, 2)
SubfOp = float_op(xa.SubfOp, 2)
MulfOp = float_op(xa.MulfOp, 2)
DivfOp = float_op(xa.DivfOp, 2)
MaximumfOp = float_op(xa.MaximumfOp, 2)
MinimumfOp = float_op(xa.MinimumfOp, 2)
MaxnumfOp = float_op(xa.MaxnumfOp, 2)
MinnumfOp = float_op(xa.MinnumfOp, 2)
NegfOp = float_op(xa.NegfOp, 1)


@irdl_op_definition
class _RemfOp(xa.FloatingPointLikeBinaryOperation):
    """Remainder with the sign of the dividend."""

    name = "arith.remf"

    traits = traits_def(Pure())


RemfOp = float_op(_RemfOp, 2)

AddiOp = int_op(xa.AddiOp, wraps=True)
SubiOp = int_op(xa.SubiOp, wraps=True)
MuliOp = int_op(xa.MuliOp, wraps=True)
ShLIOp = int_op(xa.ShLIOp, wraps=True)
DivUIOp = int_op(xa.DivUIOp)
DivSIOp = int_op(xa.DivSIOp)
FloorDivSIOp = int_op(xa.FloorDivSIOp)
CeilDivSIOp = int_op(xa.CeilDivSIOp)
CeilDivUIOp = int_op(xa.CeilDivUIOp)
RemUIOp = int_op(xa.RemUIOp)
RemSIOp = int_op(xa.RemSIOp)
MinSIOp = int_op(xa.MinSIOp)
MaxSIOp = int_op(xa.MaxSIOp)
MinUIOp = int_op(xa.MinUIOp)
MaxUIOp = int_op(xa.MaxUIOp)
AndIOp = int_op(xa.AndIOp)
OrIOp = int_op(xa.OrIOp)
XOrIOp = int_op(xa.XOrIOp)
ShRUIOp = int_op(xa.ShRUIOp)
ShRSIOp = int_op(xa.ShRSIOp)


def _wider(a: Attribute, b: Attribute) -> bool:
    return (element_bits(b) or 0) > (element_bits(a) or 0)


def _float_extend(a: Attribute, b: Attribute) -> bool:
    return is_float(a) and is_float(b) and _wider(a, b)


def _float_truncate(a: Attribute, b: Attribute) -> bool:
    return is_float(a) and is_float(b) and _wider(b, a)


def _plain(kind: Attribute) -> bool:
    return isinstance(kind, IntegerType)


def _index_cast(a: Attribute, b: Attribute) -> bool:
    return is_integer(a) and is_integer(b) and isinstance(a, IndexType) != isinstance(b, IndexType)


def _bit_cast(a: Attribute, b: Attribute) -> bool:
    return (is_float(a) or _plain(a)) and (is_float(b) or _plain(b)) and element_bits(a) == element_bits(b)


ExtFOp = _cast(xa.ExtFOp, _float_extend, {"fastmath": NO_FASTMATH})
TruncFOp = _cast(xa.TruncFOp, _float_truncate, {"fastmath": NO_FASTMATH})
ExtSIOp = _cast(xa.ExtSIOp, lambda a, b: _plain(a) and _plain(b) and _wider(a, b))
ExtUIOp = _cast(xa.ExtUIOp, lambda a, b: _plain(a) and _plain(b) and _wider(a, b))
TruncIOp = _cast(xa.TruncIOp, lambda a, b: _plain(a) and _plain(b) and _wider(b, a), {"overflowFlags": NO_OVERFLOW})
SIToFPOp = _cast(xa.SIToFPOp, lambda a, b: _plain(a) and is_float(b))
UIToFPOp = _cast(xa.UIToFPOp, lambda a, b: _plain(a) and is_float(b))
FPToSIOp = _cast(xa.FPToSIOp, lambda a, b: is_float(a) and _plain(b))
FPToUIOp = _cast(xa.FPToUIOp, lambda a, b: is_float(a) and _plain(b))
IndexCastOp = _cast(xa.IndexCastOp, _index_cast)
BitcastOp = _cast(xa.BitcastOp, _bit_cast)


@irdl_op_definition
class _IndexCastUIOp(IRDLOperation):
    """Unsigned conversion between index and integers."""

    name = "arith.index_castui"

    input = operand_def()
    result = result_def()

    traits = traits_def(Pure())


IndexCastUIOp = _cast(_IndexCastUIOp, _index_cast)


class _Compare:
    """``op predicate, %a, %b flags : T`` with an i1 result of the same shape."""

    DEFAULTS: ClassVar[dict[str, Attribute]]
    PREDICATES: ClassVar[Sequence[str]]

    def __init__(self: Any, operand1: Any, operand2: Any, arg: int | str, fastmath: Attribute | None = None) -> None:
        value = SSAValue.get(operand1)
        number = list(self.PREDICATES).index(arg) if isinstance(arg, str) else arg
        properties = {"predicate": IntegerAttr(number, i64), **self.DEFAULTS}
        if fastmath is not None:
            properties["fastmath"] = fastmath
        IRDLOperation.__init__(
            self,
            operands=[value, operand2],
            result_types=[with_element(value.type, i1)],
            properties=properties,
        )

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Parse the predicate, operands, flags and the operand type."""
        span = parser._current_token.span
        word = parser.parse_identifier()
        if word not in cls.PREDICATES:
            parse_error(parser, "KT-P01", f"unknown predicate '{word}'; known: {', '.join(cls.PREDICATES)}", span)
        parser.parse_punctuation(",")
        lhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rhs = parser.parse_unresolved_operand()
        properties = {"predicate": IntegerAttr(cls.PREDICATES.index(word), i64), **cls.DEFAULTS}
        attributes = parse_flags(parser, properties)
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        return cls.create(  # type: ignore[attr-defined]
            operands=[parser.resolve_operand(lhs, kind), parser.resolve_operand(rhs, kind)],
            result_types=[with_element(kind, i1)],
            properties=properties,
            attributes=attributes,
        )

    def print(self: Any, printer: Printer) -> None:
        """Print the predicate, operands, flags and the operand type."""
        printer.print_string(f" {self.what}, ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_flags(printer, self)
        printer.print_string(" : ")
        printer.print_attribute(self.operands[0].type)

    @property
    def what(self: Any) -> str:
        """The predicate by name."""
        predicate = self.properties.get("predicate")
        number = predicate.value.data if isinstance(predicate, IntegerAttr) else -1
        require(0 <= number < len(self.PREDICATES), "KT-V19", f"{self.name} has no predicate number {number}")
        return self.PREDICATES[number]

    def check(self: Any) -> None:
        """Operands of one type, result i1 of that shape."""
        _require_counts(self, 2)
        assert self.what
        lhs, rhs = self.operands[0].type, self.operands[1].type
        if lhs != rhs or not self.ELEMENTS(element_of(lhs)):
            raise_types(self, f"does not compare {lhs} and {rhs}")
        if self.results[0].type != with_element(lhs, i1):
            raise_types(self, f"yields {with_element(lhs, i1)}, not {self.results[0].type}")


CmpiOp = derive(
    xa.CmpiOp, _Compare, DEFAULTS={}, PREDICATES=xa.CMPI_COMPARISON_OPERATIONS, ELEMENTS=staticmethod(is_integer)
)
CmpfOp = derive(
    xa.CmpfOp,
    _Compare,
    DEFAULTS={"fastmath": NO_FASTMATH},
    PREDICATES=xa.CMPF_COMPARISON_OPERATIONS,
    ELEMENTS=staticmethod(is_float),
)


class _Select:
    """``op %c, %a, %b : T`` with a scalar condition, ``: tensor<..xi1>, T`` with a mask."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Parse condition, operands and types."""
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        if len(names) != 3:
            parser.raise_error(f"arith.select takes 3 operands, got {len(names)}")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind: Attribute = parser.parse_type()
        condition: Attribute = i1
        if parser.parse_optional_punctuation(","):
            condition, kind = kind, parser.parse_type()
        operands = [parser.resolve_operand(n, t) for n, t in zip(names, (condition, kind, kind), strict=True)]
        return cls.create(operands=operands, result_types=[kind], attributes=attributes)  # type: ignore[attr-defined]

    def print(self: Any, printer: Printer) -> None:
        """Print condition, operands and types."""
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        condition = self.operands[0].type
        if condition != i1:
            printer.print_attribute(condition)
            printer.print_string(", ")
        printer.print_attribute(self.results[0].type)

    def check(self: Any) -> None:
        """Both values of the result type, condition i1 or an i1 tensor of that shape."""
        _require_counts(self, 3)
        kind = self.results[0].type
        condition, *values = (v.type for v in self.operands)
        if any(v != kind for v in values):
            raise_types(self, f"chooses between values of {kind}, got {values[0]} and {values[1]}")
        mask = isinstance(kind, TensorType) and condition == with_element(kind, i1)
        if condition != i1 and not mask:
            raise_types(self, f"takes i1 or a mask of the shape of {kind}, got {condition}")


SelectOp = derive(xa.SelectOp, _Select)


class _Constant:
    """``arith.constant value`` with the value's own type."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Parse an attribute dictionary and the value."""
        attributes = parser.parse_optional_attr_dict() if parser._current_token.text == "{" else {}
        span = parser._current_token.span
        value = parser.parse_attribute()
        if not isinstance(value, IntegerAttr | FloatAttr | DenseIntOrFPElementsAttr):
            parse_error(parser, "KT-P00", f"a constant is a number or dense<...>, got {value}", span)
        return cls.create(  # type: ignore[attr-defined]
            result_types=[value.get_type()], properties={"value": value}, attributes=attributes
        )

    def print(self: Any, printer: Printer) -> None:
        """Print the value."""
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" ")
        printer.print_attribute(self.properties["value"])

    def check(self: Any) -> None:
        """The value's type is the result type."""
        _require_counts(self, 0)
        value = self.properties.get("value")
        require(
            isinstance(value, IntegerAttr | FloatAttr | DenseIntOrFPElementsAttr)
            and value.get_type() == self.results[0].type,
            "KT-V19",
            f"arith.constant {value} has type {self.results[0].type}",
        )


ConstantOp = derive(xa.ConstantOp, _Constant)

Arith = Dialect(
    "arith",
    [
        ConstantOp,
        *(AddfOp, SubfOp, MulfOp, DivfOp, RemfOp, NegfOp, MaximumfOp, MinimumfOp, MaxnumfOp, MinnumfOp),
        *(AddiOp, SubiOp, MuliOp, DivUIOp, DivSIOp, FloorDivSIOp, CeilDivSIOp, CeilDivUIOp, RemUIOp, RemSIOp),
        *(MinSIOp, MaxSIOp, MinUIOp, MaxUIOp, AndIOp, OrIOp, XOrIOp, ShLIOp, ShRUIOp, ShRSIOp),
        *(xa.AddUIExtendedOp, xa.MulUIExtendedOp, xa.MulSIExtendedOp),
        *(CmpiOp, CmpfOp, SelectOp, BitcastOp, IndexCastOp, IndexCastUIOp),
        *(FPToSIOp, FPToUIOp, SIToFPOp, UIToFPOp, ExtFOp, TruncFOp, TruncIOp, ExtSIOp, ExtUIOp),
    ],
    [xa.FastMathFlagsAttr, xa.IntegerOverflowAttr],
)

__all__ = ["Arith"]
