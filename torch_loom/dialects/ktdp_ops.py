"""Data-movement ops of ``ktdp``: views, access tiles, load and store.

Operands of mixed lists follow MLIR's convention: a static list with a marker where an SSA value stands. Subscripts
become an affine map over the distinct ids (``base_map``), so consumers never see text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeAlias

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AffineSetAttr,
    DenseArrayBase,
    IndexType,
    MemRefType,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import (
    AffineConstantExpr,
    AffineConstraintExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineMap,
    AffineSet,
    AffineSymExpr,
)
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.affine_text import constraint, identity_map, normalise
from torch_loom.dialects.errors import CodedVerifyError, note_drift, parse_error
from torch_loom.dialects.ktdp_types import (
    UNSPECIFIED,
    AccessTileType,
    MemorySpaceAttr,
    parse_elidable,
)

Shape: TypeAlias = "tuple[int, ...]"


def full_box(static_sizes: Sequence[int]) -> AffineSet:
    """The set of all coordinates of a view; each dynamic size is a symbol, in order."""
    parts: list[AffineConstraintExpr | None] = []
    symbols = 0
    for position, size in enumerate(static_sizes):
        dim = AffineDimExpr(position)
        if size == DYNAMIC_INDEX:
            upper = AffineSymExpr(symbols) - 1
            symbols += 1
        else:
            upper = AffineConstantExpr(size - 1)
        parts.append(constraint(AffineConstraintKind.ge, dim, AffineConstantExpr(0)))
        parts.append(constraint(AffineConstraintKind.ge, upper, dim))
    return AffineSet(len(static_sizes), symbols, tuple(p for p in parts if p is not None))


def require(condition: bool, code: str, message: str) -> None:
    """Raise a coded verification error unless the condition holds."""
    if not condition:
        raise CodedVerifyError(code, message)


@irdl_op_definition
class GetComputeTileIdOp(IRDLOperation):
    """Coordinates of the executing compute tile in the grid, one result per grid dim."""

    name = "ktdp.get_compute_tile_id"

    ids = var_result_def(IndexType)

    traits = traits_def(Pure())

    def __init__(self, count: int = 1) -> None:
        super().__init__(result_types=[[IndexType()] * count])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``attrs? : index, ...``."""
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.create(result_types=types, attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print ``: index, ...``."""
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        printer.print_list([r.type for r in self.results], printer.print_attribute)

    def verify_(self) -> None:
        """At least one result."""
        require(len(self.results) >= 1, "KT-V18", "get_compute_tile_id needs at least one result")


@irdl_op_definition
class CoreIdOp(IRDLOperation):
    """Older spelling of the linear compute-tile id; the loader replaces it."""

    name = "ktdp.coreid"

    id = result_def(IndexType)

    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``attrs? : index``."""
        note_drift(parser, parser._current_token.span, "ktdp.coreid", "ktdp.get_compute_tile_id")
        attributes = parser.parse_optional_attr_dict()
        if parser.parse_optional_punctuation(":"):
            parser.parse_type()
        return cls.create(result_types=[IndexType()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print ``: index``."""
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : index")


def _parse_label(parser: Parser, label: str) -> None:
    parser.parse_keyword(label)
    parser.parse_punctuation(":")


@irdl_op_definition
class ConstructMemoryViewOp(IRDLOperation):
    """Describes memory at an offset: ``offset + sum (coord_k - min_k) * stride_k`` per coordinate of the set."""

    name = "ktdp.construct_memory_view"

    offset = operand_def(IndexType)
    sizes = var_operand_def(IndexType)
    strides = var_operand_def(IndexType)
    static_sizes = prop_def(DenseArrayBase.constr(i64))
    static_strides = prop_def(DenseArrayBase.constr(i64))
    coordinate_set = prop_def(AffineSetAttr)
    memory_space = opt_prop_def(MemorySpaceAttr)
    view = result_def(MemRefType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def __init__(
        self,
        offset: SSAValue | Operation,
        sizes: Sequence[int | SSAValue],
        strides: Sequence[int | SSAValue],
        view_type: Attribute,
        memory_space: MemorySpaceAttr | None,
        coordinate_set: AffineSet | None = None,
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        static_sizes = [DYNAMIC_INDEX if isinstance(v, SSAValue) else v for v in sizes]
        static_strides = [DYNAMIC_INDEX if isinstance(v, SSAValue) else v for v in strides]
        super().__init__(
            operands=[
                offset,
                [v for v in sizes if isinstance(v, SSAValue)],
                [v for v in strides if isinstance(v, SSAValue)],
            ],
            properties={
                "static_sizes": asm.dense_i64(static_sizes),
                "static_strides": asm.dense_i64(static_strides),
                "coordinate_set": AffineSetAttr(coordinate_set or full_box(static_sizes)),
                "memory_space": memory_space,
            },
            attributes=attributes,
            result_types=[view_type],
        )

    @property
    def mixed_sizes(self) -> list[int | SSAValue]:
        """Extents in order, integers or SSA values."""
        return asm.mixed_values(self.static_sizes.get_values(), self.sizes)

    @property
    def mixed_strides(self) -> list[int | SSAValue]:
        """Strides in elements in order, integers or SSA values."""
        return asm.mixed_values(self.static_strides.get_values(), self.strides)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%offset, sizes: [..], strides: [..] attrs : memref-type``."""
        offset = parser.resolve_operand(parser.parse_unresolved_operand(), asm.INDEX)
        parser.parse_punctuation(",")
        _parse_label(parser, "sizes")
        sizes, static_sizes = asm.parse_mixed_list(parser)
        parser.parse_punctuation(",")
        _parse_label(parser, "strides")
        strides, static_strides = asm.parse_mixed_list(parser)
        properties, attributes = asm.parse_properties(parser, ("coordinate_set", "memory_space"))
        parser.parse_punctuation(":")
        view_type = parser.parse_type()
        properties |= {"static_sizes": static_sizes, "static_strides": static_strides}
        properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [1, len(sizes), len(strides)])
        op = cls.create(
            operands=[offset, *asm.resolve_indices(parser, sizes), *asm.resolve_indices(parser, strides)],
            properties=properties,
            attributes=attributes,
            result_types=[view_type],
        )
        op.canonicalise(parser)
        return op

    def canonicalise(self, parser: Parser) -> None:
        """Fill in what older text leaves out: the full coordinate set, the caller's default memory space."""
        static = self.properties.get("static_sizes")
        if "coordinate_set" not in self.properties and isinstance(static, DenseArrayBase):
            self.properties["coordinate_set"] = AffineSetAttr(full_box(static.get_values()))
        space = self.properties.get("memory_space")
        if isinstance(space, MemorySpaceAttr) and space.space.data == UNSPECIFIED:
            del self.properties["memory_space"]
            space = None
        default = getattr(parser, "assume_memory_space", None)
        if space is None and default is not None:
            self.properties["memory_space"] = MemorySpaceAttr.of(default)

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" ")
        printer.print_ssa_value(self.offset)
        printer.print_string(", sizes: ")
        asm.print_mixed_list(printer, self.static_sizes.get_values(), self.sizes)
        printer.print_string(", strides: ")
        asm.print_mixed_list(printer, self.static_strides.get_values(), self.strides)
        named: dict[str, Attribute] = {
            k: self.properties[k] for k in ("coordinate_set", "memory_space") if k in self.properties
        }
        asm.print_dictionary(printer, named, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.view.type)

    def verify_(self) -> None:
        """Counts, shape and coordinate set agree."""
        sizes, strides = self.static_sizes.get_values(), self.static_strides.get_values()
        require(len(sizes) == len(strides), "KT-V01", f"{len(sizes)} sizes but {len(strides)} strides")
        for label, static, dynamic in (("sizes", sizes, self.sizes), ("strides", strides, self.strides)):
            count = sum(v == DYNAMIC_INDEX for v in static)
            require(count == len(dynamic), "KT-V01", f"{count} dynamic {label} but {len(dynamic)} operands for them")
        require(isinstance(self.view.type, MemRefType), "KT-V01", f"the result is a memref, got {self.view.type}")
        shape = self.view.type.get_shape()
        require(len(shape) == len(sizes), "KT-V01", f"memref of rank {len(shape)} for {len(sizes)} sizes")
        for position, (declared, size) in enumerate(zip(shape, sizes, strict=True)):
            require(
                declared == size,
                "KT-V01",
                f"dim {position} of {self.view.type} is {_dim(declared)}, but its size is {_dim(size)}",
            )
            require(size >= 0 or size == DYNAMIC_INDEX, "KT-V01", f"size {size} of dim {position} is negative")
        dims = self.coordinate_set.data
        require(
            dims.num_dims == len(sizes), "KT-V02", f"coordinate_set has {dims.num_dims} dims, the view {len(sizes)}"
        )
        require(
            dims.num_symbols == len(self.sizes),
            "KT-V02",
            f"coordinate_set has {dims.num_symbols} symbols for {len(self.sizes)} dynamic sizes",
        )
        require(
            self.memory_space is not None and self.memory_space.space.data != UNSPECIFIED,
            "KT-V03",
            "memory_space is missing; write #ktdp.memory_space<global> or #ktdp.memory_space<ct_local>",
        )
        assert self.memory_space is not None
        require(
            self.memory_space.ct_id is None or not self.memory_space.is_global,
            "KT-V04",
            "ct_id is meaningful only with ct_local",
        )


def _dim(value: int) -> str:
    return "dynamic" if value == DYNAMIC_INDEX else str(value)


@irdl_op_definition
class ConstructDistributedMemoryViewOp(IRDLOperation):
    """One view over several partitions; a coordinate is served by the partition whose set holds it."""

    name = "ktdp.construct_distributed_memory_view"

    partitions = var_operand_def(MemRefType)
    view = result_def(MemRefType)

    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``(%a, %b : T1, T2) attrs? : memref-type``."""
        partitions = asm.parse_typed_group(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(operands=partitions, result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" ")
        asm.print_typed_group(printer, self.operands)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.results[0].type)

    def verify_(self) -> None:
        """Equal rank and element type of all partitions."""
        require(len(self.operands) >= 1, "KT-V18", "a distributed view needs at least one partition")
        result = self.view.type
        require(isinstance(result, MemRefType), "KT-V01", f"the result is a memref, got {result}")
        for position, value in enumerate(self.partitions):
            part = value.type
            require(isinstance(part, MemRefType), "KT-V18", f"partition {position} is not a view but {part}")
            assert isinstance(part, MemRefType)
            rank, expected = part.get_num_dims(), result.get_num_dims()
            require(rank == expected, "KT-V01", f"partition {position} has rank {rank}, the result {expected}")
            require(
                part.element_type == result.element_type,
                "KT-V12",
                f"partition {position} holds {part.element_type}, the result {result.element_type}",
            )


def shape_under(order: AffineMap, extents: Sequence[int]) -> tuple[int, ...]:
    """Extents after a permutation map."""
    return tuple(extents[e.position] if isinstance(e, AffineDimExpr) else 1 for e in order.results)


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
        symbols = _parse_symbols(parser)
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
        _print_symbols(printer, self.symbols)
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
        _verify_order_and_symbols(self, points, self.access_tile_order.data, len(self.symbols), "access_tile_set")


def _verify_order_and_symbols(op: Any, points: AffineSet, order: AffineMap, symbols: int, set_name: str) -> None:
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


def _parse_symbols(parser: Parser) -> list[SSAValue]:
    if not parser.parse_optional_keyword("symbols"):
        return []
    names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return asm.resolve_indices(parser, names)


def _print_symbols(printer: Printer, symbols: Sequence[SSAValue]) -> None:
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
