"""Integer expressions over loop variables: affine forms whose atoms may be floor divisions and remainders.

Just enough algebra to print coordinates as a person would write them: every rewrite is exact for the
given ranges of the variables, found by interval arithmetic. Ranges are extents: 0 <= v < extent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Ranges = Mapping[str, int]


@dataclass(frozen=True)
class Floor:
    """floor(arg / divisor)."""

    arg: Index
    divisor: int


@dataclass(frozen=True)
class Rem:
    """arg mod divisor, in 0 .. divisor-1."""

    arg: Index
    divisor: int


Atom = str | Floor | Rem


@dataclass(frozen=True)
class Index:
    """const + sum of coefficient * atom; atoms are unique, coefficients non-zero, in order of entry."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        total: dict[Atom, int] = dict(self.terms)
        for atom, factor in other.terms:
            total[atom] = total.get(atom, 0) + factor
        return Index(tuple((a, f) for a, f in total.items() if f), self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((a, f * factor) for a, f in self.terms if factor), self.const * factor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def variables(self) -> set[str]:
        """Loop variables anywhere in the expression."""
        return {v for atom, _ in self.terms for v in ({atom} if isinstance(atom, str) else atom.arg.variables())}

    def __str__(self) -> str:
        parts = []
        for atom, factor in self.terms:
            text = atom if isinstance(atom, str) else _print(atom)
            sign = "- " if factor < 0 else "+ "
            parts.append(sign + (text if abs(factor) == 1 else f"{abs(factor)} {text}"))
        if self.const or not parts:
            parts.append(f"{'-' if self.const < 0 else '+'} {abs(self.const)}")
        return " ".join(parts).removeprefix("+ ").replace("- ", "-", 1 if parts[0][0] == "-" else 0)


def _print(atom: Floor | Rem) -> str:
    inner = str(atom.arg)
    inner = inner if len(atom.arg.terms) == 1 and not atom.arg.const else f"({inner})"
    return f"floor({inner}/{atom.divisor})" if isinstance(atom, Floor) else f"{inner} mod {atom.divisor}"


def var(name: str) -> Index:
    """The loop variable as an expression."""
    return Index(((name, 1),))


def const(value: int) -> Index:
    """A number as an expression."""
    return Index((), value)


def bounds(index: Index, ranges: Ranges) -> tuple[int, int]:
    """Smallest and largest value, both inclusive; variables of extent 0 count as 0."""
    low = high = index.const
    for atom, factor in index.terms:
        a, b = _atom_bounds(atom, ranges)
        low += min(a * factor, b * factor)
        high += max(a * factor, b * factor)
    return low, high


def _atom_bounds(atom: Atom, ranges: Ranges) -> tuple[int, int]:
    if isinstance(atom, str):
        return 0, max(ranges[atom] - 1, 0)
    low, high = bounds(atom.arg, ranges)
    if isinstance(atom, Floor):
        return low // atom.divisor, high // atom.divisor
    return 0, min(atom.divisor - 1, high) if low >= 0 else atom.divisor - 1


def floordiv(index: Index, divisor: int, ranges: Ranges) -> Index:
    """floor(index / divisor)."""
    whole, rest = _split(index, divisor)
    low, high = bounds(rest, ranges)
    if low // divisor == high // divisor:
        return whole + low // divisor
    common = _common_step(rest, divisor, ranges)
    if common:
        step, upper = common
        return whole + floordiv(upper, divisor // step, ranges)
    if len(rest.terms) == 1 and not rest.const:
        atom, factor = rest.terms[0]
        if factor == 1 and isinstance(atom, Floor):
            return whole + floordiv(atom.arg, atom.divisor * divisor, ranges)
    return whole + Index(((Floor(rest, divisor), 1),))


def mod(index: Index, divisor: int, ranges: Ranges) -> Index:
    """index mod divisor, in 0 .. divisor-1."""
    _, rest = _split(index, divisor)
    low, high = bounds(rest, ranges)
    if low // divisor == high // divisor:
        return rest - divisor * (low // divisor)
    common = _common_step(rest, divisor, ranges)
    if common:
        step, upper = common
        return mod(upper, divisor // step, ranges) * step + (rest - upper * step)
    if len(rest.terms) == 1 and not rest.const:
        atom, factor = rest.terms[0]
        if factor == 1 and isinstance(atom, Rem) and atom.divisor % divisor == 0:
            return mod(atom.arg, divisor, ranges)
    return Index(((Rem(rest, divisor), 1),))


def _split(index: Index, divisor: int) -> tuple[Index, Index]:
    """(whole, rest) with index = whole * divisor + rest and no multiple of the divisor left in rest."""
    if divisor <= 0:
        raise ValueError(f"a divisor is positive, got {divisor}")
    # A negative coefficient is taken whole or not at all: -1 = -64 + 63 would only make it longer.
    parts = [(a, *divmod(f, divisor)) if f > 0 or f % divisor == 0 else (a, 0, f) for a, f in index.terms]
    whole = Index(tuple((a, q) for a, q, _ in parts if q), index.const // divisor)
    rest = Index(tuple((a, r) for a, _, r in parts if r), index.const % divisor)
    return whole, rest


def _common_step(rest: Index, divisor: int, ranges: Ranges) -> tuple[int, Index] | None:
    """A step s > 1 dividing the divisor with rest = s * upper + lower and 0 <= lower < s, largest first.

    Then floor(rest / divisor) = floor(upper / (divisor / s)): the lower part never carries.
    """
    steps = {math.gcd(factor, divisor) for _, factor in rest.terms} - {1}
    for step in sorted(steps, reverse=True):
        upper, lower = _split(rest, step)
        low, high = bounds(lower, ranges)
        if upper.terms and low >= 0 and high < step:
            return step, upper
    return None


def evaluate(index: Index, values: Mapping[str, Any]) -> Any:
    """Value for numbers or integer arrays of the variables."""
    total: Any = index.const
    for atom, factor in index.terms:
        if isinstance(atom, str):
            total = total + factor * values[atom]
        else:
            inner = evaluate(atom.arg, values)
            total = total + factor * (inner // atom.divisor if isinstance(atom, Floor) else inner % atom.divisor)
    return total


def substitute(index: Index, name: str, value: Index, ranges: Ranges) -> Index:
    """The expression with a variable replaced; ``ranges`` are those after the replacement."""
    out = const(index.const)
    for atom, factor in index.terms:
        if isinstance(atom, str):
            piece = value if atom == name else var(atom)
        elif isinstance(atom, Floor):
            piece = floordiv(substitute(atom.arg, name, value, ranges), atom.divisor, ranges)
        else:
            piece = mod(substitute(atom.arg, name, value, ranges), atom.divisor, ranges)
        out = out + piece * factor
    return out
