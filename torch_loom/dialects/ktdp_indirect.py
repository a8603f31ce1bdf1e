"""Ops of ``ktdp`` that need more than one view or a launch argument: indirect tiles, runtime_arg_extract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from xdsl.dialects.builtin import (
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    i1,
    i32,
)
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap, AffineSymExpr
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, MemoryReadEffect, Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.affine_text import normalise
from torch_loom.dialects.errors import parse_error, require
from torch_loom.dialects.ktdp_tiles import parse_symbols, print_symbols, verify_order_and_symbols
from torch_loom.dialects.ktdp_types import AccessTileType, RuntimeArgType, parse_elidable


@irdl_op_definition
class RegionTerminatorOp(IRDLOperation):
    """Ends the region of an indirect access tile; visible only in the generic form."""

    name = "ktdp.region_terminator"

    assembly_format = "attr-dict"

    traits = traits_def(IsTerminator(), Pure())


@dataclass(frozen=True)
class Subscript:
    """One dim of an indirect tile: a direct expression, or an index view read at ``exprs``.

    ``exprs`` range over the captured ids first, then the intermediate variables.
    """

    view: SSAValue | None
    exprs: tuple[AffineExpr, ...]


@irdl_op_definition
class ConstructIndirectAccessTileOp(IRDLOperation):
    """Selects, for every point x of a variable space, a coordinate whose parts are expressions or loaded indices."""

    name = "ktdp.construct_indirect_access_tile"

    base = operand_def(MemRefType)
    index_views = var_operand_def(MemRefType)
    captured = var_operand_def(IndexType)
    symbols = var_operand_def(IndexType)
    per_dim_subscript_kinds = prop_def()
    per_dim_subscript_maps = prop_def(ArrayAttr[AffineMapAttr])
    variables_space_set = prop_def(AffineSetAttr)
    variables_space_order = prop_def(AffineMapAttr)
    body = region_def("single_block")
    tile = result_def(AccessTileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Per base dim: True when the coordinate is loaded from an index view."""
        kinds = self.per_dim_subscript_kinds
        if isinstance(kinds, DenseArrayBase):
            return tuple(bool(v) for v in kinds.get_values())
        assert isinstance(kinds, ArrayAttr)
        return tuple(bool(v.value.data) for v in kinds.data)

    @property
    def variables(self) -> Sequence[BlockArgument]:
        """The intermediate variables."""
        return self.body.block.args

    @property
    def subscripts(self) -> list[Subscript]:
        """One entry per dim of the base view."""
        views = iter(self.index_views)
        return [
            Subscript(next(views) if indirect else None, value.data.results)
            for indirect, value in zip(self.kinds, self.per_dim_subscript_maps.data, strict=True)
        ]

    @staticmethod
    def build_properties(
        kinds: Sequence[bool], maps: Sequence[AffineMap], segments: Sequence[int]
    ) -> dict[str, Attribute]:
        """Properties in the shape of the upstream front end."""
        return {
            "per_dim_subscript_kinds": DenseArrayBase.from_list(i1, [int(k) for k in kinds]),
            "per_dim_subscript_maps": ArrayAttr([AffineMapAttr(m) for m in maps]),
            "operandSegmentSizes": DenseArrayBase.from_list(i32, segments),
        }

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``intermediate_variables(%i, ..) %base[subs] symbols(..)? attrs : types -> tile-type``."""
        parser.parse_keyword("intermediate_variables")
        names = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False).name.text[1:]
        )
        variables: dict[str, AffineExpr] = {name: AffineSymExpr(i) for i, name in enumerate(names)}
        if len(variables) != len(names):
            parse_error(parser, "KT-P00", "an intermediate variable is declared twice")
        base = parser.parse_unresolved_operand()
        leaf = asm.OperandLeaf(parser, variables)
        kinds: list[bool] = []
        exprs: list[list[AffineExpr]] = []
        views = []

        def one() -> None:
            if parser._current_token.text == "ind":
                parser._consume_token()
                parser.parse_punctuation("(")
                views.append(parser.parse_unresolved_operand())
                exprs.append(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, leaf.expr))
                parser.parse_punctuation(")")
                kinds.append(True)
            else:
                exprs.append([leaf.expr()])
                kinds.append(False)

        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, one)
        symbols = parse_symbols(parser)
        known = ("variables_space_set", "variables_space_order")
        properties, attributes = asm.parse_properties(parser, known)
        for name in known:
            if name not in properties:
                parse_error(parser, "KT-P00", f"construct_indirect_access_tile needs the attribute '{name}'")
        parser.parse_punctuation(":")
        at = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        parser.parse_punctuation("->")
        tile_type = parse_elidable(parser, AccessTileType)
        memrefs = parser.resolve_operands([base, *views], types, at)
        ids = asm.resolve_indices(parser, leaf.operands)
        shifted = [AffineDimExpr(len(ids) + i) for i in range(len(names))]
        exprs = [[normalise(e.replace_dims_and_symbols((), shifted)) for e in group] for group in exprs]
        exprs, captured = asm.order_ids(exprs, ids, len(names))
        maps = [AffineMap(len(captured) + len(names), 0, tuple(group)) for group in exprs]
        block = Block(arg_types=[IndexType()] * len(names), ops=[RegionTerminatorOp.create()])
        for argument, name in zip(block.args, names, strict=True):
            if SSAValue.is_valid_name(name):
                argument.name_hint = name
        properties |= cls.build_properties(kinds, maps, [1, len(views), len(captured), len(symbols)])
        return cls.create(
            operands=[*memrefs, *captured, *symbols],
            properties=properties,
            attributes=attributes,
            regions=[Region(block)],
            result_types=[tile_type],
        )

    def canonicalise(self, parser: Parser) -> None:
        """Number the captured ids by their appearance, as reading the printed text would."""
        maps, sizes = self.properties.get("per_dim_subscript_maps"), self.properties.get("operandSegmentSizes")
        if not isinstance(maps, ArrayAttr) or not isinstance(sizes, DenseArrayBase) or len(self.regions) != 1:
            return
        counts = [int(v) for v in sizes.get_values()]
        values = [m.data for m in maps.data if isinstance(m, AffineMapAttr)]
        variables = len(self.regions[0].blocks[0].args) if self.regions[0].blocks else 0
        inputs = counts[2] + variables if len(counts) == 4 else -1
        fits = sum(counts) == len(self.operands) and all(m.num_dims == inputs and not m.num_symbols for m in values)
        if len(counts) != 4 or not fits:
            return  # the verifier says what is wrong
        first = 1 + counts[1]
        ids = list(self.operands[first : first + counts[2]])
        exprs, found = asm.order_ids([[normalise(e) for e in m.results] for m in values], ids, variables)
        self.operands = [*self.operands[:first], *found, *self.operands[first + counts[2] :]]
        count = len(found) + variables
        new_maps = [AffineMap(count, 0, tuple(group)) for group in exprs]
        self.properties |= self.build_properties(self.kinds, new_maps, [1, counts[1], len(found), counts[3]])

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" intermediate_variables(")
        printer.print_list(self.variables, printer.print_ssa_value)
        printer.print_string(") ")
        printer.print_ssa_value(self.base)
        values: list[SSAValue] = [*self.captured, *self.variables]

        def value_of(leaf: AffineExpr) -> SSAValue:
            assert isinstance(leaf, AffineDimExpr)
            return values[leaf.position]

        def one(subscript: Subscript) -> None:
            if subscript.view is None:
                printer.print_string("(")
                asm.print_expr(printer, subscript.exprs[0], value_of)
                printer.print_string(")")
                return
            printer.print_string("ind(")
            printer.print_ssa_value(subscript.view)
            with printer.in_square_brackets():
                printer.print_list(subscript.exprs, lambda e: asm.print_expr(printer, e, value_of))
            printer.print_string(")")

        with printer.in_square_brackets():
            printer.print_list(self.subscripts, one)
        print_symbols(printer, self.symbols)
        names = ("variables_space_order", "variables_space_set")
        named: dict[str, Attribute] = {n: self.properties[n] for n in names}
        asm.print_dictionary(printer, named, self.attributes)
        printer.print_string(" : ")
        printer.print_list([self.base.type, *(v.type for v in self.index_views)], printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(self.tile.type)

    def verify_(self) -> None:
        """Counts of dims, variables, views and expressions agree; index views hold integers."""
        points = self.variables_space_set.data
        require(isinstance(self.base.type, MemRefType), "KT-V18", f"the base is a view, got {self.base.type}")
        base_type = self.base.type
        assert isinstance(base_type, MemRefType)
        rank, kinds, maps = base_type.get_num_dims(), self.kinds, self.per_dim_subscript_maps.data
        require(len(kinds) == rank == len(maps), "KT-V02", f"{len(maps)} subscripts for a view of rank {rank}")
        require(
            sum(kinds) == len(self.index_views),
            "KT-V02",
            f"{sum(kinds)} ind(...) subscripts, {len(self.index_views)} index views",
        )
        variables = len(self.variables)
        require(
            points.num_dims == variables,
            "KT-V02",
            f"variables_space_set has {points.num_dims} dims for {variables} variables",
        )
        inputs = len(self.captured) + variables
        views = iter(self.index_views)
        for position, (indirect, item) in enumerate(zip(kinds, maps, strict=True)):
            value = item.data
            require(
                value.num_dims == inputs and value.num_symbols == 0,
                "KT-V02",
                f"subscript {position} ranges over {value.num_dims} ids, expected {inputs} and no symbols",
            )
            if not indirect:
                require(len(value.results) == 1, "KT-V02", f"direct subscript {position} needs one expression")
                continue
            view = next(views).type
            require(isinstance(view, MemRefType), "KT-V13", f"ind(...) of dim {position} reads a view, got {view}")
            assert isinstance(view, MemRefType)
            require(
                len(value.results) == view.get_num_dims(),
                "KT-V02",
                f"ind(...) of dim {position} has {len(value.results)} expressions for {view}",
            )
            require(
                isinstance(view.element_type, IntegerType | IndexType),
                "KT-V13",
                f"an index view holds integers, got {view}",
            )
        verify_order_and_symbols(
            self, points, self.variables_space_order.data, len(self.symbols), "variables_space_set"
        )


_KINDS = ("value", "granularity", "upperbound")


@irdl_op_definition
class RuntimeArgExtractOp(IRDLOperation):
    """Reads the value of a launch argument, or one of the promises of its type."""

    name = "ktdp.runtime_arg_extract"

    argument = operand_def(RuntimeArgType)
    kind = prop_def(IntegerAttr)
    result = result_def()

    traits = traits_def(Pure())

    @property
    def what(self) -> str:
        """``value``, ``granularity`` or ``upperbound``."""
        number = self.kind.value.data
        return _KINDS[number] if 0 <= number < len(_KINDS) else f"kind {number}"

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``value from %x : <T, ...> -> T'``."""
        kind = parser.parse_keyword_in(_KINDS)
        attributes: dict[str, Attribute] = {}
        parser.parse_keyword("from")
        name = parser.parse_unresolved_operand()
        attributes |= parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        operand = parser.resolve_operand(name, parse_elidable(parser, RuntimeArgType))
        parser.parse_punctuation("->")
        return cls.create(
            operands=[operand],
            properties={"kind": IntegerAttr(_KINDS.index(kind), i32)},
            attributes=attributes,
            result_types=[parser.parse_type()],
        )

    def print(self, printer: Printer) -> None:
        """Print the canonical form, argument type elided."""
        printer.print_string(f" {self.what} from ")
        printer.print_ssa_value(self.argument)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        kind = self.argument.type
        if isinstance(kind, RuntimeArgType):
            kind.print_parameters(printer)
        else:
            printer.print_attribute(kind)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        """The result type fits what is read; a promise must be on the type."""
        kind = self.argument.type
        require(isinstance(kind, RuntimeArgType), "KT-V18", f"expected a runtime_arg, got {kind}")
        assert isinstance(kind, RuntimeArgType)
        require(self.what in _KINDS, "KT-V18", f"unknown {self.what} of runtime_arg_extract")
        if self.what == "value":
            require(
                self.result.type == kind.value_type,
                "KT-V18",
                f"the value of {kind} is {kind.value_type}, not {self.result.type}",
            )
            return
        require(self.what in kind.promises, "KT-V18", f"{kind} promises no {self.what}")
        require(
            isinstance(self.result.type, IndexType), "KT-V18", f"{self.what} has type index, not {self.result.type}"
        )


__all__ = [
    "ConstructIndirectAccessTileOp",
    "RegionTerminatorOp",
    "RuntimeArgExtractOp",
    "Subscript",
]
