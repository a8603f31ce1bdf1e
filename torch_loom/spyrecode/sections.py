"""The tables of a program as section bodies: fixed little-endian records, strings by number.

Each section has a writer and a reader side by side. Readers check that every byte is used; what the
numbers mean across sections is checked by ``validate``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeVar

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import malformed
from torch_loom.spyrecode.model import (
    Access,
    Arg,
    ArgKind,
    Block,
    Channel,
    Elem,
    Expr,
    ExprOp,
    Guard,
    Profile,
    Program,
    Relation,
    Scope,
    Slot,
    Symbol,
    SymbolKind,
    Unit,
)

E = TypeVar("E", bound=IntEnum)


class Strings:
    """The string pool: number of each distinct string, in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def body(self) -> bytes:
        encoded = [text.encode("utf-8") for text in self.numbers]
        out, offset = [struct.pack("<II", len(encoded), sum(map(len, encoded)))], 0
        for raw in encoded:
            if len(raw) > limits.STRING_BYTES:
                raise malformed(f"a string of {len(raw)} bytes, at most {limits.STRING_BYTES} allowed")
            out.append(struct.pack("<II", offset, len(raw)))
            offset += len(raw)
        return b"".join(out + encoded)


class Pool:
    """The strings of a file while its sections are read; they must be met in the order of their numbers."""

    def __init__(self, texts: list[str]) -> None:
        self.texts, self.met = texts, 0


class Cursor:
    """Reads records of one section in order."""

    def __init__(self, body: bytes, tag: str, strings: Pool | None = None) -> None:
        self.body, self.tag, self.at = body, tag, 0
        self._strings = strings or Pool([])

    def fail(self, message: str) -> Exception:
        return malformed(f"section {self.tag}, byte {self.at}: {message}")

    def take(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize("<" + layout)
        if self.at + size > len(self.body):
            raise self.fail("section ends early")
        values = struct.unpack_from("<" + layout, self.body, self.at)
        self.at += size
        return values

    def count(self, limit: int, what: str) -> int:
        """A count followed by a zero word."""
        count, zero = self.take("II")
        if count > limit or zero:
            raise self.fail(f"{count} {what}, at most {limit} allowed")
        return count

    def string(self, number: int) -> str:
        pool = self._strings
        if number >= len(pool.texts) or number > pool.met:
            raise self.fail(f"string {number} is out of order or beyond {len(pool.texts)}")
        pool.met = max(pool.met, number + 1)
        return pool.texts[number]

    def enum(self, kind: type[E], value: int) -> E:
        try:
            return kind(value)
        except ValueError:
            raise self.fail(f"{value} is no {kind.__name__}") from None

    def zero(self, *values: int) -> None:
        if any(values):
            raise self.fail("reserved field is not zero")

    def end(self) -> None:
        if self.at != len(self.body):
            raise self.fail(f"{len(self.body) - self.at} bytes too many")


def read_strings(body: bytes) -> list[str]:
    cursor = Cursor(body, "STRS")
    count, total = cursor.take("II")
    if count > limits.STRINGS:
        raise cursor.fail(f"{count} strings, at most {limits.STRINGS} allowed")
    spans = [cursor.take("II") for _ in range(count)]
    data = body[cursor.at :]
    if len(data) != total:
        raise cursor.fail(f"{len(data)} bytes of text, the header says {total}")
    found, at = [], 0
    for offset, length in spans:
        if offset != at or length > limits.STRING_BYTES or offset + length > total:
            raise cursor.fail("string out of range")
        try:
            found.append(data[offset : offset + length].decode("utf-8"))
        except UnicodeDecodeError:
            raise cursor.fail(f"string {len(found)} is not UTF-8") from None
        at += length
    if at != total or len(set(found)) != count:
        raise cursor.fail("text not used by a string, or a string stored twice")
    return found


def write_meta(p: Program, strings: Strings) -> bytes:
    out = struct.pack("<II", strings.number(p.name), len(p.meta))
    return out + b"".join(struct.pack("<II", strings.number(k), strings.number(p.meta[k])) for k in sorted(p.meta))


def read_meta(c: Cursor) -> tuple[str, dict[str, str]]:
    name, count = c.take("II")
    text = c.string(name)
    if count > limits.GUARDS:
        raise c.fail(f"{count} entries")
    pairs = [(c.string(k), c.string(v)) for k, v in (c.take("II") for _ in range(count))]
    if [k for k, _ in pairs] != sorted({k for k, _ in pairs}):
        raise c.fail("keys must be unique and sorted")
    return text, dict(pairs)


def write_profile(p: Program, strings: Strings) -> bytes:
    f = p.profile
    return struct.pack("<IIIIqII", strings.number(f.chip), f.cores, f.corelets, f.stick_bytes, f.lx_bytes, p.cores, 0)


def read_profile(c: Cursor) -> tuple[Profile, int]:
    chip, cores, corelets, stick, lx, used, zero = c.take("IIIIqII")
    c.zero(zero)
    return Profile(c.string(chip), cores, corelets, lx, stick), used


def write_args(p: Program, strings: Strings) -> bytes:
    return struct.pack("<II", len(p.args), 0) + b"".join(
        struct.pack("<IBBBB", strings.number(a.name), a.kind, a.elem, a.access, 0) for a in p.args
    )


def read_args(c: Cursor) -> tuple[Arg, ...]:
    found = []
    for _ in range(c.count(limits.ARGS, "arguments")):
        name, kind, elem, access, zero = c.take("IBBBB")
        c.zero(zero)
        found.append(Arg(c.string(name), c.enum(ArgKind, kind), c.enum(Elem, elem), c.enum(Access, access)))
    return tuple(found)


def write_symbols(p: Program, strings: Strings) -> bytes:
    return struct.pack("<II", len(p.symbols), 0) + b"".join(
        struct.pack("<IIIIqqq", strings.number(s.name), s.kind, s.arg, 0, s.minimum, s.maximum, s.granularity)
        for s in p.symbols
    )


def read_symbols(c: Cursor) -> tuple[Symbol, ...]:
    found = []
    for _ in range(c.count(limits.SYMBOLS, "symbols")):
        name, kind, arg, zero, low, high, grain = c.take("IIIIqqq")
        c.zero(zero)
        found.append(Symbol(c.string(name), c.enum(SymbolKind, kind), arg, low, high, grain))
    return tuple(found)


def write_exprs(exprs: list[Expr]) -> bytes:
    """The pool: expressions of the slots, then let expressions, then those of the guards."""
    out, first = [struct.pack("<II", len(exprs), 0)], 0
    for expr in exprs:
        out.append(struct.pack("<II", first, len(expr.tokens)))
        first += len(expr.tokens)
    out += [struct.pack("<qII", value, op, 0) for expr in exprs for op, value in expr.tokens]
    return b"".join(out)


def read_exprs(c: Cursor) -> list[Expr]:
    spans = [c.take("II") for _ in range(c.count(limits.EXPRS, "expressions"))]
    found: list[Expr] = []
    at = 0
    for first, count in spans:
        if first != at or count > limits.TOKENS:
            raise c.fail(f"expression {len(found)} out of range")
        tokens = []
        for _ in range(count):
            value, op, zero = c.take("qII")
            c.zero(zero)
            tokens.append((c.enum(ExprOp, op), value))
        found.append(Expr(tuple(tokens)))
        at += count
    return found


def write_slots(p: Program) -> bytes:
    return struct.pack("<II", len(p.slots), 0) + b"".join(struct.pack("<II", i, s.scope) for i, s in enumerate(p.slots))


def read_slots(c: Cursor, exprs: list[Expr]) -> tuple[Slot, ...]:
    found = []
    for i in range(c.count(limits.SLOTS, "slots")):
        expr, scope = c.take("II")
        if expr != i or expr >= len(exprs):
            raise c.fail(f"slot {i} names expression {expr}")
        found.append(Slot(exprs[expr], c.enum(Scope, scope)))
    return tuple(found)


def write_guards(p: Program, strings: Strings) -> bytes:
    first = len(p.slots) + len(p.exprs)
    return struct.pack("<II", len(p.guards), 0) + b"".join(
        struct.pack("<IIII", first + i, g.relation, strings.number(g.message), 0) for i, g in enumerate(p.guards)
    )


def read_guards(c: Cursor, exprs: list[Expr]) -> tuple[Guard, ...]:
    found = []
    count = c.count(limits.GUARDS, "guards")
    for i in range(count):
        expr, relation, message, zero = c.take("IIII")
        c.zero(zero)
        if expr >= len(exprs) or expr != len(exprs) - count + i:
            raise c.fail(f"guard {i} names expression {expr}")
        found.append(Guard(exprs[expr], c.enum(Relation, relation), c.string(message)))
    return tuple(found)


def write_blocks(p: Program, strings: Strings) -> bytes:
    peak = max((b.address + b.bytes * b.phases for b in p.blocks), default=0)
    return struct.pack("<IIq", len(p.blocks), 0, peak) + b"".join(
        struct.pack("<IIqq", strings.number(b.name), b.phases, b.address, b.bytes) for b in p.blocks
    )


def read_blocks(c: Cursor) -> tuple[Block, ...]:
    count = c.count(limits.BLOCKS, "LX blocks")
    (peak,) = c.take("q")
    found = []
    for _ in range(count):
        name, phases, address, size = c.take("IIqq")
        found.append(Block(c.string(name), address, size, phases))
    if peak != max((b.address + b.bytes * b.phases for b in found), default=0):
        raise c.fail(f"peak {peak} does not match the blocks")
    return tuple(found)


def write_channels(p: Program, strings: Strings) -> bytes:
    head = struct.pack("<II", len(p.channels), 0)
    head += b"".join(
        struct.pack("<IHHHHI", strings.number(c.name), c.producer, c.consumer, c.phases, c.ring, len(c.blocks))
        for c in p.channels
    )
    return head + b"".join(struct.pack("<I", b) for c in p.channels for b in c.blocks)


def read_channels(c: Cursor) -> tuple[Channel, ...]:
    heads = [c.take("IHHHHI") for _ in range(c.count(limits.CHANNELS, "channels"))]
    found = []
    for name, producer, consumer, phases, ring, blocks in heads:
        if blocks > limits.BLOCKS:
            raise c.fail(f"{blocks} blocks in a channel")
        if ring > 1:
            raise c.fail(f"channel flags {ring}")
        refs = tuple(c.take("I")[0] for _ in range(blocks))
        units = c.enum(Unit, producer), c.enum(Unit, consumer)
        found.append(Channel(c.string(name), *units, phases, refs, bool(ring)))
    return tuple(found)
