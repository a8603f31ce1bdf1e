"""Text -> program: the inverse of ``text.disassemble``. ``;`` starts a comment."""

from __future__ import annotations

from typing import Any

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
    Gather,
    Guard,
    Instr,
    LaneSplit,
    Let,
    Loop,
    LxRef,
    Profile,
    Program,
    Reduce,
    Relation,
    Release,
    RingAcquire,
    RingCopy,
    RingDim,
    RingRelease,
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
from torch_loom.spyrecode.text import NO_MASK, VERSION, names
from torch_loom.spyrecode.tokens import Line
from torch_loom.spyrecode.validate import validate


def assemble(text: str) -> Program:
    """The program of a text. Raises SC-E17 naming the line."""
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        numbered = ((i, line) for i, line in enumerate(text.split("\n"), 1))
        self.lines = [parsed for i, line in numbered if (parsed := Line(line, i)).tokens]
        self.at = 0
        self.tables: dict[str, list[Any]] = {k: [] for k in ("arg", "symbol", "slot", "expr", "guard", "lx", "chan")}
        self.meta: dict[str, str] = {}
        self.kernel: tuple[str, int] | None = None
        self.profile: Profile | None = None
        self.blocks: dict[str, int] = {}
        self.channels: dict[str, int] = {}

    def next(self) -> Line | None:
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

    def directive(self, key: str, line: Line) -> None:
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

    def _arg(self, line: Line) -> Arg:
        return Arg(line.string(), line.enum(ArgKind), line.enum(Elem), line.enum(Access))

    def _symbol(self, line: Line) -> Symbol:
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

    def _slot(self, line: Line) -> Slot:
        scope = line.enum(Scope)
        line.expect("=")
        return Slot(line.expression(), scope)

    def _expr(self, line: Line) -> Expr:
        line.expect("=")
        return line.expression()

    def _guard(self, line: Line) -> Guard:
        expr = line.expression()
        token = line.next()
        if token not in (">=", "=="):
            raise line.fail(f"'>=' or '==' expected, found {token!r}")
        line.expect("0")
        return Guard(expr, Relation.GE if token == ">=" else Relation.EQ, line.string())

    def _lx(self, line: Line) -> Block:
        name, numbers = line.string(), []
        for word in ("at", "size", "phases"):
            line.expect(word)
            numbers.append(line.integer())
        return Block(name, *numbers)

    def _chan(self, line: Line) -> Channel:
        name, producer = line.string(), line.enum(Unit)
        line.expect("->")
        consumer = line.enum(Unit)
        line.expect("phases")
        phases = line.integer()
        line.expect("[")
        blocks = []
        while not line.accept("]"):
            blocks.append(self.block(line))
        return Channel(name, producer, consumer, phases, tuple(blocks), line.accept("ring"))

    def block(self, line: Line) -> int:
        token = line.next()
        if token[1:] not in self.blocks or token[0] != "@":
            raise line.fail(f"an LX block is expected, found {token!r}")
        return self.blocks[token[1:]]

    def channel(self, line: Line) -> int:
        token = line.next()
        if token not in self.channels:
            raise line.fail(f"a channel is expected, found {token!r}")
        return self.channels[token]

    def body(self, opener: Line | None) -> tuple[Instr, ...]:
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

    def instruction(self, word: str, line: Line) -> Instr:
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
            case "ring_acquire" | "ring_release":
                channel = self.channel(line)
                line.expect(".")
                side = line.enum(Side)
                line.expect("core")
                ring = RingAcquire if word == "ring_acquire" else RingRelease
                return self._done(line, ring(channel, side, line.operand()))
            case "ring_copy":
                return self.ring_copy(line)
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

    def _done(self, line: Line, instr: Instr) -> Instr:
        line.end()
        return instr

    def lx(self, line: Line) -> LxRef:
        line.expect("lx", "[")
        block, channel, offset = self.block(line), -1, imm(0)
        if line.accept("."):
            channel = self.channel(line)
        if line.accept("+"):
            offset = line.operand()
        line.expect("]")
        return LxRef(block, channel, offset)

    def ring_copy(self, line: Line) -> RingCopy:
        line.expect("core")
        core, source = line.operand(), self.lx(line)
        line.expect("->")
        target = self.lx(line)
        line.expect("leaf")
        leaf = line.integer()
        line.end()
        dims = []
        while self.at < len(self.lines) and self.lines[self.at].peek() == "dim":
            part = self.lines[self.at]
            self.at += 1
            part.next()
            extent = part.operand()
            part.expect("from")
            source_stride = part.operand()
            part.expect("to")
            dims.append(RingDim(extent, source_stride, part.operand()))
            part.end()
        return RingCopy(core, source, target, tuple(dims), leaf)

    def dma(self, line: Line) -> Dma:
        line.expect("ddr", "[")
        arg, ddr = line.integer(), line.operand()
        line.expect("]")
        lx = self.lx(line)
        line.expect("leaf")
        leaf, zero_fill = line.integer(), line.accept("zero_fill")
        line.end()
        dims, gathers, lanes, mask, shared = [], [], None, NO_MASK, (imm(0), imm(1))
        while self.at < len(self.lines):
            part = self.lines[self.at]
            word = part.peek()
            if word not in ("dim", "bytes", "gather", "lanes", "shared"):
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
            elif word == "shared":
                sharers = part.operand()
                part.expect("group")
                shared = (part.operand(), sharers)
            elif word == "gather":
                gathers.append(self._gather(part))
            else:
                lanes = _lanes(part)
            part.end()
        return Dma(arg, ddr, lx, tuple(dims), leaf, zero_fill, tuple(gathers), lanes, *mask, *shared)

    def _gather(self, line: Line) -> Gather:
        index = self.lx(line)
        line.expect("strides")
        strides = line.operands()
        line.expect("scale")
        scale = line.operand()
        line.expect("bound")
        bound = line.operand()
        return Gather(index, strides, scale, bound, line.accept("lane"))

    def vec(self, line: Line) -> SegVec:
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


def _lanes(line: Line) -> LaneSplit:
    line.expect("start")
    start = line.operand()
    line.expect("elems")
    elems = line.integer()
    line.expect("tile")
    tile = line.operand()
    line.expect("strides")
    return LaneSplit(start, line.operands(), elems, tile)


def _output(line: Line) -> VecOut:
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


def _op(line: Line, dst: int) -> VOp:
    op = line.enum(VecOp)
    regs = [line.numbered("v") for _ in SIGNATURE[op][0]]
    number: float | int = 0
    if op in FLOAT_IMM:
        number = line.float()
    elif op in INT_IMM:
        number = line.integer()
    a, b, c = (*regs, 0, 0, 0)[:3]
    return VOp(op, dst, a, b, c, number)
