"""``linalg`` ops that move elements without computing: transpose and broadcast."""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects.builtin import DenseArrayBase
from xdsl.ir import Region
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.irdl import irdl_op_definition, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.elements import element_of, shape_of
from torch_loom.dialects.errors import parse_error, require
from torch_loom.dialects.upstream_linalg_base import (
    StructuredOp,
    compatible,
    drop_result_type,
    parse_dims,
    parse_ins_outs,
    print_ins_outs,
    tensor_types,
)
from torch_loom.dialects.upstream_linalg_bodies import elementwise_body


class _LayoutOp(StructuredOp):
    """One input, one init, a list of dims."""

    LABEL: ClassVar[str] = "permutation"

    def input_count(self) -> int:
        """One input."""
        return 1

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``ins(..) outs(..) label = [..]``."""
        inputs, outputs = parse_ins_outs(parser)
        dims = parse_dims(parser, cls.LABEL)
        attributes = parser.parse_optional_attr_dict()
        drop_result_type(parser)
        return cls.create(
            operands=[*inputs, *outputs],
            properties={cls.LABEL: dims},
            attributes=attributes,
            result_types=tensor_types(outputs),
        )

    def canonicalise(self, parser: Parser) -> None:
        """Drop the body of the generic form after checking it."""
        if self.regions:
            expected, region = self.generic_body(), self.regions[0]
            if expected is None or not expected.is_structurally_equivalent(region):
                parse_error(parser, "KT-P00", f"the body of {self.name} must yield its first argument")
            self.detach_region(region)

    def generic_body(self) -> Region | None:
        """Yield the input."""
        return elementwise_body("copy", [v.type for v in self.operands])

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        print_ins_outs(printer, self)
        printer.print_string(f" {self.LABEL} = [{', '.join(map(str, self.dims))}]")
        asm.print_dictionary(printer, self.attributes)

    @property
    def dims(self) -> tuple[int, ...]:
        """The list of dims."""
        found = self.properties[self.LABEL]
        assert isinstance(found, DenseArrayBase)
        return tuple(int(v) for v in found.get_values())

    def _check_counts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        require(len(self.inputs) == 1 == len(self.outputs), "KT-V19", f"{self.name} takes one input and one init")
        source, target = (shape_of(v.type) for v in self.operands)
        require(source is not None and target is not None, "KT-V19", f"{self.name} takes tensors")
        a, b = (element_of(v.type) for v in self.operands)
        require(a == b, "KT-V19", f"{self.name} keeps the element type, got {a} and {b}")
        assert source is not None and target is not None
        return source, target


@irdl_op_definition
class TransposeOp(_LayoutOp):
    """Output dim i is input dim ``permutation[i]``."""

    name = "linalg.transpose"

    permutation = prop_def(DenseArrayBase)

    traits = traits_def(Pure())

    def iterators(self) -> list[bool]:
        """All parallel."""
        return [False] * len(self.dims)

    def maps(self) -> list[AffineMap]:
        """The inverse permutation for the input."""
        inverse = [self.dims.index(d) for d in range(len(self.dims))]
        return [
            AffineMap(len(inverse), 0, tuple(AffineDimExpr(d) for d in inverse)),
            AffineMap.identity(len(inverse)),
        ]

    def verify_(self) -> None:
        """A permutation that maps the input shape to the output shape."""
        source, target = self._check_counts()
        dims = self.dims
        require(
            sorted(dims) == list(range(len(source))) and len(target) == len(source),
            "KT-V19",
            f"permutation {list(dims)} does not permute {len(source)} dims",
        )
        moved = tuple(source[d] for d in dims)
        require(compatible(moved, target), "KT-V19", f"transposed shape is {list(moved)}, the init has {list(target)}")
        self.check_shapes()


@irdl_op_definition
class BroadcastOp(_LayoutOp):
    """``dimensions`` are the dims of the output that the input does not have."""

    name = "linalg.broadcast"

    LABEL: ClassVar[str] = "dimensions"

    dimensions = prop_def(DenseArrayBase)

    traits = traits_def(Pure())

    def iterators(self) -> list[bool]:
        """All parallel."""
        return [False] * len(shape_of(self.outputs[0].type) or ())

    def maps(self) -> list[AffineMap]:
        """The kept dims for the input."""
        rank = len(self.iterators())
        kept = tuple(AffineDimExpr(d) for d in range(rank) if d not in self.dims)
        return [AffineMap(rank, 0, kept), AffineMap.identity(rank)]

    def verify_(self) -> None:
        """Added dims exist, the others keep their extents."""
        source, target = self._check_counts()
        dims = self.dims
        require(
            len(set(dims)) == len(dims) and all(0 <= d < len(target) for d in dims),
            "KT-V19",
            f"dimensions {list(dims)} of an output of rank {len(target)}",
        )
        kept = tuple(v for d, v in enumerate(target) if d not in dims)
        require(
            compatible(source, kept), "KT-V19", f"the input has shape {list(source)}, the kept dims are {list(kept)}"
        )
        self.check_shapes()


__all__ = ["BroadcastOp", "TransposeOp"]
