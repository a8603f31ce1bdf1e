"""Text -> program: the inverse of ``text.disassemble``. ``;`` starts a comment."""

from __future__ import annotations

import json
import re
import struct
from enum import IntEnum
from typing import Any, TypeVar

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import malformed
from torch_loom.spyrecode.model import (
    Access,
    Acquire,
    Arg,
    ArgKind,
    Block,
    Channel,
    Dma,
    DmaDim,
    Elem,
    Expr,
    ExprOp,
    Gather,
    Guard,
    Instr,
    LaneSplit,
    Let,
    Loop,
    LxRef,
    Operand,
    OperandKind,
    Profile,
    Program,
    Reduce,
    Relation,
    Release,
    Scope,
    SegLoad,
    SegPt,
    SegStore,
    SegVec,
    Side,
    Slot,
    Symbol,
    SymbolKind,
    Unit,
    VecOp,
    VecOut,
    VOp,
    imm,
)
from torch_loom.spyrecode.ops import FLOAT_IMM, INT_IMM, SIGNATURE
from torch_loom.spyrecode.text import CALLS, INFIX, NO_MASK, VERSION, names
from torch_loom.spyrecode.validate import validate

E = TypeVar("E", bound=IntEnum)

_TOKEN = re.compile(
    r'\s*(?:("(?:[^"\\]|\\.)*")|(bits:0x[0-9a-f]+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|[$#]\d+|@?#?\w+|->|<-|>=|==|.))',
    re.IGNORECASE,
)
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "floordiv": 2, "ceildiv": 2, "mod": 2}
_OPERATORS = {text: op for op, text in (*INFIX.items(), *CALLS.items())}


def assemble(text: str) -> Program:
    """The program of a text. Raises SC-E17 naming the line."""
    return _Parser(text).program()


class _Line:
    """The tokens of one line."""

    def __init__(self, text: str, number: int) -> None:
        self.number = number
        self.tokens = [m.group(1) or m.group(2) for m in _TOKEN.finditer(_strip(text))]
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
        if not token.startswith(sign) or not token[len(sign) :].isdigit():
            raise self.fail(f"{sign}NUMBER is expected, found {token!r}")
        return int(token[len(sign) :])

    def string(self) -> str:
        token = self.next()
        try:
            value = json.loads(token)
        except json.JSONDecodeError:
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


def _strip(text: str) -> str:
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


class _Parser:
    def __init__(self, text: str) -> None:
        numbered = ((i, line) for i, line in enumerate(text.split("\n"), 1))
        self.lines = [parsed for i, line in numbered if (parsed := _Line(line, i)).tokens]
        self.at = 0
        self.tables: dict[str, list[Any]] = {
            k: [] for k in ("arg", "symbol", "slot", "expr", "guard", "lx", "chan")
        }
        self.meta: dict[str, str] = {}
        self.kernel: tuple[str, int] | None = None
        self.profile: Profile | None = None
        self.blocks: dict[str, int] = {}
        self.channels: dict[str, int] = {}

    def next(self) -> _Line | None:
        self.at += 1
        return self.lines[self.at - 1] if self.at <= len(self.lines) else None

    def program(self) -> Program:
        streams: dict[Unit, tuple[Instr, ...]] = {}
        first = self.next()
        if first is None or first.tokens != [".", "spyrecode", str(VERSION)]:
            raise malformed(f"the text must start with .spyrecode {VERSION}")
        while (line := self.next()) is not None:
            line.expect(".")
            key = line.next()
            if key == "unit":
                unit = line.enum(Unit)
                line.end()
                if unit in streams:
                    raise line.fail(f"second .unit {unit.name}")
                streams[unit] = self.body(None)
            else:
                self.directive(key, line)
                line.end()
        if self.kernel is None or self.profile is None:
            raise malformed("the text lacks .kernel or .chip")
        t = {key: tuple(rows) for key, rows in self.tables.items()}
        program = Program(
            *(self.kernel[0], self.profile, self.kernel[1], t["arg"], t["symbol"], t["slot"], t["expr"]),
            *(t["lx"], t["chan"], dict(sorted(streams.items())), t["guard"], self.meta),
        )
        validate(program)
        return program

    def directive(self, key: str, line: _Line) -> None:
        if key == "kernel":
            name = line.string()
            line.expect("cores")
            self.kernel = (name, line.integer())
        elif key == "chip":
            name, numbers = line.string(), []
            for word in ("cores", "corelets", "lx", "stick"):
                line.expect(word)
                numbers.append(line.integer())
            self.profile = Profile(name, *numbers)
        elif key == "meta":
            name = line.string()
            line.expect("=")
            self.meta[name] = line.string()
        elif key in self.tables:
            table = self.tables[key]
            sign = {"symbol": "s", "slot": "$", "expr": "e", "guard": None}.get(key, "")
            if sign is not None and line.numbered(sign) != len(table):
                raise line.fail(f"{key} number {len(table)} is expected next")
            table.append(getattr(self, f"_{key}")(line))
            self.blocks = {n: i for i, n in enumerate(names(b.name for b in self.tables["lx"]))}
            self.channels = {n: i for i, n in enumerate(names(c.name for c in self.tables["chan"]))}
        else:
            raise line.fail(f"unknown directive .{key}")

    def _arg(self, line: _Line) -> Arg:
        return Arg(line.string(), line.enum(ArgKind), line.enum(Elem), line.enum(Access))

    def _symbol(self, line: _Line) -> Symbol:
        name = line.string()
        line.expect("=")
        kind = line.enum(SymbolKind)
        line.expect("(")
        arg = line.integer()
        line.expect(")", "min")
        low = line.integer()
        line.expect("max")
        high = line.integer()
        line.expect("gran")
        return Symbol(name, kind, arg, low, high, line.integer())

    def _slot(self, line: _Line) -> Slot:
        scope = line.enum(Scope)
        line.expect("=")
        return Slot(line.expression(), scope)

    def _expr(self, line: _Line) -> Expr:
        line.expect("=")
        return line.expression()

    def _guard(self, line: _Line) -> Guard:
        expr = line.expression()
        token = line.next()
        if token not in (">=", "=="):
            raise line.fail(f"'>=' or '==' expected, found {token!r}")
        line.expect("0")
        return Guard(expr, Relation.GE if token == ">=" else Relation.EQ, line.string())

    def _lx(self, line: _Line) -> Block:
        name, numbers = line.string(), []
        for word in ("at", "size", "phases"):
            line.expect(word)
            numbers.append(line.integer())
        return Block(name, *numbers)

    def _chan(self, line: _Line) -> Channel:
        name, producer = line.string(), line.enum(Unit)
        line.expect("->")
        consumer = line.enum(Unit)
        line.expect("phases")
        phases = line.integer()
        line.expect("[")
        blocks = []
        while not line.accept("]"):
            blocks.append(self.block(line))
        return Channel(name, producer, consumer, phases, tuple(blocks))

    def block(self, line: _Line) -> int:
        token = line.next()
        if token[1:] not in self.blocks or token[0] != "@":
            raise line.fail(f"an LX block is expected, found {token!r}")
        return self.blocks[token[1:]]

    def channel(self, line: _Line) -> int:
        token = line.next()
        if token not in self.channels:
            raise line.fail(f"a channel is expected, found {token!r}")
        return self.channels[token]

    def body(self, opener: _Line | None) -> tuple[Instr, ...]:
        """Instructions up to ``end`` (of ``opener``) or the next directive."""
        found: list[Instr] = []
        while True:
            line = self.lines[self.at] if self.at < len(self.lines) else None
            if line is None or line.peek() == ".":
                if opener is not None:
                    raise opener.fail("this loop has no end")
                return tuple(found)
            self.at += 1
            word = line.next()
            if word == "end" and opener is not None:
                line.end()
                return tuple(found)
            found.append(self.instruction(word, line))

    def instruction(self, word: str, line: _Line) -> Instr:
        match word:
            case "loop":
                number, count = line.numbered("r"), line.operand()
                line.end()
                return Loop(number, count, self.body(line))
            case "let":
                number = line.numbered("r")
                line.expect("=")
                return self._done(line, Let(number, line.numbered("e")))
            case "acquire" | "release":
                channel = self.channel(line)
                line.expect(".")
                kind = Acquire if word == "acquire" else Release
                return self._done(line, kind(channel, line.enum(Side)))
            case "copy":
                return self.dma(line)
            case "load" | "store":
                line.expect("seg")
                seg, queue = line.integer(), line.numbered("q")
                line.expect("<-" if word == "load" else "->")
                part = SegLoad if word == "load" else SegStore
                return self._done(line, part(seg, queue, self.lx(line), line.enum(Elem), line.operands()))
            case "pt":
                line.expect("seg")
                seg, a, b = line.integer(), line.numbered("q"), line.numbered("q")
                line.expect("->")
                out = line.numbered("q")
                line.expect("k")
                return self._done(line, SegPt(seg, a, b, out, line.operand()))
            case "vec":
                return self.vec(line)
        raise line.fail(f"unknown instruction {word!r}")

    def _done(self, line: _Line, instr: Instr) -> Instr:
        line.end()
        return instr

    def lx(self, line: _Line) -> LxRef:
        line.expect("lx", "[")
        block, channel, offset = self.block(line), -1, imm(0)
        if line.accept("."):
            channel = self.channel(line)
        if line.accept("+"):
            offset = line.operand()
        line.expect("]")
        return LxRef(block, channel, offset)

    def dma(self, line: _Line) -> Dma:
        line.expect("ddr", "[")
        arg, ddr = line.integer(), line.operand()
        line.expect("]")
        lx = self.lx(line)
        line.expect("leaf")
        leaf, zero_fill = line.integer(), line.accept("zero_fill")
        line.end()
        dims, gathers, lanes, mask = [], [], None, NO_MASK
        while self.at < len(self.lines):
            part = self.lines[self.at]
            word = part.peek()
            if word not in ("dim", "bytes", "gather", "lanes"):
                break
            self.at += 1
            part.next()
            if word == "dim":
                extent = part.operand()
                lo, hi = (part.operand(), part.operand()) if part.accept("clip") else (imm(0), extent)
                part.expect("ddr")
                ddr_stride = part.operand()
                part.expect("lx")
                dims.append(DmaDim(extent, lo, hi, ddr_stride, part.operand()))
            elif word == "bytes":
                mask = (part.operand(), part.operand())
            elif word == "gather":
                gathers.append(self._gather(part))
            else:
                lanes = _lanes(part)
            part.end()
        return Dma(arg, ddr, lx, tuple(dims), leaf, zero_fill, tuple(gathers), lanes, *mask)

    def _gather(self, line: _Line) -> Gather:
        index = self.lx(line)
        line.expect("strides")
        strides = line.operands()
        line.expect("scale")
        scale = line.operand()
        line.expect("bound")
        bound = line.operand()
        return Gather(index, strides, scale, bound, line.accept("lane"))

    def vec(self, line: _Line) -> SegVec:
        line.expect("seg")
        seg = line.integer()
        line.expect("over")
        extents = line.operands()
        corelet_dim = line.integer() if line.accept("corelets") else -1
        line.end()
        inputs: list[int] = []
        ops: list[VOp] = []
        outputs: list[VecOut] = []
        while (part := self.next()) is not None:
            if part.accept("end"):
                part.end()
                return SegVec(seg, extents, tuple(inputs), tuple(ops), tuple(outputs), corelet_dim)
            if part.peek().startswith("q"):
                outputs.append(_output(part))
            else:
                dst = part.numbered("v")
                part.expect("=")
                if part.peek().startswith("q"):
                    if dst != len(inputs) or ops:
                        raise part.fail(f"input v{dst}: inputs come first, from v0 on")
                    inputs.append(part.numbered("q"))
                else:
                    ops.append(_op(part, dst))
            part.end()
        raise line.fail("this vec has no end")


def _lanes(line: _Line) -> LaneSplit:
    line.expect("start")
    start = line.operand()
    line.expect("elems")
    elems = line.integer()
    line.expect("tile")
    tile = line.operand()
    line.expect("strides")
    return LaneSplit(start, line.operands(), elems, tile)


def _output(line: _Line) -> VecOut:
    queue = line.numbered("q")
    line.expect("=")
    reg = line.numbered("v")
    if not line.peek():
        return VecOut(reg, queue)
    reduce = line.enum(Reduce)
    line.expect("(")
    dims = []
    while not line.accept(")"):
        dims.append(line.integer())
    return VecOut(reg, queue, reduce, tuple(dims))


def _op(line: _Line, dst: int) -> VOp:
    op = line.enum(VecOp)
    regs = [line.numbered("v") for _ in SIGNATURE[op][0]]
    number: float | int = 0
    if op in FLOAT_IMM:
        number = line.float()
    elif op in INT_IMM:
        number = line.integer()
    a, b, c = (*regs, 0, 0, 0)[:3]
    return VOp(op, dst, a, b, c, number)
