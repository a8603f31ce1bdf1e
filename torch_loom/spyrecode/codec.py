"""Program <-> bytes. ``encode`` is deterministic and ``decode`` its exact inverse; both validate."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from torch_loom.spyrecode import container, sections
from torch_loom.spyrecode.container import Image, Section
from torch_loom.spyrecode.errors import malformed
from torch_loom.spyrecode.instructions import read_stream, write_stream
from torch_loom.spyrecode.model import Dma, Instr, Loop, Program, RingCopy, SegPt, SymbolKind, Unit
from torch_loom.spyrecode.sections import Cursor, Strings
from torch_loom.spyrecode.validate import validate

# Required features: what a chip must be able to do to run the program.
FEATURE_INDIRECT, FEATURE_PT, FEATURE_RING = 1, 2, 4
KNOWN_FEATURES = FEATURE_INDIRECT | FEATURE_PT | FEATURE_RING

_TAGS = ("STRS", "META", "DEVP", "ARGS", "SYMS", "EXPR", "VALT", "GRDS", "LXMP", "CHAN")
_DEBUG_TAG = "DBGL"  # optional, skipped

T = TypeVar("T")


def encode(program: Program) -> bytes:
    """The binary of a program. Raises SC-E17 when the program breaks a rule of the format."""
    validate(program)
    strings = Strings()
    exprs = [s.expr for s in program.slots] + list(program.exprs) + [g.expr for g in program.guards]
    bodies = {
        "META": sections.write_meta(program, strings),
        "DEVP": sections.write_profile(program, strings),
        "ARGS": sections.write_args(program, strings),
        "SYMS": sections.write_symbols(program, strings),
        "EXPR": sections.write_exprs(exprs),
        "VALT": sections.write_slots(program),
        "GRDS": sections.write_guards(program, strings),
        "LXMP": sections.write_blocks(program, strings),
        "CHAN": sections.write_channels(program, strings),
    }
    bodies["STRS"] = strings.body()
    parts = [Section(tag, bodies[tag]) for tag in _TAGS]
    for unit in sorted(program.streams):
        words = write_stream(program.streams[unit])
        parts.append(Section("UNIT", struct.pack("<II", unit, len(words) // 4) + words))
    symbolic = any(s.kind is SymbolKind.DIM for s in program.symbols)
    flags = container.SYMBOLIC_SHAPES if symbolic else 0
    return container.pack(Image(tuple(parts), flags, _features(program)))


def decode(data: bytes) -> Program:
    """The program of a binary. Raises SC-E15, SC-E16 or SC-E17; never returns a damaged program."""
    image = container.unpack(bytes(data), KNOWN_FEATURES)
    known = [s for s in image.sections if s.tag in (*_TAGS, "UNIT")]
    for section in image.sections:
        required = bool(section.flags & container.REQUIRED)
        if section not in known and required:
            raise malformed(f"unknown required section {section.tag}")
        if section in known and not required:
            raise malformed(f"section {section.tag} is not marked required")
    if bool(image.flags & container.DEBUG_PRESENT) != any(s.tag == _DEBUG_TAG for s in image.sections):
        raise malformed("header flag for debug data does not match the sections")
    tags = [s.tag for s in known]
    units = len(tags) - len(_TAGS)
    if tuple(tags[: len(_TAGS)]) != _TAGS or tags[len(_TAGS) :] != ["UNIT"] * max(units, 0):
        raise malformed(f"sections must be {' '.join(_TAGS)} UNIT.., found {' '.join(tags)}")
    body = {s.tag: s.body for s in known[: len(_TAGS)]}
    strings = sections.Pool(sections.read_strings(body["STRS"]))

    def table(tag: str, read: Callable[[Cursor], T]) -> T:
        cursor = Cursor(body[tag], tag, strings)
        value = read(cursor)
        cursor.end()
        return value

    name, meta = table("META", sections.read_meta)
    profile, cores = table("DEVP", sections.read_profile)
    args = table("ARGS", sections.read_args)
    symbols = table("SYMS", sections.read_symbols)
    exprs = table("EXPR", sections.read_exprs)
    slots = table("VALT", lambda c: sections.read_slots(c, exprs))
    guards = table("GRDS", lambda c: sections.read_guards(c, exprs))
    if len(slots) + len(guards) > len(exprs):
        raise malformed(f"{len(exprs)} expressions for {len(slots)} slots and {len(guards)} guards")
    blocks = table("LXMP", sections.read_blocks)
    channels = table("CHAN", sections.read_channels)
    if strings.met != len(strings.texts):
        raise malformed("section STRS holds strings that nothing uses")
    streams: dict[Unit, tuple[Instr, ...]] = {}
    for section in known[len(_TAGS) :]:
        unit, stream = _read_unit(section.body)
        if streams and unit <= max(streams):
            raise malformed(f"UNIT sections must be in ascending order, {unit.name} is not")
        streams[unit] = stream
    lets = tuple(exprs[len(slots) : len(exprs) - len(guards)])
    program = Program(*(name, profile, cores, args, symbols, slots, lets, blocks, channels, streams, guards, meta))
    validate(program)
    _check_header(image, program)
    return program


def _read_unit(body: bytes) -> tuple[Unit, tuple[Instr, ...]]:
    cursor = Cursor(body, "UNIT")
    number, words = cursor.take("II")
    unit = cursor.enum(Unit, number)
    if len(body) != 8 + 4 * words:
        raise cursor.fail(f"{len(body) - 8} bytes for {words} words")
    return unit, read_stream(body[8:], f"unit {unit.name}")


def _check_header(image: Image, program: Program) -> None:
    """Flags and features of the header must be those that follow from the program."""
    symbolic = any(s.kind is SymbolKind.DIM for s in program.symbols)
    if bool(image.flags & container.SYMBOLIC_SHAPES) != symbolic:
        raise malformed("header flag for symbolic shapes does not match the symbols")
    if image.features != _features(program):
        raise malformed(f"feature mask {image.features:#x} does not match the instructions")


def _features(program: Program) -> int:
    found = 0
    pending = [instr for stream in program.streams.values() for instr in stream]
    while pending:
        instr = pending.pop()
        if isinstance(instr, Loop):
            pending += instr.body
        elif isinstance(instr, Dma) and (instr.gathers or instr.lanes):
            found |= FEATURE_INDIRECT
        elif isinstance(instr, SegPt):
            found |= FEATURE_PT
        elif isinstance(instr, RingCopy):
            found |= FEATURE_RING
    return found
