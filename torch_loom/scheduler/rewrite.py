"""Rewriting expressions: substitution, undoing index splits, linear forms, values for given numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_loom.scheduler.expr import (
    ZERO,
    Atom,
    Expr,
    Monomial,
    divide_monomial,
    floordiv,
    make,
    maximum,
    minimum,
    mod,
    of,
)

_BUILD: dict[str, Callable[[Expr, Expr], Expr]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}


def substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace variables (by name) and simplify again."""
    if e.static or not values:
        return e
    total = Expr(e.const)
    for monomial, c in e.terms:
        product = Expr(c)
        for atom in monomial:
            product = product * _substitute_atom(atom, values)
        total = total + product
    return total


def _substitute_atom(atom: Atom, values: Mapping[str, Expr]) -> Expr:
    if not atom.args:
        return values.get(atom.name, of(atom))
    args = [substitute(a, values) for a in atom.args]
    if all(x is y or x == y for x, y in zip(args, atom.args, strict=True)):
        return of(atom)
    return _BUILD[atom.kind](args[0], args[1])


def recombine(e: Expr) -> Expr:
    """Fold c*d*(x floordiv d) + c*(x mod d) into c*x, which undoes a split of an index."""
    while True:
        found = _recombine_once(e)
        if found is None:
            return e
        e = found


def _recombine_once(e: Expr) -> Expr | None:
    for monomial, c in e.terms:
        for i, atom in enumerate(monomial):
            if atom.kind != "mod":
                continue
            x, d = atom.args
            others = Expr(0, ((monomial[:i] + monomial[i + 1 :], c),)) if len(monomial) > 1 else Expr(c)
            quotient = floordiv(x, d)
            whole = others * d * quotient
            if quotient.terms and _contains(e, whole):
                return e - whole - Expr(0, ((monomial, c),)) + others * x
    return None


def _contains(e: Expr, part: Expr) -> bool:
    have = dict(e.terms)
    return all(have.get(m) == c for m, c in part.terms if any(a.kind == "floordiv" for a in m))


def linear(e: Expr, names: tuple[str, ...]) -> tuple[Expr, dict[str, Expr]] | None:
    """Split into (rest, coefficient per name) if the expression is linear in the named variables."""
    rest: dict[Monomial, int] = {}
    coefficients: dict[str, Expr] = {}
    wanted = set(names)
    for monomial, c in e.terms:
        hits = [a for a in monomial if not a.args and a.name in wanted]
        nested = any(n.name in wanted for a in monomial for arg in a.args for n in arg.atoms())
        if nested or len(hits) > 1:
            return None
        if not hits:
            rest[monomial] = c
            continue
        left = divide_monomial(monomial, (hits[0],))
        assert left is not None
        piece = Expr(0, ((left, c),)) if left else Expr(c)
        coefficients[hits[0].name] = coefficients.get(hits[0].name, ZERO) + piece
    return make(e.const, rest), coefficients


def evaluate(e: Expr, values: Mapping[str, int]) -> int:
    """The number for given variable values (tests and checks)."""
    total = e.const
    for monomial, c in e.terms:
        product = c
        for atom in monomial:
            product *= _evaluate_atom(atom, values)
        total += product
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if not atom.args:
        return values[atom.name]
    a, b = (evaluate(x, values) for x in atom.args)
    if atom.kind == "floordiv":
        return a // b
    if atom.kind == "mod":
        return a % b
    return min(a, b) if atom.kind == "min" else max(a, b)
