"""One row per kernel launch: what the clock says about it.

The clock needs no data, only the numbers of a launch, so launches of one plan with equal numbers share
one evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from torch_loom.arch import Chip
from torch_loom.spyrecode.model import ArgKind


class Timing(Protocol):
    """What the clock returns for a launch."""

    ns: float
    pt_util: float
    sfu_util: float
    ddr_read_bytes: int
    ddr_write_bytes: int
    bottleneck: str
    between_bytes: Mapping[str, int]


class Plan(Protocol):
    """A prepared kernel of the device, seen from here."""

    name: str
    address: int
    image: bytes
    args: Sequence[tuple[str, int, int, int]]

    def time(self, args: Any, clock_params: Mapping[str, float]) -> Timing:
        """Timing of a launch record of this plan."""


class LaunchRecord(Protocol):
    """One launch as the device recorded it: plan, numbers (buffers by address; in ``call`` as address and bytes) and
    the line that launched it."""

    name: str
    plan: Plan
    args: Sequence[int | float]
    call: Sequence[tuple[int, ...] | int | float]
    origin: str


@dataclass(frozen=True)
class LaunchRow:
    """Clock figures of one launch: microseconds, busy shares 0..1, bytes read and written."""

    name: str
    modelled_us: float
    pt_util: float
    sfu_util: float
    ddr_bytes: int
    bottleneck: str
    between_bytes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, timing: Timing) -> LaunchRow:
        """The row of a timing."""
        return cls(
            name,
            timing.ns / 1000,
            timing.pt_util,
            timing.sfu_util,
            timing.ddr_read_bytes + timing.ddr_write_bytes,
            timing.bottleneck,
            dict(timing.between_bytes),
        )

    def as_dict(self) -> dict[str, Any]:
        """Fields by name, ready for JSON."""
        return asdict(self)


@contextmanager
def recorded_launches() -> Iterator[list[LaunchRecord]]:
    """Record the launches made inside the block; the list is filled when the block ends."""
    from torch_loom import _device

    records: list[LaunchRecord] = []
    _device.clear_launch_log()
    _device.enable_launch_log(True)
    try:
        yield records
    finally:
        _device.enable_launch_log(False)
        records.extend(_device.launch_log())
        _device.clear_launch_log()


def _kept_of(call: Sequence[Any]) -> list[tuple[int, ...]]:
    """Which buffers of a call lie between programs, with the bytes that each core keeps of them (0: in DDR)."""
    return [(i, *x[1:]) for i, x in enumerate(call) if isinstance(x, tuple) and len(x) == 3]


def launch_rows(records: Sequence[LaunchRecord], chip: Chip) -> list[LaunchRow]:
    """One row per launch, in order."""
    params = chip.clock_params()
    known: dict[tuple[Any, ...], LaunchRow] = {}
    rows = []
    for record in records:
        kinds = [kind for _, kind, _, _ in record.plan.args]
        # Addresses only shift a program in memory; the other numbers decide what it does, and what is kept in LX.
        numbers = [x for x, kind in zip(record.args, kinds, strict=True) if kind != ArgKind.BUFFER]
        key = (record.plan.name, record.plan.address, *numbers, *_kept_of(record.call))
        if key not in known:
            known[key] = LaunchRow.of(record.plan.name, record.plan.time(record, params))
        rows.append(known[key])
    return rows
