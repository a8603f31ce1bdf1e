"""Instruction words: 32-bit, little-endian, each operand word tagged with its kind in the low 4 bits.

An instruction is a header word (opcode, length in words) and operand words. A number takes one word
when it is a slot, a register or a small immediate, three when it is a wide immediate. Every number has
one encoding only, so equal programs have equal bytes and decoding is the inverse of encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import malformed
from torch_loom.spyrecode.model import LxRef, Operand, OperandKind


class Opcode(IntEnum):
    """Never renumbered; see docs/spyrecode.md for the operand words of each."""

    LOOP = 1
    END_LOOP = 2
    LET = 3
    ACQUIRE = 4
    RELEASE = 5
    DMA = 6
    SEG_LOAD = 7
    SEG_PT = 8
    SEG_VEC = 9
    SEG_STORE = 10
    END = 11
    RING_COPY = 12
    RING_ACQUIRE = 13
    RING_RELEASE = 14


class Kind(IntEnum):
    """What an operand word holds (low 4 bits; payload in the upper 28)."""

    IMM = 0  # signed 28-bit number
    SLOT = 1
    REG = 2
    WIDE = 3  # payload 0; the next two words are the low and high half of a signed 64-bit number
    LX = 4  # block (14 bits), channel + 1 (14 bits); an offset operand follows
    QUEUE = 5
    CHANNEL = 6  # channel * 2 + side
    RAW = 7  # unsigned count, flag set or enum value
    EXPR = 8
    ARG = 9
    VOP = 10
    SEGMENT = 11


_SMALL = 1 << 27
_I64 = 1 << 63


class Writer:
    """Collects the words of one stream."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self._start = 0

    def begin(self, opcode: Opcode) -> None:
        self._start = len(self.words)
        self.words.append(opcode)

    def end(self) -> None:
        length = len(self.words) - self._start
        if length > limits.INSTRUCTION_WORDS:
            raise malformed(f"an instruction of {length} words, at most {limits.INSTRUCTION_WORDS} fit")
        self.words[self._start] |= length << 16

    def tagged(self, kind: Kind, payload: int) -> None:
        if not 0 <= payload < 1 << 28:
            raise malformed(f"{kind.name} {payload} does not fit in 28 bits")
        self.words.append(kind | payload << 4)

    def raw(self, value: int) -> None:
        self.tagged(Kind.RAW, value)

    def wide(self, value: int) -> None:
        if not -_I64 <= value < _I64:
            raise malformed(f"{value} does not fit in 64 bits")
        self.words += [value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF]

    def operand(self, operand: Operand) -> None:
        value = operand.value
        if operand.kind is OperandKind.SLOT:
            self.tagged(Kind.SLOT, value)
        elif operand.kind is OperandKind.REG:
            self.tagged(Kind.REG, value)
        elif -_SMALL <= value < _SMALL:
            self.words.append(Kind.IMM | (value & 0xFFFFFFF) << 4)
        else:
            self.words.append(Kind.WIDE)
            self.wide(value)

    def operands(self, operands: Sequence[Operand]) -> None:
        for operand in operands:
            self.operand(operand)

    def lx(self, ref: LxRef) -> None:
        self.tagged(Kind.LX, ref.block | (ref.channel + 1) << 14)
        self.operand(ref.offset)

    def bytes(self) -> bytes:
        return struct.pack(f"<{len(self.words)}I", *self.words)


class Reader:
    """Walks the words of one stream; every read is bounded by the current instruction."""

    def __init__(self, words: Sequence[int], where: str) -> None:
        self.words = words
        self.where = where
        self.at = 0
        self._start = 0
        self._end = 0

    def fail(self, message: str) -> Exception:
        return malformed(f"{self.where}, word {self._start}: {message}")

    def begin(self) -> Opcode:
        self._start = self.at
        if self.at >= len(self.words):
            raise self.fail("the stream has no END")
        head = self.words[self.at]
        length = head >> 16
        if length < 1 or self.at + length > len(self.words):
            raise self.fail(f"instruction length {length} leaves the stream")
        try:
            opcode = Opcode(head & 0xFFFF)
        except ValueError:
            raise self.fail(f"unknown opcode {head & 0xFFFF}") from None
        self._end = self.at + length
        self.at += 1
        return opcode

    def end(self) -> None:
        if self.at != self._end:
            raise self.fail(f"{self._end - self.at} words too many")

    def word(self) -> int:
        if self.at >= self._end:
            raise self.fail("an operand word is missing")
        self.at += 1
        return self.words[self.at - 1]

    def tagged(self, kind: Kind) -> int:
        word = self.word()
        if word & 15 != kind:
            raise self.fail(f"expected a {kind.name} operand, found kind {word & 15}")
        return word >> 4

    def raw(self, limit: int, what: str) -> int:
        """A RAW operand that must not exceed ``limit``."""
        value = self.tagged(Kind.RAW)
        if value > limit:
            raise self.fail(f"{what} {value} exceeds {limit}")
        return value

    def wide(self) -> int:
        low, high = self.word(), self.word()
        value = low | high << 32
        return value - (1 << 64) if value >= _I64 else value

    def operand(self) -> Operand:
        word = self.word()
        kind, payload = word & 15, word >> 4
        if kind == Kind.IMM:
            return Operand(OperandKind.IMM, payload - (1 << 28) if payload >= _SMALL else payload)
        if kind == Kind.SLOT:
            return Operand(OperandKind.SLOT, payload)
        if kind == Kind.REG:
            return Operand(OperandKind.REG, payload)
        if kind != Kind.WIDE or payload:
            raise self.fail(f"expected a number, found kind {kind}")
        value = self.wide()
        if -_SMALL <= value < _SMALL:
            raise self.fail(f"{value} must be a small immediate")
        return Operand(OperandKind.IMM, value)

    def operands(self, count: int) -> tuple[Operand, ...]:
        return tuple(self.operand() for _ in range(count))

    def lx(self) -> LxRef:
        payload = self.tagged(Kind.LX)
        return LxRef(payload & 0x3FFF, (payload >> 14) - 1, self.operand())
