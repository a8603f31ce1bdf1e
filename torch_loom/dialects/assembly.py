"""Pieces of custom assembly shared by the dialects: mixed lists, ins/outs groups, subscripts, dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineDimExpr, AffineExpr, AffineMap
from xdsl.parser import AttrParser, Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.mlir_lexer import MLIRTokenKind

from torch_loom.dialects.affine_text import format_expr, normalise, parse_expr
from torch_loom.dialects.errors import parse_error, require

INDEX = IndexType()


def dense_i64(values: Sequence[int]) -> DenseArrayBase:
    """``array<i64: ...>``."""
    return DenseArrayBase.from_list(i64, values)


def parse_mixed_list(
    parser: Parser, delimiter: Parser.Delimiter = Parser.Delimiter.SQUARE
) -> tuple[list[UnresolvedOperand], DenseArrayBase]:
    """Parse ``[1, %n, 3]``: the operands, and the static list with a marker at each operand."""
    operands: list[UnresolvedOperand] = []
    static: list[int] = []

    def one() -> None:
        operand = parser.parse_optional_unresolved_operand()
        if operand is None:
            at = parser._current_token.span
            value = parser.parse_integer(allow_boolean=False)
            if abs(value) >= -DYNAMIC_INDEX:  # the smallest i64 is the marker
                parse_error(parser, "KT-P00", f"{value} does not fit into 64 bits", at)
            static.append(value)
        else:
            operands.append(operand)
            static.append(DYNAMIC_INDEX)

    parser.parse_comma_separated_list(delimiter, one)
    return operands, dense_i64(static)


def print_mixed_list(printer: Printer, static: Iterable[int], operands: Sequence[SSAValue]) -> None:
    """Print the list that :func:`parse_mixed_list` reads."""
    rest = iter(operands)
    printer.print_string("[")
    for position, value in enumerate(static):
        if position:
            printer.print_string(", ")
        if value == DYNAMIC_INDEX:
            printer.print_ssa_value(next(rest))
        else:
            printer.print_string(str(value))
    printer.print_string("]")


def mixed_values(static: Sequence[int], operands: Sequence[SSAValue]) -> list[int | SSAValue]:
    """The list with integers and SSA values in their places. Raises ``CodedVerifyError`` when the counts differ."""
    count = sum(value == DYNAMIC_INDEX for value in static)
    require(count == len(operands), "KT-V18", f"{count} dynamic entries in a list, but {len(operands)} operands")
    rest = iter(operands)
    return [next(rest) if value == DYNAMIC_INDEX else value for value in static]


def resolve_indices(parser: Parser, operands: Sequence[UnresolvedOperand]) -> list[SSAValue]:
    """Resolve operands of type index."""
    return [parser.resolve_operand(operand, INDEX) for operand in operands]


def parse_typed_group(parser: Parser, keyword: str | None = None) -> list[SSAValue]:
    """Parse ``keyword (%a, %b : T, T)`` and resolve the operands; an empty list ``()`` is allowed."""
    if keyword is not None:
        parser.parse_keyword(keyword)
    parser.parse_punctuation("(")
    if parser.parse_optional_punctuation(")"):
        return []
    start = parser.pos
    names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return list(parser.resolve_operands(names, types, start))


def print_typed_group(printer: Printer, values: Sequence[SSAValue]) -> None:
    """Print ``(%a, %b : T, T)``."""
    printer.print_string("(")
    if values:
        printer.print_list(values, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list([v.type for v in values], printer.print_attribute)
    printer.print_string(")")


def parse_result_types(parser: Parser) -> list[Attribute]:
    """Parse ``-> T`` or ``-> (T, ...)`` if present."""
    if not parser.parse_optional_punctuation("->"):
        return []
    types = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    return list(types) if types is not None else [parser.parse_type()]


def print_result_types(printer: Printer, types: Sequence[Attribute]) -> None:
    """Print `` -> T`` or `` -> (T, ...)``."""
    if not types:
        return
    printer.print_string(" -> ")
    if len(types) == 1:
        printer.print_attribute(types[0])
        return
    with printer.in_parens():
        printer.print_list(types, printer.print_attribute)


def parse_properties(parser: Parser, known: Iterable[str]) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """Parse a dictionary and split it into properties (``known``) and other attributes.

    A name without a dialect prefix that is not known is KT-P01: nothing would ever read it.
    """
    span = parser._current_token.span
    entries = parser.parse_optional_attr_dict()
    names = set(known)
    properties = {k: v for k, v in entries.items() if k in names}
    others = {k: v for k, v in entries.items() if k not in names}
    for name in others:
        if "." not in name:
            hint = nearest(name, names)
            parse_error(parser, "KT-P01", f"unknown attribute '{name}'{hint}", span)
    return properties, others


def nearest(name: str, known: Iterable[str]) -> str:
    """`` ; did you mean 'x'?`` for the closest known name, or nothing."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


def print_dictionary(printer: Printer, *parts: Mapping[str, Attribute]) -> None:
    """Print `` {a = .., b = ..}`` in alphabetical order, nothing when empty."""
    merged: dict[str, Attribute] = {}
    for part in parts:
        merged.update(part)
    if merged:
        printer.print_string(" ")
        printer.print_attr_dict(dict(sorted(merged.items())))


class OperandLeaf:
    """Reads ``%id`` in an affine expression as a dim; equal ids share one dim."""

    def __init__(self, parser: Parser, variables: Mapping[str, AffineExpr] | None = None) -> None:
        self.parser = parser
        self.operands: list[UnresolvedOperand] = []
        self.variables = variables or {}
        self._seen: dict[tuple[str, int], AffineExpr] = {}

    def __call__(self) -> AffineExpr | None:
        """The expression of the next token, or None when it names no value."""
        token = self.parser._current_token
        if token.kind is MLIRTokenKind.BARE_IDENT and token.text in self.variables:
            self.parser._consume_token()
            return self.variables[token.text]
        operand = self.parser.parse_optional_unresolved_operand()
        if operand is None:
            return None
        name = operand.operand_name
        if operand.index == 0 and name in self.variables:
            return self.variables[name]
        key = name, operand.index
        if key not in self._seen:
            self._seen[key] = AffineDimExpr(len(self.operands))
            self.operands.append(operand)
        return self._seen[key]

    def expr(self) -> AffineExpr:
        """Parse one expression into normal form."""
        return normalise(parse_expr(self.parser, self))


IdT = TypeVar("IdT")


def _dims_in_order(expr: AffineExpr) -> Iterator[int]:
    """Positions of the dims of an expression in the order in which they are printed."""
    if isinstance(expr, AffineDimExpr):
        yield expr.position
    elif isinstance(expr, AffineBinaryOpExpr):
        yield from _dims_in_order(expr.lhs)
        yield from _dims_in_order(expr.rhs)


def order_ids(
    groups: Sequence[Sequence[AffineExpr]], ids: Sequence[IdT], variables: int = 0
) -> tuple[list[list[AffineExpr]], list[IdT]]:
    """Number ids by their appearance in the printed text and drop those that do not appear.

    The dims of ``groups`` are the ids, then ``variables`` more that keep their order. Renumbering may reorder sums,
    so it is repeated until nothing changes; text then reads back to the same numbers.
    """
    exprs, names = [list(g) for g in groups], list(ids)
    for _ in range(8):
        count = len(names)
        seen = list(dict.fromkeys(d for g in exprs for e in g for d in _dims_in_order(e) if d < count))
        if seen == list(range(count)):
            break
        new: list[AffineExpr] = [AffineDimExpr(seen.index(d) if d in seen else 0) for d in range(count)]
        new += [AffineDimExpr(len(seen) + v) for v in range(variables)]
        exprs = [[normalise(e.replace_dims_and_symbols(new, ())) for e in g] for g in exprs]
        names = [names[d] for d in seen]
    return exprs, names


def parse_subscripts(parser: Parser) -> tuple[AffineMap, list[SSAValue]]:
    """Parse ``[%row + %i, 0]`` into a map over the distinct ids and those ids."""
    leaf = OperandLeaf(parser)
    exprs = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, leaf.expr)
    (exprs,), operands = order_ids([exprs], resolve_indices(parser, leaf.operands))
    return AffineMap(len(operands), 0, tuple(exprs)), operands


def print_expr(printer: Printer, expr: AffineExpr, value_of: Callable[[AffineExpr], SSAValue]) -> None:
    """Print an expression with SSA values in place of its dims."""
    values: list[SSAValue] = []

    def name(leaf: AffineExpr) -> str:
        values.append(value_of(leaf))
        return "\0"

    pieces = format_expr(expr, name).split("\0")
    printer.print_string(pieces[0])
    for value, piece in zip(values, pieces[1:], strict=True):
        printer.print_ssa_value(value)
        printer.print_string(piece)


def print_subscripts(printer: Printer, subscripts: AffineMap, operands: Sequence[SSAValue]) -> None:
    """Print ``[%row + %i, 0]``."""

    def value_of(leaf: AffineExpr) -> SSAValue:
        assert isinstance(leaf, AffineDimExpr)
        return operands[leaf.position]

    with printer.in_square_brackets():
        printer.print_list(subscripts.results, lambda expr: print_expr(printer, expr, value_of))


def parse_elided_shape(parser: AttrParser) -> list[int]:
    """Parse ``<4x?xindex>``; the element type must be index."""
    parser.parse_punctuation("<")
    dims, element = parser.parse_ranked_shape()
    if element != INDEX:
        parse_error(parser, "KT-P00", f"the element type of an access tile is index, got {element}")
    parser.parse_punctuation(">")
    return dims
