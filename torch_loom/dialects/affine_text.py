"""Affine expressions as text: one parser and one printer for maps, sets and subscripts.

xDSL keeps expressions as written; here they are brought to a normal form while parsing (dims, symbols, then
mod / floordiv / ceildiv terms, the constant last; constraints as ``expr >= 0`` or ``expr == 0``). Two spellings of
one set then are one attribute, and printing followed by parsing gives the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSet,
    AffineSymExpr,
)
from xdsl.parser import AttrParser
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from torch_loom.dialects.errors import parse_error

Leaf = Callable[[], AffineExpr | None]

ADD, MUL = AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul
_DIVISIONS = {AffineBinaryOpKind.Mod, AffineBinaryOpKind.FloorDiv, AffineBinaryOpKind.CeilDiv}


# ---- normal form -------------------------------------------------------------------------------


def linear_form(expr: AffineExpr) -> tuple[dict[AffineExpr, int], int]:
    """The sum ``constant + sum coefficient * atom``; atoms are dims, symbols and normalised divisions."""
    terms: dict[AffineExpr, int] = {}
    constant = _collect(expr, 1, terms)
    return {atom: factor for atom, factor in terms.items() if factor}, constant


def _collect(expr: AffineExpr, factor: int, terms: dict[AffineExpr, int]) -> int:
    if isinstance(expr, AffineConstantExpr):
        return expr.value * factor
    if isinstance(expr, AffineDimExpr | AffineSymExpr):
        terms[expr] = terms.get(expr, 0) + factor
        return 0
    assert isinstance(expr, AffineBinaryOpExpr)
    if expr.kind is ADD:
        return _collect(expr.lhs, factor, terms) + _collect(expr.rhs, factor, terms)
    if expr.kind is MUL:
        scalar, other = expr.rhs, expr.lhs
        if not isinstance(scalar, AffineConstantExpr):
            scalar, other = other, scalar
        if not isinstance(scalar, AffineConstantExpr):
            raise ValueError("product of two variables is not affine")
        return _collect(other, factor * scalar.value, terms)
    division = _normal_division(expr)
    return _collect_normal(division, factor, terms)


def _collect_normal(expr: AffineExpr, factor: int, terms: dict[AffineExpr, int]) -> int:
    """Collect an expression whose divisions are normal already."""
    if isinstance(expr, AffineBinaryOpExpr) and expr.kind in _DIVISIONS:
        terms[expr] = terms.get(expr, 0) + factor
        return 0
    if isinstance(expr, AffineBinaryOpExpr) and expr.kind is ADD:
        return _collect_normal(expr.lhs, factor, terms) + _collect_normal(expr.rhs, factor, terms)
    if isinstance(expr, AffineBinaryOpExpr):
        assert expr.kind is MUL and isinstance(expr.rhs, AffineConstantExpr)
        return _collect_normal(expr.lhs, factor * expr.rhs.value, terms)
    return _collect(expr, factor, terms)


def _normal_division(expr: AffineBinaryOpExpr) -> AffineExpr:
    """A division over a normal dividend: multiples of the divisor are taken out, constants are folded."""
    if not isinstance(expr.rhs, AffineConstantExpr):
        raise ValueError("division by a variable is not affine")
    divisor, kind = expr.rhs.value, expr.kind
    if divisor >= LIMIT:
        raise ValueError(f"divisor {divisor} does not fit into 64 bits")
    terms, constant = linear_form(expr.lhs)
    whole = {atom: factor // divisor for atom, factor in terms.items() if factor % divisor == 0}
    rest = {atom: factor for atom, factor in terms.items() if factor % divisor}
    if not rest:
        folded = constant // divisor
        if kind is AffineBinaryOpKind.Mod:
            return AffineConstantExpr(constant % divisor)
        return from_linear(whole, folded if kind is AffineBinaryOpKind.FloorDiv else -(-constant // divisor))
    if constant % divisor == 0:
        inner, outer = 0, constant // divisor
    else:
        inner, outer = constant, 0
    division = AffineBinaryOpExpr(kind, from_linear(rest, inner), AffineConstantExpr(divisor))
    if kind is AffineBinaryOpKind.Mod:
        return division
    return from_linear({**whole, division: 1}, outer)


def _atom_order(atom: AffineExpr) -> tuple[int, int, str]:
    if isinstance(atom, AffineDimExpr):
        return 0, atom.position, ""
    if isinstance(atom, AffineSymExpr):
        return 1, atom.position, ""
    return 2, 0, format_expr(atom)


#: Coefficients and constants beyond this cannot be evaluated in 64 bits without overflow.
LIMIT = 1 << 62


def from_linear(terms: dict[AffineExpr, int], constant: int) -> AffineExpr:
    """The normal expression of a linear form. Raises ``ValueError`` for numbers beyond :data:`LIMIT`."""
    if abs(constant) >= LIMIT or any(abs(factor) >= LIMIT for factor in terms.values()):
        raise ValueError("a number in an affine expression does not fit into 64 bits")
    result: AffineExpr | None = None
    for atom in sorted(terms, key=_atom_order):
        factor = terms[atom]
        if factor == 0:
            continue
        term = atom if factor == 1 else AffineBinaryOpExpr(MUL, atom, AffineConstantExpr(factor))
        result = term if result is None else AffineBinaryOpExpr(ADD, result, term)
    if result is None:
        return AffineConstantExpr(constant)
    return result if constant == 0 else AffineBinaryOpExpr(ADD, result, AffineConstantExpr(constant))


def normalise(expr: AffineExpr) -> AffineExpr:
    """The normal form of an expression; equal sums give equal expressions."""
    if isinstance(expr, AffineDimExpr | AffineSymExpr | AffineConstantExpr):
        return expr
    return from_linear(*linear_form(expr))


def normalise_map(value: AffineMap) -> AffineMap:
    """A map with normal results."""
    return AffineMap(value.num_dims, value.num_symbols, tuple(normalise(e) for e in value.results))


def constraint(kind: AffineConstraintKind, lhs: AffineExpr, rhs: AffineExpr) -> AffineConstraintExpr | None:
    """``lhs kind rhs`` as ``expr >= 0`` or ``expr == 0``; None when it always holds."""
    if kind is AffineConstraintKind.le:
        kind, lhs, rhs = AffineConstraintKind.ge, rhs, lhs
    terms: dict[AffineExpr, int] = {}
    constant = _collect(lhs, 1, terms) + _collect(rhs, -1, terms)
    expr = from_linear(terms, constant)
    if isinstance(expr, AffineConstantExpr) and (
        expr.value == 0 if kind is AffineConstraintKind.eq else expr.value >= 0
    ):
        return None
    return AffineConstraintExpr(kind, expr, AffineConstantExpr(0), canonicalize=False)


def normalise_set(value: AffineSet) -> AffineSet:
    """A set with normal constraints; constraints that always hold are dropped."""
    found = (constraint(c.kind, c.lhs, c.rhs) for c in value.constraints)
    return AffineSet(value.num_dims, value.num_symbols, tuple(c for c in found if c is not None))


# ---- parsing -----------------------------------------------------------------------------------

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "mod": 2, "floordiv": 2, "ceildiv": 2}


def parse_expr(parser: AttrParser, leaf: Leaf, level: int = 1) -> AffineExpr:
    """Parse an affine expression whose variables are read by ``leaf``. ``/`` and ``%`` divide, as in prose."""
    lhs = _parse_primary(parser, leaf)
    while True:
        token = parser._current_token
        text = token.text
        if token.kind is MLIRTokenKind.PERCENT_IDENT and text[1:].isdigit() and level <= 2:
            # `i %64`: the lexer glued the operator to the number.
            parser._resume_from(token.span.start + 1)
            text = "%"
        else:
            precedence = _PRECEDENCE.get(text)
            if precedence is None or precedence < level:
                return lhs
            parser._consume_token()
        rhs = parse_expr(parser, leaf, _PRECEDENCE[text] + 1)
        lhs = _combine(parser, text, lhs, rhs, token.span)


def _combine(parser: AttrParser, text: str, lhs: AffineExpr, rhs: AffineExpr, span: Span[Any]) -> AffineExpr:
    if text == "+":
        return AffineBinaryOpExpr(ADD, lhs, rhs)
    if text == "-":
        return AffineBinaryOpExpr(ADD, lhs, AffineBinaryOpExpr(MUL, rhs, AffineConstantExpr(-1)))
    if text == "*":
        lhs, rhs = normalise(lhs), normalise(rhs)
        if not isinstance(lhs, AffineConstantExpr) and not isinstance(rhs, AffineConstantExpr):
            parse_error(parser, "KT-P07", "semi-affine expression: one factor of '*' must be a constant", span)
        return normalise(AffineBinaryOpExpr(MUL, lhs, rhs))
    rhs = normalise(rhs)
    if not isinstance(rhs, AffineConstantExpr):
        parse_error(parser, "KT-P07", f"semi-affine expression: the divisor of '{text}' must be a constant", span)
    if rhs.value <= 0:
        parse_error(parser, "KT-P07", f"the divisor of '{text}' must be positive, got {rhs.value}", span)
    kind = {"mod": AffineBinaryOpKind.Mod, "%": AffineBinaryOpKind.Mod, "ceildiv": AffineBinaryOpKind.CeilDiv}
    return _normal_division(AffineBinaryOpExpr(kind.get(text, AffineBinaryOpKind.FloorDiv), lhs, rhs))


def _parse_primary(parser: AttrParser, leaf: Leaf) -> AffineExpr:
    found = leaf()
    if found is not None:
        return found
    if parser.parse_optional_punctuation("("):
        inner = parse_expr(parser, leaf)
        parser.parse_punctuation(")", " in affine expression")
        return inner
    if parser.parse_optional_punctuation("-"):
        return AffineBinaryOpExpr(MUL, _parse_primary(parser, leaf), AffineConstantExpr(-1))
    value = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
    if value is None:
        parse_error(parser, "KT-P00", "expected a dimension, a symbol, an integer or '(' in affine expression")
    return AffineConstantExpr(value)


def _parse_space(parser: AttrParser) -> tuple[Leaf, int, int]:
    names: dict[str, AffineExpr] = {}

    def read(make: Callable[[int], AffineExpr], delimiter: AttrParser.Delimiter) -> int:
        count = 0

        def one() -> None:
            nonlocal count
            span = parser._current_token.span
            name = parser.parse_identifier(context_msg=" in affine dimension list")
            if name in names:
                parse_error(parser, "KT-P00", f"'{name}' names two dimensions", span)
            names[name] = make(count)
            count += 1

        parser.parse_comma_separated_list(delimiter, one)
        return count

    dims = read(AffineDimExpr, parser.Delimiter.PAREN)
    symbols = 0
    if parser._current_token.kind is MLIRTokenKind.L_SQUARE:
        symbols = read(AffineSymExpr, parser.Delimiter.SQUARE)

    def leaf() -> AffineExpr | None:
        token = parser._current_token
        if token.kind is not MLIRTokenKind.BARE_IDENT:
            return None
        found = names.get(token.text)
        if found is None:
            known = ", ".join(names) or "none"
            parse_error(parser, "KT-P00", f"'{token.text}' is not a dimension or symbol here (known: {known})")
        parser._consume_token()
        return found

    return leaf, dims, symbols


def parse_map(parser: AttrParser) -> AffineMap:
    """Parse ``(dims)[symbols] -> (exprs)``."""
    leaf, dims, symbols = _parse_space(parser)
    parser.parse_punctuation("->", " in affine map")
    exprs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: normalise(parse_expr(parser, leaf)))
    return AffineMap(dims, symbols, tuple(exprs))


def _parse_relation(parser: AttrParser) -> AffineConstraintKind | None:
    token = parser._current_token
    if token.text not in (">", "<", "="):
        return None
    parser._consume_token()
    second = parser._current_token
    text = token.text + second.text
    if second.text != "=" or second.span.start != token.span.end:
        parse_error(parser, "KT-P00", "expected '>=', '<=' or '==' in affine set", token.span)
    parser._consume_token()
    return AffineConstraintKind(text)


def parse_set(parser: AttrParser) -> AffineSet:
    """Parse ``(dims)[symbols] : (constraints)``; ``a <= b <= c`` counts as two constraints."""
    leaf, dims, symbols = _parse_space(parser)
    parser.parse_punctuation(":", " in affine set")
    found: list[AffineConstraintExpr] = []

    def one() -> None:
        lhs = parse_expr(parser, leaf)
        kind = _parse_relation(parser)
        if kind is None:
            parse_error(parser, "KT-P00", "expected '>=', '<=' or '==' in affine set")
        while kind is not None:
            rhs = parse_expr(parser, leaf)
            new = constraint(kind, lhs, rhs)
            if new is not None:
                found.append(new)
            lhs, kind = rhs, _parse_relation(parser)

    parser.parse_comma_separated_list(parser.Delimiter.PAREN, one)
    return AffineSet(dims, symbols, tuple(found))


# ---- printing ----------------------------------------------------------------------------------

_TOKENS = {
    AffineBinaryOpKind.Mod: "mod",
    AffineBinaryOpKind.FloorDiv: "floordiv",
    AffineBinaryOpKind.CeilDiv: "ceildiv",
}


def format_expr(expr: AffineExpr, names: Callable[[AffineExpr], str] | None = None, tight: bool = False) -> str:
    """MLIR spelling of an expression: ``-d0 + s0 * 4 + 3``. ``tight`` adds the parentheses of an operand."""
    if isinstance(expr, AffineConstantExpr):
        return str(expr.value)
    if isinstance(expr, AffineDimExpr):
        return names(expr) if names else f"d{expr.position}"
    if isinstance(expr, AffineSymExpr):
        return names(expr) if names else f"s{expr.position}"
    assert isinstance(expr, AffineBinaryOpExpr)
    if expr.kind is ADD:
        text = format_expr(expr.lhs, names) + _format_addend(expr.rhs, names)
    elif expr.kind is MUL and isinstance(expr.rhs, AffineConstantExpr) and expr.rhs.value == -1:
        text = f"-{format_expr(expr.lhs, names, True)}"
    else:
        token = "*" if expr.kind is MUL else _TOKENS[expr.kind]
        text = f"{format_expr(expr.lhs, names, True)} {token} {format_expr(expr.rhs, names, True)}"
    return f"({text})" if tight else text


def _format_addend(expr: AffineExpr, names: Callable[[AffineExpr], str] | None) -> str:
    if isinstance(expr, AffineConstantExpr) and expr.value < 0:
        return f" - {-expr.value}"
    if isinstance(expr, AffineBinaryOpExpr):
        if expr.kind is MUL and isinstance(expr.rhs, AffineConstantExpr) and expr.rhs.value < 0:
            factor = -expr.rhs.value
            lhs = format_expr(expr.lhs, names, True)
            return f" - {lhs}" if factor == 1 else f" - {lhs} * {factor}"
        if expr.kind is ADD:
            return f" + ({format_expr(expr, names)})"
    return f" + {format_expr(expr, names)}"


def _format_space(dims: int, symbols: int) -> str:
    text = "(" + ", ".join(f"d{i}" for i in range(dims)) + ")"
    return text + ("[" + ", ".join(f"s{i}" for i in range(symbols)) + "]" if symbols else "")


def format_map(value: AffineMap) -> str:
    """``(d0, d1) -> (d1, d0)``."""
    return f"{_format_space(value.num_dims, value.num_symbols)} -> ({', '.join(map(format_expr, value.results))})"


def format_set(value: AffineSet) -> str:
    """``(d0) : (d0 >= 0, -d0 + 3 >= 0)``; the universe is ``(0 == 0)`` as MLIR prints it."""
    parts = [_format_constraint(c) for c in value.constraints] or ["0 == 0"]
    return f"{_format_space(value.num_dims, value.num_symbols)} : ({', '.join(parts)})"


def _format_constraint(value: AffineConstraintExpr) -> str:
    return f"{format_expr(value.lhs)} {value.kind.value} {format_expr(value.rhs)}"


def identity_map(rank: int) -> AffineMap:
    """The map that keeps the order of ``rank`` dims."""
    return AffineMap(rank, 0, tuple(AffineDimExpr(i) for i in range(rank)))


def box_set(extents: Sequence[int]) -> AffineSet:
    """The box ``0 <= d_k < extents[k]`` in the spelling of the upstream front end."""
    parts: list[AffineConstraintExpr] = []
    for index, extent in enumerate(extents):
        dim, zero = AffineDimExpr(index), AffineConstantExpr(0)
        for lhs, rhs in ((dim, zero), (AffineConstantExpr(extent - 1), dim)):
            new = constraint(AffineConstraintKind.ge, lhs, rhs)
            assert new is not None
            parts.append(new)
    return AffineSet(len(extents), 0, tuple(parts))
