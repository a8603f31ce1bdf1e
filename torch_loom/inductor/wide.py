"""int64 in registers of 32 bits: ranges, flags of lanes that left them, and the check.

The device holds int64 in 32 bits. For every int64 value a kernel therefore follows the range in which it must lie and,
where 32 bits may not hold that, a flag per lane. Arithmetic goes on with the low 32 bits and collects flags; a select
takes the flags of what it selects. Where a value ceases to be an integer in a register (a store, a comparison, a
conversion, an index, a reduction), ``settle`` has the vector unit check the lanes that count, and a set flag stops the
launch with an error. What cannot overflow, as most index arithmetic, costs nothing. int32 wraps, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .operand import HIGHEST, LOWEST, Number, Operand, Value, Wide

if TYPE_CHECKING:
    from .domain import Dim
    from .values import Algebra

Span = tuple[int, int]
FULL: Span = (LOWEST, HIGHEST)
# A tile in LX (2 MiB) has at most so many elements of 32 bits.
TILE = 1 << 19
DIGIT = 11  # bits; three of them make 32, and TILE of them have a sum below 2^31


def followed(x: Operand) -> bool:
    """Is the operand an int64?"""
    return x.wide is not None if isinstance(x, Value) else x.wide


def held(x: Operand, span: Span = FULL) -> Operand:
    """The operand as an int64 that lies in ``span``."""
    if isinstance(x, Number):
        return replace(x, wide=True)
    low, high = max(span[0], LOWEST), min(span[1], HIGHEST)
    return replace(x, wide=Wide(low, high, x.wide.over if x.wide is not None else None))


def plain(a: Algebra, x: Operand) -> Operand:
    """The operand, checked, for arithmetic that is meant to wrap or cannot overflow."""
    x = settle(a, x)
    return replace(x, wide=None) if isinstance(x, Value) else replace(x, wide=False)


def span_of(x: Operand) -> Span:
    """Range of an i32 or i1 operand."""
    if isinstance(x, Number):
        return int(x.value), int(x.value)
    if x.wide is not None:
        return x.wide.low, x.wide.high
    if x.kind == "i1":
        return 0, 1
    if x.narrow is not None:
        import torch

        info = torch.iinfo(x.narrow)
        return info.min, info.max
    return FULL


def fits(span: Span) -> bool:
    """Do 32 bits hold every value of the range?"""
    return span[0] >= LOWEST and span[1] <= HIGHEST


def settle(a: Algebra, x: Operand) -> Operand:
    """The operand with its flags checked in the lanes that count."""
    return checked(a, x) if isinstance(x, Value) else x


def checked(a: Algebra, x: Value) -> Value:
    """``settle`` of a value."""
    if x.wide is None or x.wide.over is None:
        return x
    over: Operand = x.wide.over
    bare = replace(x, wide=None)
    for mask in a.counted(x.dims):
        over = a.apply("arith.andi", [over, a.cast(mask, "i1")], "i1")
    dims = a.union([over, bare])
    flags, value = a.materialise(over, dims), a.materialise(bare, dims)
    out = a.b.op("spyreop.checked", flags.tensor, value.tensor)
    return Value(out, dims, narrow=x.narrow, wide=Wide(x.wide.low, x.wide.high))


def from_float(a: Algebra, x: Operand) -> Operand:
    """A float as int64, toward zero; what 32 bits do not hold, and NaN, is flagged."""
    if isinstance(x, Number):
        return Number(int(x.value), "i32", True)
    inside = a.apply(
        "arith.andi",
        [
            a.apply("arith.cmpf oge", [x, Number(float(LOWEST), "f32")]),
            a.apply("arith.cmpf olt", [x, Number(float(HIGHEST + 1), "f32")]),
        ],
    )
    out = a.cast(x, "i32")
    assert isinstance(out, Value)
    return replace(out, wide=Wide(*FULL, _not(a, inside)))


# ---- comparisons with numbers beyond 32 bits -----------------------------------------------------------------

_SWAPPED = {"slt": "sgt", "sle": "sge", "sgt": "slt", "sge": "sle", "eq": "eq", "ne": "ne"}
# Predicate with a number above (below) all values, as one with the highest (lowest) of them.
_ABOVE = {"slt": "sle", "sle": "sle", "sgt": "sgt", "sge": "sgt", "eq": "sgt", "ne": "sle"}
_BELOW = {"slt": "slt", "sle": "slt", "sgt": "sge", "sge": "sge", "eq": "slt", "ne": "sge"}


def nearest(name: str, operands: Sequence[Operand]) -> tuple[str, list[Operand]]:
    """The operation with a number that 32 bits hold in place of one beyond, if the result is the same."""
    x, y = operands
    if name.startswith("arith.cmpi ") and isinstance(x, Number) and not isinstance(y, Number):
        name, x, y = f"arith.cmpi {_SWAPPED[name.split()[1]]}", y, x
    number = next((v for v in (y, x) if isinstance(v, Number)), None)
    if number is None or fits(span_of(number)) or number.kind != "i32":
        return name, [x, y]
    above = int(number.value) > 0
    inside = Number(HIGHEST if above else LOWEST, "i32", number.wide)
    if name.startswith("arith.cmpi "):
        return f"arith.cmpi {(_ABOVE if above else _BELOW)[name.split()[1]]}", [x, inside]
    if name == ("arith.minsi" if above else "arith.maxsi"):
        return name, [inside if v is number else v for v in (x, y)]
    return name, [x, y]


# ---- ranges --------------------------------------------------------------------------------------------------


def _corners(f: Callable[[int, int], int], x: Span, y: Span) -> Span:
    values = [f(a, b) for a in x for b in y]
    return min(values), max(values)


def _and(x: Span, y: Span) -> Span:
    tops = [high for low, high in (x, y) if low >= 0]
    return (0, min(tops)) if tops else FULL


def _left(x: Span, y: Span) -> Span:
    if y[0] < 0 or y[1] > 31:
        return LOWEST << 31, HIGHEST << 31
    return _corners(lambda v, n: v << n, x, y)


def _right(x: Span, y: Span) -> Span:
    if y[0] == y[1] and y[0] >= 0:
        return x[0] >> y[0], x[1] >> y[0]
    return min(x[0], 0), max(x[1], 0)


def _quotient(x: Span, y: Span) -> Span:
    size = max(abs(x[0]), abs(x[1]))
    if y[0] > 0:
        return min(x[0], 0), max(x[1], 0)
    overflows = x[0] == LOWEST and y[0] <= -1 <= y[1]
    return -size, size if overflows else min(size, HIGHEST)


def _remainder(x: Span, y: Span) -> Span:
    size = max(abs(y[0]), abs(y[1]), 1) - 1
    return max(-size, min(x[0], 0)), min(size, max(x[1], 0))


RANGES: dict[str, Callable[[Span, Span], Span]] = {
    "arith.addi": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "arith.subi": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "arith.muli": lambda x, y: _corners(lambda a, b: a * b, x, y),
    "arith.minsi": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "arith.maxsi": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "arith.andi": _and,
    "arith.ori": lambda x, y: FULL,
    "arith.xori": lambda x, y: FULL,
    "arith.shli": _left,
    "arith.shrsi": _right,
    "arith.divsi": _quotient,
    "arith.floordivsi": _quotient,
    "arith.remsi": _remainder,
}


# ---- flags of single operations ------------------------------------------------------------------------------


def _not(a: Algebra, x: Operand) -> Value:
    return a.apply("arith.xori", [x, Number(True, "i1")], "i1")


def _less(a: Algebra, x: Operand, y: Operand) -> Value:
    return a.apply("arith.cmpi slt", [x, y])


def _negative_and(a: Algebra, x: Operand, y: Operand) -> Value:
    return _less(a, a.apply("arith.andi", [x, y]), Number(0, "i32"))


def _add_over(a: Algebra, x: Operand, y: Operand, r: Value) -> Value:
    if isinstance(x, Number):
        x, y = y, x
    if isinstance(y, Number):
        return _less(a, r, x) if int(y.value) >= 0 else _less(a, x, r)
    return _negative_and(a, a.apply("arith.xori", [x, r]), a.apply("arith.xori", [y, r]))


def _sub_over(a: Algebra, x: Operand, y: Operand, r: Value) -> Value:
    if isinstance(y, Number):
        return _less(a, x, r) if int(y.value) >= 0 else _less(a, r, x)
    return _negative_and(a, a.apply("arith.xori", [x, y]), a.apply("arith.xori", [x, r]))


def _mul_over(a: Algebra, x: Operand, y: Operand, r: Value) -> Value:
    """The product and the register differ by a multiple of 2^32, float32 products by 2^-22 of it at most."""
    product = a.apply("arith.mulf", [a.cast(x, "f32"), a.cast(y, "f32")])
    distance = a.apply("math.absf", [a.apply("arith.subf", [product, a.cast(r, "f32")])])
    return a.apply("arith.cmpf ogt", [distance, Number(2.0**31, "f32")])


def _left_over(a: Algebra, x: Operand, y: Operand, r: Value) -> Value:
    return a.apply("arith.cmpi ne", [a.apply("arith.shrsi", [r, y]), x])


def _quotient_over(a: Algebra, x: Operand, y: Operand, r: Value) -> Value:
    equal = [a.apply("arith.cmpi eq", [v, Number(n, "i32")]) for v, n in ((x, LOWEST), (y, -1))]
    return a.apply("arith.andi", equal, "i1")


_OVER: dict[str, Callable[[Algebra, Operand, Operand, Value], Value]] = {
    "arith.addi": _add_over,
    "arith.subi": _sub_over,
    "arith.muli": _mul_over,
    "arith.shli": _left_over,
    "arith.divsi": _quotient_over,
    "arith.floordivsi": _quotient_over,
}


def _bare(x: Operand) -> Operand:
    return replace(x, wide=None) if isinstance(x, Value) else replace(x, wide=False)


def _either(a: Algebra, flags: Sequence[Value | None]) -> Value | None:
    out: Value | None = None
    for f in flags:
        out = f if out is None else out if f is None else a.apply("arith.ori", [out, f], "i1")
    return out


def follow(a: Algebra, name: str, operands: Sequence[Operand], out: Value) -> Value:
    """The result ``out`` of an operation on int64 values, with its range and flags.

    An operation that has no range (``math.absi`` apart) takes checked operands and gives any value."""
    before = [x.wide.over for x in operands if isinstance(x, Value) and x.wide is not None]
    spans = [span_of(x) for x in operands]
    if name == "math.absi":
        low, high = spans[0]
        span = (0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
        new = None if fits(span) else _less(a, out, Number(0, "i32"))
    else:
        span = RANGES[name](spans[0], spans[1]) if name in RANGES else FULL
        new = None if fits(span) else _OVER[name](a, _bare(operands[0]), _bare(operands[1]), out)
    over = _either(a, [*before, new])
    return replace(out, wide=Wide(max(span[0], LOWEST), min(span[1], HIGHEST), over))


def selected(a: Algebra, condition: Operand, x: Operand, y: Operand, out: Value) -> Value:
    """The result ``out`` of a select, with range and flags of what it selects."""
    spans = span_of(x), span_of(y)
    overs = [v.wide.over if isinstance(v, Value) and v.wide is not None else None for v in (x, y)]
    over: Value | None = None
    if overs[0] is not None or overs[1] is not None:
        sides: list[Operand] = [o if o is not None else Number(False, "i1") for o in overs]
        dims = a.union([condition, *sides])
        parts = [a.materialise(v, dims) for v in (a.cast(condition, "i1"), *sides)]
        over = Value(a.b.op("arith.select", *(p.tensor for p in parts)), dims)
    low, high = min(s[0] for s in spans), max(s[1] for s in spans)
    return replace(out, wide=Wide(low, high, over))


# ---- reductions ----------------------------------------------------------------------------------------------

Fold = Callable[[str, Operand], Value]


def fold(a: Algebra, kind: str, value: Operand, reduced: Sequence[Dim], by: Fold) -> Value:
    """Fold an int64 value over ``reduced``, all of which its tile holds; ``by`` folds a plain value."""
    span = span_of(value)
    value = plain(a, value)
    out = by(kind, value)
    if kind in ("max", "min"):
        return replace(out, wide=Wide(*span))
    count = 1
    for d in reduced:
        count = count * int(d.extent) if d.extent.is_Integer else TILE
    count = min(count, TILE)
    if kind == "sum":
        low, high = min(count * span[0], span[0], 0), max(count * span[1], span[1], 0)
        if fits((low, high)):
            return replace(out, wide=Wide(low, high))
        return replace(out, wide=Wide(*FULL, _sum_over(a, value, by)))
    if kind == "prod" and not (span[0] >= -1 and span[1] <= 1):
        return replace(out, wide=Wide(*FULL, _product_over(a, value, count, by)))
    return replace(out, wide=Wide(*FULL))


def _sum_over(a: Algebra, value: Operand, by: Fold) -> Value:
    """Does the sum leave 32 bits? Digits are summed apart, each exactly, and carried."""
    mask = Number((1 << DIGIT) - 1, "i32")

    def right(x: Operand, digits: int) -> Operand:
        return a.apply("arith.shrsi", [x, Number(digits * DIGIT, "i32")], "i32") if digits else x

    low, middle = (by("sum", a.apply("arith.andi", [right(value, k), mask], "i32")) for k in (0, 1))
    top = by("sum", right(value, 2))
    carried = a.apply("arith.addi", [middle, right(low, 1)])
    top = a.apply("arith.addi", [top, right(carried, 1)])
    limit = 1 << (31 - 2 * DIGIT)
    return a.apply("arith.ori", [_less(a, top, Number(-limit, "i32")), _less(a, Number(limit - 1, "i32"), top)], "i1")


def _product_over(a: Algebra, value: Operand, count: int, by: Fold) -> Value:
    """May the product leave 32 bits? A float32 product of ``count`` factors is off by count * 2^-23 of it at most."""
    size = a.apply("math.absf", [by("prod", a.cast(value, "f32"))])
    limit = 2.0**31 * (1.0 - min(0.5, count * 2.0**-22))
    return _not(a, a.apply("arith.cmpf olt", [size, Number(limit, "f32")]))
