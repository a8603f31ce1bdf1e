"""The dialect ``spyreop``: scalar hardware intrinsics in ``linalg.generic`` bodies, and the type df16.

Every 16-bit op owns its widening and rounding; producers put no casts around it. One table row per op gives arity
and the spelling of its parameters; values are computed by the interpreter (torch_loom/ktir) and by the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, TensorType, f64, i1, i64
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.elements import Df16Type, is_float, is_integer
from torch_loom.dialects.errors import parse_error, require


@irdl_attr_definition
class Fp16FusedType(ParametrizedAttribute, TypeAttribute):
    """A (mean, mean of squares) pair of fp16."""

    name = "spyreop.fp16_fused"


@irdl_attr_definition
class Df16FusedType(ParametrizedAttribute, TypeAttribute):
    """A (mean, mean of squares) pair of df16."""

    name = "spyreop.df16_fused"


@irdl_attr_definition
class Fp32FusedType(ParametrizedAttribute, TypeAttribute):
    """A (mean, mean of squares) pair of fp32."""

    name = "spyreop.fp32_fused"


FUSED_TYPES = (Fp16FusedType, Df16FusedType, Fp32FusedType)
PREDICATES = ("equal", "notequal", "greaterthan", "greaterequal", "lesserthan", "lesserequal")
REDUCTION_KINDS = ("add", "sub", "max", "min", "mul", "abs_max")
REDUCTION_SCOPES = ("in_slice", "across_slice")
RESERVED = ("dl16tofp32", "fp32todl16", "i32tofp32", "topk")


@dataclass(frozen=True)
class Row:
    """Facts of one op: operand counts, results, float or integer, keyword operands, literal parameters."""

    arity: tuple[int, ...] = (1,)
    results: int = 1
    integer: bool = False
    words: tuple[str, ...] = ()  # keyword before operand k + 1
    literals: tuple[str, ...] = ()  # keyword and number after the operands


OPS: dict[str, Row] = {
    **{n: Row() for n in ("exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "silu", "gelu")},
    "softplus": Row(literals=("beta", "threshold")),
    "exx2": Row(results=2),
    "exx2_fused": Row(),
    "layernormscale": Row(arity=(1, 2)),
    "layernormscale_fused": Row(arity=(1, 2)),
    "layernormnorm": Row(arity=(5,), words=("squares", "scale", "weight", "bias")),
    "select": Row(arity=(3,)),
    "realdiv": Row(arity=(2,)),
    "addi32toi32": Row(arity=(2,), integer=True),
    "addi64toi64": Row(arity=(2,), integer=True),
    "muli32toi32": Row(arity=(2,), integer=True),
}


class IntrinsicOp(IRDLOperation):
    """Operands, optional literal parameters, one common type."""

    ROW: ClassVar[Row]

    arguments = var_operand_def()
    res = var_result_def()

    def literal(self, name: str) -> float:
        """A literal parameter."""
        found = self.properties[name]
        assert isinstance(found, FloatAttr)
        return float(found.value.data)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%a, %b params attrs? : T`` (``: T, T -> U, U`` when types differ)."""
        row = cls.ROW
        names = [parser.parse_unresolved_operand()]
        for position in range(max(row.arity) - 1):
            if row.words:
                parser.parse_keyword(row.words[position])
            elif not parser.parse_optional_punctuation(","):
                break
            names.append(parser.parse_unresolved_operand())
        properties: dict[str, Attribute] = {}
        for word in row.literals:
            parser.parse_keyword(word)
            properties[word] = FloatAttr(float(parser.parse_number()), f64)
        attributes = parser.parse_optional_attr_dict()
        at = parser.pos
        if row.integer and parser._current_token.text != ":":
            kind: Attribute = _integer_of(cls.name)
            types, results = [kind] * len(names), [kind]
        else:
            parser.parse_punctuation(":")
            types = list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))
            results = asm.parse_result_types(parser)
            if len(types) == 1:
                types = types * len(names)
            results = results or [types[0]] * row.results
        operands = parser.resolve_operands(names, types, at)
        return cls.create(operands=operands, result_types=results, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        row = self.ROW
        printer.print_string(" ")
        for position, value in enumerate(self.operands):
            if position:
                printer.print_string(f" {row.words[position - 1]} " if row.words else ", ")
            printer.print_ssa_value(value)
        for word in row.literals:
            printer.print_string(f" {word} {_number(self.literal(word))}")
        asm.print_dictionary(printer, self.attributes)
        types, results = [v.type for v in self.operands], [r.type for r in self.results]
        if row.integer and all(t == _integer_of(self.name) for t in types + results):
            return
        printer.print_string(" : ")
        if len(set(types + results)) == 1 and len(results) == row.results:
            printer.print_attribute(types[0])
            return
        printer.print_list(types, printer.print_attribute)
        asm.print_result_types(printer, results)

    def verify_(self) -> None:
        """Counts and element kinds."""
        row = self.ROW
        require(
            len(self.operands) in row.arity,
            "KT-V19",
            f"{self.name} takes {row.arity} operands, got {len(self.operands)}",
        )
        require(len(self.results) == row.results, "KT-V19", f"{self.name} has {row.results} results")
        for value in (*self.operands, *self.results):
            kind = value.type
            fits = is_integer(kind) if row.integer else is_float(kind) or isinstance(kind, FUSED_TYPES)
            require(fits, "KT-V19", f"{self.name} does not take {kind}")
        for word in row.literals:
            require(isinstance(self.properties.get(word), FloatAttr), "KT-V19", f"{self.name} needs '{word}'")
        if self.name == "spyreop.softplus":
            require(self.literal("beta") != 0, "KT-V19", "softplus needs beta != 0")


def _integer_of(name: str) -> Attribute:
    from xdsl.dialects.builtin import i32

    return i64 if "64" in name else i32


def _number(value: float) -> str:
    text = repr(value)
    return text if "." in text or "e" not in text else text.replace("e", ".0e")


def _make(name: str, row: Row) -> type[IntrinsicOp]:
    title = "".join(part.capitalize() for part in name.split("_")) + "Op"
    namespace = {
        "name": f"spyreop.{name}",
        "__module__": __name__,
        "__doc__": f"``spyreop.{name}``.",
        "__annotations__": {},
        "traits": traits_def(Pure()),
    }
    cls = irdl_op_definition(type(IntrinsicOp)(title, (IntrinsicOp,), namespace))  # type: ignore[misc]
    cls.ROW = row
    cls.verify_ = IntrinsicOp.verify_  # type: ignore[method-assign]
    return cls


INTRINSICS: dict[str, type[IntrinsicOp]] = {name: _make(name, row) for name, row in OPS.items()}


@irdl_op_definition
class CompareOp(IRDLOperation):
    """``compare <predicate> %a, %b : T``: a float flag, 1 or 0."""

    name = "spyreop.compare"

    arguments = var_operand_def()
    predicate_ = opt_prop_def(StringAttr, prop_name="predicate")
    res = var_result_def()

    traits = traits_def(Pure())

    @property
    def predicate(self) -> str:
        """The predicate by name."""
        found = self.properties.get("predicate")
        return found.data if isinstance(found, StringAttr) else ""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``<predicate> %a, %b : T``; the operands may come first."""
        predicate = _parse_predicate(parser)
        lhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rhs = parser.parse_unresolved_operand()
        predicate = predicate or _parse_predicate(parser)
        if predicate is None:
            parse_error(parser, "KT-P00", f"expected a predicate: {', '.join(PREDICATES)}")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        return cls.create(
            operands=[parser.resolve_operand(lhs, kind), parser.resolve_operand(rhs, kind)],
            result_types=[kind],
            properties={"predicate": StringAttr(predicate)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(f" <{self.predicate}> ")
        printer.print_list(self.operands, printer.print_ssa_value)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.results[0].type)

    def verify_(self) -> None:
        """A known predicate over floats of one type."""
        require(self.predicate in PREDICATES, "KT-V19", f"unknown predicate '{self.predicate}'")
        kinds = {v.type for v in (*self.operands, *self.results)}
        require(
            len(self.operands) == 2 and len(self.results) == 1 and len(kinds) == 1 and all(map(is_float, kinds)),
            "KT-V19",
            "spyreop.compare takes two floats of one type and yields that type",
        )


def _parse_predicate(parser: Parser) -> str | None:
    if not parser.parse_optional_punctuation("<"):
        return None
    span = parser._current_token.span
    word = parser.parse_identifier()
    if word not in PREDICATES:
        parse_error(parser, "KT-P01", f"unknown predicate '{word}'; known: {', '.join(PREDICATES)}", span)
    parser.parse_punctuation(">")
    return word


@irdl_op_definition
class CheckedOp(IRDLOperation):
    """``checked %over, %x : O, T``: x, of integers or a tensor of them; an error where ``over`` (i1) is set."""

    name = "spyreop.checked"

    T: ClassVar = VarConstraint("T", AnyAttr())

    over = operand_def()
    value = operand_def(T)
    res = result_def(T)

    assembly_format = "$over `,` $value attr-dict `:` type($over) `,` type($value)"

    traits = traits_def(Pure())

    def verify_(self) -> None:
        """Flags and integers of one shape."""
        over, kind = self.over.type, self.value.type
        shapes = [k.get_shape() if isinstance(k, TensorType) else None for k in (over, kind)]
        elements = [k.element_type if isinstance(k, TensorType) else k for k in (over, kind)]
        require(
            elements[0] == i1 and is_integer(elements[1]) and shapes[0] == shapes[1] and self.res.type == kind,
            "KT-V19",
            "spyreop.checked takes flags (i1) and integers of one shape and yields the integers",
        )


@irdl_op_definition
class Idx32ToAddrOp(IRDLOperation):
    """``idx32toaddr %i base B stride S``: B + S * i; B and S are literals or SSA operands."""

    name = "spyreop.idx32toaddr"

    arguments = var_operand_def()
    base = opt_prop_def(IntegerAttr)
    stride = opt_prop_def(IntegerAttr)
    res = var_result_def()

    traits = traits_def(Pure())

    def parameter(self, name: str) -> int | SSAValue:
        """``base`` or ``stride``."""
        found = self.properties.get(name)
        if isinstance(found, IntegerAttr):
            return found.value.data
        rest = list(self.operands[1:])
        return rest[0] if name == "base" or "base" in self.properties else rest[1]

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%i base B stride S : T? (-> U)?``."""
        names: list[UnresolvedOperand] = [parser.parse_unresolved_operand()]
        properties: dict[str, Attribute] = {}
        for word in ("base", "stride"):
            parser.parse_keyword(word)
            operand = parser.parse_optional_unresolved_operand()
            if operand is None:
                properties[word] = IntegerAttr(parser.parse_integer(allow_boolean=False), i64)
            else:
                names.append(operand)
        attributes = parser.parse_optional_attr_dict()
        at = parser.pos
        types: list[Attribute] = [_integer_of("i32")] + [i64] * (len(names) - 1)
        results: list[Attribute] = [i64]
        if parser.parse_optional_punctuation(":"):
            found: list[Attribute] = list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))
            types = found if len(found) == len(names) else found[:1] * len(names)
            results = asm.parse_result_types(parser) or found[:1]
        operands = parser.resolve_operands(names, types, at)
        return cls.create(operands=operands, result_types=results, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" ")
        printer.print_ssa_value(self.operands[0])
        for word in ("base", "stride"):
            value = self.parameter(word)
            printer.print_string(f" {word} ")
            if isinstance(value, int):
                printer.print_string(str(value))
            else:
                printer.print_ssa_value(value)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        printer.print_list([v.type for v in self.operands], printer.print_attribute)
        asm.print_result_types(printer, [r.type for r in self.results])

    def verify_(self) -> None:
        """Integers, and a base and a stride."""
        literals = sum(isinstance(self.properties.get(w), IntegerAttr) for w in ("base", "stride"))
        require(len(self.operands) + literals == 3, "KT-V19", "spyreop.idx32toaddr needs an index, a base and a stride")
        kinds = [v.type for v in (*self.operands, *self.results)]
        require(len(self.results) == 1 and all(map(is_integer, kinds)), "KT-V19", "spyreop.idx32toaddr takes integers")


@irdl_op_definition
class SliceReductionOp(IRDLOperation):
    """Folds a one-stick tensor: ``in_slice`` into the first element of each slice, ``across_slice`` into slice 0."""

    name = "spyreop.slice_reduction"

    arguments = var_operand_def()
    reduction_kind = opt_prop_def(StringAttr)
    reduction_scope = opt_prop_def(StringAttr)
    res = var_result_def()

    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%a {reduction_kind = .., reduction_scope = ..} : T``."""
        name = parser.parse_unresolved_operand()
        entries = parser.parse_optional_attr_dict()
        properties: dict[str, Attribute] = {
            k: _word(entries.pop(k)) for k in ("reduction_kind", "reduction_scope") if k in entries
        }
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        results = asm.parse_result_types(parser) or [kind]
        return cls.create(
            operands=[parser.resolve_operand(name, kind)],
            result_types=results,
            properties=properties,
            attributes=entries,
        )

    def word(self, name: str) -> str:
        """``reduction_kind`` or ``reduction_scope``."""
        found = self.properties.get(name)
        return found.data if isinstance(found, StringAttr) else ""

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" ")
        printer.print_ssa_value(self.operands[0])
        asm.print_dictionary(printer, self.properties, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.operands[0].type)
        if self.results[0].type != self.operands[0].type:
            asm.print_result_types(printer, [self.results[0].type])

    def verify_(self) -> None:
        """Known words, tensors of one type."""
        for name, known in (("reduction_kind", REDUCTION_KINDS), ("reduction_scope", REDUCTION_SCOPES)):
            word = self.word(name)
            require(word in known, "KT-V19", f"{name} is one of {', '.join(known)}, got '{word}'")
        require(len(self.operands) == 1 == len(self.results), "KT-V19", "slice_reduction maps one tensor to one")
        kind = self.operands[0].type
        require(
            isinstance(kind, TensorType) and self.results[0].type == kind, "KT-V19", "slice_reduction takes a tensor"
        )


def _word(value: Attribute) -> Attribute:
    return value if isinstance(value, StringAttr) else StringAttr(str(value))


Spyreop = Dialect(
    "spyreop",
    [*INTRINSICS.values(), CheckedOp, CompareOp, Idx32ToAddrOp, SliceReductionOp],
    [Df16Type, *FUSED_TYPES],
)

__all__ = [
    "FUSED_TYPES",
    "INTRINSICS",
    "OPS",
    "PREDICATES",
    "RESERVED",
    "CheckedOp",
    "CompareOp",
    "Df16Type",
    "Idx32ToAddrOp",
    "IntrinsicOp",
    "SliceReductionOp",
    "Spyreop",
]
