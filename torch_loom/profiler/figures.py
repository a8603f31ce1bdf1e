"""What the clock says about one launch, as plain numbers with units in their names.

Utilisation of a unit is its busy cycles over the cycles of the launch, averaged over all units of that kind on
the chip: a kernel that uses 8 of 32 cores cannot exceed a quarter. Operations are what the roofline counts:
two per multiply-accumulate of PT, or, for a kernel without any, one per lane and busy cycle of an SFU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch_loom.arch import Chip

# Units of each kind on the chip, by cores and corelets.
_COUNTS = {
    "MNILU": lambda cores, corelets: cores,
    "MNISU": lambda cores, corelets: cores,
    "L1LU": lambda cores, corelets: cores * corelets,
    "PT": lambda cores, corelets: cores * corelets,
    "SFU": lambda cores, corelets: cores * corelets,
    "L1SU": lambda cores, corelets: cores * corelets,
    "DDR": lambda cores, corelets: 1,
    "ring": lambda cores, corelets: 2 * cores,  # links, both directions
}
# Where the energy of each part comes from: the parameters of the chip that it is computed with.
ENERGY_PARAMETERS = {
    "PT": ("energy.mac_pj",),
    "SFU": ("energy.sfu_op_pj",),
    "LX": ("energy.lx_byte_pj",),
    "DDR": ("energy.ddr_byte_pj",),
    "ring": ("energy.ring_byte_pj",),
    "idle": ("energy.idle_w",),
}


def lx_hit_rate(between_bytes: Mapping[str, float]) -> float | None:
    """Part of the bytes of buffers between programs that were read from LX, 0..1; None where none were read."""
    near, far = between_bytes.get("LX read", 0), between_bytes.get("DDR read", 0)
    return near / (near + far) if near + far else None


def ddr_bytes_saved(between_bytes: Mapping[str, float]) -> float:
    """Bytes of buffers between programs that moved to and from LX instead of DDR."""
    return between_bytes.get("LX read", 0) + between_bytes.get("LX write", 0)


@dataclass(frozen=True)
class Figures:
    """One launch: time in ns and cycles, shares of the time 0..1, bytes per link, energy in pJ per part.

    ``between_bytes`` are those of ``link_bytes`` that moved buffers between the programs of a job, by where these lie
    ("LX read", "LX write", "DDR read", "DDR write").
    ``shares`` says for each part which share of the time it was busy (the mean over the cores at work),
    ``utilisation`` the busy share of each kind of unit over the whole chip."""

    name: str
    ns: float
    cycles: float
    bottleneck: str
    shares: dict[str, float]
    utilisation: dict[str, float]
    link_bytes: dict[str, int]
    energy_pj: dict[str, float]
    macs: int
    lane_operations: float
    launch_ns: float
    events: int
    cores: int
    between_bytes: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(name: str, timing: Any, cores: int, chip: Chip) -> Figures:
        """The figures of a timing of the native clock; ``cores`` run the program."""
        whole = timing.cycles or 1.0
        busy = {unit: time.busy_cycles for unit, time in timing.units.items()}
        utilisation = {
            unit: cycles / whole / _COUNTS[unit](chip.cores, chip.corelets)
            for unit, cycles in busy.items()
            if unit in _COUNTS
        }
        return Figures(
            name,
            timing.ns,
            timing.cycles,
            timing.bottleneck,
            dict(timing.shares),
            utilisation,
            dict(timing.link_bytes),
            dict(timing.energy_pj),
            int(timing.macs),
            busy.get("SFU", 0.0) * chip.lanes(),
            timing.launch_cycles * 1e9 / chip.clock_hz,
            int(timing.events),
            cores,
            dict(timing.between_bytes),
        )

    @property
    def pt_util(self) -> float:
        """Busy share of the matrix units, 0..1."""
        return self.utilisation.get("PT", 0.0)

    @property
    def sfu_util(self) -> float:
        """Busy share of the vector units, 0..1."""
        return self.utilisation.get("SFU", 0.0)

    @property
    def ddr_bytes(self) -> int:
        """Bytes read from and written to device memory."""
        return self.link_bytes.get("DDR read", 0) + self.link_bytes.get("DDR write", 0)

    @property
    def operations(self) -> float:
        """Operations that the roofline counts."""
        return 2.0 * self.macs if self.macs else self.lane_operations

    @property
    def energy_uj(self) -> float:
        """Energy of all parts in microjoules."""
        return sum(self.energy_pj.values()) / 1e6

    def as_dict(self) -> dict[str, Any]:
        """Fields by name, ready for JSON."""
        return asdict(self)
