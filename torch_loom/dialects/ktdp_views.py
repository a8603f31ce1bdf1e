"""Data-movement ops of ``ktdp``: views, access tiles, load and store.

Operands of mixed lists follow MLIR's convention: a static list with a marker where an SSA value stands. Subscripts
become an affine map over the distinct ids (``base_map``), so consumers never see text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineSetAttr,
    DenseArrayBase,
    IndexType,
    MemRefType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import (
    AffineConstantExpr,
    AffineConstraintExpr,
    AffineConstraintKind,
    AffineDimExpr,
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
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.affine_text import constraint
from torch_loom.dialects.errors import note_drift, require
from torch_loom.dialects.ktdp_types import (
    UNSPECIFIED,
    MemorySpaceAttr,
)


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
