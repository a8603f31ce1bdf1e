"""Expression text of DataflowIR: infix for people, postfix tokens for the program.

Grammar: ``+ - * floordiv mod``, ``min(a, b)``, ``max(a, b)``, parentheses, integers and leaves (``s0``,
``core``, ``d0``). Printing keeps the shape of the expression and parsing keeps the shape of the text, so text
and tokens determine each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torch_loom.scheduler.expr import Atom, Expr

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z_0-9]*)|([-+*(),]))")

_BINARY = {"+": "ADD", "-": "SUB", "*": "MUL", "floordiv": "FLOORDIV", "mod": "MOD"}
_LEVEL = {"+": 1, "-": 1, "*": 2, "floordiv": 2, "mod": 2}


def infix(e: Expr, leaf: Callable[[Expr], str | None]) -> str:
    """Text of an expression; ``leaf`` names a sub-expression that is one leaf, or returns None to open it."""
    named = leaf(e)
    if named is not None:
        return named
    parts: list[str] = []
    for monomial, c in e.terms:
        factors = [_atom(a, leaf) for a in monomial]
        product = " * ".join(factors if abs(c) == 1 else [*factors, str(abs(c))])
        if parts:
            parts.append(f"- {product}" if c < 0 else f"+ {product}")
        else:
            parts.append(f"0 - {product}" if c < 0 else product)
    if e.const or not parts:
        if parts:
            parts.append(f"- {-e.const}" if e.const < 0 else f"+ {e.const}")
        else:
            parts.append(str(e.const) if e.const >= 0 else f"0 - {-e.const}")
    return " ".join(parts)


def _atom(atom: Atom, leaf: Callable[[Expr], str | None]) -> str:
    if not atom.args:
        named = leaf(Expr(0, (((atom,), 1),)))
        if named is None:
            raise ValueError(f"{atom} has no place in this expression")
        return named
    a, b = (infix(x, leaf) for x in atom.args)
    if atom.kind in ("min", "max"):
        return f"{atom.kind}({a}, {b})"
    return f"({_wrapped(a)} {atom.kind} {_wrapped(b)})"


def _wrapped(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def parse(text: str) -> list[tuple[str, int | str]]:
    """Postfix of an infix text: ("CONST", n), ("LEAF", name) or (operator, 0). Raises ValueError."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        m = _TOKEN.match(text, at)
        if m is None:
            raise ValueError(f"cannot read '{text[at:]}' in expression '{text}'")
        tokens.append(m.group(m.lastindex or 0))
        at = m.end()
    out: list[tuple[str, int | str]] = []
    rest = _sum(tokens, 0, out, 1)
    if rest != len(tokens):
        raise ValueError(f"unexpected '{tokens[rest]}' in expression '{text}'")
    return out


def _sum(t: list[str], at: int, out: list[tuple[str, int | str]], level: int) -> int:
    if level > 2:
        return _primary(t, at, out)
    at = _sum(t, at, out, level + 1)
    while at < len(t) and _LEVEL.get(t[at]) == level:
        op = t[at]
        at = _sum(t, at + 1, out, level + 1)
        out.append((_BINARY[op], 0))
    return at


def _primary(t: list[str], at: int, out: list[tuple[str, int | str]]) -> int:
    if at >= len(t):
        raise ValueError("an expression ends too early")
    word = t[at]
    if word.isdigit():
        out.append(("CONST", int(word)))
        return at + 1
    if word == "(":
        return _expect(t, _sum(t, at + 1, out, 1), ")")
    if word in ("min", "max") and at + 1 < len(t) and t[at + 1] == "(":
        at = _expect(t, _sum(t, at + 2, out, 1), ",")
        at = _expect(t, _sum(t, at, out, 1), ")")
        out.append((word.upper(), 0))
        return at
    if word[0].isalpha():
        out.append(("LEAF", word))
        return at + 1
    raise ValueError(f"unexpected '{word}' in an expression")


def _expect(t: list[str], at: int, word: str) -> int:
    if at >= len(t) or t[at] != word:
        raise ValueError(f"expected '{word}' in an expression")
    return at + 1
