"""Orders of elements inside sticks, left behind by conversions between 16-bit and 32-bit formats.

An arrangement permutes (tile, lane) positions against host columns and nothing else; the two conversions
are inverse to each other. Formulas: group size 4, as published for the device.
"""

from __future__ import annotations

from enum import Enum


class ElementArrangement(Enum):
    """Order of the elements of a stick row."""

    STANDARD = 0
    DL16_TO_FP32 = 1
    FP32_TO_DL16 = 2
    QFP8CH = 3
    QFP8WT = 4
    EXX2 = 5

    def __repr__(self) -> str:
        return f"ElementArrangement.{self.name}"

    def column(self, tile: int, lane: int, elems: int) -> int:
        """Host column held at a device position; ``elems`` per stick."""
        if self is ElementArrangement.STANDARD:
            return elems * tile + lane
        if self is ElementArrangement.DL16_TO_FP32:
            pair, second = divmod(tile, 2)
            group, elem = divmod(lane, 4)
            return 64 * pair + 8 * group + 4 * second + elem
        if self is ElementArrangement.FP32_TO_DL16:
            group, within = divmod(lane, 8)
            half, elem = divmod(within, 4)
            return 64 * tile + 32 * half + 4 * group + elem
        raise ValueError(f"the order of elements in {self!r} is not known")

    def position(self, column: int, elems: int) -> tuple[int, int]:
        """Device position (tile, lane) of a host column: the inverse of :meth:`column`."""
        if self is ElementArrangement.STANDARD:
            return divmod(column, elems)
        block, within = divmod(column, 64)
        if self is ElementArrangement.DL16_TO_FP32:
            group, rest = divmod(within, 8)
            second, elem = divmod(rest, 4)
            return 2 * block + second, 4 * group + elem
        if self is ElementArrangement.FP32_TO_DL16:
            half, rest = divmod(within, 32)
            group, elem = divmod(rest, 4)
            return block, 8 * group + 4 * half + elem
        raise ValueError(f"the order of elements in {self!r} is not known")

    def check(self, tiles: int, elems: int) -> None:
        """Refuse a stick row that this arrangement cannot describe."""
        needed = {ElementArrangement.DL16_TO_FP32: 32, ElementArrangement.FP32_TO_DL16: 64}.get(self)
        if needed is not None and elems != needed:
            raise ValueError(f"{self!r} needs sticks of {needed} elements, the format has {elems}")
        if self is ElementArrangement.DL16_TO_FP32 and tiles % 2:
            raise ValueError(f"{self!r} works on pairs of sticks, the row has {tiles}")
