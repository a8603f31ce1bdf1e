"""Data formats of the device and which one each torch dtype takes there.

Dtypes are looked up by name, so this room needs no torch. Names of the members are the public ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

STICK_BYTES = 128


def whole_sticks(size: int) -> int:
    """Bytes of the sticks that ``size`` bytes need."""
    return -(-size // STICK_BYTES) * STICK_BYTES


class DataFormats(Enum):
    """Formats of elements; those without a count of elements per stick never lie on the device."""

    INVALID = 0
    SEN169_FP16 = 1
    SEN143_FP8 = 2
    SEN152_FP8 = 3
    SEN153_FP9 = 4
    SEN18F_FP24 = 5
    IEEE_FP16 = 6
    BFLOAT16 = 7
    IEEE_FP32 = 8
    IEEE_INT32 = 9
    IEEE_INT64 = 10
    SENINT2 = 11
    SENINT4 = 12
    SENINT8 = 13
    SENINT16 = 14
    SENINT24 = 15
    SENUINT2 = 16
    SENUINT32 = 17
    BOOL = 18

    def elems_per_stick(self) -> int:
        """Elements in 128 bytes; 0 for a format that the device does not store."""
        bits = _BITS.get(self, 0)
        return STICK_BYTES * 8 // bits if bits else 0

    def __repr__(self) -> str:
        return f"DataFormats.{self.name}"


_BITS = {
    DataFormats.SEN169_FP16: 16,
    DataFormats.SEN143_FP8: 8,
    DataFormats.SEN152_FP8: 8,
    DataFormats.IEEE_FP16: 16,
    DataFormats.BFLOAT16: 16,
    DataFormats.IEEE_FP32: 32,
    DataFormats.IEEE_INT32: 32,
    DataFormats.IEEE_INT64: 64,
    DataFormats.SENINT2: 2,
    DataFormats.SENINT4: 4,
    DataFormats.SENINT8: 8,
    DataFormats.SENINT16: 16,
    DataFormats.SENUINT2: 2,
    DataFormats.SENUINT32: 32,
}


@dataclass(frozen=True)
class Formats:
    """Where one torch dtype lives: on the host, on the device, and there under IEEE numerics."""

    host: DataFormats
    device: DataFormats
    device_ieee: DataFormats


def _same(fmt: DataFormats) -> Formats:
    return Formats(fmt, fmt, fmt)


_D = DataFormats
_BY_DTYPE = {
    "float16": Formats(_D.IEEE_FP16, _D.SEN169_FP16, _D.IEEE_FP16),
    "bfloat16": Formats(_D.BFLOAT16, _D.SEN169_FP16, _D.BFLOAT16),
    "bool": Formats(_D.BOOL, _D.SEN169_FP16, _D.IEEE_FP16),
    "float32": _same(_D.IEEE_FP32),
    "int64": Formats(_D.IEEE_INT64, _D.IEEE_INT32, _D.IEEE_INT32),
    "int32": _same(_D.IEEE_INT32),
    "int16": _same(_D.SENINT16),
    "int8": _same(_D.SENINT8),
    "qint8": _same(_D.SENINT8),
    "uint8": _same(_D.SENUINT32),
    "quint8": _same(_D.SENUINT32),
    "float8_e4m3fn": _same(_D.SEN143_FP8),
    "float8_e5m2fnuz": _same(_D.SEN152_FP8),
}


class UnsupportedDtype(RuntimeError):
    """The device has no format for a dtype."""


def dtype_name(dtype: Any) -> str:
    """``float16`` for ``torch.float16`` and for the name itself."""
    return str(dtype).removeprefix("torch.")


def formats(dtype: Any) -> Formats:
    """Formats of a torch dtype or its name; raises :class:`UnsupportedDtype`."""
    found = _BY_DTYPE.get(dtype_name(dtype))
    if found is None:
        supported = ", ".join(_BY_DTYPE)
        raise UnsupportedDtype(f"Spyre backend does not support dtype {dtype}; it holds {supported}")
    return found


def device_format(dtype: Any, *, ieee: bool = False) -> DataFormats:
    """Device format of a torch dtype; with ``ieee`` the one under TORCH_LOOM_NUMERICS=ieee."""
    found = formats(dtype)
    return found.device_ieee if ieee else found.device
