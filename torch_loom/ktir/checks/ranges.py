"""What is known of index values before running: intervals over all compute tiles and iterations, or exact numbers
for one compute tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
)

from torch_loom.dialects.affine_sets import evaluate
from torch_loom.dialects.ktdp import GetComputeTileIdOp, RuntimeArgExtractOp, RuntimeArgType
from torch_loom.dialects.upstream_affine import AffineOp

LIMIT = 1 << 60


@dataclass(frozen=True)
class Range:
    """Inclusive bounds; None where nothing is known."""

    lower: int | None = None
    upper: int | None = None

    @property
    def exact(self) -> int | None:
        """The value when there is only one."""
        return self.lower if self.lower is not None and self.lower == self.upper else None


ANY = Range()


def _point(value: int) -> Range:
    return Range(value, value)


def _add(a: Range, b: Range) -> Range:
    return Range(_plus(a.lower, b.lower), _plus(a.upper, b.upper))


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _neg(a: Range) -> Range:
    return Range(None if a.upper is None else -a.upper, None if a.lower is None else -a.lower)


def _mul(a: Range, b: Range) -> Range:
    for x, y in ((a, b), (b, a)):
        k = y.exact
        if k is not None:
            if k == 0:
                return _point(0)
            low = None if x.lower is None else x.lower * k
            high = None if x.upper is None else x.upper * k
            return Range(low, high) if k > 0 else Range(high, low)
    if None not in (a.lower, a.upper, b.lower, b.upper):
        corners = [p * q for p in (a.lower, a.upper) for q in (b.lower, b.upper) if p is not None and q is not None]
        return Range(min(corners), max(corners))
    nonnegative = a.lower is not None and b.lower is not None and a.lower >= 0 and b.lower >= 0
    return Range(a.lower * b.lower if nonnegative and a.lower is not None and b.lower is not None else None, None)


def _floordiv(a: Range, b: Range) -> Range:
    k = b.exact
    if k is None or k <= 0:
        return (
            Range(0, a.upper) if a.lower is not None and a.lower >= 0 and b.lower is not None and b.lower > 0 else ANY
        )
    return Range(None if a.lower is None else a.lower // k, None if a.upper is None else a.upper // k)


def _truncdiv(a: Range, b: Range) -> Range:
    return _floordiv(a, b) if a.lower is not None and a.lower >= 0 else ANY


def _ceildiv(a: Range, b: Range) -> Range:
    k = b.exact
    if k is None or k <= 0:
        return ANY
    return Range(None if a.lower is None else -(-a.lower // k), None if a.upper is None else -(-a.upper // k))


def _rem(a: Range, b: Range) -> Range:
    if a.lower is None or a.lower < 0 or b.lower is None or b.lower <= 0:
        return ANY
    if a.upper is not None and a.upper < b.lower:
        return a
    top = None if b.upper is None else b.upper - 1
    return Range(0, top if a.upper is None or top is None else min(a.upper, top))


def _min(a: Range, b: Range) -> Range:
    low = None if a.lower is None or b.lower is None else min(a.lower, b.lower)
    tops = [v for v in (a.upper, b.upper) if v is not None]
    return Range(low, min(tops) if tops else None)


def _max(a: Range, b: Range) -> Range:
    return _neg(_min(_neg(a), _neg(b)))


_BINARY: dict[str, Callable[[Range, Range], Range]] = {
    "arith.addi": _add,
    "arith.subi": lambda a, b: _add(a, _neg(b)),
    "arith.muli": _mul,
    "arith.floordivsi": _floordiv,
    "arith.divsi": _truncdiv,
    "arith.divui": _truncdiv,
    "arith.ceildivsi": _ceildiv,
    "arith.ceildivui": _ceildiv,
    "arith.remsi": _rem,
    "arith.remui": _rem,
    "arith.minsi": _min,
    "arith.minui": _min,
    "arith.maxsi": _max,
    "arith.maxui": _max,
}


class Ranges:
    """Intervals of the index values of one function.

    ``tile`` fixes the compute-tile coordinates; None means any of the grid. ``bounds`` are assumed upper bounds of
    arguments by name.
    """

    def __init__(
        self,
        function: FuncOp,
        grid: tuple[int, ...],
        names: Mapping[SSAValue, str],
        bounds: Mapping[str, int],
        tile: tuple[int, ...] | None = None,
    ) -> None:
        self.grid = grid
        self.tile = tile
        self.known: dict[SSAValue, Range] = {}
        if function.is_declaration:
            return
        for argument in function.args:
            self.known[argument] = self._argument(argument, bounds.get(names.get(argument, "")))
        for block in function.body.blocks:
            self._block(block)

    def __getitem__(self, value: SSAValue) -> Range:
        return self.known.get(value, ANY)

    def _argument(self, argument: BlockArgument, bound: int | None) -> Range:
        kind = argument.type
        if isinstance(kind, RuntimeArgType):
            return Range(0, kind.promises.get("upperbound", bound))
        if isinstance(kind, IndexType):
            return Range(0, bound)
        return ANY

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._op(op)
            if op.name == "scf.for":
                self._loop(op)
            for region in op.regions:
                for inner in region.blocks:
                    self._block(inner)

    def _loop(self, op: Operation) -> None:
        lower, upper, step = (self[v] for v in op.operands[:3])
        top = None if upper.upper is None else upper.upper - 1
        start, count = lower.exact, step.exact
        if start is not None and count is not None and count > 0 and top is not None and top >= start:
            top = start + (top - start) // count * count
        self.known[op.regions[0].block.args[0]] = Range(lower.lower, top)

    def _op(self, op: Operation) -> None:
        if op.name == "arith.constant":
            value = op.properties.get("value")
            if isinstance(value, IntegerAttr):
                self.known[op.results[0]] = _point(value.value.data)
        elif isinstance(op, GetComputeTileIdOp):
            for position, result in enumerate(op.results):
                extent = self.grid[position] if position < len(self.grid) else 1
                fixed = None if self.tile is None else (self.tile[position] if position < len(self.tile) else 0)
                self.known[result] = Range(0, extent - 1) if fixed is None else _point(fixed)
        elif op.name in _BINARY and isinstance(op.results[0].type, IndexType | IntegerType):
            a, b = (self[v] for v in op.operands)
            self.known[op.results[0]] = _clamped(_BINARY[op.name](a, b))
        elif op.name in ("arith.index_cast", "arith.index_castui"):
            self.known[op.results[0]] = self[op.operands[0]]
        elif isinstance(op, RuntimeArgExtractOp):
            self._extract(op)
        elif isinstance(op, AffineOp):
            self._affine(op)

    def _extract(self, op: RuntimeArgExtractOp) -> None:
        kind = op.argument.type
        if op.what == "value":
            self.known[op.result] = self[op.argument]
        elif isinstance(kind, RuntimeArgType) and op.what in kind.promises:
            self.known[op.result] = _point(kind.promises[op.what])

    def _affine(self, op: AffineOp) -> None:
        numbers = [self[v].exact for v in op.operands]
        if any(n is None for n in numbers):
            return
        dims = op.map.data.num_dims
        found = [evaluate(e, numbers[:dims], numbers[dims:]) for e in op.map.data.results]
        self.known[op.result] = _point({"affine.min": min, "affine.max": max}.get(op.name, min)(found))


def _clamped(value: Range) -> Range:
    low = value.lower if value.lower is not None and abs(value.lower) < LIMIT else None
    high = value.upper if value.upper is not None and abs(value.upper) < LIMIT else None
    return Range(low, high)


def expr_range(expr: AffineExpr, dims: list[Range]) -> Range:
    """The interval of an affine expression over dims with intervals."""
    if isinstance(expr, AffineConstantExpr):
        return _point(expr.value)
    if isinstance(expr, AffineDimExpr):
        return dims[expr.position]
    if not isinstance(expr, AffineBinaryOpExpr):
        return ANY
    a, b = expr_range(expr.lhs, dims), expr_range(expr.rhs, dims)
    if expr.kind is AffineBinaryOpKind.Add:
        return _add(a, b)
    if expr.kind is AffineBinaryOpKind.Mul:
        return _mul(a, b)
    if expr.kind is AffineBinaryOpKind.FloorDiv:
        return _floordiv(a, b)
    if expr.kind is AffineBinaryOpKind.CeilDiv:
        return _ceildiv(a, b)
    k = b.exact
    return _rem(a, b) if a.lower is not None and a.lower >= 0 else Range(0, None if k is None else k - 1)


def tile_ids(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coordinates of every compute tile in order of its number, x fastest."""
    found = []
    for number in range(prod(grid)):
        rest, ids = number, []
        for extent in grid:
            ids.append(rest % extent)
            rest //= extent
        found.append(tuple(ids))
    return found
