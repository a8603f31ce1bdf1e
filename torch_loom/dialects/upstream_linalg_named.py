"""Named ``linalg`` ops: elementwise and contractions, one table row each.

A named op is its name: in memory it has no body region. Upstream's generic form shows one; it is checked while
reading and made up again while printing (``generic_body``), so both forms are one object here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr
from xdsl.ir import Attribute, Region
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.elements import element_of, is_float, shape_of
from torch_loom.dialects.errors import parse_error, require
from torch_loom.dialects.upstream_linalg_base import SegmentedOp, parse_ins_outs, print_ins_outs, segments
from torch_loom.dialects.upstream_linalg_bodies import contraction_body, elementwise_body


@dataclass(frozen=True)
class Scalar:
    """The scalar op that a named op applies, for float and for integer elements."""

    float_op: str | None
    int_op: str | None = None
    unsigned_op: str | None = None
    arity: int = 1


#: Named elementwise ops: linalg name -> scalar op by element kind (None: not defined for that kind).
ELEMENTWISE: dict[str, Scalar] = {
    "add": Scalar("arith.addf", "arith.addi", arity=2),
    "sub": Scalar("arith.subf", "arith.subi", arity=2),
    "mul": Scalar("arith.mulf", "arith.muli", arity=2),
    "div": Scalar("arith.divf", "arith.divsi", arity=2),
    "div_unsigned": Scalar(None, "arith.divui", arity=2),
    "max": Scalar("arith.maximumf", "arith.maxsi", arity=2),
    "min": Scalar("arith.minimumf", "arith.minsi", arity=2),
    "powf": Scalar("math.powf", arity=2),
    "exp": Scalar("math.exp"),
    "log": Scalar("math.log"),
    "sqrt": Scalar("math.sqrt"),
    "rsqrt": Scalar("math.rsqrt"),
    "tanh": Scalar("math.tanh"),
    "erf": Scalar("math.erf"),
    "abs": Scalar("math.absf"),
    "ceil": Scalar("math.ceil"),
    "floor": Scalar("math.floor"),
    "round": Scalar("math.round"),
    "negf": Scalar("arith.negf"),
    "reciprocal": Scalar("reciprocal"),
    "square": Scalar("square"),
    "select": Scalar("arith.select", "arith.select", arity=3),
    "copy": Scalar("copy", "copy"),
    "fill": Scalar("copy", "copy"),
}


class NamedOp(SegmentedOp):
    """``op ins(...) outs(...) attrs? -> T``."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse groups, attributes and the result type."""
        properties: dict[str, Attribute] = {}
        if parser._current_token.text == "indexing_maps":
            parser._consume_token()
            parser.parse_punctuation("=")
            properties["indexing_maps"] = parser.parse_attribute()
        attributes = parser.parse_optional_attr_dict()
        inputs, outputs = parse_ins_outs(parser)
        attributes |= parser.parse_optional_attr_dict()
        if parser.parse_optional_keyword("attrs"):
            parser.parse_punctuation("=")
            attributes |= parser.parse_optional_attr_dict()
        if "indexing_maps" in attributes:
            properties["indexing_maps"] = attributes.pop("indexing_maps")
        types = asm.parse_result_types(parser)
        properties["operandSegmentSizes"] = segments(inputs, outputs)
        op = cls.create(operands=[*inputs, *outputs], properties=properties, attributes=attributes, result_types=types)
        op.canonicalise(parser)
        return op

    def canonicalise(self, parser: Parser) -> None:
        """Drop the body of the generic form after checking it, and maps that say nothing new."""
        if self.regions:
            expected = self.generic_body()
            region = self.regions[0]
            if expected is None or not expected.is_structurally_equivalent(region):
                parse_error(parser, "KT-P00", f"the body of {self.name} is not the body of that op; use linalg.generic")
            self.detach_region(region)
        if self.properties.get("indexing_maps") == ArrayAttr([AffineMapAttr(m) for m in self.default_maps()]):
            del self.properties["indexing_maps"]

    def default_maps(self) -> list[AffineMap]:
        """The indexing maps when none are written."""
        raise NotImplementedError

    def maps(self) -> list[AffineMap]:
        """Written maps, or the default ones."""
        found = self.properties.get("indexing_maps")
        if isinstance(found, ArrayAttr):
            return [m.data for m in found.data if isinstance(m, AffineMapAttr)]
        return self.default_maps()

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        if "indexing_maps" in self.properties:
            printer.print_string(" indexing_maps = ")
            printer.print_attribute(self.properties["indexing_maps"])
        print_ins_outs(printer, self)
        if self.attributes:
            printer.print_string(" attrs =")
            asm.print_dictionary(printer, self.attributes)
        asm.print_result_types(printer, [r.type for r in self.results])


class ElementwiseOp(NamedOp):
    """A scalar op applied to every element; ``outs`` gives only the shape."""

    SCALAR: ClassVar[Scalar]

    @property
    def scalar_name(self) -> str:
        """The scalar op for the element kind of the output."""
        kind = element_of(self.outputs[0].type)
        found = self.SCALAR.float_op if is_float(kind) else self.SCALAR.int_op
        require(found is not None, "KT-V19", f"{self.name} is not defined for {kind}")
        assert found is not None
        return found

    def default_maps(self) -> list[AffineMap]:
        """Identity for tensors, nothing for scalars."""
        rank = len(shape_of(self.outputs[0].type) or ()) if self.outputs else 0
        return [
            AffineMap.identity(rank) if shape_of(v.type) is not None else AffineMap(rank, 0, ()) for v in self.operands
        ]

    def iterators(self) -> list[bool]:
        """All parallel."""
        return [False] * len(shape_of(self.outputs[0].type) or ())

    def verify_(self) -> None:
        """Arity, shapes, element kinds."""
        require(len(self.outputs) == 1, "KT-V19", f"{self.name} has one output, got {len(self.outputs)}")
        arity = self.SCALAR.arity
        require(len(self.inputs) == arity, "KT-V19", f"{self.name} takes {arity} inputs, got {len(self.inputs)}")
        assert self.scalar_name
        self.check_shapes()

    def generic_body(self) -> Region | None:
        """The scalar op between casts."""
        return elementwise_body(self.scalar_name, [v.type for v in self.operands])


class ContractionOp(NamedOp):
    """``outputs + sum of products``; an empty output counts as zero."""

    LETTERS: ClassVar[tuple[str, str, str]]
    LOOPS: ClassVar[str]

    def default_maps(self) -> list[AffineMap]:
        """Maps from the letters of the op."""
        return [
            AffineMap(len(self.LOOPS), 0, tuple(AffineDimExpr(self.LOOPS.index(c)) for c in letters))
            for letters in self.LETTERS
        ]

    def iterators(self) -> list[bool]:
        """Loops that the output does not name are reductions."""
        used = {e.position for e in self.maps()[-1].results if isinstance(e, AffineDimExpr)}
        return [dim not in used for dim in range(len(self.LOOPS))]

    def verify_(self) -> None:
        """Two inputs, one output, shapes that fit."""
        require(
            len(self.inputs) == 2 and len(self.outputs) == 1,
            "KT-V19",
            f"{self.name} takes two inputs and one output",
        )
        self.check_shapes()
        a, b, c = (element_of(v.type) for v in self.operands)
        require(
            is_float(a) == is_float(b) == is_float(c), "KT-V19", f"{self.name} mixes floats and integers: {a}, {b}, {c}"
        )

    def generic_body(self) -> Region | None:
        """Multiply and add in the output's element type."""
        return contraction_body([v.type for v in self.operands])


def _make(name: str, base: type[NamedOp], **members: object) -> type[NamedOp]:
    title = "".join(part.capitalize() for part in name.split("_")) + "Op"
    namespace = {
        "name": f"linalg.{name}",
        "__module__": __name__,
        "__doc__": f"``linalg.{name}``.",
        "__annotations__": {},
        "traits": traits_def(Pure()),
    }
    cls = irdl_op_definition(type(base)(title, (base,), namespace))  # type: ignore[misc]
    for key, value in members.items():
        setattr(cls, key, value)
    cls.verify_ = base.verify_  # type: ignore[method-assign]
    return cls


ELEMENTWISE_OPS = {name: _make(name, ElementwiseOp, SCALAR=scalar) for name, scalar in ELEMENTWISE.items()}

#: Contractions: linalg name -> (loops, letters of lhs, rhs, output).
CONTRACTIONS: dict[str, tuple[str, tuple[str, str, str]]] = {
    "matmul": ("mnk", ("mk", "kn", "mn")),
    "matmul_transpose_a": ("mnk", ("km", "kn", "mn")),
    "matmul_transpose_b": ("mnk", ("mk", "nk", "mn")),
    "batch_matmul": ("bmnk", ("bmk", "bkn", "bmn")),
    "batch_matmul_transpose_a": ("bmnk", ("bkm", "bkn", "bmn")),
    "batch_matmul_transpose_b": ("bmnk", ("bmk", "bnk", "bmn")),
    "matvec": ("mk", ("mk", "k", "m")),
    "vecmat": ("nk", ("k", "kn", "n")),
    "batch_matvec": ("bmk", ("bmk", "bk", "bm")),
    "dot": ("k", ("k", "k", "")),
}
CONTRACTION_OPS = {
    name: _make(name, ContractionOp, LOOPS=loops, LETTERS=letters) for name, (loops, letters) in CONTRACTIONS.items()
}
AddOp, SubOp, MulOp, DivOp = (ELEMENTWISE_OPS[n] for n in ("add", "sub", "mul", "div"))
MaxOp, MinOp, SelectOp, CopyOp = (ELEMENTWISE_OPS[n] for n in ("max", "min", "select", "copy"))
MatmulOp, BatchMatmulOp = CONTRACTION_OPS["matmul"], CONTRACTION_OPS["batch_matmul"]
FillOp = ELEMENTWISE_OPS["fill"]
