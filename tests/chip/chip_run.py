"""Runs a program on a small machine with NumPy arrays as arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch  # noqa: F401  (the native module finds its libraries through it)

from torch_loom import _chip
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import ArgKind, Elem, Program

DTYPE = {
    Elem.DF16: np.dtype(np.uint16),
    Elem.F32: np.dtype(np.float32),
    Elem.I32: np.dtype(np.int32),
    Elem.F16: np.dtype(np.float16),
    Elem.BF16: np.dtype(np.uint16),
    Elem.I16: np.dtype(np.int16),
    Elem.I8: np.dtype(np.int8),
    Elem.U8: np.dtype(np.uint8),
    Elem.I64: np.dtype(np.int64),
}
DDR_BYTES = 1 << 24


def machine(program: Program, **options: object) -> _chip.Machine:
    profile = program.profile
    options = {"threads": 2, "ddr_bytes": DDR_BYTES, **options}
    return _chip.Machine(profile.cores, profile.lx_bytes, **options)  # type: ignore[arg-type]


def run(
    program: Program,
    args: Sequence[np.ndarray | int | float],
    *,
    on: _chip.Machine | None = None,
    guard: int = 256,
) -> list[np.ndarray]:
    """Launch with copies of the arrays in DDR, each between guard bytes; returns the arrays afterwards.

    Asserts that nothing outside the allocations was written."""
    chip = on or machine(program)
    chip.ddr[:] = 0xA5
    launch: list[object] = []
    spans = []
    at = guard
    for info, value in zip(program.args, args, strict=True):
        if info.kind is not ArgKind.BUFFER:
            launch.append(value)
            continue
        assert isinstance(value, np.ndarray)
        raw = np.ascontiguousarray(value).view(np.uint8).ravel()
        size = -(-len(raw) // 128) * 128
        chip.ddr[at : at + len(raw)] = raw
        launch.append((at, size))
        spans.append((at, len(raw), value, size))
        at += size + guard
    chip.run(_chip.decode(encode(program)), launch)
    results = []
    end = 0
    for start, length, value, size in spans:
        assert (chip.ddr[end:start] == 0xA5).all(), "bytes before an argument were written"
        results.append(chip.ddr[start : start + length].copy().view(value.dtype).reshape(value.shape))
        end = start + size
    assert (chip.ddr[end : end + guard] == 0xA5).all(), "bytes after the arguments were written"
    return results


def df16(values: np.ndarray) -> np.ndarray:
    """df16 codes of floats: scalar rules for small arrays, for large ones the native conversion that
    test_chip_numbers checks code by code."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    if len(flat) > 600:
        return _chip.f32_to_df16(flat.astype(np.float32)).reshape(np.shape(values))
    return np.array([df16_code(float(v)) for v in flat], dtype=np.uint16).reshape(np.shape(values))


def df16_value(code: int) -> float:
    """The value of a code, from the definition in docs/chip.md."""
    sign, exponent, fraction = code >> 15, code >> 9 & 63, code & 511
    if exponent == 63 and fraction == 511:
        return float("nan")
    if exponent == 0 and fraction == 0:
        return 0.0
    return (-1.0) ** sign * 2.0 ** (exponent - 31) * (1 + fraction / 512)


_VALUES = [df16_value(c) for c in range(1, 0x7FFF)]  # ascending


def df16_code(value: float) -> int:
    """Nearest code; ties away from zero; beyond the range the merged code. Positive zero and merged code."""
    import bisect
    import math
    from fractions import Fraction

    if not math.isfinite(value):
        return 0x7FFF
    size = Fraction(abs(value))
    at = bisect.bisect_left(_VALUES, size)  # first value >= size
    above = _VALUES[at] if at < len(_VALUES) else 2.0**32 * (1 + 511 / 512)  # the merged code's place
    below = _VALUES[at - 1] if at else 0.0
    up = size - Fraction(below) >= Fraction(above) - size
    code = at + 1 if up else at
    return code | (0x8000 if value < 0 and 0 < code < 0x7FFF else 0)
