"""Reading xDSL's affine maps and sets as schedule expressions."""

from __future__ import annotations

from collections.abc import Sequence

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
from torch_loom.scheduler.expr import ZERO, Expr, ceildiv, floordiv, linear, mod, variable

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


def box_extents(s: AffineSet, symbols: Sequence[Expr], where: str) -> tuple[Expr, ...]:
    """Extents of a box that starts at zero: per dim the constraints d >= 0 and e - d >= 0 (or d == 0)."""
    names = tuple(f"box.{k}" for k in range(s.num_dims))
    dims = [variable("dim", n, Expr(1 << 40)) for n in names]
    extents: list[Expr | None] = [None] * s.num_dims
    for c in s.constraints:
        gap = apply_expr(c.lhs, dims, symbols) - apply_expr(c.rhs, dims, symbols)
        if c.kind is AffineConstraintKind.le:
            gap = -gap
        split = linear(gap, names)
        if split is None or len(split[1]) > 1:
            raise ScheduleError(
                "only boxes can be scheduled as tiles", where=where, hint="mask the values instead"
            )
        rest, found = split
        if not found:
            continue
        (name, factor), k = next(iter(found.items())), 0
        k = names.index(name)
        if c.kind is AffineConstraintKind.eq and rest == 0:
            extents[k] = Expr(1)
        elif factor == -1:
            extents[k] = rest + 1
        elif factor == 1 and rest == 0:
            continue
        else:
            raise ScheduleError("only boxes that start at zero can be scheduled as tiles", where=where)
    if any(e is None for e in extents):
        raise ScheduleError("the tile's set has no upper bound in some dim", where=where)
    return tuple(e for e in extents if e is not None) or ((ZERO,)[:0])
