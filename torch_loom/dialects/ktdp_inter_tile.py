"""Inter-tile exchange: one produce op and six deliveries over groups of compute tiles.

All deliveries share one assembly: ``op(%future) clause, ... attrs? : future -> T, ...`` with clauses for the tile
sets, the dim lists, and ``identity(...)`` plus a combiner region where values are folded. A delivery is a class with
three facts (dim lists, folding, how data is placed); everything else is common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import AffineSetAttr, ArrayAttr, DenseArrayBase, IntegerAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
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
from torch_loom.dialects.errors import note_drift, parse_error, require
from torch_loom.dialects.ktdp_types import TileFutureType, parse_elidable


def _print_future(printer: Printer, kind: Attribute) -> None:
    if isinstance(kind, TileFutureType):
        kind.print_parameters(printer)
    else:
        printer.print_attribute(kind)


class _YieldOp(IRDLOperation):
    """A terminator that hands values to the enclosing exchange op."""

    values = var_operand_def()

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


@irdl_op_definition
class YieldPartialOp(_YieldOp):
    """Ends the region of a produce: the values that this compute tile contributes."""

    name = "ktdp.yield_partial"

    traits = traits_def(IsTerminator(), Pure())


@irdl_op_definition
class YieldReducedOp(_YieldOp):
    """Ends a combiner region: the folded values."""

    name = "ktdp.yield_reduced"

    traits = traits_def(IsTerminator(), Pure())


@irdl_op_definition
class InterTileProduceOp(IRDLOperation):
    """Every producer of every group contributes the values yielded by the region."""

    name = "ktdp.inter_tile_produce"

    producer_tiles_per_group = prop_def(AffineSetAttr)
    body = region_def("single_block")
    future = result_def(TileFutureType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``producer_tiles_per_group = SET attrs? -> future region`` and the older ``: T -> future``."""
        parser.parse_keyword("producer_tiles_per_group")
        parser.parse_punctuation("=")
        producers = parser.parse_attribute()
        attributes = parser.parse_optional_attr_dict()
        at = parser._current_token.span
        if parser.parse_optional_punctuation(":"):
            parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
            note_drift(parser, at, "produce with ': T -> future'", "-> <(T), groups = SET>")
        parser.parse_punctuation("->")
        future = parse_elidable(parser, TileFutureType)
        return cls.create(
            properties={"producer_tiles_per_group": producers},
            attributes=attributes,
            regions=[parser.parse_region()],
            result_types=[future],
        )

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" producer_tiles_per_group = ")
        printer.print_attribute(self.producer_tiles_per_group)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" -> ")
        _print_future(printer, self.future.type)
        printer.print_string(" ")
        printer.print_region(self.body)

    def verify_(self) -> None:
        """The yielded types are the types of the future."""
        future = self.future.type
        require(isinstance(future, TileFutureType), "KT-V18", f"the result is a tile future, got {future}")
        groups = future.groups.data
        require(groups.num_dims == 1 and groups.num_symbols == 0, "KT-V02", "groups range over one dim without symbols")
        _verify_tile_set(self.producer_tiles_per_group.data, "producer_tiles_per_group", (1,))
        block = self.body.block
        require(
            [str(a.type) for a in block.args] == ["index"], "KT-V18", "the region takes one index, the group number"
        )
        last = block.last_op
        require(isinstance(last, YieldPartialOp), "KT-V18", "the region ends with ktdp.yield_partial")
        assert last is not None
        found = [v.type for v in last.operands]
        require(found == list(future.value_types.data), "KT-V18", f"yields {_types(found)}, the future holds {future}")


def _types(types: Sequence[Attribute]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _verify_tile_set(value: object, name: str, symbols: Sequence[int]) -> None:
    dims, count = getattr(value, "num_dims", -1), getattr(value, "num_symbols", -1)
    allowed = " or ".join(map(str, symbols))
    require(
        dims == 1 and count in symbols, "KT-V02", f"{name} has one dim and {allowed} symbol(s), got {dims} and {count}"
    )


_SETS = ("consumer_tiles_per_group", "producer_dependency_per_consumer")
_DIMS = ("gather_dimensions", "scatter_dimensions", "split_dimensions", "concat_dimensions")


class DeliveryOp(IRDLOperation):
    """Common parts of the six deliveries."""

    DIMENSIONS: ClassVar[tuple[str, ...]] = ()
    FOLDS: ClassVar[bool] = False

    future = operand_def(TileFutureType)
    identities = var_operand_def()
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    producer_dependency_per_consumer = opt_prop_def(AffineSetAttr)
    combiner = var_region_def("single_block")
    values = var_result_def()

    def dimensions(self, name: str) -> tuple[int, ...]:
        """A dim list by name."""
        found = self.properties[name]
        assert isinstance(found, DenseArrayBase)
        return tuple(int(v) for v in found.get_values())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``(%future) clauses attrs? : future -> T, ... region?``."""
        parser.parse_punctuation("(")
        future_name = parser.parse_unresolved_operand()
        parser.parse_punctuation(")")
        properties: dict[str, Attribute] = {}
        identities: list[SSAValue] = []
        while True:
            span = parser._current_token.span
            name = parser.parse_identifier(context_msg=f" as a clause of {cls.name}")
            known = (*_SETS, *cls.DIMENSIONS, *(("identity",) if cls.FOLDS else ()))
            if name not in known:
                parse_error(parser, "KT-P01", f"unknown clause '{name}' of {cls.name}{asm.nearest(name, known)}", span)
            if name in properties or (name == "identity" and identities):
                parse_error(parser, "KT-P00", f"clause '{name}' given twice", span)
            if name == "identity":
                identities = asm.parse_typed_group(parser)
            else:
                parser.parse_punctuation("=")
                properties[name] = _parse_clause_value(parser, name)
            if not parser.parse_optional_punctuation(","):
                break
        for name in (_SETS[0], *cls.DIMENSIONS):
            if name not in properties:
                parse_error(parser, "KT-P00", f"{cls.name} needs the clause '{name}'")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        future = parser.resolve_operand(future_name, parse_elidable(parser, TileFutureType))
        parser.parse_punctuation("->")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.create(
            operands=[future, *identities],
            properties=properties,
            attributes=attributes,
            regions=[parser.parse_region()] if cls.FOLDS else [],
            result_types=types,
        )

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        with printer.in_parens():
            printer.print_ssa_value(self.future)
        first = True
        for name in (*_SETS, *self.DIMENSIONS):
            if name not in self.properties:
                continue
            printer.print_string((" " if first else ", ") + name + " = ")
            first = False
            value = self.properties[name]
            if isinstance(value, DenseArrayBase):
                printer.print_string("[" + ", ".join(map(str, value.get_values())) + "]")
            else:
                printer.print_attribute(value)
        if self.FOLDS:
            printer.print_string(", identity")
            asm.print_typed_group(printer, self.identities)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        _print_future(printer, self.future.type)
        printer.print_string(" -> ")
        printer.print_list([v.type for v in self.values], printer.print_attribute)
        if self.FOLDS:
            printer.print_string(" ")
            printer.print_region(self.combiner[0])

    def verify_(self) -> None:
        """Shapes of sets, number of results, combiner arguments."""
        future = self.future.type
        require(isinstance(future, TileFutureType), "KT-V18", f"expected a tile future, got {future}")
        assert isinstance(future, TileFutureType)
        partial = list(future.value_types.data)
        _verify_tile_set(self.consumer_tiles_per_group.data, _SETS[0], (1,))
        if self.producer_dependency_per_consumer is not None:
            _verify_tile_set(self.producer_dependency_per_consumer.data, _SETS[1], (1, 2))
        require(
            len(self.values) == len(partial),
            "KT-V18",
            f"{len(self.values)} results for a future of {len(partial)} values",
        )
        for name in self.DIMENSIONS:
            dims = self.dimensions(name)
            ordered = bool(dims) and list(dims) == sorted(set(dims)) and dims[0] >= 0
            require(ordered, "KT-V26", f"{name} must be ascending, distinct and not empty, got {list(dims)}")
        regions = len(self.combiner)
        require(regions == int(self.FOLDS), "KT-V28", f"{self.name} takes {int(self.FOLDS)} regions, got {regions}")
        if self.FOLDS:
            self._verify_combiner(partial)

    def _verify_combiner(self, partial: list[Attribute]) -> None:
        found = [v.type for v in self.identities]
        require(
            found == partial, "KT-V28", f"identity types {_types(found)} differ from the partials {_types(partial)}"
        )
        block = self.combiner[0].block
        expected = partial + partial
        found = list(block.arg_types)
        require(
            found == expected,
            "KT-V28",
            f"the combiner takes {_types(expected)} (accumulators, then elements), got {_types(found)}",
        )
        last = block.last_op
        require(isinstance(last, YieldReducedOp), "KT-V28", "the combiner ends with ktdp.yield_reduced")
        assert last is not None
        found = [v.type for v in last.operands]
        require(found == partial, "KT-V28", f"the combiner yields {_types(found)}, expected {_types(partial)}")


def _parse_clause_value(parser: Parser, name: str) -> Attribute:
    span = parser._current_token.span
    value = parser.parse_attribute()
    if name in _SETS:
        if not isinstance(value, AffineSetAttr):
            parse_error(parser, "KT-P00", f"{name} must be an affine set", span)
        return value
    if isinstance(value, ArrayAttr) and all(isinstance(v, IntegerAttr) for v in value.data):
        return DenseArrayBase.from_list(i64, [v.value.data for v in value.data])
    if not isinstance(value, DenseArrayBase):
        parse_error(parser, "KT-P00", f"{name} must be a list of dims", span)
    return value


@irdl_op_definition
class InterTileConsumeOp(DeliveryOp):
    """Every consumer receives the values of exactly one producer."""

    name = "ktdp.inter_tile_consume"


@irdl_op_definition
class InterTileReduceOp(DeliveryOp):
    """Every consumer receives the fold over the producers of its group, in ascending local index."""

    name = "ktdp.inter_tile_reduce"

    FOLDS: ClassVar[bool] = True


@irdl_op_definition
class InterTileReduceScatterOp(DeliveryOp):
    """The fold is split along the listed dims; consumer l receives share l."""

    name = "ktdp.inter_tile_reduce_scatter"

    DIMENSIONS: ClassVar[tuple[str, ...]] = ("scatter_dimensions",)
    FOLDS: ClassVar[bool] = True

    scatter_dimensions = prop_def(DenseArrayBase)


@irdl_op_definition
class InterTileGatherOp(DeliveryOp):
    """Every consumer receives the concatenation of all producers along the listed dims."""

    name = "ktdp.inter_tile_gather"

    DIMENSIONS: ClassVar[tuple[str, ...]] = ("gather_dimensions",)

    gather_dimensions = prop_def(DenseArrayBase)


@irdl_op_definition
class InterTileScatterOp(DeliveryOp):
    """One producer's values are split along the listed dims; consumer l receives share l."""

    name = "ktdp.inter_tile_scatter"

    DIMENSIONS: ClassVar[tuple[str, ...]] = ("scatter_dimensions",)

    scatter_dimensions = prop_def(DenseArrayBase)


@irdl_op_definition
class InterTileAllToAllOp(DeliveryOp):
    """Consumer l receives split box l of every producer m, placed at concat box m."""

    name = "ktdp.inter_tile_all_to_all"

    DIMENSIONS: ClassVar[tuple[str, ...]] = ("split_dimensions", "concat_dimensions")

    split_dimensions = prop_def(DenseArrayBase)
    concat_dimensions = prop_def(DenseArrayBase)


DELIVERIES = (
    InterTileConsumeOp,
    InterTileReduceOp,
    InterTileReduceScatterOp,
    InterTileGatherOp,
    InterTileScatterOp,
    InterTileAllToAllOp,
)
