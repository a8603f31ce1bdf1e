"""Handlers of pass 1 for numbers: constants, index arithmetic, the compute tile's id, launch arguments."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType
from xdsl.ir import Operation

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.normalise import Normaliser, dtype_of, handles

_INDEX_OPS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": ex.truncdiv,
    "arith.divui": ex.floordiv,
    "arith.floordivsi": ex.floordiv,
    "arith.ceildivsi": ex.ceildiv,
    "arith.ceildivui": ex.ceildiv,
    "arith.remsi": lambda a, b: a - b * ex.truncdiv(a, b) if a.lo is None or a.lo < 0 else ex.mod(a, b),
    "arith.remui": ex.mod,
    "arith.minsi": ex.minimum,
    "arith.minui": ex.minimum,
    "arith.maxsi": ex.maximum,
    "arith.maxui": ex.maximum,
}

_INDEX_COMPARE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "eq": ex.equal,
    "ne": lambda a, b: ex.ONE - ex.equal(a, b),
    "slt": ex.less,
    "ult": ex.less,
    "sgt": lambda a, b: ex.less(b, a),
    "ugt": lambda a, b: ex.less(b, a),
    "sle": lambda a, b: ex.ONE - ex.less(b, a),
    "ule": lambda a, b: ex.ONE - ex.less(b, a),
    "sge": lambda a, b: ex.ONE - ex.less(a, b),
    "uge": lambda a, b: ex.ONE - ex.less(a, b),
}


def index_arithmetic(n: Normaliser, op: Operation) -> bool:
    """Evaluate integer arithmetic on index expressions; False if an operand is data."""
    if len(op.operands) != 2 or not all(n.is_number(v) for v in op.operands):
        return False
    a, b = (n.number(v) for v in op.operands)
    if op.name in _BIT_OPS and b.static:
        result = _BIT_OPS[op.name](a, b.value)
        if result is not None:
            n.set(op.results[0], result)
            return True
    if op.name not in _INDEX_OPS:
        return False
    if "div" in op.name or "rem" in op.name:
        if b.static and b.value <= 0:
            n.fail(f"divides by {b.value}")
        if not b.static and (b.lo is None or b.lo < 0):
            n.fail("divides by a number that may be negative")
    n.set(op.results[0], _INDEX_OPS[op.name](a, b))
    return True


def _low_bits(a: Expr, mask: int) -> Expr | None:
    return ex.mod(a, mask + 1) if mask >= 0 and mask & (mask + 1) == 0 else None


_BIT_OPS: dict[str, Callable[[Expr, int], Expr | None]] = {
    "arith.andi": _low_bits,
    "arith.shli": lambda a, by: a * (1 << by) if 0 <= by < 63 else None,
    "arith.shrsi": lambda a, by: ex.floordiv(a, 1 << by) if 0 <= by < 63 else None,
    "arith.shrui": lambda a, by: ex.floordiv(a, 1 << by) if 0 <= by < 63 and ex.nonnegative(a) else None,
}


def index_predicate(op: Operation) -> int:
    """Number of the predicate of a comparison."""
    attr = op.properties["predicate"]
    assert isinstance(attr, IntegerAttr)
    return attr.value.data


def index_compare(n: Normaliser, predicate: str, a: Expr, b: Expr) -> Expr:
    """arith.cmpi on index expressions: 0 or 1."""
    return _INDEX_COMPARE[predicate](a, b)


@handles("arith.constant")
def _constant(n: Normaliser, op: Operation) -> None:
    attr = op.properties["value"]
    result = op.results[0]
    dtype = dtype_of(result.type)
    if isinstance(result.type, TensorType):
        values = list(attr.get_values())  # type: ignore[attr-defined]
        if any(v != values[0] for v in values[1:]):
            n.fail("only splat constants can be scheduled", hint="pass the table as an argument")
        shape = tuple(Expr(s) for s in result.type.get_shape())
        n.set(result, n.graph.const(values[0], dtype, shape))
    elif isinstance(attr, FloatAttr):
        n.set(result, n.graph.const(attr.value.data, dtype))
    else:
        assert isinstance(attr, IntegerAttr)
        bits = attr.value.data
        n.set(result, Expr(bits & 1 if dtype == "i1" else bits))


@handles("ktdp.get_compute_tile_id")
def _tile_id(n: Normaliser, op: Operation) -> None:
    linear = ex.core_number(n.cores)
    if len(op.results) == 1:
        n.set(op.results[0], linear)
        return
    for k, result in enumerate(op.results):
        size = n.grid[k] if k < len(n.grid) else 1
        n.set(result, ex.mod(linear, size))
        linear = ex.floordiv(linear, size)


@handles("ktdp.runtime_arg_extract")
def _runtime_arg(n: Normaliser, op: Operation) -> None:
    kind = op.properties["kind"]
    which = kind.value.data if isinstance(kind, IntegerAttr) else getattr(kind, "data", 0)
    source = op.operands[0]
    promises = getattr(source.type, "promises", {})
    if which in (0, "value"):
        n.set(op.results[0], n.env[source])
    else:
        name = "granularity" if which in (1, "granularity") else "upperbound"
        n.set(op.results[0], Expr(promises[name]))
