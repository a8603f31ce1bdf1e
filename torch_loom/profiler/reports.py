"""Reports of launches: per kernel what it took and why, and the sums of a whole process or model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_loom import arch
from torch_loom.arch import Chip
from torch_loom.profiler.advice import Change, advise
from torch_loom.profiler.figures import ENERGY_PARAMETERS, Figures, ddr_bytes_saved, lx_hit_rate
from torch_loom.profiler.roofline import Position, position
from torch_loom.profiler.subject import Subject
from torch_loom.profiler.why import why


@dataclass(frozen=True)
class Entry:
    """Equal launches of one kernel: figures of one of them, how many there were, what would make it faster."""

    figures: Figures
    launches: int
    why: str
    position: Position
    changes: list[Change] = field(default_factory=list)
    origin: str = ""

    @property
    def total_ns(self) -> float:
        """Time of all these launches."""
        return self.figures.ns * self.launches

    def as_dict(self) -> dict[str, Any]:
        """Figures of one launch by name, ready for JSON."""
        figures = self.figures
        return {
            **figures.as_dict(),
            "launches": self.launches,
            "total_ns": self.total_ns,
            "why": self.why,
            "ddr_bytes": figures.ddr_bytes,
            "lx_hit_rate": lx_hit_rate(figures.between_bytes),
            "ddr_bytes_saved": ddr_bytes_saved(figures.between_bytes),
            "energy_uj": figures.energy_uj,
            "roofline": self.position.as_dict(),
            "changes": [change.as_dict() for change in self.changes],
            "origin": self.origin,
        }


@dataclass(frozen=True)
class Report:
    """Entries by the time they cost, and the chip they were timed on."""

    entries: list[Entry]
    chip: Chip

    @property
    def ns(self) -> float:
        """Modelled time of all launches, one after another."""
        return sum(entry.total_ns for entry in self.entries)

    @property
    def launches(self) -> int:
        """Number of launches."""
        return sum(entry.launches for entry in self.entries)

    def mean(self, of: str) -> dict[str, float]:
        """Means over the time of a dictionary of the figures ("shares" or "utilisation")."""
        out: dict[str, float] = {}
        for entry in self.entries:
            for key, value in getattr(entry.figures, of).items():
                out[key] = out.get(key, 0.0) + value * entry.total_ns / (self.ns or 1.0)
        return out

    def total(self, of: str) -> dict[str, float]:
        """Sums over all launches of a dictionary of the figures ("link_bytes", "between_bytes" or "energy_pj")."""
        out: dict[str, float] = {}
        for entry in self.entries:
            for key, value in getattr(entry.figures, of).items():
                out[key] = out.get(key, 0) + value * entry.launches
        return out

    @property
    def by_bottleneck(self) -> dict[str, float]:
        """Nanoseconds of the launches that each part is critical for, the largest first."""
        out: dict[str, float] = {}
        for entry in self.entries:
            out[entry.figures.bottleneck] = out.get(entry.figures.bottleneck, 0.0) + entry.total_ns
        return dict(sorted(out.items(), key=lambda item: -item[1]))

    def energy_sources(self) -> dict[str, str]:
        """Where the energy figures come from: for each part the parameters used, with basis and source."""
        params = self.chip.params()
        return {
            part: "; ".join(f"{n} = {params[n].value:g} ({params[n].basis}: {params[n].source})" for n in names)
            for part, names in ENERGY_PARAMETERS.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON."""
        return {
            "chip": self.chip.name,
            "ns": self.ns,
            "launches": self.launches,
            "shares": self.mean("shares"),
            "utilisation": self.mean("utilisation"),
            "link_bytes": self.total("link_bytes"),
            "between_bytes": self.total("between_bytes"),
            "lx_hit_rate": lx_hit_rate(self.total("between_bytes")),
            "ddr_bytes_saved": ddr_bytes_saved(self.total("between_bytes")),
            "energy_pj": self.total("energy_pj"),
            "energy_sources": self.energy_sources(),
            "ns_by_bottleneck": self.by_bottleneck,
            "kernels": [entry.as_dict() for entry in self.entries],
        }

    def json(self) -> str:
        """``as_dict`` as text."""
        return json.dumps(self.as_dict(), indent=1)

    def __str__(self) -> str:
        from torch_loom.profiler.tables import report_text

        return report_text(self)


def report_of(subjects: Iterable[Subject], chip: Chip, *, advice: int = 3) -> Report:
    """Time every subject. Changes are looked for at the ``advice`` kernels that cost most (-1: at all).

    Raises ``ClockError``."""
    timed = []
    for subject in subjects:
        figures = Figures.of(subject.name, subject.time(chip), subject.program.cores, chip)
        timed.append((subject, figures))
    timed.sort(key=lambda pair: -pair[1].ns * pair[0].launches)
    limit = len(timed) if advice < 0 else advice
    entries = []
    for rank, (subject, figures) in enumerate(timed):
        changes = advise(subject, figures, chip) if rank < limit else []
        where = position(figures, chip)
        entries.append(Entry(figures, subject.launches, why(figures, chip), where, changes, subject.origin))
    return Report(entries, chip)


def launched() -> list[Subject]:
    """One subject per kernel and set of sizes that this process launched, in order of the first launch."""
    from torch_loom import _device  # type: ignore[attr-defined]
    from torch_loom.profiler.kernels import rescheduler

    return [
        Subject(c.name, c.image, tuple(c.call), c.launches, c.origin, rescheduler(c.name))
        for c in _device.launch_counts()
    ]


def report(subjects: Sequence[Subject] | None = None, chip: Chip | str | None = None, *, advice: int = 3) -> Report:
    """What this process launched so far (or the given subjects), timed on a chip.

    ``print(report())`` shows it, ``report().as_dict()`` and ``.json()`` are for programs. Without ``chip`` it is the
    one that kernels are compiled for. ``reset()`` starts counting anew."""
    if not isinstance(chip, Chip):
        chip = arch.load(chip or default_chip())
    return report_of(launched() if subjects is None else subjects, chip, advice=advice)


def reset() -> None:
    """Forget the launches so far."""
    from torch_loom import _device  # type: ignore[attr-defined]

    _device.clear_launch_counts()


def default_chip() -> str:
    """Name of the chip that this process compiles for."""
    from torch_loom.inductor import runtime

    return runtime.chip_name()
