"""One row per kernel launch: what the clock says about it.

The clock needs no data, only the numbers of a launch, so launches of one plan with equal numbers share
one evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torch_loom.arch import Chip
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import ArgKind, Program


class ClockError(ValueError):
    """A program that cannot be timed: an argument is missing, unknown or refused by the program."""


class Timing(Protocol):
    """What the clock returns for a launch."""

    ns: float
    pt_util: float
    sfu_util: float
    ddr_read_bytes: int
    ddr_write_bytes: int
    bottleneck: str


class Plan(Protocol):
    """A prepared kernel of the device, seen from here."""

    name: str
    address: int
    args: Sequence[tuple[str, int, int, int]]

    def time(self, args: Any, clock_params: Mapping[str, float]) -> Timing:
        """Timing of a launch record of this plan."""


class LaunchRecord(Protocol):
    """One launch as the device recorded it: plan and numbers (buffers by address)."""

    plan: Plan
    args: Sequence[int | float]


@dataclass(frozen=True)
class LaunchRow:
    """Clock figures of one launch: microseconds, busy shares 0..1, bytes read and written."""

    name: str
    modelled_us: float
    pt_util: float
    sfu_util: float
    ddr_bytes: int
    bottleneck: str

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


def launch_rows(records: Sequence[LaunchRecord], chip: Chip) -> list[LaunchRow]:
    """One row per launch, in order."""
    params = chip.clock_params()
    known: dict[tuple[Any, ...], LaunchRow] = {}
    rows = []
    for record in records:
        kinds = [kind for _, kind, _, _ in record.plan.args]
        # Addresses only shift a program in memory; the other numbers decide what it does.
        numbers = [x for x, kind in zip(record.args, kinds, strict=True) if kind != ArgKind.BUFFER]
        key = (record.plan.name, record.plan.address, *numbers)
        if key not in known:
            known[key] = LaunchRow.of(record.plan.name, record.plan.time(record, params))
        rows.append(known[key])
    return rows


def time_program(program: Program, sizes: Mapping[str, int], chip: Chip) -> LaunchRow:
    """Row of a program for given sizes, without buffers: each gets a gigabyte of its own."""
    arguments: list[tuple[int, int] | int] = []
    for position, arg in enumerate(program.args):
        if arg.kind is ArgKind.BUFFER:
            arguments.append(((position + 1) << 30, 1 << 30))
        elif arg.name in sizes:
            arguments.append(sizes[arg.name])
        else:
            raise ClockError(f"{program.name}: give argument {arg.name!r} a value")
    numbers = [arg.name for arg in program.args if arg.kind is not ArgKind.BUFFER]
    unknown = sorted(sizes.keys() - set(numbers))
    if unknown:
        known = ", ".join(numbers) or "none"
        raise ClockError(f"{program.name} has no size {', '.join(unknown)}; its numbers are: {known}")
    from torch_loom import _chip

    try:
        timing = _chip.time(_chip.decode(encode(program)), arguments, chip.clock_params())
    except RuntimeError as error:
        raise ClockError(f"{program.name}: {error}") from None
    return LaunchRow.of(program.name, timing)
