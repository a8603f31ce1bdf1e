"""``linalg`` ops with their own maps or regions: generic, reduce, map, transpose, broadcast.

Short forms (``linalg.reduce { arith.addf } ...``) are spellings of a region of one op; they are printed whenever the
region has that shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, DenseArrayBase, StringAttr
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.ir import Attribute, Block, Operation, Region
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.elements import element_of, shape_of
from torch_loom.dialects.errors import parse_error, require
from torch_loom.dialects.upstream_arith import parse_flags
from torch_loom.dialects.upstream_linalg_base import (
    SegmentedOp,
    StructuredOp,
    YieldOp,
    drop_result_type,
    parse_dims,
    parse_ins_outs,
    print_ins_outs,
    segments,
    tensor_types,
)
from torch_loom.dialects.upstream_linalg_bodies import SCALARS


@irdl_op_definition
class GenericOp(SegmentedOp):
    """Any affine maps, parallel and reduction loops, a scalar body."""

    name = "linalg.generic"

    indexing_maps = prop_def(ArrayAttr[AffineMapAttr])
    iterator_types = prop_def(ArrayAttr[IteratorTypeAttr])
    doc = opt_prop_def(StringAttr)
    library_call = opt_prop_def(StringAttr)

    traits = traits_def(Pure())

    def maps(self) -> list[AffineMap]:
        """The written maps."""
        return [m.data for m in self.indexing_maps.data]

    def iterators(self) -> list[bool]:
        """Per loop: True when it is a reduction."""
        return [kind.data is not IteratorType.PARALLEL for kind in self.iterator_types.data]

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse ``{indexing_maps, iterator_types} ins outs attrs? region -> T``."""
        span = parser._current_token.span
        entries = parser.parse_optional_attr_dict()
        for name in ("indexing_maps", "iterator_types"):
            if name not in entries:
                parse_error(parser, "KT-P00", f"linalg.generic needs '{name}'", span)
        maps, iterators = entries.pop("indexing_maps"), entries.pop("iterator_types")
        if not isinstance(maps, ArrayAttr) or not all(isinstance(m, AffineMapAttr) for m in maps.data):
            parse_error(parser, "KT-P00", "indexing_maps is a list of affine maps", span)
        if not isinstance(iterators, ArrayAttr):
            parse_error(parser, "KT-P00", "iterator_types is a list", span)
        properties: dict[str, Attribute] = {
            "indexing_maps": maps,
            "iterator_types": ArrayAttr([_iterator(parser, kind, span) for kind in iterators.data]),
        }
        properties |= {n: entries.pop(n) for n in ("doc", "library_call") if n in entries}
        inputs, outputs = parse_ins_outs(parser)
        if parser.parse_optional_keyword("attrs"):
            parser.parse_punctuation("=")
            entries |= parser.parse_optional_attr_dict()
        region = parser.parse_region()
        types = asm.parse_result_types(parser)
        properties["operandSegmentSizes"] = segments(inputs, outputs)
        return cls.create(
            operands=[*inputs, *outputs],
            properties=properties,
            attributes=entries,
            regions=[region],
            result_types=types,
        )

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" {indexing_maps = ")
        printer.print_attribute(self.indexing_maps)
        kinds = ", ".join(f'"{kind.data.value}"' for kind in self.iterator_types.data)
        printer.print_string(f", iterator_types = [{kinds}]")
        for name in ("doc", "library_call"):
            if name in self.properties:
                printer.print_string(f", {name} = ")
                printer.print_attribute(self.properties[name])
        printer.print_string("}")
        print_ins_outs(printer, self)
        if self.attributes:
            printer.print_string(" attrs =")
            asm.print_dictionary(printer, self.attributes)
        printer.print_string(" ")
        printer.print_region(self.body)
        asm.print_result_types(printer, [r.type for r in self.results])

    def verify_(self) -> None:
        """Maps, body arguments and yields fit the operands."""
        self.check_shapes()
        verify_body(self, [element_of(v.type) for v in self.operands])


def verify_body(op: StructuredOp, arguments: Sequence[Attribute]) -> None:
    """One block with these arguments that yields one value per output."""
    require(len(op.regions) == 1 and len(op.body.blocks) == 1, "KT-V18", f"{op.name} has one block")
    block = op.body.block
    found = list(block.arg_types)
    require(
        found == list(arguments),
        "KT-V19",
        f"the body takes ({', '.join(map(str, arguments))}), got ({', '.join(map(str, found))})",
    )
    last = block.last_op
    require(isinstance(last, YieldOp), "KT-V18", f"the body of {op.name} ends with linalg.yield")
    assert last is not None
    yields, expected = [v.type for v in last.operands], [element_of(v.type) for v in op.outputs]
    require(
        yields == expected,
        "KT-V19",
        f"the body yields ({', '.join(map(str, yields))}), the outputs hold ({', '.join(map(str, expected))})",
    )


def _iterator(parser: Parser, kind: Attribute, span: object) -> IteratorTypeAttr:
    if isinstance(kind, IteratorTypeAttr):
        return kind
    if isinstance(kind, StringAttr) and kind.data in ("parallel", "reduction"):
        return IteratorTypeAttr(IteratorType(kind.data))
    parse_error(parser, "KT-P01", f"unknown iterator type {kind}; known: parallel, reduction")


# ---- short forms -------------------------------------------------------------------------------


def _parse_short(parser: Parser) -> tuple[type[Operation], dict[str, Attribute], dict[str, Attribute]] | None:
    """Parse ``{ dialect.op flags? dict? }`` if present."""
    if parser._current_token.text != "{":
        return None
    parser._consume_token()
    span = parser._current_token.span
    name = parser.parse_identifier(context_msg=" naming the op of the short form")
    cls = SCALARS.get(name)
    if cls is None:
        parse_error(parser, "KT-P01", f"unknown op '{name}' in a short form{asm.nearest(name, SCALARS)}", span)
    properties = dict(getattr(cls, "DEFAULTS", {}))
    attributes = parse_flags(parser, properties)
    known = cls.get_irdl_definition().properties if hasattr(cls, "get_irdl_definition") else {}
    properties |= {k: attributes.pop(k) for k in list(attributes) if k in known}
    parser.parse_punctuation("}")
    return cls, properties, attributes


def short_form(region: Region, first: Sequence[int]) -> Operation | None:
    """The single op of a body whose operands are the block arguments ``first``, with default flags; else None."""
    if len(region.blocks) != 1:
        return None
    block = region.block
    ops = list(block.ops)
    if len(ops) != 2 or not isinstance(ops[1], YieldOp) or len(ops[0].results) != 1 or ops[0].regions:
        return None
    op, last = ops
    arguments = [block.args[i] for i in first]
    plain = not op.attributes and op.properties == getattr(type(op), "DEFAULTS", {})
    if list(op.operands) != arguments or list(last.operands) != [op.results[0]] or last.attributes:
        return None
    same = all(a.type == op.results[0].type for a in arguments)
    return op if op.name in SCALARS and plain and same else None


def _short_region(
    parsed: tuple[type[Operation], dict[str, Attribute], dict[str, Attribute]],
    arguments: Sequence[Attribute],
    first: Sequence[int],
) -> Region:
    cls, properties, attributes = parsed
    block = Block(arg_types=arguments)
    op = cls.create(
        operands=[block.args[i] for i in first],
        result_types=[block.args[first[0]].type],
        properties=properties,
        attributes=attributes,
    )
    block.add_ops([op, YieldOp.create(operands=[op.results[0]])])
    return Region(block)


def _parse_block_region(parser: Parser) -> Region:
    arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
    return parser.parse_region(arguments)


def _print_block_region(printer: Printer, region: Region) -> None:
    printer.print_string(" (")
    printer.print_list(region.block.args, printer.print_block_argument)
    printer.print_string(") ")
    printer.print_region(region, print_entry_block_args=False, print_empty_block=False)


@irdl_op_definition
class ReduceOp(StructuredOp):
    """Folds inputs along dims into the inits, which are combined exactly once.

    Block arguments are (inputs..., inits...). The short form ``{ op }`` is ``op(init, input)``.
    """

    name = "linalg.reduce"

    dimensions = prop_def(DenseArrayBase)

    traits = traits_def(Pure())

    def input_count(self) -> int:
        """Half of the operands."""
        return len(self.operands) // 2

    @property
    def dims(self) -> tuple[int, ...]:
        """The folded dims, ascending."""
        return tuple(int(v) for v in self.dimensions.get_values())

    @property
    def combiner(self) -> str | None:
        """Name of the op when the body is one op on init and input in either order, else None."""
        for order in ((1, 0), (0, 1)):
            op = short_form(self.body, order) if len(self.inputs) == 1 else None
            if op is not None:
                return op.name
        return None

    def iterators(self) -> list[bool]:
        """One loop per input dim."""
        rank = len(shape_of(self.inputs[0].type) or ())
        return [d in self.dims for d in range(rank)]

    def maps(self) -> list[AffineMap]:
        """Identity for inputs, the kept dims for inits."""
        rank = len(shape_of(self.inputs[0].type) or ())
        kept = AffineMap(rank, 0, tuple(AffineDimExpr(d) for d in range(rank) if d not in self.dims))
        return [AffineMap.identity(rank)] * len(self.inputs) + [kept] * len(self.outputs)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse the short or the region form."""
        short = _parse_short(parser)
        inputs, outputs = parse_ins_outs(parser)
        dimensions = parse_dims(parser, "dimensions")
        attributes = parser.parse_optional_attr_dict() if parser._current_token.text == "{" and short is None else {}
        if short is None:
            region = _parse_block_region(parser)
        else:
            if len(inputs) != 1 or len(outputs) != 1:
                parser.raise_error("the short form of linalg.reduce takes one input and one init")
            region = _short_region(short, [element_of(v.type) for v in (*inputs, *outputs)], (1, 0))
        drop_result_type(parser)
        return cls.create(
            operands=[*inputs, *outputs],
            properties={"dimensions": dimensions},
            attributes=attributes,
            regions=[region],
            result_types=tensor_types(outputs),
        )

    def print(self, printer: Printer) -> None:
        """Print the short form when the body allows it."""
        short = short_form(self.body, (1, 0)) if len(self.inputs) == 1 and not self.attributes else None
        if short is not None:
            printer.print_string(f" {{ {short.name} }}")
        print_ins_outs(printer, self)
        printer.print_string(f" dimensions = [{', '.join(map(str, self.dims))}]")
        if short is None:
            asm.print_dictionary(printer, self.attributes)
            _print_block_region(printer, self.body)

    def verify_(self) -> None:
        """Equal counts, ascending dims, shapes, body."""
        require(len(self.inputs) == len(self.outputs) >= 1, "KT-V19", "linalg.reduce takes as many inits as inputs")
        shapes = [shape_of(v.type) for v in self.inputs]
        require(all(s is not None for s in shapes), "KT-V19", "linalg.reduce takes tensors")
        rank = len(shapes[0] or ())
        dims = self.dims
        require(
            list(dims) == sorted(set(dims)) and all(0 <= d < rank for d in dims),
            "KT-V19",
            f"dimensions {list(dims)} must be ascending, distinct and below the rank {rank}",
        )
        self.check_shapes()
        verify_body(self, [element_of(v.type) for v in self.operands])


@irdl_op_definition
class MapOp(StructuredOp):
    """A scalar body applied to equal-shape inputs."""

    name = "linalg.map"

    traits = traits_def(Pure())

    def input_count(self) -> int:
        """All operands but the last."""
        return len(self.operands) - 1

    def iterators(self) -> list[bool]:
        """All parallel."""
        return [False] * len(shape_of(self.outputs[0].type) or ())

    def maps(self) -> list[AffineMap]:
        """Identity."""
        return [AffineMap.identity(len(self.iterators()))] * len(self.operands)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse the short or the region form."""
        short = _parse_short(parser)
        inputs, outputs = parse_ins_outs(parser)
        attributes = parser.parse_optional_attr_dict() if parser._current_token.text == "{" and short is None else {}
        arguments = [element_of(v.type) for v in (*inputs, *outputs)]
        if short is None:
            region = _parse_block_region(parser)
        else:
            region = _short_region(short, arguments, range(len(inputs)))
        drop_result_type(parser)
        op = cls.create(
            operands=[*inputs, *outputs],
            attributes=attributes,
            regions=[region],
            result_types=tensor_types(outputs),
        )
        op.canonicalise(parser)
        return op

    def canonicalise(self, parser: Parser) -> None:
        """Older text has no argument for the output; add it."""
        if self.regions and self.body.blocks and self.outputs:
            block = self.body.block
            if len(block.args) == len(self.inputs):
                block.insert_arg(element_of(self.outputs[0].type), len(block.args))

    def print(self, printer: Printer) -> None:
        """Print the short form when the body allows it."""
        short = short_form(self.body, range(len(self.inputs))) if self.inputs and not self.attributes else None
        if short is not None:
            printer.print_string(f" {{ {short.name} }}")
        print_ins_outs(printer, self)
        if short is None:
            asm.print_dictionary(printer, self.attributes)
            _print_block_region(printer, self.body)

    def verify_(self) -> None:
        """One output, equal shapes, body."""
        require(len(self.outputs) == 1, "KT-V19", "linalg.map has one output")
        self.check_shapes()
        verify_body(self, [element_of(v.type) for v in self.operands])


__all__ = ["GenericOp", "MapOp", "ReduceOp", "short_form"]
