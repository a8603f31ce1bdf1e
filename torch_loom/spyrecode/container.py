"""The file around the sections: header, section table, checksums. Nothing here knows what a section means.

The layout is canonical: sections follow one another in table order, each at the next multiple of 128,
padding is zero, and the file ends with the SHA-256 of everything before it. A file that says the same
in another way is refused, so equal programs have equal bytes.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import DAMAGED, UNSUPPORTED, SpyreCodeError, malformed

MAGIC = b"\x89LSP\r\n\x1a\n"
MAJOR, MINOR = 1, 0
HEADER_BYTES = 64
HASH_BYTES = 32
ALIGN = 128
REQUIRED = 1  # section flag: a reader that does not know the tag must refuse the file

# Header flags.
SYMBOLIC_SHAPES, DEBUG_PRESENT = 1, 2

_HEADER = struct.Struct("<8sHHIQIIQ")
_ENTRY = struct.Struct("<4sIQQII")


@dataclass(frozen=True)
class Section:
    tag: str  # four characters
    body: bytes
    flags: int = REQUIRED


@dataclass(frozen=True)
class Image:
    sections: tuple[Section, ...]
    flags: int  # of the header
    features: int  # required-feature mask


def _up(value: int) -> int:
    return -(-value // ALIGN) * ALIGN


def pack(image: Image) -> bytes:
    """The bytes of a file."""
    offset = _up(HEADER_BYTES + _ENTRY.size * len(image.sections))
    entries, bodies = [], []
    at = HEADER_BYTES + _ENTRY.size * len(image.sections)
    for section in image.sections:
        crc = zlib.crc32(section.body)
        entries.append(_ENTRY.pack(section.tag.encode("ascii"), section.flags, offset, len(section.body), crc, ALIGN))
        bodies.append(b"\0" * (offset - at) + section.body)
        at = offset + len(section.body)
        offset = _up(at)
    table = b"".join(entries)
    size = at + HASH_BYTES
    head = _HEADER.pack(MAGIC, MAJOR, MINOR, HEADER_BYTES, size, len(image.sections), image.flags, image.features)
    head += struct.pack("<I", zlib.crc32(table))
    head += struct.pack("<I", zlib.crc32(head))
    data = head.ljust(HEADER_BYTES, b"\0") + table + b"".join(bodies)
    return data + hashlib.sha256(data).digest()


def unpack(data: bytes, known_features: int) -> Image:
    """Verify a file and cut it into sections.

    Raises SC-E15 (not ours, version, features), SC-E16 (checksums), SC-E17 (layout)."""
    if len(data) < HEADER_BYTES + HASH_BYTES or not data.startswith(MAGIC):
        raise SpyreCodeError(UNSUPPORTED, "not a torch-loom SpyreCode image (magic bytes missing)")
    if len(data) > limits.FILE_BYTES:
        raise malformed(f"{len(data)} bytes, at most {limits.FILE_BYTES} allowed")
    _, major, minor, header, size, count, flags, features = _HEADER.unpack_from(data)
    table_crc, head_crc = struct.unpack_from("<II", data, 40)
    if zlib.crc32(data[:44]) != head_crc:
        raise SpyreCodeError(DAMAGED, "header checksum mismatch")
    if major != MAJOR:
        raise SpyreCodeError(UNSUPPORTED, f"format {major}.{minor} is not supported, only {MAJOR}.x is")
    if size != len(data):
        raise SpyreCodeError(DAMAGED, f"file of {len(data)} bytes, the header says {size}")
    if hashlib.sha256(data[:-HASH_BYTES]).digest() != data[-HASH_BYTES:]:
        raise SpyreCodeError(DAMAGED, "file hash mismatch")
    if features & ~known_features:
        raise SpyreCodeError(UNSUPPORTED, f"required features {features & ~known_features:#x} are not supported")
    if header != HEADER_BYTES or any(data[48:64]) or flags & ~(SYMBOLIC_SHAPES | DEBUG_PRESENT):
        raise malformed("header fields out of range")
    table_end = HEADER_BYTES + _ENTRY.size * count
    if count > 64 or table_end > size - HASH_BYTES:
        raise malformed(f"{count} sections do not fit the file")
    if zlib.crc32(data[HEADER_BYTES:table_end]) != table_crc:
        raise SpyreCodeError(DAMAGED, "section table checksum mismatch")
    sections, at = [], table_end
    for i in range(count):
        raw_tag, section_flags, offset, length, crc, align = _ENTRY.unpack_from(data, HEADER_BYTES + i * _ENTRY.size)
        tag = raw_tag.decode("ascii", "replace")
        if offset != _up(at) or align != ALIGN or length > size - HASH_BYTES - offset or section_flags & ~REQUIRED:
            raise malformed(f"section {tag}: entry out of range")
        if any(data[at:offset]):
            raise malformed(f"section {tag}: padding is not zero")
        body = data[offset : offset + length]
        if zlib.crc32(body) != crc:
            raise SpyreCodeError(DAMAGED, f"section {tag}: checksum mismatch")
        sections.append(Section(tag, body, section_flags))
        at = offset + length
    if at != size - HASH_BYTES:
        raise malformed("bytes after the last section")
    return Image(tuple(sections), flags, features)
