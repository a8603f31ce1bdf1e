"""One line of assembler text: tokens, and the readers of numbers, names and expressions."""

from __future__ import annotations

import json
import re
import struct
from enum import IntEnum
from typing import TypeVar

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import malformed
from torch_loom.spyrecode.model import Expr, ExprOp, Operand, OperandKind, imm
from torch_loom.spyrecode.text import CALLS, INFIX

E = TypeVar("E", bound=IntEnum)

_TOKEN = re.compile(
    r'\s*(?:("(?:[^"\\]|\\.)*")|(bits:0x[0-9a-f]+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|[$#]\d+|@?#?\w+|->|<-|>=|==|.))',
    re.IGNORECASE,
)
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "floordiv": 2, "ceildiv": 2, "mod": 2}
_OPERATORS = {text: op for op, text in (*INFIX.items(), *CALLS.items())}


class Line:
    """The tokens of one line."""

    def __init__(self, text: str, number: int) -> None:
        self.number = number
        self.tokens = [m.group(1) or m.group(2) for m in _TOKEN.finditer(strip_comment(text))]
        self.at = 0

    def fail(self, message: str) -> Exception:
        return malformed(f"line {self.number}: {message}")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        if not token:
            raise self.fail("ends early")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        found = self.peek() == token
        self.at += found
        return found

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            found = self.next()
            if found != token:
                raise self.fail(f"{token!r} expected, found {found!r}")

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise self.fail(f"{self.peek()!r} is too much")

    def integer(self) -> int:
        token = self.next()
        try:
            return int(token)
        except ValueError:
            raise self.fail(f"a number is expected, found {token!r}") from None

    def numbered(self, sign: str) -> int:
        """``r3`` with sign ``r`` gives 3."""
        token = self.next()
        digits = token.removeprefix(sign)
        if not token.startswith(sign) or not re.fullmatch(r"[0-9]{1,9}", digits):
            raise self.fail(f"{sign}NUMBER is expected, found {token!r}")
        return int(digits)

    def string(self) -> str:
        token = self.next()
        try:
            value = json.loads(token)
        except ValueError:  # no JSON, or a number of thousands of digits
            value = None
        if not isinstance(value, str):
            raise self.fail(f"a quoted string is expected, found {token!r}")
        return value

    def enum(self, kind: type[E], text: str | None = None) -> E:
        token = self.next() if text is None else text
        try:
            return kind[token.upper()]
        except KeyError:
            raise self.fail(f"{token!r} is no {kind.__name__}") from None

    def operand(self) -> Operand:
        token = self.peek()
        if token.startswith("$"):
            return Operand(OperandKind.SLOT, self.numbered("$"))
        if token.startswith("r"):
            return Operand(OperandKind.REG, self.numbered("r"))
        return imm(self.integer())

    def operands(self) -> tuple[Operand, ...]:
        self.expect("(")
        found = []
        while not self.accept(")"):
            found.append(self.operand())
        return tuple(found)

    def float(self) -> float:
        token = self.next()
        try:
            if token.startswith("bits:"):
                return float(struct.unpack("<d", struct.pack("<Q", int(token[5:], 16)))[0])
            return float(token)
        except (ValueError, struct.error):
            raise self.fail(f"a float is expected, found {token!r}") from None

    def expression(self) -> Expr:
        tokens: list[tuple[ExprOp, int]] = []
        self._binary(tokens, 1, 0)
        return Expr(tuple(tokens))

    def _binary(self, out: list[tuple[ExprOp, int]], level: int, depth: int) -> None:
        if depth > 4 * limits.DEPTH or len(out) > limits.TOKENS:
            raise self.fail("expression too large")
        if level > 2:
            return self._leaf(out, depth)
        self._binary(out, level + 1, depth + 1)
        while _PRECEDENCE.get(self.peek()) == level:
            operator = self.next()
            self._binary(out, level + 1, depth + 1)
            out.append((_OPERATORS[operator], 0))

    def _leaf(self, out: list[tuple[ExprOp, int]], depth: int) -> None:
        token = self.peek()
        if token == "(":
            self.next()
            self._binary(out, 1, depth + 1)
            self.expect(")")
        elif token in ("min", "max"):
            self.next()
            self.expect("(")
            self._binary(out, 1, depth + 1)
            self.expect(",")
            self._binary(out, 1, depth + 1)
            self.expect(")")
            out.append((_OPERATORS[token], 0))
        elif token == "core":
            self.next()
            out.append((ExprOp.CORE, 0))
        else:
            for sign, op in (("s", ExprOp.SYM), ("$", ExprOp.SLOT), ("r", ExprOp.REG)):
                if token.startswith(sign):
                    out.append((op, self.numbered(sign)))
                    return
            out.append((ExprOp.CONST, self.integer()))


def strip_comment(text: str) -> str:
    """The line without its comment (a ``;`` outside quotes)."""
    quoted = False
    for i, char in enumerate(text):
        if char == '"' and (i == 0 or not _escaped(text, i)):
            quoted = not quoted
        elif char == ";" and not quoted:
            return text[:i].rstrip()
    return text.rstrip()


def _escaped(text: str, at: int) -> bool:
    slashes = 0
    while at - slashes - 1 >= 0 and text[at - slashes - 1] == "\\":
        slashes += 1
    return slashes % 2 == 1
