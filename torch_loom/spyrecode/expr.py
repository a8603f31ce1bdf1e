"""Evaluation of postfix integer expressions and of the value table.

The C++ chip evaluates the same expressions at each launch; this is the second, independent
implementation that tools use and tests compare with. Values are signed 64-bit, overflow is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import SpyreCodeError, malformed
from torch_loom.spyrecode.model import ArgKind, Expr, ExprOp, Program, Relation, Scope, Symbol, SymbolKind

_MIN, _MAX = -(1 << 63), (1 << 63) - 1

LEAVES = frozenset({ExprOp.CONST, ExprOp.SYM, ExprOp.CORE, ExprOp.SLOT, ExprOp.REG})


def _positive(divisor: int) -> int:
    if divisor <= 0:
        raise malformed(f"division by {divisor}: divisors must be positive")
    return divisor


_BINARY: dict[ExprOp, Callable[[int, int], int]] = {
    ExprOp.ADD: lambda a, b: a + b,
    ExprOp.SUB: lambda a, b: a - b,
    ExprOp.MUL: lambda a, b: a * b,
    ExprOp.FLOORDIV: lambda a, b: a // _positive(b),
    ExprOp.CEILDIV: lambda a, b: -(-a // _positive(b)),
    ExprOp.MOD: lambda a, b: a % _positive(b),
    ExprOp.MIN: min,
    ExprOp.MAX: max,
}


def check(expr: Expr, leaves: frozenset[ExprOp], where: str) -> None:
    """Shape of an expression: token count, stack depth, one result, only the allowed leaves."""
    if not 1 <= len(expr.tokens) <= limits.TOKENS:
        raise malformed(f"{where}: {len(expr.tokens)} tokens, 1..{limits.TOKENS} allowed")
    depth = 0
    for op, value in expr.tokens:
        if op in LEAVES:
            if op not in leaves:
                raise malformed(f"{where}: {op.name} is not allowed here")
            depth += 1
            if depth > limits.DEPTH:
                raise malformed(f"{where}: deeper than {limits.DEPTH}")
        else:
            if depth < 2:
                raise malformed(f"{where}: {op.name} lacks an operand")
            depth -= 1
        if op in (ExprOp.SYM, ExprOp.SLOT, ExprOp.REG):
            if value < 0:
                raise malformed(f"{where}: {op.name} {value} is negative")
        elif op is not ExprOp.CONST and value != 0:
            raise malformed(f"{where}: {op.name} carries a value")
        if not _MIN <= value <= _MAX:
            raise malformed(f"{where}: constant {value} does not fit in 64 bits")
    if depth != 1:
        raise malformed(f"{where}: {depth} values left instead of one")


def evaluate(
    expr: Expr,
    *,
    symbols: Sequence[int] = (),
    core: int = 0,
    slots: Sequence[int] = (),
    regs: Sequence[int] = (),
) -> int:
    """The value of a checked expression."""
    stack: list[int] = []
    for op, value in expr.tokens:
        match op:
            case ExprOp.CONST:
                stack.append(value)
            case ExprOp.SYM:
                stack.append(symbols[value])
            case ExprOp.CORE:
                stack.append(core)
            case ExprOp.SLOT:
                stack.append(slots[value])
            case ExprOp.REG:
                stack.append(regs[value])
            case _:
                right = stack.pop()
                result = _BINARY[op](stack[-1], right)
                if not _MIN <= result <= _MAX:
                    raise malformed(f"{op.name} of {stack[-1]} and {right} overflows 64 bits")
                stack[-1] = result
    return stack[0]


def correct(program: Program, args: Sequence[int]) -> list[int]:
    """The value table of a launch: LAUNCH slots one number, CORE slots one per core, in slot order.

    ``args`` holds device addresses of buffers, integers, and the 32 bits of floats, in call order.
    Raises SC-E11 (count), SC-E12 (bounds, granularity, guards), SC-E13 (alignment), SC-E17 (overflow).
    """
    if len(args) != len(program.args):
        raise SpyreCodeError("SC-E11", f"{program.name}: {len(args)} arguments, takes {len(program.args)}")
    values = []
    for symbol in program.symbols:
        value, arg = args[symbol.arg], program.args[symbol.arg]
        if not symbol.minimum <= value <= symbol.maximum:
            raise SpyreCodeError(
                "SC-E12", f"{program.name}: argument {arg.name} = {value}, must be in {bounds(symbol)}"
            )
        if value % symbol.granularity:
            code = "SC-E13" if symbol.kind is SymbolKind.ADDRESS else "SC-E12"
            raise SpyreCodeError(
                code,
                f"{program.name}: argument {arg.name} = {value}, must be a multiple of {symbol.granularity}",
            )
        values.append(value)
    for guard in program.guards:
        value = evaluate(guard.expr, symbols=values)
        if not (value >= 0 if guard.relation is Relation.GE else value == 0):
            raise SpyreCodeError("SC-E12", f"{program.name}: {guard.message}")
    table = []
    for slot in program.slots:
        cores = program.cores if slot.scope is Scope.CORE else 1
        table += [evaluate(slot.expr, symbols=values, core=core) for core in range(cores)]
    return table


def bounds(symbol: Symbol) -> str:
    """The range of a symbol as shown in messages."""
    return f"{symbol.minimum}..{symbol.maximum}"


def table_words(program: Program) -> int:
    """Length of the value table in 64-bit words."""
    return sum(program.cores if s.scope is Scope.CORE else 1 for s in program.slots)


def kinds_match(symbol: SymbolKind, arg: ArgKind) -> bool:
    """Whether a symbol of this kind may stand for an argument of that kind."""
    return {
        SymbolKind.ADDRESS: arg is ArgKind.BUFFER,
        SymbolKind.DIM: arg is ArgKind.INT,
        SymbolKind.SCALAR: arg in (ArgKind.INT, ArgKind.FLOAT),
    }[symbol]
