"""A dry run of loop bodies: which buffers they touch, how, and which dims meet in a contraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from .compat import (
    DefaultHandler,
    Identity,
    SchedulerNode,
    V,
    dense_strides,
    extents_of,
    host_scalar,
    ranges_of,
    real_place,
    sizevars,
)
from .domain import Dim, Misaligned, exact_div, linear, variables


@dataclass
class Touch:
    """One load or store of a buffer; ``indirect`` holds the gather symbols in its index and
    the sizes below which they stay. A ``guarded`` load
    stands under a mask and may point outside of the buffer where the mask is off."""

    name: str
    index: sympy.Expr
    store: bool
    indirect: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)
    guarded: bool = False
    limits: Limits = field(default_factory=dict)


# Range [low, high) of a dim where a mask may be on; None for a side without a bound.
Limits = dict[sympy.Symbol, tuple[int | None, int | None]]


@dataclass(frozen=True)
class Shadow:
    """A value of the dry run: the symbols it depends on, the index it is (if it is one), and, for truth
    values, the limits within which it can be true."""

    symbols: frozenset[sympy.Symbol]
    index: sympy.Expr | None = None
    limits: tuple[tuple[sympy.Symbol, int | None, int | None], ...] = ()


def _compare(name: str, a: Any, b: Any, dims: Sequence[Dim]) -> tuple[tuple[sympy.Symbol, int | None, int | None], ...]:
    """Limits of each dim that a comparison of two indices, linear in the dims, implies."""
    left = a.index if isinstance(a, Shadow) else None
    right = b.index if isinstance(b, Shadow) else None
    if left is None or right is None:
        return ()
    if name in ("gt", "ge"):
        left, right = right, left
    parts = linear(left - right + (1 if name in ("lt", "gt") else 0), dims)  # <= 0 where the comparison holds
    if parts is None or not all(c.is_Integer for c in (*parts[0].values(), parts[1])):
        return ()
    terms, rest = {d: int(c) for d, c in parts[0].items()}, int(parts[1])
    out = []
    for d, c in terms.items():
        # c * d <= -(rest + the least that the others can be)
        others = [(k, o.extent) for o, k in terms.items() if o is not d]
        if any(k < 0 and not extent.is_Integer for k, extent in others):
            continue
        most = -(rest + sum(k * (int(extent) - 1) for k, extent in others if k < 0))
        out.append((d.symbol, None, most // c + 1) if c > 0 else (d.symbol, -(most // -c), None))
    return tuple(out)


def _merge(limits: Sequence[tuple[sympy.Symbol, int | None, int | None]]) -> Limits:
    out: Limits = {}
    for symbol, low, high in limits:
        have = out.get(symbol, (None, None))
        lows = [v for v in (low, have[0]) if v is not None]
        highs = [v for v in (high, have[1]) if v is not None]
        out[symbol] = (max(lows) if lows else None, min(highs) if highs else None)
    return out


def widest(a: Limits, b: Limits) -> Limits:
    """Ranges that hold wherever ``a`` or ``b`` does."""
    out: Limits = {}
    for symbol in a.keys() & b.keys():
        (low_a, high_a), (low_b, high_b) = a[symbol], b[symbol]
        low = None if low_a is None or low_b is None else min(low_a, low_b)
        high = None if high_a is None or high_b is None else max(high_a, high_b)
        out[symbol] = (low, high)
    return out


# Cycles of the vector unit per vector, as its operations are counted: one for simple ones, four for divisions and
# elementary functions.
SLOW = (
    "truediv div_rn reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt pow fmod erf erfc "
    "sin cos tan sinh cosh tanh asin acos atan atan2 asinh acosh atanh"
)
SFU_CYCLES = dict.fromkeys(SLOW.split(), 4.0) | {"sigmoid": 10.0, "to_dtype": 0.0, "constant": 0.0}


@dataclass
class Record:
    """What the bodies of a kernel do."""

    touches: list[Touch] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    reductions: list[tuple[str, torch.dtype, frozenset[sympy.Symbol]]] = field(default_factory=list)
    values: set[sympy.Symbol] = field(default_factory=set)  # symbols of indices used as numbers
    # What both operands of each contraction depend on.
    contractions: list[tuple[frozenset[sympy.Symbol], frozenset[sympy.Symbol]]] = field(default_factory=list)
    operations: float = 0  # cycles of the SFU per vector


def _symbols(values: Any) -> frozenset[sympy.Symbol]:
    out: frozenset[sympy.Symbol] = frozenset()
    for v in values:
        if isinstance(v, Shadow):
            out |= v.symbols
        elif isinstance(v, (tuple, list)):
            out |= _symbols(v)
    return out


class _Recorder(DefaultHandler):
    def __init__(self, record: Record, removed: set[str], dims: Sequence[Dim]) -> None:
        self.record = record
        self.dims = dims
        self.removed = removed
        self.masks: list[Any] = []
        self.indirect: dict[sympy.Symbol, frozenset[sympy.Symbol]] = {}
        self.sizes: dict[sympy.Symbol, sympy.Expr] = {}

    def _index(self, index: sympy.Expr) -> tuple[dict[sympy.Symbol, sympy.Expr], frozenset[sympy.Symbol]]:
        gathered = {s: self.sizes[s] for s in index.free_symbols if s in self.indirect}
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
        limits = _merge([x for mask in self.masks if isinstance(mask, Shadow) for x in mask.limits])
        if name not in self.removed:
            whole, start = real_place(name)
            touch = Touch(whole, index + start, False, gathered, bool(self.masks), limits)
            self.record.touches.append(touch)
        return Shadow(symbols)

    def load_seed(self, name: str, offset: Any) -> Shadow:
        return self.load(name, sympy.sympify(offset))

    def store(self, name: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        gathered, _ = self._index(index)
        if name not in self.removed:
            whole, start = real_place(name)
            self.record.touches.append(Touch(whole, index + start, True, gathered))

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        self.store(name, index, value)

    def index_expr(self, expr: sympy.Expr, dtype: Any) -> Shadow:
        expr = sympy.sympify(expr)
        gathered, symbols = self._index(expr)
        self.record.values |= symbols
        return Shadow(symbols, None if gathered else expr)

    def constant(self, value: Any, dtype: Any) -> Shadow:
        if isinstance(value, sympy.Expr) and value.free_symbols:
            return self.index_expr(value, dtype)
        return Shadow(frozenset(), sympy.Integer(value) if isinstance(value, int) else None)

    def indirect_indexing(
        self, value: Any, size: sympy.Expr, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        symbol = sympy.Symbol(f"gathered{len(self.indirect)}", integer=True, nonnegative=True)
        self.indirect[symbol] = _symbols([value])
        self.sizes[symbol] = sympy.sympify(size)
        return symbol

    def masked(self, mask: Any, body: Any, other: Any) -> Shadow:
        self.masks.append(mask)
        inside = body()
        self.masks.pop()
        return Shadow(_symbols([mask, inside]))

    def dot(self, a: Any, b: Any) -> Shadow:
        self.record.contractions.append((_symbols([a]), _symbols([b])))
        return Shadow(_symbols([a, b]))

    def reduction(self, dtype: Any, src_dtype: Any, kind: str, value: Any) -> Any:
        result = Shadow(_symbols([value]))
        self.record.reductions.append((kind, src_dtype, result.symbols))
        return (result, result, result) if kind.startswith("welford") else result

    def check_bounds(self, *args: Any) -> None:
        return None

    def frexp(self, x: Any) -> Any:
        return Shadow(_symbols([x])), Shadow(_symbols([x]))

    def output(self, *args: Any) -> None:
        return None

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.record.operations += SFU_CYCLES.get(name, 1)
        if name in ("lt", "le", "gt", "ge"):
            return Shadow(_symbols(args), limits=_compare(name, args[0], args[1], self.dims))
        if name in ("and_", "logical_and", "bitwise_and"):
            both = [x for a in args if isinstance(a, Shadow) for x in a.limits]
            return Shadow(_symbols(args), limits=tuple(both))
        return Shadow(_symbols(args))


class _OperandReader(DefaultHandler):
    """Ops handler whose values are the loads they come from."""

    def __init__(self) -> None:
        self.found: tuple[Any, Any] | None = None

    def load(self, name: str, index: sympy.Expr) -> tuple[str, sympy.Expr]:
        return name, index

    def dot(self, a: Any, b: Any) -> None:
        self.found = a, b

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if args else None


def operands(dot: SchedulerNode) -> tuple[tuple[str, sympy.Expr], tuple[str, sympy.Expr]]:
    """Buffer and index of both operands of a contraction; loops are called i0, i1, ... and r0, r1, ..."""
    ranges = ranges_of(dot)
    reader = _OperandReader()
    with V.set_ops_handler(reader):
        dot._body(*([sympy.Symbol(f"{c}{i}") for i in range(len(r))] for c, r in zip("ir", ranges, strict=True)))
    assert reader.found is not None
    return reader.found


def insides(node: SchedulerNode, numel: sympy.Expr, rnumel: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Points of the kernel's space inside one step of the node's innermost loop, and of its innermost reduced loop.

    Both are 1 for a node over the whole space; a node on results of the reduction has ``rnumel`` inside it, and a
    reduction over columns of those results has (rnumel * columns, rnumel)."""
    own, reduced = extents_of(node)
    total = sympy.expand(numel * rnumel)
    outer = next(
        (inside for part, inside in ((total, sympy.Integer(1)), (numel, rnumel)) if sizevars().equal(own, part)),
        exact_div(total, sympy.expand(own)),
    )
    if outer is None:
        raise Misaligned(f"{own} and {total}")
    inner = exact_div(outer, sympy.expand(reduced))
    return outer, inner if inner is not None else sympy.Integer(1)


def node_variables(
    node: SchedulerNode, numel: sympy.Expr, rnumel: sympy.Expr, dims: Sequence[Dim]
) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Iteration and reduction variables of a node as expressions in the common dims."""
    sizes, reduced = ranges_of(node)
    outer, inner = insides(node, numel, rnumel)
    return variables(sizes, outer, dims), variables(reduced, inner, dims)


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
        handler = _Recorder(out, removed, dims)
        start = len(out.touches)
        with V.set_ops_handler(handler):
            node._body(*node_variables(node, numel, rnumel, dims))
        for t in out.touches[start:]:
            t.index = simplified(dense_strides(t.index), dims)
    return out
