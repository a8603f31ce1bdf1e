"""One dispatched operator as a graph with symbolic sizes.

The native recorder describes a call by its arguments; what may differ between calls of one structural key is left
open: sizes of tensors, and numbers (Python scalars, sizes passed as arguments). Here the call is traced with symbols in
those places. What the operator asked about a symbol on the way became a guard; guards that mention numbers or sizes
belong to the program and are checked on every call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, ShapeEnv
from torch.fx.traceback import preserve_node_meta
from torch.utils import _sympy

Expr = Any  # see torch_loom.inductor.op_program


class Untraceable(Exception):
    """The operator cannot be expressed with symbolic sizes; the message says why."""


# What tracing raises for operators whose results need data or that have no meta kernel.
NEEDS_DATA = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
    NotImplementedError,
)
# What operators raise about their arguments (and what a decomposition raises that does not know symbols).
ARGUMENT_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError, ZeroDivisionError)


@dataclass(frozen=True)
class TensorArg:
    """A tensor of the call: how it lies, not where. ``order`` lists the dims from the outermost in memory. Where dims
    show the same elements again and again, ``ranks`` says how the strides compare: per dim the number of different
    smaller ones, -1 for those that repeat. Programs read a copy in which no dim does."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    ranks: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class NumberArg:
    """A number of the call: ``kind`` is "float", "int" or "size"."""

    value: float | int
    kind: str


@dataclass(frozen=True)
class Constant:
    """An argument that belongs to the key."""

    value: Any


def argument(described: tuple[Any, ...]) -> Any:
    """An argument from the native recorder's description."""
    kind, *fields = described
    if kind == "tensor":
        sizes, order, ranks, dtype, index = fields
        return TensorArg(tuple(sizes), tuple(order), tuple(ranks), dtype, torch.device("spyre", index))
    if kind == "number":
        return NumberArg(*fields)
    return [argument(a) for a in fields[0]] if kind == "list" else Constant(fields[0])


@dataclass(frozen=True)
class Graph:
    """A traced call. ``inputs`` are fake tensors, then symbolic numbers; ``integers`` names the latter's integer
    symbols that are no sizes."""

    module: torch.fx.GraphModule
    inputs: list[Any]
    integers: list[str]
    made: Inputs

    @property
    def guards(self) -> list[Expr]:
        """Expressions that must be non-zero: what tracing, and compiling so far, assumed. Raises Untraceable."""
        return guards(self.made)

    @property
    def tensors_used(self) -> bool:
        """Does the result depend on a tensor of the call?"""
        holders = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        return any(n.users for n, x in zip(holders, self.inputs, strict=True) if isinstance(x, torch.Tensor))


def _dense(sizes: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Strides of dims that lie without gaps in ``order``, from the outermost on."""
    strides: list[Any] = [1] * len(sizes)
    step: Any = 1
    for d in reversed(order):
        strides[d] = step
        step = step * sizes[d]
    return strides


class Inputs:
    """Symbolic stand-ins of a call's tensors and numbers. ``special`` fixes the sizes."""

    def __init__(self, special: bool) -> None:
        self.special = special
        self.fixed: list[Expr] = []
        self.env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.env)
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        self.integers: list[str] = []
        self.meaning: dict[sympy.Symbol, Expr] = {}

    def tensor(self, arg: TensorArg) -> torch.Tensor:
        i = len(self.tensors)
        sizes: list[Any] = []
        for d, n in enumerate(arg.sizes):
            if n <= 1 or self.special:  # 0 and 1 are part of the key
                sizes.append(n)
                if n > 1:
                    self.fixed.append(["==", ["t", i, d], n])
                continue
            source = ConstantSource(f"t{i}_{d}")
            symbol = self.env.create_symbol(n, source, dynamic_dim=DimDynamic.DYNAMIC)
            self.meaning[symbol] = ["t", i, d]
            sizes.append(self.env.create_symintnode(symbol, hint=n, source=source))
        with self.mode:
            fake = torch.empty_strided(sizes, _dense(sizes, arg.order), dtype=arg.dtype, device=arg.device)
        self.tensors.append(fake)
        return fake

    def block(self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A stand-in for the whole of a dense storage."""
        with self.mode:
            fake = torch.empty(sizes, dtype=dtype, device=device)
        self.tensors.append(fake)
        return fake

    def number(self, arg: NumberArg) -> Any:
        """A stand-in for a number."""
        source = ConstantSource(f"n{len(self.numbers)}")
        if arg.kind == "size":
            symbol = self.env.create_symbol(int(arg.value), source, dynamic_dim=DimDynamic.DYNAMIC)
        else:
            symbol = self.env.create_unspecified_symbol(arg.value, source, dynamic_dim=DimDynamic.DYNAMIC)
        if arg.kind == "float":
            node: Any = self.env.create_symfloatnode(symbol, hint=arg.value, source=source)
        else:
            node = self.env.create_symintnode(symbol, hint=int(arg.value), source=source)
        if arg.kind == "int":
            self.integers.append(symbol.name)
        self.meaning[symbol] = ["n", len(self.numbers)]
        self.numbers.append(node)
        if self.special and arg.kind == "size":
            self.fixed.append(["==", self.meaning[symbol], int(arg.value)])
            return int(arg.value)
        return node

    def build(self, arg: Any) -> Any:
        """The argument as the operator takes it."""
        if isinstance(arg, TensorArg):
            return self.tensor(arg)
        if isinstance(arg, NumberArg):
            return self.number(arg)
        if isinstance(arg, Constant):
            return arg.value
        return [self.build(a) for a in arg]


@contextmanager
def no_complaints() -> Iterator[None]:
    """Errors of wrong arguments are the caller's, who gets them from the operator itself: shape rules do not log them
    on this thread."""
    thread = threading.get_ident()
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


@contextmanager
def clean_modes() -> Iterator[None]:
    """Trace outside of the modes of the calling code."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        yield


def trace(op: Any, args: Sequence[Any], decompositions: dict[Any, Any], special: bool = False) -> Graph:
    """Trace ``op`` on its described arguments; ``special`` fixes the sizes and leaves only numbers open.

    Raises Untraceable; errors of the operator about its arguments pass through."""
    made = Inputs(special)
    with clean_modes(), no_complaints():
        values = [made.build(a) for a in args]
        flat: list[Any] = []
        places = [_placed(v, flat) for v in values]
        orders = _orders_of_results(op, args)

        def call(*leaves: Any) -> Any:
            results = apply(op, [_filled(p, leaves) for p in places])
            return _in_orders(results, orders) if orders else results

        leaves = [*made.tensors, *made.numbers]
        index = {id(x): i for i, x in enumerate(leaves)}
        order = [index[id(x)] for x in flat]
        with made.mode:
            module = traced(lambda *xs: call(*[xs[i] for i in order]), leaves, decompositions)
        _refuse_single(module)
    refuse_constants(module)
    return Graph(module, leaves, made.integers, made)


def traced(call: Callable[..., Any], leaves: Sequence[Any], decompositions: dict[Any, Any]) -> torch.fx.GraphModule:
    """The graph of ``call(*leaves)`` under fake tensors. Nodes keep the operator they come from: it names kernels."""
    with preserve_node_meta():
        module = make_fx(call, decomposition_table=decompositions, tracing_mode="real")(*leaves)
    module.graph.eliminate_dead_code()
    return module


def _refuse_single(module: torch.fx.GraphModule) -> None:
    """Raise Untraceable for a result with one element along a dim of open size, and guard that calls have no such: dims
    of one element have no place in the public layout."""
    results = torch.utils._pytree.tree_leaves(module.graph.output_node().args)
    for node in results:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        for n in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(n, torch.SymInt) and n == 1:
                raise Untraceable("a result has one element along a dim of open size")


def _tensors(args: Any) -> list[TensorArg]:
    """The tensors among described arguments."""
    if isinstance(args, list):
        return [t for a in args for t in _tensors(a)]
    return [args] if isinstance(args, TensorArg) else []


def _orders_of_results(op: Any, args: Sequence[Any]) -> list[tuple[int, ...] | None]:
    """The order of dims in memory of each result, where it is another one for the call's tensors than for their dense
    copies: dims that repeat elements have no place in the order, so that those of other tensors decide. Empty when
    nothing differs."""
    if not any(t.ranks for t in _tensors(list(args))):
        return []
    found = []
    with FakeTensorMode():
        for repeating in (True, False):
            results = apply(op, [_at_hand(a, repeating) for a in args])
            listed = results if isinstance(results, (tuple, list)) else [results]
            found.append([_order(t) if isinstance(t, torch.Tensor) else None for t in listed])
    return [wanted if wanted != plain else None for wanted, plain in zip(*found, strict=True)]


def _at_hand(arg: Any, repeating: bool) -> Any:
    """An argument with the sizes and numbers at hand; ``repeating`` keeps strides of 0 and how the others
    compare. Halves are widened: PyTorch's shape rules would compute in a widened, and so dense, copy of them, which its
    kernels do not."""
    if isinstance(arg, TensorArg):
        dtype = torch.float32 if arg.dtype in (torch.float16, torch.bfloat16) else arg.dtype
        strides = _dense(arg.sizes, arg.order)
        if repeating and arg.ranks:
            strides = [0 if rank < 0 else 2**rank for rank in arg.ranks]
        return torch.empty_strided(arg.sizes, strides, dtype=dtype, device=arg.device)
    if isinstance(arg, list):
        return [_at_hand(a, repeating) for a in arg]
    return arg.value


def _order(t: torch.Tensor) -> tuple[int, ...]:
    """Dims of a tensor from the outermost in memory."""
    strides = t.stride()
    return tuple(sorted(range(t.dim()), key=lambda d: -strides[d]))


def _in_orders(results: Any, orders: Sequence[tuple[int, ...] | None]) -> Any:
    """Results whose dims lie in the given orders."""
    listed = list(results) if isinstance(results, (tuple, list)) else [results]
    for i, order in enumerate(orders):
        if order is not None:
            back = sorted(range(len(order)), key=lambda d, order=order: order[d])  # type: ignore[misc]
            listed[i] = listed[i].permute(order).contiguous().permute(back)
    return listed if isinstance(results, (tuple, list)) else listed[0]


def refuse_constants(module: torch.fx.GraphModule) -> None:
    """Raise Untraceable for a graph that holds tensors of its own."""
    if any(node.op == "get_attr" for node in module.graph.nodes):
        raise Untraceable("the operator needs a constant tensor")


def apply(op: Any, values: Sequence[Any]) -> Any:
    """Call ``op`` with the values of all its arguments, in the order of its schema."""
    values = _numbers_as_tensors(op, values)
    names = [a.name if a.kwarg_only else None for a in op._schema.arguments]
    positional = [v for v, n in zip(values, names, strict=True) if n is None]
    return op(*positional, **{n: v for v, n in zip(values, names, strict=True) if n is not None})


def _numbers_as_tensors(op: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Numbers in the place of tensors as tensors, for operators that do not take them as they are. A number takes the
    dtype of the tensors beside it, unless it is the only float."""
    if torch._C._should_allow_numbers_as_tensors(op._schema.name.partition("::")[2]):
        return values
    wanted = [isinstance(a.type, torch.TensorType) for a in op._schema.arguments]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors or all(isinstance(v, torch.Tensor) or v is None for v, w in zip(values, wanted, strict=True) if w):
        return values
    beside = reduce(torch.promote_types, (t.dtype for t in tensors))

    def placed(number: Any) -> torch.Tensor:
        wide = isinstance(number, (float, torch.SymFloat)) and not beside.is_floating_point
        dtype = torch.get_default_dtype() if wide else beside
        return torch.scalar_tensor(number, dtype=dtype, device=tensors[0].device)

    number = (bool, int, float, torch.SymInt, torch.SymFloat)
    return [placed(v) if w and isinstance(v, number) else v for v, w in zip(values, wanted, strict=True)]


def guards(made: Inputs) -> list[Expr]:
    """What must hold for a call, each condition once."""
    found = [*made.fixed, *(to_expr(g.expr, made.meaning) for g in made.env.guards)]
    for symbol, value in made.env.replacements.items():
        if symbol in made.meaning:
            found.append(["==", made.meaning[symbol], to_expr(value, made.meaning)])
    once: dict[str, Expr] = {}
    for guard in found:
        sides = sorted(map(str, guard[1:])) if isinstance(guard, list) and guard[0] == "==" else [str(guard)]
        once.setdefault(str(sides), guard)
    return list(once.values())


def _placed(value: Any, flat: list[Any]) -> Any:
    """Replace tensors and symbols of an argument by their place in ``flat``."""
    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat)):
        flat.append(value)
        return ("leaf", len(flat) - 1)
    return ("list", [_placed(v, flat) for v in value]) if isinstance(value, list) else ("constant", value)


def _filled(place: Any, leaves: Sequence[Any]) -> Any:
    kind, what = place
    if kind == "leaf":
        return leaves[what]
    return [_filled(p, leaves) for p in what] if kind == "list" else what


_F = _sympy.functions
_NAMES: dict[Any, str] = {
    sympy.Add: "+",
    sympy.Mul: "*",
    _F.FloorDiv: "//",
    _F.Mod: "%",
    _F.PythonMod: "%",
    _F.Max: "max",
    _F.Min: "min",
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.StrictLessThan: "<",
    sympy.LessThan: "<=",
    sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
    sympy.And: "and",
    sympy.Or: "or",
}


def to_expr(expr: Any, meaning: dict[sympy.Symbol, Expr]) -> Expr:
    """A sympy expression over the call's symbols as an expression of op programs. Raises Untraceable."""
    if expr in (True, sympy.true):
        return 1
    if expr in (False, sympy.false):
        return 0
    expr = sympy.sympify(expr)
    if expr.is_Integer:
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        if expr not in meaning:
            raise Untraceable(f"size {expr} depends on data")
        return meaning[expr]
    if isinstance(expr, sympy.Not):
        return ["not", to_expr(expr.args[0], meaning)]
    if expr.is_Float:
        return float(expr)
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and 0 < int(expr.exp) <= 4:
        base = to_expr(expr.base, meaning)
        out = base
        for _ in range(int(expr.exp) - 1):
            out = ["*", out, base]
        return out
    name = _NAMES.get(type(expr))
    if name is None:
        raise Untraceable(f"size expression {expr}")
    args = [to_expr(a, meaning) for a in expr.args]
    out = args[0]
    for a in args[1:]:
        out = [name, out, a]
    return out
