"""``affine`` as KTIR uses it: maps applied to index values."""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import Dialect
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.errors import require


class AffineOp(IRDLOperation):
    """An affine map applied to index values: ``op affine_map<..>(%dims)[%symbols]``."""

    operands_ = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)
    result = result_def(IndexType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse the map, dims and symbols."""
        value = parser.parse_attribute()
        if not isinstance(value, AffineMapAttr):
            parser.raise_error("expected an affine map")
        names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        if parser._current_token.text == "[":
            names += parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        return cls.create(
            operands=asm.resolve_indices(parser, names),
            properties={"map": value},
            attributes=attributes,
            result_types=[asm.INDEX],
        )

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" ")
        printer.print_attribute(self.map)
        dims = self.map.data.num_dims
        printer.print_string("(")
        printer.print_list(self.operands[:dims], printer.print_ssa_value)
        printer.print_string(")")
        if self.operands[dims:]:
            printer.print_string("[")
            printer.print_list(self.operands[dims:], printer.print_ssa_value)
            printer.print_string("]")
        asm.print_dictionary(printer, self.attributes)

    def verify_(self) -> None:
        """One operand per dim and symbol."""
        value = self.map.data
        count = value.num_dims + value.num_symbols
        require(len(self.operands) == count, "KT-V19", f"the map takes {count} values, {len(self.operands)} given")
        single = self.name == "affine.apply"
        require(
            len(value.results) == 1 if single else len(value.results) >= 1,
            "KT-V19",
            f"{self.name} needs {'one result' if single else 'results'} of the map, got {len(value.results)}",
        )


@irdl_op_definition
class ApplyOp(AffineOp):
    """The value of a map with one result."""

    name = "affine.apply"

    traits = traits_def(Pure())


@irdl_op_definition
class AffineMinOp(AffineOp):
    """The smallest result of a map."""

    name = "affine.min"

    traits = traits_def(Pure())


@irdl_op_definition
class AffineMaxOp(AffineOp):
    """The largest result of a map."""

    name = "affine.max"

    traits = traits_def(Pure())


Affine = Dialect("affine", [ApplyOp, AffineMinOp, AffineMaxOp], [])
