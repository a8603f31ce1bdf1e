"""One iteration space for all nodes of a kernel.

Inductor hands over nodes whose loops were merged by host contiguity. The chip needs loops that respect
device layouts, so the nodes' ranges are refined until every node's variable is a mixed-radix
combination of common dims and no access crosses a boundary of its buffer inside one dim. Work is on
*boundaries*: suffix products of the flattened space. Two range lists are compatible when their
boundaries form one chain of divisors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sympy

from .compat import FloorDiv, ModularIndexing, sizevars


class Misaligned(Exception):
    """The ranges have no common refinement (the sizes do not divide one another)."""


@dataclass(frozen=True)
class Dim:
    """A dim of the common space; ``suffix`` is the product of the extents inside it."""

    symbol: sympy.Symbol
    extent: sympy.Expr
    suffix: sympy.Expr


def exact_div(a: sympy.Expr | int, b: sympy.Expr | int) -> sympy.Expr | None:
    """a / b when b provably divides a, else None."""
    return _exact_div(sympy.sympify(a), sympy.sympify(b))


@lru_cache(maxsize=65536)
def _exact_div(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    if b == 1:
        return a
    if a.is_Integer and b.is_Integer:
        return sympy.Integer(int(a) // int(b)) if int(b) and int(a) % int(b) == 0 else None
    generators = sorted(a.free_symbols | b.free_symbols, key=str)
    try:
        whole = sympy.Poly(a, *generators, domain=sympy.ZZ)
        part = sympy.Poly(b, *generators, domain=sympy.ZZ)
    except sympy.PolynomialError:  # FloorDiv and its kind are no polynomials, but may be factors of one
        if a == b:
            return sympy.Integer(1)
        names: dict[sympy.Expr, sympy.Symbol] = {}
        whole, part = _as_polynomial(a, names), _as_polynomial(b, names)
        found = _exact_div(whole, part) if names else None
        return found.xreplace({v: k for k, v in names.items()}) if found is not None else None
    quotient, rest = sympy.div(whole, part, auto=False)
    return quotient.as_expr() if rest.is_zero else None


def _as_polynomial(expr: sympy.Expr, names: dict[sympy.Expr, sympy.Symbol]) -> sympy.Expr:
    """The expression with a name from ``names``, which grows, for every function in it."""
    if expr.is_Symbol or expr.is_Integer:
        return expr
    if expr.is_Add or expr.is_Mul or (expr.is_Pow and expr.exp.is_Integer and expr.exp > 0):
        return expr.func(*(_as_polynomial(a, names) for a in expr.args))
    return names.setdefault(expr, sympy.Symbol(f"function{len(names)}", integer=True))


def hint(expr: sympy.Expr | int) -> int:
    """A representative value of a size (exact for static sizes)."""
    if isinstance(expr, int) or expr.is_Integer:
        return int(expr)
    return sizevars().hint(expr)


def never_negative(expr: sympy.Expr | int) -> bool:
    """Is the number at least 0 for all sizes that the graph allows, as far as quotients and lower bounds tell?"""
    low = _lowest_quotients(sympy.expand(expr))
    if low is None:
        return False
    for term in sympy.Add.make_args(low):
        coefficient, rest = term.as_coeff_Mul()
        if coefficient < 0 and rest != 1:
            return False
    least = {s: max(sizevars().limits(s)[0] or 0, 0) for s in low.free_symbols}
    return bool(low.xreplace({s: sympy.Integer(n) for s, n in least.items()}) >= 0)


def _lowest_quotients(expr: sympy.Expr) -> sympy.Expr | None:
    """A polynomial that is nowhere above ``expr``: each floor of a quotient is taken for the least or the most that it
    can be. None where something else is in it."""
    total: sympy.Expr = sympy.Integer(0)
    for term in sympy.Add.make_args(expr):
        coefficient, factors = term.as_coeff_mul()
        product: sympy.Expr = sympy.sympify(coefficient)
        for f in factors:
            if isinstance(f, FloorDiv) and f.args[1].is_Integer and f.args[1] > 0:
                base, n = f.args
                f = (base - (n - 1 if coefficient > 0 else 0)) / n
            elif not f.is_Symbol:
                return None
            product = product * f
        total = total + product
    low = sympy.expand(total)
    return low if all(s.is_Symbol for s in low.atoms(sympy.Function, sympy.Symbol)) else None


def typical(expr: sympy.Expr) -> int:
    """The extent that blocks of a dim are chosen for: its own when static, else whole sticks, since one block size
    serves all lengths and must not come from the first one seen."""
    return hint(expr) if expr.is_Integer else -(-hint(expr) // 64) * 64


def product(values: Iterable[sympy.Expr]) -> sympy.Expr:
    """Product as a sympy expression (1 for none)."""
    out: sympy.Expr = sympy.Integer(1)
    for v in values:
        out = out * v
    return sympy.expand(out)


def suffix_products(sizes: Sequence[sympy.Expr], inside: sympy.Expr) -> list[sympy.Expr]:
    """Boundaries of a range list whose innermost loop advances by ``inside``."""
    out = []
    for s in reversed(sizes):
        inside = sympy.expand(inside * s)
        out.append(inside)
    return out


class Boundaries:
    """A chain 1 | b1 | b2 | ... | total of the flattened space."""

    def __init__(self, total: sympy.Expr) -> None:
        self.total = sympy.expand(total)
        self.chain: list[sympy.Expr] = [sympy.Integer(1)]
        self._insert(self.total)

    def _insert(self, value: sympy.Expr) -> bool:
        value = sympy.expand(value)
        if value in self.chain:
            return False
        for at, b in enumerate(self.chain):
            if hint(b) >= hint(value) and exact_div(b, value) is not None:
                if at and exact_div(value, self.chain[at - 1]) is None:
                    raise Misaligned(f"{value} and {self.chain[at - 1]}")
                self.chain.insert(at, value)
                return True
            if exact_div(value, b) is None:
                raise Misaligned(f"{value} and {b}")
        self.chain.append(value)
        return True

    def add(self, value: sympy.Expr) -> bool:
        """Refine by a boundary; True if it is new. Raises Misaligned."""
        return self._insert(value)

    def dims(self) -> list[Dim]:
        """Dims outermost first; extents of one are left out."""
        out = []
        for inner, outer in zip(self.chain, self.chain[1:], strict=False):
            extent = exact_div(outer, inner)
            assert extent is not None
            if extent != 1:
                out.append((inner, extent))
        out.reverse()
        return [
            Dim(sympy.Symbol(f"d{i}", integer=True, nonnegative=True), extent, inner)
            for i, (inner, extent) in enumerate(out)
        ]


def variables(sizes: Sequence[sympy.Expr], inside: sympy.Expr, dims: Sequence[Dim]) -> list[sympy.Expr]:
    """Each loop variable of a range list as an expression in the common dims."""
    out: list[sympy.Expr] = []
    for s in reversed(sizes):
        outer = sympy.expand(inside * s)
        terms = []
        for d in dims:
            lower = exact_div(d.suffix, inside)
            if lower is not None and hint(d.suffix) < hint(outer) and exact_div(outer, d.suffix) is not None:
                terms.append(d.symbol * lower)
        out.append(sympy.Add(*terms))
        inside = outer
    out.reverse()
    return out


def linear(expr: sympy.Expr, dims: Sequence[Dim]) -> tuple[dict[Dim, sympy.Expr], sympy.Expr] | None:
    """Coefficients per dim and the constant of an affine expression, or None."""
    expr = sympy.expand(expr)
    coefficients: dict[Dim, sympy.Expr] = {}
    rest = expr
    for d in dims:
        if d.symbol not in expr.free_symbols:
            continue
        c = expr.coeff(d.symbol, 1)
        if any(x.symbol in c.free_symbols for x in dims):
            return None
        coefficients[d] = c
        rest = sympy.expand(rest - c * d.symbol)
    if any(d.symbol in rest.free_symbols for d in dims):
        return None
    return coefficients, rest


def view_boundaries(expr: sympy.Expr, dims: Sequence[Dim]) -> list[sympy.Expr]:
    """Boundaries that would turn FloorDiv / ModularIndexing of ``expr`` into plain variables."""
    found = []
    for atom in expr.atoms(FloorDiv, ModularIndexing):
        base = atom.args[0]
        parts = linear(base, dims)
        if parts is None:
            continue
        cuts = [atom.args[1]]
        if isinstance(atom, ModularIndexing):
            cuts.append(atom.args[1] * atom.args[2])
        for d, c in parts[0].items():
            for cut in cuts:
                local = exact_div(cut, c)
                if local is not None and 1 < hint(local) < hint(d.extent):
                    found.append(sympy.expand(local * d.suffix))
    return found


def refine(
    bounds: Boundaries,
    indices: Callable[[Sequence[Dim]], Sequence[tuple[sympy.Expr, Sequence[sympy.Expr], Collection[sympy.Symbol]]]],
) -> list[Dim]:
    """Refine until the indices are affine and cross no cut. An index comes with the host strides at which its
    buffer cuts and the symbols that a mask keeps inside. Cuts that have no common refinement are left: such an
    access is irregular."""
    for _ in range(16):
        dims = bounds.dims()
        changed = False
        for expr, cuts, masked in indices(dims):
            wanted = view_boundaries(expr, dims)
            parts = linear(expr, dims)
            for d, c in (parts[0] if parts else {}).items():
                if hint(c) <= 0 or d.symbol in masked:
                    continue
                for cut in cuts:
                    local = exact_div(cut, c)
                    if local is not None and 1 < hint(local) < hint(d.extent):
                        wanted.append(sympy.expand(local * d.suffix))
            for w in wanted:
                try:
                    changed |= bounds.add(w)
                except Misaligned:
                    continue
        if not changed:
            return dims
    return bounds.dims()
