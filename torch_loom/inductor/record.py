"""A dry run of loop bodies: which buffers they touch, how, and which dims meet in a contraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from .compat import DefaultHandler, Identity, SchedulerNode, V, host_scalar, sizevars
from .domain import Dim, variables


@dataclass
class Touch:
    """One load or store of a buffer; ``indirect`` are the gather symbols in its index. A ``guarded`` load
    stands under a mask and may point outside of the buffer where the mask is off."""

    name: str
    index: sympy.Expr
    store: bool
    indirect: set[sympy.Symbol] = field(default_factory=set)
    guarded: bool = False


@dataclass(frozen=True)
class Shadow:
    """A value of the dry run: the symbols it depends on."""

    symbols: frozenset[sympy.Symbol]


@dataclass
class Record:
    """What the bodies of a kernel do."""

    touches: list[Touch] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    contraction: tuple[frozenset[sympy.Symbol], frozenset[sympy.Symbol]] | None = None
    operations: int = 0


def _symbols(values: Any) -> frozenset[sympy.Symbol]:
    out: frozenset[sympy.Symbol] = frozenset()
    for v in values:
        if isinstance(v, Shadow):
            out |= v.symbols
        elif isinstance(v, (tuple, list)):
            out |= _symbols(v)
    return out


class _Recorder(DefaultHandler):
    def __init__(self, record: Record) -> None:
        self.record = record
        self.masks = 0
        self.indirect: dict[sympy.Symbol, frozenset[sympy.Symbol]] = {}

    def _index(self, index: sympy.Expr) -> tuple[set[sympy.Symbol], frozenset[sympy.Symbol]]:
        gathered = {s for s in index.free_symbols if s in self.indirect}
        direct = frozenset(s for s in index.free_symbols if s not in self.indirect)
        for s in gathered:
            direct |= self.indirect[s]
        return gathered, direct

    def load(self, name: str, index: sympy.Expr) -> Shadow:
        if host_scalar(name) is not None:
            if name not in self.record.scalars:
                self.record.scalars.append(name)
            return Shadow(frozenset())
        gathered, symbols = self._index(index)
        self.record.touches.append(Touch(name, index, False, gathered, self.masks > 0))
        return Shadow(symbols)

    def store(self, name: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        gathered, _ = self._index(index)
        self.record.touches.append(Touch(name, index, True, gathered))

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        self.store(name, index, value)

    def index_expr(self, expr: sympy.Expr, dtype: Any) -> Shadow:
        return Shadow(self._index(sympy.sympify(expr))[1])

    def indirect_indexing(
        self, value: Any, size: sympy.Expr, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        symbol = sympy.Symbol(f"gathered{len(self.indirect)}", integer=True, nonnegative=True)
        self.indirect[symbol] = _symbols([value])
        return symbol

    def masked(self, mask: Any, body: Any, other: Any) -> Shadow:
        self.masks += 1
        inside = body()
        self.masks -= 1
        return Shadow(_symbols([mask, inside]))

    def dot(self, a: Any, b: Any) -> Shadow:
        self.record.contraction = (_symbols([a]), _symbols([b]))
        return Shadow(_symbols([a, b]))

    def reduction(self, dtype: Any, src_dtype: Any, kind: str, value: Any) -> Any:
        result = Shadow(_symbols([value]))
        return (result, result, result) if kind.startswith("welford") else result

    def check_bounds(self, *args: Any) -> None:
        return None

    def frexp(self, x: Any) -> Any:
        return Shadow(_symbols([x])), Shadow(_symbols([x]))

    def output(self, *args: Any) -> None:
        return None

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.record.operations += 1
        return Shadow(_symbols(args))


def node_variables(
    node: SchedulerNode, numel: sympy.Expr, rnumel: sympy.Expr, dims: Sequence[Dim]
) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Iteration and reduction variables of a node as expressions in the common dims."""
    sizes, reduced = node.get_ranges()
    if reduced or not sizevars().equal(node.group[1][0], numel * rnumel):
        outer = variables(sizes, rnumel, dims)
    else:
        outer = variables(sizes, sympy.Integer(1), dims)
    return outer, variables(reduced, sympy.Integer(1), dims)


def simplified(expr: sympy.Expr, dims: Sequence[Dim]) -> sympy.Expr:
    """Index with FloorDiv and ModularIndexing resolved by the extents of the dims."""
    plain = sympy.sympify(expr).replace(Identity, lambda x: x)
    return sizevars().with_ranges(plain, {d.symbol: d.extent for d in dims})


def record(
    nodes: Sequence[SchedulerNode],
    numel: sympy.Expr,
    rnumel: sympy.Expr,
    dims: Sequence[Dim],
    removed: set[str],
) -> Record:
    """Dry-run the bodies of ``nodes`` over ``dims``; touches of ``removed`` buffers are left out."""
    out = Record()
    for node in nodes:
        handler = _Recorder(out)
        start = len(out.touches)
        with V.set_ops_handler(handler):
            node._body(*node_variables(node, numel, rnumel, dims))
        for t in out.touches[start:]:
            t.index = simplified(t.index, dims)
    out.touches = [t for t in out.touches if t.name not in removed]
    return out
