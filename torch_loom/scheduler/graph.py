"""Building the value graph: every constructor folds what is free and shares equal nodes of a scope.

A scope sees the nodes of its enclosing scopes, so a computation that does not depend on a loop is found
again inside it. Shape changes compose here: the operand of a REMAP is never itself a REMAP, and constants
absorb them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.kernel import Kind, Numerics, Tile, Value, index_variables
from torch_loom.scheduler.rewrite import substitute
from torch_loom.spyrecode.model import Reduce, VecOp

Index = tuple[Expr, ...]

_UNIFORM = (Kind.CONST, Kind.SCALAR)


class Graph:
    """Makes values; ``scope`` is where new ones belong."""

    def __init__(self, numerics: Numerics) -> None:
        self.numerics = numerics
        self.scope = 0
        self.where = ""
        self.op_name = ""
        self.values: list[Value] = []
        self._shared: list[dict[Any, Value]] = [{}]

    # -- scopes ---------------------------------------------------------------------------------

    def enter(self, scope: int) -> int:
        """Open a nested scope; returns the one to restore with ``leave``."""
        outer, self.scope = self.scope, scope
        self._shared.append({})
        return outer

    def leave(self, outer: int) -> None:
        """Close the innermost scope."""
        self._shared.pop()
        self.scope = outer

    # -- nodes ----------------------------------------------------------------------------------

    def fresh(self, kind: Kind, dtype: str, shape: Sequence[Expr], **fields: Any) -> Value:
        """A node that is never shared."""
        number = len(self.values)
        value = Value(
            number,
            kind,
            dtype,
            tuple(shape),
            self.scope,
            vars=index_variables(f"v{number}", tuple(shape)),
            where=self.where,
            op_name=self.op_name,
            **fields,
        )
        self.values.append(value)
        return value

    def _share(self, key: Any, make: Callable[[], Value]) -> Value:
        for table in reversed(self._shared):
            if key in table:
                return table[key]
        value = self._shared[-1][key] = make()
        return value

    def const(self, number: float | int, dtype: str, shape: Sequence[Expr] = ()) -> Value:
        """One number everywhere."""
        key = (Kind.CONST, repr(number), dtype, tuple(shape))
        return self._share(key, lambda: self.fresh(Kind.CONST, dtype, shape, imm=number))

    def scalar(self, arg: int, dtype: str, shape: Sequence[Expr] = ()) -> Value:
        """A float argument everywhere."""
        key = (Kind.SCALAR, arg, dtype, tuple(shape))
        return self._share(key, lambda: self.fresh(Kind.SCALAR, dtype, shape, arg=arg))

    def index(self, number: Callable[[Index], Expr], dtype: str, shape: Sequence[Expr] = ()) -> Value:
        """The integer ``number(i)`` at index i."""
        value = self.fresh(Kind.INDEX, dtype, shape)
        return _with(value, self, index=number(value.vars))

    def load(self, tile: Tile) -> Value:
        """A tile of memory."""
        return self.fresh(Kind.LOAD, tile.view.dtype, tile.shape, tile=tile)

    def map(self, op: VecOp, dtype: str, *operands: Value, imm: float | int = 0) -> Value:
        """One lane operation; rank-0 operands are broadcast to the shape of the others."""
        wide = max(operands, key=lambda v: len(v.shape))
        operands = tuple(self.broadcast_scalar(v, wide.shape) for v in operands)
        for v in operands:
            if v.shape != wide.shape:
                raise ScheduleError(
                    f"operands of shapes {list(wide.shape)} and {list(v.shape)}",
                    op=self.op_name,
                    where=self.where,
                )
        if op is VecOp.COPY and operands[0].dtype == dtype:
            return operands[0]
        if op is VecOp.COPY and operands[0].kind in _UNIFORM and operands[0].dtype != "i1":
            folded = operands[0]
            if folded.kind is Kind.CONST:
                return self.const(folded.imm, dtype, folded.shape)
        key = (Kind.MAP, op, dtype, imm, *(v.id for v in operands))
        return self._share(key, lambda: self.fresh(Kind.MAP, dtype, wide.shape, operands=operands, op=op, imm=imm))

    def round(self, value: Value, dtype: str) -> Value:
        """``value`` (computed in f32) rounded to a KTIR float type."""
        op = self.numerics.rounding(dtype)
        return self.map(VecOp.COPY if op is None else op, dtype, value)

    def broadcast_scalar(self, value: Value, shape: tuple[Expr, ...]) -> Value:
        """A rank-0 value at every index of ``shape``."""
        if value.shape == shape or value.shape:
            return value
        return self.remap(value, shape, lambda _: ())

    def remap(self, value: Value, shape: Sequence[Expr], imap: Callable[[Index], Index]) -> Value:
        """The operand at index ``imap(i)`` for result index i."""
        shape = tuple(shape)
        if value.kind is Kind.CONST:
            return self.const(value.imm, value.dtype, shape)
        if value.kind is Kind.SCALAR:
            return self.scalar(value.arg, value.dtype, shape)
        probe = index_variables("r", shape)
        mapping = tuple(imap(probe))
        if shape == value.shape and mapping == probe:
            return value
        source, inner = value, mapping
        if value.kind in (Kind.REMAP, Kind.INDEX):
            names = {v.terms[0][0][0].name: m for v, m in zip(value.vars, mapping, strict=True) if v.terms}
            if value.kind is Kind.INDEX:
                assert value.index is not None
                number = substitute(value.index, names)
                return self._index_over(number, probe, value.dtype, shape)
            source = value.operands[0]
            inner = tuple(substitute(e, names) for e in value.imap)
        key = (Kind.REMAP, source.id, inner, shape)
        return self._share(key, lambda: self._remap_over(source, inner, probe, shape))

    def _remap_over(self, source: Value, imap: Index, probe: Index, shape: tuple[Expr, ...]) -> Value:
        if shape == source.shape and imap == probe:
            return source
        value = self.fresh(Kind.REMAP, source.dtype, shape, operands=(source,))
        return _with(value, self, imap=tuple(substitute(e, _names(probe, value.vars)) for e in imap))

    def _index_over(self, number: Expr, probe: Index, dtype: str, shape: tuple[Expr, ...]) -> Value:
        value = self.fresh(Kind.INDEX, dtype, shape)
        return _with(value, self, index=substitute(number, _names(probe, value.vars)))

    def reduce(self, how: Reduce, value: Value, dims: Sequence[int], dtype: str) -> Value:
        """Fold over ``dims`` from the identity; the result keeps the other dims in order."""
        shape = tuple(e for k, e in enumerate(value.shape) if k not in dims)
        key = (Kind.REDUCE, how, value.id, tuple(dims), dtype)
        return self._share(
            key,
            lambda: self.fresh(Kind.REDUCE, dtype, shape, operands=(value,), reduce=how, dims=tuple(dims)),
        )

    def matmul(self, a: Value, b: Value) -> Value:
        """f32 product of a [b, m, k] and b [b, k, n]."""
        shape = (a.shape[0], a.shape[1], b.shape[2])
        key = (Kind.MATMUL, a.id, b.id)
        return self._share(key, lambda: self.fresh(Kind.MATMUL, "f32", shape, operands=(a, b)))


def _names(old: Index, new: Index) -> dict[str, Expr]:
    return {a.terms[0][0][0].name: b for a, b in zip(old, new, strict=True) if a.terms}


def _with(value: Value, graph: Graph, **fields: Any) -> Value:
    """Complete a value whose fields need its own index variables."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
    return value
