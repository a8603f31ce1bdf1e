"""Reading xDSL's affine maps and sets as schedule expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import ZERO, Expr, ceildiv, floordiv, minimum, mod, variable
from torch_loom.scheduler.rewrite import linear

_OPS = {
    AffineBinaryOpKind.Add: lambda a, b: a + b,
    AffineBinaryOpKind.Mul: lambda a, b: a * b,
    AffineBinaryOpKind.Mod: mod,
    AffineBinaryOpKind.FloorDiv: floordiv,
    AffineBinaryOpKind.CeilDiv: ceildiv,
}


def apply_expr(e: AffineExpr, dims: Sequence[Expr], symbols: Sequence[Expr] = ()) -> Expr:
    """The affine expression at the given dims and symbols."""
    if isinstance(e, AffineConstantExpr):
        return Expr(e.value)
    if isinstance(e, AffineDimExpr):
        return dims[e.position]
    if isinstance(e, AffineSymExpr):
        return symbols[e.position]
    assert isinstance(e, AffineBinaryOpExpr)
    return _OPS[e.kind](apply_expr(e.lhs, dims, symbols), apply_expr(e.rhs, dims, symbols))


def apply_map(m: AffineMap, dims: Sequence[Expr], symbols: Sequence[Expr] = ()) -> tuple[Expr, ...]:
    """Every result of the map."""
    return tuple(apply_expr(e, dims, symbols) for e in m.results)


def permutation(m: AffineMap) -> tuple[int, ...]:
    """Result k of a permutation map is dim ``permutation[k]``."""
    return tuple(e.position for e in m.results if isinstance(e, AffineDimExpr))


@dataclass(frozen=True)
class Points:
    """A set of points: the box that bounds it (from zero), and what else must hold.

    ``rules`` are (expression over ``dims``, True for == 0 or False for >= 0)."""

    extents: tuple[Expr, ...]
    dims: tuple[Expr, ...]
    rules: tuple[tuple[Expr, bool], ...]


def points_of(s: AffineSet, symbols: Sequence[Expr], where: str) -> Points:
    """Split a set into its bounding box and further conditions. Raises for sets without an upper bound in a
    dim, or that start below or above zero."""
    names = tuple(f"box.{k}" for k in range(s.num_dims))
    dims = tuple(variable("dim", n, Expr(1 << 40)) for n in names)
    extents: list[Expr | None] = [None] * s.num_dims
    rules: list[tuple[Expr, bool]] = []
    for c in s.constraints:
        gap = apply_expr(c.lhs, dims, symbols) - apply_expr(c.rhs, dims, symbols)
        if c.kind is AffineConstraintKind.le:
            gap = -gap
        equal = c.kind is AffineConstraintKind.eq
        split = linear(gap, names)
        if split is None or len(split[1]) > 1:
            rules.append((gap, equal))
            continue
        rest, found = split
        for name, factor in found.items():
            k = names.index(name)
            if equal and rest == 0:
                extents[k] = Expr(1)
            elif not equal and factor == -1:
                top = rest + 1
                extents[k] = top if extents[k] is None else minimum(top, extents[k] or top)
            elif not (not equal and factor == 1 and rest == 0):
                rules.append((gap, equal))
    if any(e is None for e in extents):
        raise ScheduleError("the tile's set has no upper bound in some dim", where=where)
    return Points(tuple(e for e in extents if e is not None), dims, tuple(rules))


def lower_corner(s: AffineSet, symbols: Sequence[Expr]) -> tuple[Expr, ...]:
    """Smallest coordinate per dim, from the constraints d - low >= 0."""
    names = tuple(f"box.{k}" for k in range(s.num_dims))
    dims = tuple(variable("dim", n, Expr(1 << 40)) for n in names)
    lows = [ZERO] * s.num_dims
    for c in s.constraints:
        gap = apply_expr(c.lhs, dims, symbols) - apply_expr(c.rhs, dims, symbols)
        split = linear(gap, names)
        if split is not None and len(split[1]) == 1:
            name, factor = next(iter(split[1].items()))
            if factor == 1:
                lows[names.index(name)] = -split[0]
    return tuple(lows)
