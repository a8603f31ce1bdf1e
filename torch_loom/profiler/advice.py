"""Which changes would make a launch faster, each with the gain that the clock gives for it.

Two kinds of evidence. *Re-timed*: the KTIR is scheduled again with another option and that program is timed.
*Bound*: the launch is timed again on a chip where one mechanism costs nothing (no bus turnaround, full
bursts, free synchronisation, ..); no change of the kernel that only attacks this mechanism can gain more. Both
come from the clock; nothing here holds a figure of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_loom.arch import Chip
from torch_loom.profiler.figures import Figures
from torch_loom.profiler.subject import ClockError, Subject
from torch_loom.profiler.units import time_text

if TYPE_CHECKING:
    from torch_loom.scheduler import Options

WORTH = 0.01  # changes that gain less are not named

# What a change asks of the person who makes it.
SWITCH, LAYOUT, SPLIT, REWRITE = 1, 2, 3, 4


@dataclass(frozen=True)
class Change:
    """A change and what it gains: ``gain`` as a share of the time 0..1, ``gain_ns``; ``evidence`` is "re-timed" or
    "bound"; ``effort`` from 1 (a switch) to 4 (rewrite the kernel or its neighbours)."""

    text: str
    gain: float
    gain_ns: float
    evidence: str
    effort: int

    def as_dict(self) -> dict[str, Any]:
        """Fields by name, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        upto = "up to " if self.evidence == "bound" else ""
        return f"{self.text}: {upto}-{self.gain:.1%} ({time_text(self.gain_ns)}, {self.evidence})"


Params = Callable[[Chip, Figures, Subject], dict[str, float]]


@dataclass(frozen=True)
class _Mechanism:
    """Clock parameters under which a mechanism costs nothing, and the change that attacks it."""

    text: str
    effort: int
    params: Params


def _zero(*names: str) -> Params:
    return lambda chip, figures, subject: dict.fromkeys(names, 0.0)


def _less_traffic(chip: Chip, factor: float) -> dict[str, float]:
    """The memory so much faster in every respect as there would be fewer bytes."""
    now = chip.clock_params()
    faster = ("ddr.peak_bytes_per_s", "ddr.port_bytes_per_cycle", "dma.window_bytes")
    shorter = ("ddr.page_open_ns", "ddr.request_overhead_ns", "ddr.turnaround_ns")
    return {n: now[n] * factor for n in faster} | {n: now[n] / factor for n in shorter}


def _half_the_bytes(chip: Chip, figures: Figures, subject: Subject) -> dict[str, float]:
    return _less_traffic(chip, 2)


def _read_once(chip: Chip, figures: Figures, subject: Subject) -> dict[str, float]:
    """What is left when every buffer moves once."""
    once = subject.buffer_bytes
    return _less_traffic(chip, figures.ddr_bytes / once) if 0 < once < figures.ddr_bytes else {}


def _more_cores(chip: Chip, figures: Figures, subject: Subject) -> dict[str, float]:
    """Cores so much faster as there would be more of them."""
    more = chip.cores / figures.cores
    if more <= 1:
        return {}
    now = chip.clock_params()
    faster = [
        "lx.read_bytes_per_cycle",
        "lx.write_bytes_per_cycle",
        "lx.bank_bytes_per_cycle",
        "lx.strided_elements_per_cycle",
        "dma.read_bytes_per_cycle",
        "dma.write_bytes_per_cycle",
        "dma.window_bytes",
    ]
    shorter = ["sfu.simple_cycles", "sfu.transcendental_cycles", "sfu.divide_cycles", "sfu.tree_cycles"]
    shorter += ["pt.step_cycles", "pt.fill_cycles", "pt.reload_cycles"]
    return {n: now[n] * more for n in faster} | {n: now[n] / more for n in shorter}


def _no_latency(chip: Chip, figures: Figures, subject: Subject) -> dict[str, float]:
    return {"ddr.latency_ns": 1e-3, "dma.issue_cycles": 0.0}  # the clock divides by the latency


def _contiguous(chip: Chip, figures: Figures, subject: Subject) -> dict[str, float]:
    """Elements apart in LX as fast as elements side by side."""
    return {"lx.strided_elements_per_cycle": float(chip.lanes())}


def _plain_functions(chip: Chip, figures: Figures, subject: Subject) -> dict[str, float]:
    simple = chip.sfu.simple_cycles.value
    return {"sfu.transcendental_cycles": simple, "sfu.divide_cycles": simple}


MECHANISMS = (
    _Mechanism(
        "longer runs in DDR (a layout whose rows follow one another)",
        LAYOUT,
        _zero("ddr.request_overhead_ns", "ddr.page_open_ns"),
    ),
    _Mechanism("keep operands side by side in LX (transpose where they are loaded)", LAYOUT, _contiguous),
    _Mechanism("reads and writes in phases of their own", SPLIT, _zero("ddr.turnaround_ns")),
    _Mechanism(
        "more rows per core (split columns or K instead of rows)", SPLIT, _zero("pt.fill_cycles", "pt.reload_cycles")
    ),
    _Mechanism(
        "fetch every operand once (a split whose cores share it over the ring, larger tiles)", SPLIT, _read_once
    ),
    _Mechanism("divide over all cores of the chip", SPLIT, _more_cores),
    _Mechanism(
        "larger tiles: fewer segments and credits",
        SPLIT,
        _zero("sfu.start_cycles", "lx.latency_cycles", "sync.credit_cycles", "sync.issue_cycles"),
    ),
    _Mechanism("more loads in flight (start them earlier, on more cores)", SPLIT, _no_latency),
    _Mechanism("fuse with a neighbour: one launch less", REWRITE, _zero("launch.fixed_ns")),
    _Mechanism("8-bit operands: half the bytes of device memory", REWRITE, _half_the_bytes),
    _Mechanism("fewer divisions and transcendental functions per element", REWRITE, _plain_functions),
)


def _options() -> Iterator[tuple[str, Options]]:
    """Other schedules of the same KTIR."""
    from torch_loom.scheduler import Options

    base = Options()
    for buffers in (1, 3, 4):
        yield f"{buffers} copies of a shared block instead of {base.buffers}", replace(base, buffers=buffers)
    for name, off, on in (
        ("multicast", "every core loads for itself", "cores that load the same bytes share them over the ring"),
        ("fuse", "every operation in a segment of its own", "several operations per segment"),
        ("overlap", "bodies in one piece", "bodies cut so that transfers and compute overlap"),
    ):
        now = bool(getattr(base, name))
        other: dict[str, Any] = {name: not now}
        yield (off if now else on), replace(base, **other)


def advise(subject: Subject, figures: Figures, chip: Chip, count: int = 3) -> list[Change]:
    """The cheapest changes that gain anything, at most ``count``: most gain for the effort first."""
    found = [*_rescheduled(subject, figures, chip), *_bounds(subject, figures, chip)]
    worth = [change for change in found if change.gain >= WORTH]
    return sorted(worth, key=lambda change: (-change.gain / change.effort, change.text))[:count]


def _bounds(subject: Subject, figures: Figures, chip: Chip) -> Iterator[Change]:
    for mechanism in MECHANISMS:
        params = mechanism.params(chip, figures, subject)
        if params:
            ns = subject.time(chip, **params).ns
            yield _change(mechanism.text, figures, ns, "bound", mechanism.effort)


def _rescheduled(subject: Subject, figures: Figures, chip: Chip) -> Iterator[Change]:
    if subject.reschedule is None:
        return
    from torch_loom.scheduler import ScheduleError

    known = {subject.image}
    for text, options in _options():
        try:
            image = subject.reschedule(options)
            if image in known:  # the option changes nothing
                continue
            known.add(image)
            ns = replace(subject, image=image).time(chip).ns
        except (ScheduleError, ClockError):  # the kernel does not exist in this form, for instance for want of LX
            continue
        yield _change(text, figures, ns, "re-timed", SWITCH)


def _change(text: str, figures: Figures, ns: float, evidence: str, effort: int) -> Change:
    saved = figures.ns - ns
    return Change(text, saved / figures.ns if figures.ns else 0.0, saved, evidence, effort)
