"""Integer expressions over launch symbols, the core number, loop variables and segment dims.

Every number of a schedule that is not a plain integer is an ``Expr``: a constant plus a sum of coefficient
times product of atoms. The form is canonical, so equal expressions compare equal, and sums fold without a
rewriting pass. Divisions, remainders, minima and maxima are atoms whose arguments are again expressions;
they are simplified when they are built, with the value ranges that atoms carry. Ranges are plain integers:
they decide what can be proved (a tile lies inside a view, an extent fits a buffer), never what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from math import gcd

Bound = int | None
"""A range end; None is unbounded."""


class Atom:
    """A variable or an irreducible operation. Compared by ``key``; ``lo``/``hi`` bound its value."""

    __slots__ = ("args", "extent", "granularity", "hi", "key", "kind", "lo", "name", "_hash")

    def __init__(
        self,
        kind: str,
        name: str = "",
        args: tuple[Expr, ...] = (),
        lo: Bound = None,
        hi: Bound = None,
        extent: Expr | None = None,
        granularity: int = 1,
    ) -> None:
        self.kind, self.name, self.args, self.lo, self.hi = kind, name, args, lo, hi
        self.extent = extent
        self.granularity = granularity
        self.key = name if not args else f"{kind}({','.join(a.key for a in args)})"
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.key == other.key

    def __repr__(self) -> str:
        return self.key


Monomial = tuple[Atom, ...]
Term = tuple[Monomial, int]


class Expr:
    """``const + sum coefficient * product(atoms)``; immutable and hashable."""

    __slots__ = ("const", "terms", "_key", "_range")

    def __init__(self, const: int, terms: tuple[Term, ...] = ()) -> None:
        self.const = const
        self.terms = terms
        self._key: str | None = None
        self._range: tuple[Bound, Bound] | None = None

    # -- identity -------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """Canonical text: equal values of this class have equal keys."""
        if self._key is None:
            parts = [f"{c}*{'*'.join(a.key for a in m)}" for m, c in self.terms]
            if self.const or not parts:
                parts.append(str(self.const))
            self._key = "+".join(parts)
        return self._key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return not self.terms and self.const == other
        return isinstance(other, Expr) and self.key == other.key

    def __repr__(self) -> str:
        return self.key

    # -- queries --------------------------------------------------------------------------------

    @property
    def static(self) -> bool:
        """True for a plain integer."""
        return not self.terms

    @property
    def value(self) -> int:
        """The integer of a static expression."""
        if self.terms:
            raise ValueError(f"{self} is not a constant")
        return self.const

    @property
    def lo(self) -> Bound:
        """Smallest value, None when unknown."""
        return self.range[0]

    @property
    def hi(self) -> Bound:
        """Largest value, None when unknown."""
        return self.range[1]

    @property
    def range(self) -> tuple[Bound, Bound]:
        """Value range from the ranges of the atoms (correlations are not seen)."""
        if self._range is None:
            lo: Bound = self.const
            hi: Bound = self.const
            for monomial, c in self.terms:
                a, b = _monomial_range(monomial)
                if c < 0:
                    a, b = b, a
                lo = None if lo is None or a is None else lo + c * a
                hi = None if hi is None or b is None else hi + c * b
            self._range = (lo, hi)
        return self._range

    def atoms(self) -> Iterator[Atom]:
        """Every atom, nested ones included."""
        for monomial, _ in self.terms:
            for atom in monomial:
                yield atom
                for arg in atom.args:
                    yield from arg.atoms()

    def depends(self, kinds: tuple[str, ...]) -> bool:
        """True if a variable of one of the kinds occurs."""
        return any(a.kind in kinds for a in self.atoms())

    def divisible(self, d: int) -> bool:
        """True if the value is provably a multiple of d."""
        if self.const % d:
            return False
        return all((c * reduce(lambda g, a: g * a.granularity, m, 1)) % d == 0 for m, c in self.terms)

    # -- arithmetic -----------------------------------------------------------------------------

    def __add__(self, other: Number) -> Expr:
        if isinstance(other, int):
            return Expr(self.const + other, self.terms) if other else self
        if not other.terms:
            return Expr(self.const + other.const, self.terms)
        if not self.terms:
            return Expr(self.const + other.const, other.terms)
        merged: dict[Monomial, int] = dict(self.terms)
        for m, c in other.terms:
            merged[m] = merged.get(m, 0) + c
        return make(self.const + other.const, merged)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr(-self.const, tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Number) -> Expr:
        return self + (-other)

    def __rsub__(self, other: Number) -> Expr:
        return (-self) + other

    def __mul__(self, other: Number) -> Expr:
        if isinstance(other, Expr):
            if not other.terms:
                other = other.const
            elif not self.terms:
                return other * self.const
        if isinstance(other, int):
            if other == 0:
                return ZERO
            if other == 1:
                return self
            return Expr(self.const * other, tuple((m, c * other) for m, c in self.terms))
        product: dict[Monomial, int] = {}
        for m, c in (*self.terms, ((), self.const)):
            for n, d in (*other.terms, ((), other.const)):
                if c * d:
                    mono = tuple(sorted(m + n, key=_atom_key))
                    product[mono] = product.get(mono, 0) + c * d
        const = product.pop((), 0)
        return make(const, product)

    __rmul__ = __mul__


Number = int | Expr


def _atom_key(atom: Atom) -> str:
    return atom.key


def _term_key(term: Term) -> tuple[str, ...]:
    return tuple(a.key for a in term[0])


def make(const: int, terms: Mapping[Monomial, int]) -> Expr:
    """The canonical expression of a sum; zero coefficients vanish."""
    return Expr(const, tuple(sorted(((m, c) for m, c in terms.items() if c), key=_term_key)))


def _monomial_range(monomial: Monomial) -> tuple[Bound, Bound]:
    if len(monomial) == 1:  # a bound of one side holds without the other
        return monomial[0].lo, monomial[0].hi
    lo: Bound = 1
    hi: Bound = 1
    for atom in monomial:
        if lo is not None and lo >= 0 and atom.lo is not None and atom.lo >= 0:
            lo = lo * atom.lo
            hi = None if hi is None or atom.hi is None else hi * atom.hi
        elif None in (lo, hi, atom.lo, atom.hi):
            return None, None
        else:
            ends = [lo * atom.lo, lo * atom.hi, hi * atom.lo, hi * atom.hi]  # type: ignore[operator]
            lo, hi = min(ends), max(ends)
    return lo, hi


ZERO = Expr(0)
ONE = Expr(1)


def const(value: Number) -> Expr:
    """The expression of an integer; an expression is returned as it is."""
    return value if isinstance(value, Expr) else Expr(value)


def of(atom: Atom) -> Expr:
    """The expression that is one atom."""
    return Expr(0, (((atom,), 1),))


def symbol(name: str, lo: Bound = None, hi: Bound = None, granularity: int = 1) -> Expr:
    """A launch-time number: the value of a kernel argument."""
    if lo is not None and lo == hi:
        return Expr(lo)
    return of(Atom("sym", name, lo=lo, hi=hi, granularity=granularity))


def core_number(cores: int) -> Expr:
    """The number of the executing core, 0 .. cores-1."""
    return ZERO if cores == 1 else of(Atom("core", "core", lo=0, hi=cores - 1))


def variable(kind: str, name: str, extent: Expr) -> Expr:
    """A counter 0 .. extent-1: kind ``var`` (a loop) or ``dim`` (an index of a tensor or segment)."""
    if extent == 1:
        return ZERO
    hi = extent.hi
    return of(Atom(kind, name, lo=0, hi=None if hi is None else max(hi - 1, 0), extent=extent))


# ---- division --------------------------------------------------------------------------------------


def floordiv(a: Number, d: Number) -> Expr:
    """floor(a / d) for d > 0."""
    a, d = const(a), const(d)
    if not d.static:
        return _floordiv_symbolic(a, d)
    n = d.value
    if n <= 0:
        raise ValueError(f"division by {n}")
    if n == 1:
        return a
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in a.terms:
        q, r = divmod(c, n)
        if r == 0:
            whole[m] = q
        else:
            rest[m] = c
    q, r = divmod(a.const, n)
    outside = make(q, whole)
    inner = make(r, rest)
    if not rest:
        return outside
    lo, hi = inner.range
    if lo is not None and hi is not None and lo // n == hi // n:
        return outside + lo // n
    g = reduce(gcd, rest.values(), n)
    if g > 1:
        return outside + floordiv(make(r // g, {m: c // g for m, c in rest.items()}), n // g)
    single = inner.terms[0]
    if len(rest) == 1 and r == 0 and single[1] == 1 and len(single[0]) == 1 and single[0][0].kind == "floordiv":
        x, k = single[0][0].args
        if k.static:
            return outside + floordiv(x, k.value * n)
    low = None if lo is None else lo // n
    high = None if hi is None else hi // n
    return outside + of(Atom("floordiv", args=(inner, d), lo=low, hi=high))


def _floordiv_symbolic(a: Expr, d: Expr) -> Expr:
    if a == d:
        return ONE
    if d.terms and d.const == 0 and len(d.terms) == 1 and d.terms[0][1] == 1:
        by = d.terms[0][0]
        whole: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for m, c in a.terms:
            left = divide_monomial(m, by)
            if left is None:
                rest[m] = c
            else:
                whole[left] = c
        extra = whole.pop((), 0)
        inner = make(a.const, rest)
        if whole or extra:
            return make(extra, whole) + _floordiv_symbolic(inner, d)
    if a.static and a.value == 0:
        return ZERO
    if _below(a, d):
        return ZERO
    lo = 0 if a.lo is not None and a.lo >= 0 and d.lo is not None and d.lo >= 0 else None
    hi = None
    if a.hi is not None and lo == 0:
        hi = a.hi // max(d.lo or 1, 1)
    return of(Atom("floordiv", args=(a, d), lo=lo, hi=hi))


def divide_monomial(m: Monomial, by: Monomial) -> Monomial | None:
    """m / by, None if it is no product of atoms."""
    left = list(m)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _below(a: Expr, d: Expr) -> bool:
    """0 <= a < d, with every counter of a tensor dim at its last index."""
    if a.lo is None or a.lo < 0:
        return False
    gap = (d - a).lo
    if gap is not None and gap > 0:
        return True
    last = last_index(a)
    return last is not None and nonnegative(d - 1 - last)


def last_index(e: Expr) -> Expr | None:
    """Upper bound of an expression in terms of extents: counters of tensor dims at extent - 1.

    None when the expression is not monotone in a counter."""
    total = Expr(e.const)
    for monomial, c in e.terms:
        if c < 0 and any(_counts(a) for a in monomial):
            return None
        product = Expr(c)
        for atom in monomial:
            top = _last_of(atom)
            if top is None or (len(monomial) > 1 and (atom.lo is None or atom.lo < 0)):
                return None
            product = product * top
        total = total + product
    return total


def _counts(atom: Atom) -> bool:
    return atom.kind == "dim" or any(_counts(a) for arg in atom.args for m, _ in arg.terms for a in m)


def _last_of(atom: Atom) -> Expr | None:
    if not _counts(atom):
        return of(atom)
    if atom.kind == "dim":
        return None if atom.extent is None else atom.extent - 1
    if atom.kind == "mod":
        return atom.args[1] - 1
    if atom.kind == "floordiv" and not any(_counts(a) for a in atom.args[1].atoms()):
        inner = last_index(atom.args[0])
        return None if inner is None else floordiv(inner, atom.args[1])
    return None


def ceildiv(a: Number, d: Number) -> Expr:
    """ceil(a / d) for d > 0."""
    a, d = const(a), const(d)
    return floordiv(a + d - 1, d)


def mod(a: Number, d: Number) -> Expr:
    """a - d * floor(a / d), in [0, d)."""
    a, d = const(a), const(d)
    if not d.static:
        q = _floordiv_symbolic(a, d)
        if not any(x.kind == "floordiv" for x in q.atoms()):
            return a - d * q
        return of(Atom("mod", args=(a, d), lo=0, hi=None if d.hi is None else d.hi - 1))
    n = d.value
    if n == 1:
        return ZERO
    rest: dict[Monomial, int] = {}
    for m, c in a.terms:
        grain = reduce(lambda g, x: g * x.granularity, m, 1)
        if (c * grain) % n:
            rest[m] = c % n
    inner = make(a.const % n, rest)
    if inner.static:
        return inner
    lo, hi = inner.range
    if lo is not None and hi is not None and lo // n == hi // n:
        return inner - (lo // n) * n
    g = reduce(gcd, rest.values(), n)
    if g > 1:
        r = inner.const
        return mod(make(r // g, {m: c // g for m, c in rest.items()}), n // g) * g + r % g
    return of(Atom("mod", args=(inner, d), lo=0, hi=n - 1))


def nonnegative(e: Expr, depth: int = 4) -> bool:
    """True if e >= 0 can be proved; a minimum that is subtracted or a maximum that is added may be opened."""
    if e.lo is not None and e.lo >= 0:
        return True
    if depth == 0:
        return False
    for monomial, c in e.terms:
        atom = monomial[0]
        if len(monomial) == 1 and ((atom.kind == "min" and c < 0) or (atom.kind == "max" and c > 0)):
            rest = e - Expr(0, ((monomial, c),))
            return any(nonnegative(rest + arg * c, depth - 1) for arg in atom.args)
    return False


# ---- minimum, maximum, conditions ------------------------------------------------------------------------


def minimum(a: Number, b: Number) -> Expr:
    """min(a, b)"""
    a, b = const(a), const(b)
    lo, hi = (a - b).range
    if hi is not None and hi <= 0:
        return a
    if lo is not None and lo >= 0:
        return b
    first, second = sorted((a, b), key=lambda e: e.key)
    low = None if a.lo is None or b.lo is None else min(a.lo, b.lo)
    highs = [h for h in (a.hi, b.hi) if h is not None]
    return of(Atom("min", args=(first, second), lo=low, hi=min(highs) if highs else None))


def maximum(a: Number, b: Number) -> Expr:
    """max(a, b)"""
    a, b = const(a), const(b)
    lo, hi = (a - b).range
    if hi is not None and hi <= 0:
        return b
    if lo is not None and lo >= 0:
        return a
    first, second = sorted((a, b), key=lambda e: e.key)
    high = None if a.hi is None or b.hi is None else max(a.hi, b.hi)
    lows = [x for x in (a.lo, b.lo) if x is not None]
    return of(Atom("max", args=(first, second), lo=max(lows) if lows else None, hi=high))


def truncdiv(a: Expr, d: Expr) -> Expr:
    """a / d toward zero for d > 0 (the signed division of KTIR)."""
    if a.lo is not None and a.lo >= 0:
        return floordiv(a, d)
    return floordiv(maximum(a, 0), d) - floordiv(maximum(-a, 0), d)


def less(a: Expr, b: Expr) -> Expr:
    """1 if a < b else 0"""
    return minimum(maximum(b - a, 0), 1)


def equal(a: Expr, b: Expr) -> Expr:
    """1 if a == b else 0"""
    return ONE - minimum(maximum(a - b, 0) + maximum(b - a, 0), 1)
