"""The base of structured ``linalg`` ops: operands, indexing maps, the yield and index ops of bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IntegerAttr, TensorType, i32, i64
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.elements import shape_of
from torch_loom.dialects.errors import note_drift, require


def compatible(a: Sequence[int], b: Sequence[int]) -> bool:
    """Equal shapes, an unknown extent matching anything."""
    return len(a) == len(b) and all(x == y or DYNAMIC_INDEX in (x, y) for x, y in zip(a, b, strict=True))


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a body: the values for the outputs."""

    name = "linalg.yield"

    arguments = var_operand_def()

    traits = traits_def(IsTerminator(), Pure())

    def __init__(self, *values: SSAValue | Operation) -> None:
        super().__init__(operands=[values])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%a, ... : T, ...``."""
        at = parser.pos
        names = parser.parse_optional_undelimited_comma_separated_list(
            parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
        )
        attributes = parser.parse_optional_attr_dict()
        if names is None:
            return cls.create(attributes=attributes)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.create(operands=parser.resolve_operands(names, types, at), attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print ``%a, ... : T, ...``."""
        if self.operands:
            printer.print_string(" ")
            printer.print_list(self.operands, printer.print_ssa_value)
        asm.print_dictionary(printer, self.attributes)
        if self.operands:
            printer.print_string(" : ")
            printer.print_list([v.type for v in self.operands], printer.print_attribute)

    def verify_(self) -> None:
        """Nothing beyond the generic checks of terminators."""


@irdl_op_definition
class IndexOp(IRDLOperation):
    """The number of the current iteration along one dim of the enclosing body."""

    name = "linalg.index"

    dim = prop_def(IntegerAttr)
    result = result_def()

    traits = traits_def(Pure())

    def __init__(self, dim: int) -> None:
        super().__init__(properties={"dim": IntegerAttr(dim, i64)}, result_types=[asm.INDEX])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``N : index``."""
        dim = parser.parse_integer(allow_boolean=False)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(
            properties={"dim": IntegerAttr(dim, i64)}, attributes=attributes, result_types=[parser.parse_type()]
        )

    def print(self, printer: Printer) -> None:
        """Print ``N : index``."""
        printer.print_string(f" {self.dim.value.data}")
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        """The dim exists in the enclosing structured op."""
        require(self.result.type == asm.INDEX, "KT-V19", "linalg.index yields index")
        parent = self.parent_op()
        require(isinstance(parent, StructuredOp), "KT-V19", "linalg.index stands in the body of a structured op")
        assert isinstance(parent, StructuredOp)
        loops = len(parent.iterators())
        require(0 <= self.dim.value.data < loops, "KT-V19", f"dim {self.dim.value.data} of {loops} loops")


class StructuredOp(IRDLOperation):
    """Inputs, outputs (which give shapes and initial values), results."""

    operands_ = var_operand_def()
    regions_ = var_region_def()
    res = var_result_def()

    def input_count(self) -> int:
        """How many operands are inputs; the rest are outputs."""
        raise NotImplementedError

    @property
    def inputs(self) -> Sequence[SSAValue]:
        """Values that are read."""
        return self.operands[: self.input_count()]

    @property
    def outputs(self) -> Sequence[SSAValue]:
        """Initial values and shapes of the results."""
        return self.operands[self.input_count() :]

    def maps(self) -> list[AffineMap]:
        """One indexing map per input and output, over the loops."""
        raise NotImplementedError

    def iterators(self) -> list[bool]:
        """Per loop: True when it is a reduction."""
        raise NotImplementedError

    def generic_body(self) -> Region | None:
        """The body that the generic form of a named op shows; None when the op holds its regions itself."""
        return None

    @property
    def body(self) -> Region:
        """The body region of ``reduce``, ``map`` and ``generic``."""
        return self.regions[0]

    def check_shapes(self) -> None:
        """Operands fit the indexing maps; results have the types of the outputs."""
        maps, loops = self.maps(), len(self.iterators())
        require(
            len(maps) == len(self.operands), "KT-V19", f"{len(maps)} indexing maps for {len(self.operands)} operands"
        )
        extents = [DYNAMIC_INDEX] * loops
        for position, (value, operand) in enumerate(zip(maps, self.operands, strict=True)):
            shape = shape_of(operand.type) or ()
            require(
                value.num_dims == loops and value.num_symbols == 0 and len(value.results) == len(shape),
                "KT-V19",
                f"operand {position} ({operand.type}) does not fit its indexing map",
            )
            for expr, extent in zip(value.results, shape, strict=True):
                if not isinstance(expr, AffineDimExpr) or extent == DYNAMIC_INDEX:
                    continue
                require(
                    extents[expr.position] in (DYNAMIC_INDEX, extent),
                    "KT-V19",
                    f"loop d{expr.position} has extent {extents[expr.position]}, operand {position} says {extent}",
                )
                extents[expr.position] = extent
        if self.results:
            found, expected = [r.type for r in self.results], [o.type for o in self.outputs]
            require(found == expected, "KT-V19", f"results {_list(found)} differ from outputs {_list(expected)}")
        for output in self.outputs:
            require(isinstance(output.type, TensorType), "KT-V19", f"outputs are tensors, got {output.type}")
        require(len(self.results) == len(self.outputs), "KT-V19", "one result per output")


class SegmentedOp(StructuredOp):
    """A structured op that says how many of its operands are inputs."""

    segment_sizes = prop_def(DenseArrayBase, prop_name="operandSegmentSizes")

    def input_count(self) -> int:
        """The first segment."""
        found = self.properties.get("operandSegmentSizes")
        sizes = [int(v) for v in found.get_values()] if isinstance(found, DenseArrayBase) else []
        require(
            len(sizes) == 2 and sum(sizes) == len(self.operands),
            "KT-V19",
            f"operandSegmentSizes {sizes} does not split {len(self.operands)} operands",
        )
        return sizes[0]


def _list(types: Sequence[Attribute]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def parse_ins_outs(parser: Parser) -> tuple[list[SSAValue], list[SSAValue]]:
    """Parse ``ins(...)? outs(...)?``."""
    inputs = asm.parse_typed_group(parser, "ins") if parser._current_token.text == "ins" else []
    outputs = asm.parse_typed_group(parser, "outs") if parser._current_token.text == "outs" else []
    return inputs, outputs


def print_ins_outs(printer: Printer, op: StructuredOp) -> None:
    """Print ``ins(...) outs(...)``."""
    for keyword, values in (("ins", op.inputs), ("outs", op.outputs)):
        if values:
            printer.print_string(f" {keyword}")
            asm.print_typed_group(printer, values)


def segments(inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> DenseArrayBase:
    """The property ``operandSegmentSizes``."""
    return DenseArrayBase.from_list(i32, [len(inputs), len(outputs)])


def tensor_types(values: Sequence[SSAValue]) -> list[Attribute]:
    """Result types of a structured op: the types of its tensor outputs."""
    return [v.type for v in values if isinstance(v.type, TensorType)]


def parse_dims(parser: Parser, label: str) -> DenseArrayBase:
    """Parse ``label = [0, 1]``."""
    parser.parse_keyword(label)
    parser.parse_punctuation("=")
    values = parser.parse_comma_separated_list(
        parser.Delimiter.SQUARE, lambda: parser.parse_integer(allow_boolean=False)
    )
    return DenseArrayBase.from_list(i64, values)


def drop_result_type(parser: Parser) -> None:
    """Accept the result type that some texts append."""
    span = parser._current_token.span
    if asm.parse_result_types(parser):
        note_drift(parser, span, "result type after the op", "no result type")
