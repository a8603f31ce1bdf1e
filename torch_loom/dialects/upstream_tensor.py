"""``tensor`` as KTIR uses it: xDSL's ops with shape checks, and ``tensor.generate``."""

from __future__ import annotations

from math import prod
from typing import Any, Self

from xdsl.dialects import tensor as xt
from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, DenseArrayBase, IntegerAttr, TensorType
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, region_def, result_def, traits_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.elements import element_of, is_integer, shape_of
from torch_loom.dialects.errors import require
from torch_loom.dialects.upstream_arith import derive


def _counts(op: IRDLOperation, operands: int) -> None:
    require(
        len(op.operands) == operands and len(op.results) == 1,
        "KT-V19",
        f"{op.name} takes {operands} operands and has one result",
    )


def _tensor(kind: Attribute, what: str) -> tuple[int, ...]:
    require(isinstance(kind, TensorType), "KT-V19", f"{what} must be a tensor, got {kind}")
    shape = shape_of(kind)
    assert shape is not None
    return shape


def _same_element(op: IRDLOperation, a: Attribute, b: Attribute) -> None:
    require(element_of(a) == element_of(b), "KT-V19", f"{op.name} keeps the element type, got {a} and {b}")


def reassociation_of(op: Any) -> list[list[int]]:
    """The dim groups of a reshape."""
    found = op.properties.get("reassociation")
    require(isinstance(found, ArrayAttr), "KT-V19", f"{op.name} needs a reassociation")
    groups: list[list[int]] = []
    for group in found.data:
        require(isinstance(group, ArrayAttr), "KT-V19", f"{op.name}: a reassociation is a list of lists")
        require(all(isinstance(d, IntegerAttr) for d in group.data), "KT-V19", f"{op.name}: dims are integers")
        groups.append([d.value.data for d in group.data])
    return groups


def _check_groups(op: Any, collapsed: Attribute, expanded: Attribute) -> None:
    small, large = _tensor(collapsed, "the collapsed side"), _tensor(expanded, "the expanded side")
    _same_element(op, collapsed, expanded)
    groups = reassociation_of(op)
    if not small and not groups:  # rank 0: every dim of the expanded side is one
        groups = [list(range(len(large)))] if large else []
        small = (1,) * len(groups)
    dims = [d for group in groups for d in group]
    require(
        dims == list(range(len(large))) and len(groups) == len(small),
        "KT-V19",
        f"{op.name}: reassociation {groups} does not cover {len(large)} dims in {len(small)} groups",
    )
    for position, group in enumerate(groups):
        extents = [large[d] for d in group]
        if DYNAMIC_INDEX in extents or small[position] == DYNAMIC_INDEX:
            require(
                small[position] == DYNAMIC_INDEX or DYNAMIC_INDEX not in extents or extents.count(DYNAMIC_INDEX) == 1,
                "KT-V19",
                f"{op.name}: group {group} has several dynamic extents",
            )
            continue
        require(
            prod(extents) == small[position],
            "KT-V19",
            f"{op.name}: dims {group} hold {prod(extents)} elements, the collapsed dim {small[position]}",
        )


class _Collapse:
    def check(self: Any) -> None:
        """Groups fit both shapes."""
        _counts(self, 1)
        _check_groups(self, self.results[0].type, self.operands[0].type)


class _Expand:
    def check(self: Any) -> None:
        """Groups fit both shapes; the output shape is the result's."""
        require(len(self.operands) >= 1 and len(self.results) == 1, "KT-V19", "expand_shape maps one tensor to one")
        _check_groups(self, self.operands[0].type, self.results[0].type)
        static = self.properties.get("static_output_shape")
        require(isinstance(static, DenseArrayBase), "KT-V19", "expand_shape needs output_shape")
        shape = tuple(int(v) for v in static.get_values())
        require(
            shape == shape_of(self.results[0].type),
            "KT-V19",
            f"output_shape {list(shape)} differs from {self.results[0].type}",
        )
        dynamic = shape.count(DYNAMIC_INDEX)
        require(
            dynamic == len(self.operands) - 1, "KT-V19", f"{dynamic} dynamic extents, {len(self.operands) - 1} operands"
        )


class _Slice:
    """Checks shared by extract_slice and insert_slice."""

    def check(self: Any) -> None:
        """Lists have one entry per dim; static boxes lie inside."""
        insert = isinstance(self, xt.InsertSliceOp)
        first = 2 if insert else 1
        require(len(self.operands) >= first and len(self.results) == 1, "KT-V19", f"{self.name} has wrong operands")
        small = self.operands[0].type if insert else self.results[0].type
        large = self.operands[1].type if insert else self.operands[0].type
        extents = _tensor(large, "the large side")
        _tensor(small, "the slice")
        _same_element(self, small, large)
        if insert:
            require(self.results[0].type == large, "KT-V19", "insert_slice yields the type of its destination")
        lists = []
        total = 0
        for name in ("static_offsets", "static_sizes", "static_strides"):
            found = self.properties.get(name)
            require(isinstance(found, DenseArrayBase), "KT-V19", f"{self.name} needs {name}")
            values = [int(v) for v in found.get_values()]
            require(len(values) == len(extents), "KT-V19", f"{self.name}: {len(values)} {name} for rank {len(extents)}")
            lists.append(values)
            total += values.count(DYNAMIC_INDEX)
        require(total == len(self.operands) - first, "KT-V19", f"{self.name}: dynamic entries and operands differ")
        for dim, (offset, size, stride) in enumerate(zip(*lists, strict=True)):
            require(size == DYNAMIC_INDEX or size >= 0, "KT-V19", f"{self.name}: size {size} of dim {dim}")
            if DYNAMIC_INDEX in (offset, size, stride) or extents[dim] == DYNAMIC_INDEX or size == 0:
                continue
            last = offset + (size - 1) * stride
            require(
                0 <= offset < extents[dim] and 0 <= last < extents[dim],
                "KT-V19",
                f"{self.name}: dim {dim} covers {offset}..{last}, the tensor has {extents[dim]}",
            )
        self_shape = shape_of(small) or ()
        sizes = lists[1]
        reduced = _drop_units(sizes, self_shape)
        require(reduced, "KT-V19", f"{self.name}: sizes {_shown(sizes)} do not give the slice type {small}")


def _shown(values: list[int]) -> list[int | str]:
    return ["?" if v == DYNAMIC_INDEX else v for v in values]


def _drop_units(sizes: list[int], shape: tuple[int, ...]) -> bool:
    """``shape`` is ``sizes`` with some unit entries removed."""
    rest = list(shape)
    for size in sizes:
        if rest and (rest[0] == size):
            rest.pop(0)
        elif size != 1:
            return False
    return not rest


def slice_dims(sizes: list[int], shape: tuple[int, ...]) -> list[int]:
    """Dims of the large tensor that the slice keeps, in order."""
    kept: list[int] = []
    for dim, size in enumerate(sizes):
        if len(kept) < len(shape) and shape[len(kept)] == size:
            kept.append(dim)
    return kept


class _Reshape:
    def check(self: Any) -> None:
        """Same number of elements, a shape operand of the right length."""
        _counts(self, 2)
        source, shape, target = (_tensor(v.type, "operand") for v in (*self.operands, *self.results))
        _same_element(self, self.operands[0].type, self.results[0].type)
        require(is_integer(element_of(self.operands[1].type)), "KT-V19", "the shape operand holds integers")
        require(
            len(shape) == 1 and shape[0] in (len(target), DYNAMIC_INDEX),
            "KT-V19",
            f"the shape operand {self.operands[1].type} does not describe rank {len(target)}",
        )
        if DYNAMIC_INDEX not in source + target:
            require(
                prod(source) == prod(target),
                "KT-V19",
                f"{self.operands[0].type} and {self.results[0].type} differ in size",
            )


CollapseShapeOp = derive(xt.CollapseShapeOp, _Collapse)
ExpandShapeOp = derive(xt.ExpandShapeOp, _Expand)
ExtractSliceOp = derive(xt.ExtractSliceOp, _Slice)
InsertSliceOp = derive(xt.InsertSliceOp, _Slice)
ReshapeOp = derive(xt.ReshapeOp, _Reshape)


class _Empty:
    def check(self: Any) -> None:
        """One size per dynamic dim."""
        require(len(self.results) == 1, "KT-V19", "tensor.empty has one result")
        dynamic = _tensor(self.results[0].type, "the result").count(DYNAMIC_INDEX)
        sizes = len(self.operands)
        require(dynamic == sizes, "KT-V19", f"{self.results[0].type} needs {dynamic} sizes, got {sizes}")
        require(all(v.type == asm.INDEX for v in self.operands), "KT-V19", "sizes have type index")


EmptyOp = derive(xt.EmptyOp, _Empty)


@irdl_op_definition
class GenerateOp(IRDLOperation):
    """A tensor whose element at (i, ...) is what the body yields for those indices."""

    name = "tensor.generate"

    dynamic_extents = var_operand_def()
    body = region_def("single_block")
    result = result_def(TensorType)

    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``%sizes region attrs? : T``."""
        names = parser.parse_optional_undelimited_comma_separated_list(
            parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
        )
        sizes = asm.resolve_indices(parser, names or [])
        region = parser.parse_region()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(operands=sizes, regions=[region], attributes=attributes, result_types=[parser.parse_type()])

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        if self.operands:
            printer.print_string(" ")
            printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(" ")
        printer.print_region(self.body)
        asm.print_dictionary(printer, self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        """One size per dynamic dim, one index argument per dim, an element yielded."""
        shape = _tensor(self.result.type, "the result")
        require(
            shape.count(DYNAMIC_INDEX) == len(self.operands), "KT-V19", "one size per dynamic dim of tensor.generate"
        )
        block = self.body.block
        require(
            list(block.arg_types) == [asm.INDEX] * len(shape), "KT-V19", f"the body takes {len(shape)} index arguments"
        )
        last = block.last_op
        require(isinstance(last, xt.YieldOp), "KT-V18", "the body ends with tensor.yield")
        assert last is not None
        require(
            [v.type for v in last.operands] == [element_of(self.result.type)],
            "KT-V19",
            f"the body yields {element_of(self.result.type)}",
        )


Tensor = Dialect(
    "tensor",
    [
        *(xt.CastOp, xt.ConcatOp, xt.DimOp, xt.ExtractOp, xt.FromElementsOp, xt.InsertOp, xt.SplatOp, xt.PadOp),
        *(CollapseShapeOp, EmptyOp, ExpandShapeOp, ExtractSliceOp, GenerateOp, InsertSliceOp, ReshapeOp, xt.YieldOp),
    ],
    [],
)
