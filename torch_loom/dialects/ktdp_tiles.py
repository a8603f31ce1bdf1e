"""Access tiles of ``ktdp``, and load and store through them.

Subscripts become an affine map over the distinct ids (``base_map``), so consumers never see text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from xdsl.dialects.builtin import (
    AffineMapAttr,
    AffineSetAttr,
    DenseArrayBase,
    IndexType,
    MemRefType,
    TensorType,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import (
    AffineDimExpr,
    AffineMap,
    AffineSet,
)
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.affine_text import identity_map, normalise
from torch_loom.dialects.errors import note_drift, parse_error, require
from torch_loom.dialects.ktdp_types import (
    AccessTileType,
    parse_elidable,
)


@irdl_op_definition
class ConstructAccessTileOp(IRDLOperation):
    """Selects the view coordinates ``base_map(ids) + p`` for every point p of the local set."""

    name = "ktdp.construct_access_tile"

    base = operand_def(MemRefType)
    subscripts = var_operand_def(IndexType)
    symbols = var_operand_def(IndexType)
    base_map = prop_def(AffineMapAttr)
    access_tile_set = prop_def(AffineSetAttr)
    access_tile_order = prop_def(AffineMapAttr)
    tile = result_def(AccessTileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def __init__(
        self,
        base: SSAValue,
        subscripts: Sequence[SSAValue],
        base_map: AffineMap,
        access_tile_set: AffineSet,
        tile_type: AccessTileType,
        access_tile_order: AffineMap | None = None,
        symbols: Sequence[SSAValue] = (),
    ) -> None:
        super().__init__(
            operands=[base, subscripts, symbols],
            properties={
                "base_map": AffineMapAttr(base_map),
                "access_tile_set": AffineSetAttr(access_tile_set),
                "access_tile_order": AffineMapAttr(access_tile_order or identity_map(access_tile_set.num_dims)),
            },
            result_types=[tile_type],
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%base[subs] symbols(%s)? attrs : memref-type -> tile-type``."""
        base = parser.parse_unresolved_operand()
        at = parser._current_token.span
        bracketed = at.text == "["
        base_map: Attribute | None = None
        if bracketed:
            parsed, subscripts = asm.parse_subscripts(parser)
            base_map = AffineMapAttr(parsed)
        else:
            subscripts = _parse_old_subscripts(parser)
        symbols = parse_symbols(parser)
        names = ("access_tile_set", "access_tile_order", "base_map")
        properties, attributes = asm.parse_properties(parser, names)
        if bracketed and "base_map" in properties:
            parse_error(parser, "KT-P04", "base_map in the dictionary and subscripts in brackets", at)
        if not bracketed:
            if "base_map" not in properties:
                parse_error(parser, "KT-P00", "expected subscripts in brackets after the view", at)
            note_drift(parser, at, "base_map in the dictionary", "subscripts in brackets")
            base_map = properties["base_map"]
        for name in names[:2]:
            if name not in properties:
                parse_error(parser, "KT-P00", f"construct_access_tile needs the attribute '{name}'")
        parser.parse_punctuation(":")
        base_value = parser.resolve_operand(base, parser.parse_type())
        parser.parse_punctuation("->")
        tile_type = parse_elidable(parser, AccessTileType)
        assert base_map is not None
        op = cls.create(
            operands=[base_value, *subscripts, *symbols],
            properties={
                "base_map": base_map,
                "access_tile_set": properties["access_tile_set"],
                "access_tile_order": properties["access_tile_order"],
                "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, len(subscripts), len(symbols)]),
            },
            attributes=attributes,
            result_types=[tile_type],
        )
        if not bracketed:
            op.canonicalise(parser)
        return op

    def canonicalise(self, parser: Parser) -> None:
        """Number the ids by their appearance, as reading the printed text would."""
        base_map, sizes = self.properties.get("base_map"), self.properties.get("operandSegmentSizes")
        if not isinstance(base_map, AffineMapAttr) or not isinstance(sizes, DenseArrayBase):
            return
        counts = [int(v) for v in sizes.get_values()]
        value = base_map.data
        if len(counts) != 3 or sum(counts) != len(self.operands) or value.num_symbols or value.num_dims != counts[1]:
            return  # the verifier says what is wrong
        base, ids, symbols = self.operands[0], self.operands[1 : 1 + counts[1]], self.operands[1 + counts[1] :]
        (exprs,), found = asm.order_ids([[normalise(e) for e in value.results]], list(ids))
        self.operands = [base, *found, *symbols]
        self.properties["base_map"] = AffineMapAttr(AffineMap(len(found), 0, tuple(exprs)))
        self.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [1, len(found), counts[2]])

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        asm.print_subscripts(printer, self.base_map.data, self.subscripts)
        print_symbols(printer, self.symbols)
        names = ("access_tile_order", "access_tile_set")
        named: dict[str, Attribute] = {n: self.properties[n] for n in names}
        asm.print_dictionary(printer, named, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.base.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.tile.type)

    def verify_(self) -> None:
        """Counts of dims, operands and symbols agree; the order is a permutation."""
        base_map, points = self.base_map.data, self.access_tile_set.data
        require(isinstance(self.base.type, MemRefType), "KT-V18", f"the base is a view, got {self.base.type}")
        base_type = self.base.type
        assert isinstance(base_type, MemRefType)
        rank = base_type.get_num_dims()
        require(len(base_map.results) == rank, "KT-V02", f"{len(base_map.results)} subscripts for rank {rank}")
        inputs = base_map.num_dims + base_map.num_symbols
        require(
            inputs == len(self.subscripts),
            "KT-V02",
            f"base_map takes {inputs} ids, {len(self.subscripts)} given",
        )
        require(
            points.num_dims == rank, "KT-V02", f"access_tile_set has {points.num_dims} dims, the view has rank {rank}"
        )
        verify_order_and_symbols(self, points, self.access_tile_order.data, len(self.symbols), "access_tile_set")


def verify_order_and_symbols(op: Any, points: AffineSet, order: AffineMap, symbols: int, set_name: str) -> None:
    require(
        points.num_symbols == symbols,
        "KT-V02",
        f"{set_name} has {points.num_symbols} symbols, symbols(...) lists {symbols}",
    )
    dims = sorted(e.position for e in order.results if isinstance(e, AffineDimExpr))
    permutation = dims == list(range(points.num_dims)) == list(range(order.num_dims)) and order.num_symbols == 0
    require(
        permutation and len(order.results) == points.num_dims,
        "KT-V06",
        f"the order map is not a permutation of the {points.num_dims} dims of {set_name}",
    )
    require(isinstance(op.tile.type, AccessTileType), "KT-V07", f"the result is an access tile, got {op.tile.type}")
    rank = len(op.tile.type.get_shape())
    require(rank == points.num_dims, "KT-V07", f"access tile of rank {rank} for {points.num_dims} dims of {set_name}")


def _parse_old_subscripts(parser: Parser) -> list[SSAValue]:
    """Ids before an explicit base_map: ``(%a, %b)`` or ``, %a, %b`` or nothing."""
    if parser.parse_optional_punctuation("("):
        if parser.parse_optional_punctuation(")"):
            return []
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(")")
        return asm.resolve_indices(parser, names)
    names = []
    while parser.parse_optional_punctuation(","):
        names.append(parser.parse_unresolved_operand())
    return asm.resolve_indices(parser, names)


def parse_symbols(parser: Parser) -> list[SSAValue]:
    if not parser.parse_optional_keyword("symbols"):
        return []
    names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return asm.resolve_indices(parser, names)


def print_symbols(printer: Printer, symbols: Sequence[SSAValue]) -> None:
    if symbols:
        printer.print_string(" symbols(")
        printer.print_list(symbols, printer.print_ssa_value)
        printer.print_string(")")


def _verify_shapes(tile: SSAValue, tensor: SSAValue, what: str) -> None:
    tile_type, tensor_type = tile.type, tensor.type
    require(isinstance(tile_type, AccessTileType), "KT-V12", f"{what} takes an access tile, got {tile_type}")
    require(isinstance(tensor_type, TensorType), "KT-V12", f"{what} moves a tensor, got {tensor_type}")
    assert isinstance(tile_type, AccessTileType) and isinstance(tensor_type, TensorType)
    shape, expected = tensor_type.get_shape(), tile_type.get_shape()
    require(
        shape == expected, "KT-V12", f"{what} of {tensor_type} through an access tile of {tile_type}: shapes differ"
    )


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Turns an access tile into a tensor value in the LX of the executing compute tile."""

    name = "ktdp.load"

    tile = operand_def(AccessTileType)
    value = result_def(TensorType)

    traits = traits_def(MemoryReadEffect())

    def __init__(self, tile: SSAValue | Operation, result_type: Attribute) -> None:
        super().__init__(operands=[tile], result_types=[result_type])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%tile attrs? : tile-type -> tensor-type``."""
        tile = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        value = parser.resolve_operand(tile, parse_elidable(parser, AccessTileType))
        parser.parse_punctuation("->")
        return cls.create(operands=[value], result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print the canonical form, tile type elided."""
        printer.print_string(" ")
        printer.print_ssa_value(self.tile)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        print_elided(printer, self.tile.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.value.type)

    def verify_(self) -> None:
        """Tile and tensor have one shape."""
        _verify_shapes(self.tile, self.value, "load")


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Writes a tensor value to the coordinates of an access tile."""

    name = "ktdp.store"

    value = operand_def(TensorType)
    tile = operand_def(AccessTileType)

    traits = traits_def(MemoryWriteEffect())

    def __init__(self, value: SSAValue | Operation, tile: SSAValue | Operation) -> None:
        super().__init__(operands=[value, tile])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%value, %tile attrs? : tensor-type, tile-type``."""
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        tile = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        tensor = parser.resolve_operand(value, parser.parse_type())
        parser.parse_punctuation(",")
        target = parser.resolve_operand(tile, parse_elidable(parser, AccessTileType))
        return cls.create(operands=[tensor, target], attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print the canonical form, tile type elided."""
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)
        printer.print_string(", ")
        print_elided(printer, self.tile.type)

    def verify_(self) -> None:
        """Tile and tensor have one shape."""
        _verify_shapes(self.tile, self.value, "store")


def print_elided(printer: Printer, kind: Attribute) -> None:
    """Print a ktdp type without its name."""
    if isinstance(kind, AccessTileType):
        kind.print_parameters(printer)
    else:
        printer.print_attribute(kind)
