"""The native decoder against the Python one: same files accepted, same codes, never a crash."""

import hashlib
import random
import struct
import zlib

import pytest
import torch  # noqa: F401
from spyrecode_samples import SAMPLES

from torch_loom import _chip
from torch_loom.spyrecode import SpyreCodeError, decode, encode

IMAGES = {name: encode(make()) for name, make in SAMPLES.items()}
REFUSALS = {"SC-E15", "SC-E16", "SC-E17"}


def both(data: bytes) -> str | None:
    """The code both decoders refuse with, or None when both accept. What is accepted encodes back, but for
    the minor version and unknown optional sections, which a reader may meet and skip."""
    try:
        program = decode(data)
    except SpyreCodeError as error:
        with pytest.raises(_chip.ChipError) as native:
            _chip.decode(data)
        assert {native.value.code, error.code} <= REFUSALS, (str(native.value), str(error))
        return error.code
    _chip.decode(data)
    if data[10:12] == b"\0\0":
        assert encode(program) == data
    return None


def reseal(data: bytearray) -> bytes:
    """Make every checksum right again, so that only the content is wrong."""
    (count,) = struct.unpack_from("<I", data, 24)
    end = len(data) - 32
    for i in range(min(count, 64)):
        at = 64 + 32 * i
        if at + 32 > end:
            break
        offset, size = struct.unpack_from("<QQ", data, at + 8)
        if offset + size <= end:
            struct.pack_into("<I", data, at + 24, zlib.crc32(data[offset : offset + size]))
    struct.pack_into("<I", data, 40, zlib.crc32(data[64 : 64 + 32 * min(count, 64)]))
    struct.pack_into("<I", data, 44, zlib.crc32(data[:44]))
    data[end:] = hashlib.sha256(data[:end]).digest()
    return bytes(data)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_decode(name):
    assert both(IMAGES[name]) is None


@pytest.mark.parametrize("name", ["add_rows", "everything"])
def test_damage_of_any_byte_is_detected(name):
    image = IMAGES[name]
    for at in range(len(image)):
        damaged = bytearray(image)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(_chip.ChipError) as error:
            _chip.decode(bytes(damaged))
        assert error.value.code in REFUSALS


def test_any_truncation_is_refused():
    image = IMAGES["everything"]
    for size in range(len(image)):
        with pytest.raises(_chip.ChipError):
            _chip.decode(image[:size])
    with pytest.raises(_chip.ChipError):
        _chip.decode(image + b"\0")


def test_truncations_with_right_checksums_are_refused():
    image = IMAGES["everything"]
    for size in range(64, len(image) - 32, 7):
        cut = bytearray(image[:size] + bytes(32))
        struct.pack_into("<Q", cut, 16, len(cut))
        assert both(reseal(cut)) in REFUSALS


@pytest.mark.parametrize("name", SAMPLES)
def test_decoders_agree_on_resealed_mutations(name):
    """Single bytes, words and small counts changed inside the file, checksums made right."""
    image = IMAGES[name]
    rng = random.Random(name)
    accepted = 0
    for _ in range(1500):
        data = bytearray(image)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(len(data) - 32)
            if rng.random() < 0.5:
                data[at] = rng.randrange(256)
            else:
                value = rng.choice((0, 1, 2, 3, 255, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF))
                struct.pack_into("<I", data, at // 4 * 4, value)
        accepted += both(reseal(data)) is None
    assert accepted > 10  # the mutations do reach the content


def test_mutated_programs_run_inside_their_allocations_or_fail_with_one_error():
    """Whatever is accepted is launched on small buffers between guard bytes."""
    chip = _chip.Machine(32, 2 << 20, 2, 1 << 20, max_steps=20_000)
    rng = random.Random(5)
    spans = [(1 << 14, 1 << 14), (3 << 14, 1 << 14), (5 << 14, 1 << 14)]
    chip.ddr[:] = 0x5A
    ran = refused = 0
    for name in ("add_rows", "gather_rows", "map", "row_sum", "ring_shift", "everything"):
        image = IMAGES[name]
        for _ in range(2500):
            data = bytearray(image)
            at = rng.randrange(640, len(data) - 32) // 4 * 4
            (old,) = struct.unpack_from("<I", data, at)
            changed = rng.choice((old ^ 1 << rng.randrange(32), old + 16, old + 128, rng.randrange(1 << 32)))
            struct.pack_into("<I", data, at, changed & 0xFFFFFFFF)
            try:
                program = _chip.decode(reseal(data))
            except _chip.ChipError:
                continue
            buffers = iter(spans)
            args = [next(buffers, spans[0]) if a.kind == 0 else 16 if a.kind == 1 else 1.0 for a in program.args]
            try:
                chip.run(program, args)
                ran += 1
            except _chip.ChipError as error:
                assert error.code[:3] in ("DEV", "SC-")
                refused += 1
            used = [(0, 1 << 14), (2 << 14, 3 << 14), (4 << 14, 5 << 14), (6 << 14, 1 << 20)]
            assert all((chip.ddr[a:b] == 0x5A).all() for a, b in used)
    assert ran > 100 and refused > 20
