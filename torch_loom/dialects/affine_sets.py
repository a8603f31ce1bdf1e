"""Exact answers about affine sets: bounds, extents, boxes, membership, points in order, relations.

Sets are finite and small (tiles of a view, groups of compute tiles). A set whose constraints each bound one dim is a
box and is answered by arithmetic; any other set is answered by filtering the points of its bounding box with NumPy,
which is exact. Bounding boxes come from interval propagation over the constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSet,
    AffineSymExpr,
)

from torch_loom.dialects.affine_text import linear_form, normalise

#: Candidate points that may be filtered; a larger non-box set is refused.
MAX_POINTS = 1 << 24


class UnboundedSet(ValueError):
    """A set with infinitely many points, or too many to enumerate."""


@dataclass(frozen=True)
class Box:
    """Inclusive bounds per dim; empty when some lower bound exceeds its upper bound."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """No points."""
        return any(lo > hi for lo, hi in zip(self.lower, self.upper, strict=True))

    @property
    def extents(self) -> tuple[int, ...]:
        """Number of coordinates per dim."""
        return tuple(max(0, hi - lo + 1) for lo, hi in zip(self.lower, self.upper, strict=True))

    @property
    def size(self) -> int:
        """Number of points."""
        count = 1
        for extent in self.extents:
            count *= extent
        return count

    def contains(self, other: Box) -> bool:
        """Every point of ``other`` lies in this box."""
        return other.empty or all(
            a <= c and d <= b for a, b, c, d in zip(self.lower, self.upper, other.lower, other.upper, strict=True)
        )

    def intersects(self, other: Box) -> bool:
        """Some point lies in both boxes."""
        return not _common(self, other).empty


def substitute(expr: AffineExpr, dims: Sequence[int | None], symbols: Sequence[int | None]) -> AffineExpr:
    """Replace dims and symbols by constants where one is given; normal form."""
    new_dims = [AffineDimExpr(i) if v is None else AffineConstantExpr(v) for i, v in enumerate(dims)]
    new_symbols = [AffineSymExpr(i) if v is None else AffineConstantExpr(v) for i, v in enumerate(symbols)]
    return normalise(expr.replace_dims_and_symbols(new_dims, new_symbols))


def evaluate(expr: AffineExpr, dims: Sequence[Any], symbols: Sequence[Any] = ()) -> Any:
    """Evaluate an expression on integers or on integer arrays."""
    if isinstance(expr, AffineConstantExpr):
        return expr.value
    if isinstance(expr, AffineDimExpr):
        return dims[expr.position]
    if isinstance(expr, AffineSymExpr):
        return symbols[expr.position]
    assert isinstance(expr, AffineBinaryOpExpr)
    lhs, rhs = evaluate(expr.lhs, dims, symbols), evaluate(expr.rhs, dims, symbols)
    if expr.kind is AffineBinaryOpKind.Add:
        return lhs + rhs
    if expr.kind is AffineBinaryOpKind.Mul:
        return lhs * rhs
    if expr.kind is AffineBinaryOpKind.Mod:
        return lhs % rhs
    return lhs // rhs if expr.kind is AffineBinaryOpKind.FloorDiv else -(-lhs // rhs)


def evaluate_map(value: AffineMap, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Results of a map on its dims followed by its symbols."""
    dims, symbols = operands[: value.num_dims], operands[value.num_dims :]
    return tuple(evaluate(expr, dims, symbols) for expr in value.results)


_INF = 1 << 62


def _interval(expr: AffineExpr, lower: Sequence[int], upper: Sequence[int]) -> tuple[int, int]:
    """Bounds of an expression over a box; symbols must be substituted before."""
    if isinstance(expr, AffineConstantExpr):
        return expr.value, expr.value
    if isinstance(expr, AffineDimExpr):
        return lower[expr.position], upper[expr.position]
    assert isinstance(expr, AffineBinaryOpExpr)
    a, b = _interval(expr.lhs, lower, upper)
    if expr.kind is AffineBinaryOpKind.Add:
        c, d = _interval(expr.rhs, lower, upper)
        return _clamp(a + c), _clamp(b + d)
    assert isinstance(expr.rhs, AffineConstantExpr)
    k = expr.rhs.value
    if expr.kind is AffineBinaryOpKind.Mul:
        return (_clamp(a * k), _clamp(b * k)) if k >= 0 else (_clamp(b * k), _clamp(a * k))
    if expr.kind is AffineBinaryOpKind.Mod:
        return (a % k, b % k) if a // k == b // k else (0, k - 1)
    if expr.kind is AffineBinaryOpKind.FloorDiv:
        return a // k, b // k
    return -(-a // k), -(-b // k)


def _reaches_limit(expr: AffineExpr, lower: Sequence[int], upper: Sequence[int]) -> bool:
    """Some part of an expression may leave the range in which NumPy evaluates it exactly."""
    lo, hi = _interval(expr, lower, upper)
    if lo <= -_INF or hi >= _INF:
        return True
    return isinstance(expr, AffineBinaryOpExpr) and any(_reaches_limit(e, lower, upper) for e in (expr.lhs, expr.rhs))


def _clamp(value: int) -> int:
    return max(-_INF, min(_INF, value))


@lru_cache(maxsize=4096)
def bound(points: AffineSet, symbols: tuple[int, ...] = ()) -> PointSet:
    """The set with its symbols replaced by integers. Raises :class:`UnboundedSet` when it has no finite bounds."""
    rank = points.num_dims
    if len(symbols) != points.num_symbols:
        raise ValueError(f"the set has {points.num_symbols} symbols, {len(symbols)} values given")
    exprs = [(c.kind, substitute(c.lhs, [None] * rank, symbols)) for c in points.constraints]
    lower, upper = [-_INF] * rank, [_INF] * rank
    is_box, contradiction = _propagate(exprs, lower, upper)
    if contradiction:
        return PointSet(Box((0,) * max(rank, 1), (-1,) * max(rank, 1)) if rank else Box((0,), (-1,)), True, (), rank)
    if any(lo <= -_INF or hi >= _INF for lo, hi in zip(lower, upper, strict=True)):
        free = [i for i, (lo, hi) in enumerate(zip(lower, upper, strict=True)) if lo <= -_INF or hi >= _INF]
        raise UnboundedSet(f"dim {free[0]} has no bounds")
    box = Box(tuple(lower), tuple(upper))
    if not is_box and box.size > MAX_POINTS:
        raise UnboundedSet(f"a set that is no box in {box.size} candidate points, more than {MAX_POINTS}")
    if not is_box and any(_reaches_limit(expr, lower, upper) for _, expr in exprs):
        raise UnboundedSet("a constraint that leaves the range of 64-bit integers")
    return PointSet(box, is_box, () if is_box else tuple(exprs), rank)


def _propagate(
    exprs: Sequence[tuple[AffineConstraintKind, AffineExpr]], lower: list[int], upper: list[int]
) -> tuple[bool, bool]:
    """Tighten bounds until nothing changes. Returns (all constraints bound one dim, some constraint never holds)."""
    is_box = True
    for _ in range(4 * len(lower) + 4):
        changed = False
        for kind, expr in exprs:
            terms, constant = linear_form(expr)
            if not terms:
                holds = constant == 0 if kind is AffineConstraintKind.eq else constant >= 0
                if not holds:
                    return is_box, True
                continue
            simple = len(terms) == 1 and isinstance(next(iter(terms)), AffineDimExpr)
            is_box = is_box and simple
            changed |= _tighten(kind, terms, constant, lower, upper)
        if any(lo > hi for lo, hi in zip(lower, upper, strict=True)):
            return is_box, True
        if not changed:
            break
    return is_box, False


def _tighten(
    kind: AffineConstraintKind,
    terms: dict[AffineExpr, int],
    constant: int,
    lower: list[int],
    upper: list[int],
) -> bool:
    """Use ``sum factor * atom + constant >= 0`` (or == 0) to tighten each dim that stands alone in a term."""
    changed = False
    intervals = {}
    for atom, factor in terms.items():
        lo, hi = _interval(atom, lower, upper)
        intervals[atom] = (factor * lo, factor * hi) if factor > 0 else (factor * hi, factor * lo)
    for atom, factor in terms.items():
        others = [intervals[a] for a in terms if a is not atom]
        highest = constant + sum(hi for _, hi in others)
        lowest = constant + sum(lo for lo, _ in others)
        if highest < _INF // 2:  # factor * atom >= -highest
            is_lower, value = (True, -(highest // factor)) if factor > 0 else (False, highest // -factor)
            changed |= _limit(atom, is_lower, value, lower, upper)
        if kind is AffineConstraintKind.eq and lowest > -_INF // 2:  # factor * atom <= -lowest
            is_lower, value = (False, -lowest // factor) if factor > 0 else (True, -(-lowest // -factor))
            changed |= _limit(atom, is_lower, value, lower, upper)
    return changed


def _limit(atom: AffineExpr, is_lower: bool, value: int, lower: list[int], upper: list[int]) -> bool:
    """Use ``atom >= value`` (or <=). A floor division passes the bound on to its dividend."""
    if isinstance(atom, AffineDimExpr):
        d = atom.position
        if is_lower and value > lower[d]:
            lower[d] = value
            return True
        if not is_lower and value < upper[d]:
            upper[d] = value
            return True
        return False
    if isinstance(atom, AffineBinaryOpExpr) and atom.kind is AffineBinaryOpKind.FloorDiv:
        assert isinstance(atom.rhs, AffineConstantExpr)
        k = atom.rhs.value
        terms, constant = linear_form(atom.lhs)
        if is_lower:  # dividend >= k * value
            return _tighten(AffineConstraintKind.ge, terms, constant - k * value, lower, upper)
        negated = {a: -f for a, f in terms.items()}  # dividend <= k * value + k - 1
        return _tighten(AffineConstraintKind.ge, negated, k * value + k - 1 - constant, lower, upper)
    return False


@dataclass(frozen=True)
class PointSet:
    """A finite set of integer points: a bounding box, and constraints when it is not that box."""

    bounds: Box
    is_box: bool
    rest: tuple[tuple[AffineConstraintKind, AffineExpr], ...]
    rank: int

    @property
    def empty(self) -> bool:
        """No points."""
        return self.bounds.empty or (not self.is_box and not bool(self.mask().any()))

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the bounding box; all zero for the empty set."""
        return (0,) * self.rank if self.bounds.empty else self.bounds.extents

    @property
    def size(self) -> int:
        """Number of points."""
        if self.bounds.empty:
            return 0
        return self.bounds.size if self.is_box else int(self.mask().sum())

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which points of the bounding box belong to the set."""
        return self.mask_over(self.bounds)

    def mask_over(self, box: Box) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which points of a box inside the bounds belong to the set."""
        if box.empty:
            return np.zeros(box.extents[: self.rank], dtype=bool)
        grids = [
            np.arange(lo, hi + 1, dtype=np.int64).reshape([-1 if a == d else 1 for a in range(self.rank)])
            for d, (lo, hi) in enumerate(zip(box.lower, box.upper, strict=True))
        ]
        return np.array(np.broadcast_to(self.holds(grids), box.extents))

    def __contains__(self, point: Sequence[int]) -> bool:
        inside = all(lo <= p <= hi for lo, p, hi in zip(self.bounds.lower, point, self.bounds.upper, strict=True))
        return inside and all(_holds(kind, evaluate(expr, point)) for kind, expr in self.rest)

    def holds(self, coordinates: Sequence[Any]) -> Any:
        """Which points of coordinate arrays satisfy the constraints beyond the bounding box."""
        found: Any = np.bool_(True)
        for kind, expr in self.rest:
            value = evaluate(expr, coordinates)
            found = found & (value == 0 if kind is AffineConstraintKind.eq else value >= 0)
        return found

    def points(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All points in ascending (row-major) order, shape [size, rank]."""
        if self.bounds.empty:
            return np.zeros((0, self.rank), np.int64)
        if self.rank == 0:
            return np.zeros((1, 0), np.int64)
        found = np.argwhere(self.mask()).astype(np.int64)
        return found + np.asarray(self.bounds.lower, np.int64)

    def contains_set(self, other: PointSet) -> bool:
        """Every point of ``other`` is in this set."""
        if other.bounds.empty:
            return True
        if self.is_box and (other.is_box or self.bounds.contains(other.bounds)):
            return self.bounds.contains(other.bounds)
        mine = other.mask()
        inner = _common(self.bounds, other.bounds)
        if inner.empty:
            return not bool(mine.any())
        window = tuple(
            slice(lo - o, hi - o + 1) for lo, hi, o in zip(inner.lower, inner.upper, other.bounds.lower, strict=True)
        )
        covered = mine[window] & self.mask_over(inner)
        return int(covered.sum()) == int(mine.sum())

    def disjoint(self, other: PointSet) -> bool:
        """No point is in both sets."""
        inner = _common(self.bounds, other.bounds)
        if self.bounds.empty or other.bounds.empty or inner.empty:
            return True
        if self.is_box and other.is_box:
            return False
        return not bool((self.mask_over(inner) & other.mask_over(inner)).any())


def _common(a: Box, b: Box) -> Box:
    return Box(tuple(map(max, a.lower, b.lower)), tuple(map(min, a.upper, b.upper)))


def _holds(kind: AffineConstraintKind, value: int) -> bool:
    return value == 0 if kind is AffineConstraintKind.eq else value >= 0


def tight_extents(points: PointSet) -> tuple[int, ...]:
    """Extents of the smallest box around the points themselves."""
    if points.is_box or points.empty:
        return points.extents
    found = points.points()
    return tuple(int(v) for v in found.max(axis=0) - found.min(axis=0) + 1)


def is_permutation(value: AffineMap) -> bool:
    """Each dim once, no symbols."""
    dims = [e.position for e in value.results if isinstance(e, AffineDimExpr)]
    return value.num_symbols == 0 and sorted(dims) == list(range(value.num_dims)) and len(dims) == len(value.results)


def permutation(value: AffineMap) -> tuple[int, ...]:
    """Dims in the order of the results of a permutation map."""
    return tuple(e.position for e in value.results if isinstance(e, AffineDimExpr))


__all__ = [
    "Box",
    "PointSet",
    "UnboundedSet",
    "bound",
    "evaluate",
    "evaluate_map",
    "is_permutation",
    "permutation",
    "substitute",
    "tight_extents",
]
