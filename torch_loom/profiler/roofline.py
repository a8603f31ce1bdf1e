"""The roofline: what memory and units allow at an intensity, and where a launch stands.

Attainable = min(peak of the unit, intensity x memory rate). The memory rate is that of a stream in one
direction; what a kernel loses by mixing directions or by short runs shows as distance from the roof. A kernel
with multiply-accumulates stands under the peak of PT, one without under that of the SFUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_loom.arch import Chip
from torch_loom.profiler.figures import Figures


@dataclass(frozen=True)
class Roofs:
    """Peaks of a chip: operations per second of its units, bytes per second of its memory."""

    pt: float
    sfu: float
    memory: float

    @staticmethod
    def of(chip: Chip) -> Roofs:
        """Roofs from the description of a chip."""
        sfu = float(chip.lanes()) * chip.corelets * chip.cores * chip.clock_hz
        return Roofs(chip.peak_flops, sfu, chip.ddr_bytes_per_s)

    def attainable(self, intensity: float, unit: str) -> float:
        """Operations per second that are possible at ``intensity`` operations per byte of DDR."""
        return min(self.pt if unit == "PT" else self.sfu, intensity * self.memory)


@dataclass(frozen=True)
class Position:
    """A launch under its roof: operations per byte, operations per second reached and attainable.

    ``intensity`` is None for a launch that moves nothing to or from DDR; ``side`` says which roof is above it."""

    unit: str
    intensity: float | None
    reached: float
    attainable: float
    side: str

    @property
    def share(self) -> float:
        """Part of the attainable rate that is reached, 0..1."""
        return self.reached / self.attainable if self.attainable else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Fields by name, ready for JSON."""
        return {
            "unit": self.unit,
            "operations_per_byte": self.intensity,
            "operations_per_s": self.reached,
            "attainable_operations_per_s": self.attainable,
            "side": self.side,
            "share": self.share,
        }


def position(figures: Figures, chip: Chip) -> Position:
    """Where a launch stands under the roofs of a chip."""
    roofs = Roofs.of(chip)
    unit = "PT" if figures.macs else "SFU"
    peak = roofs.pt if unit == "PT" else roofs.sfu
    reached = figures.operations / figures.ns * 1e9 if figures.ns else 0.0
    if not figures.ddr_bytes:
        return Position(unit, None, reached, peak, "compute")
    intensity = figures.operations / figures.ddr_bytes
    attainable = roofs.attainable(intensity, unit)
    return Position(unit, intensity, reached, attainable, "compute" if attainable == peak else "memory")
