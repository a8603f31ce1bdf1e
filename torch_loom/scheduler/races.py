"""Race detector of the DataflowIR interpreter (``--check-races``).

Every unit of a core carries a vector clock. A release hands the unit's clock to the credit it gives, an
acquire joins the clock of the credit it takes, and the compute group joins its clocks at every segment.
Credits between cores carry clocks like local ones.
LX is watched in granules of 64 bytes: last writer, readers since. An access that does not come after the
last write (or a write that does not come after all reads) in this order is a race, even if this run
happened to do it in a harmless order. DDR is watched per byte across cores, which nothing orders: a byte
written by one core and touched by another is a race. LX bytes that are read before anything wrote them
are reported as well, except where other cores' messages land: cores outside an exchange may read there what
nobody uses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GRANULE = 64
_GROUP = ("L1LU", "PT", "SFU", "L1SU")
_MAX_REPORTS = 20

Clock = dict[str, int]
Where = NDArray[np.int64]


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders (or an access to what was never written)."""

    kind: str  # "lx", "ddr", "uninitialised" or "shared"
    core: int
    message: str

    def __str__(self) -> str:
        return f"core {self.core}: {self.message}"


class CoreRaces:
    """State of one core."""

    def __init__(self, owner: Races, core: int, lx_bytes: int, channels: dict[str, int]) -> None:
        self.owner, self.core = owner, core
        self.clocks: dict[str, Clock] = {}
        self.credits: dict[tuple[str, str], deque[Clock]] = {}
        for name, phases in channels.items():
            self.credits[name, "empty"] = deque({} for _ in range(phases))
            self.credits[name, "full"] = deque()
        self.writers: dict[int, tuple[str, int, str]] = {}
        self.readers: dict[int, dict[str, tuple[int, str]]] = {}
        self.written = np.zeros(lx_bytes, dtype=bool)
        self.ring: dict[tuple[str, str, int], Clock] = {}

    def landing(self, start: int, size: int) -> None:
        """A block that other cores fill."""
        self.written[start : start + size] = True

    def _unit(self, unit: str) -> str:
        return f"{self.core} {'group' if unit in _GROUP else unit}"

    def _clock(self, unit: str) -> Clock:
        return self.clocks.setdefault(unit, {unit: 1})

    def acquire(self, unit: str, channel: str, side: str) -> None:
        """Join what the credit carries."""
        clock = self._clock(self._unit(unit))
        for u, t in self.credits[channel, side].popleft().items():
            clock[u] = max(clock.get(u, 0), t)

    def release(self, unit: str, channel: str, side: str) -> None:
        """Give the unit's clock away; later work of the unit is not covered by it."""
        unit = self._unit(unit)
        clock = self._clock(unit)
        self.credits[channel, side].append(dict(clock))
        clock[unit] += 1

    def ring_acquire(self, unit: str, key: tuple[str, str, int]) -> None:
        """Join what a credit of another core carries."""
        clock = self._clock(self._unit(unit))
        for u, t in self.ring.pop(key, {}).items():
            clock[u] = max(clock.get(u, 0), t)

    def ring_release(self, unit: str, other: CoreRaces, key: tuple[str, str, int]) -> None:
        """Give the unit's clock to another core."""
        unit = self._unit(unit)
        clock = self._clock(unit)
        other.ring[key] = dict(clock)
        clock[unit] += 1

    def access(self, unit: str, where: Where, size: int, write: bool, what: str, by: CoreRaces | None = None) -> None:
        """A unit (of core ``by`` if given) touches ``size`` bytes at each LX address of ``where``."""
        if not where.size:
            return
        actor = by or self
        unit = actor._unit(unit)
        clock = actor._clock(unit)
        flat = where.ravel()
        self._initialised(flat, size, write, what)
        touched = np.union1d(flat // GRANULE, (flat + size - 1) // GRANULE)
        for g in touched.tolist():
            last = self.writers.get(g)
            if last is not None and clock.get(last[0], 0) < last[1]:
                self._report(g, last[2], "writes", what, write)
            if write:
                for reader, (time, other) in self.readers.pop(g, {}).items():
                    if reader != unit and clock.get(reader, 0) < time:
                        self._report(g, other, "reads", what, write)
                self.writers[g] = (unit, clock[unit], what)
            else:
                self.readers.setdefault(g, {})[unit] = (clock[unit], what)

    def _initialised(self, flat: Where, size: int, write: bool, what: str) -> None:
        for k in range(size):
            if write:
                self.written[flat + k] = True
            elif not self.written[flat + k].all():
                first = int(flat[~self.written[flat + k]][0])
                message = f"{what} reads LX byte {first} before it is written"
                self.owner.report(Race("uninitialised", self.core, message))
                return

    def _report(self, granule: int, first: str, did: str, second: str, write: bool) -> None:
        verb = "writes" if write else "reads"
        place = f"LX bytes {granule * GRANULE}.."
        message = f"{first} {did} and {second} {verb} {place} and no channel orders them"
        self.owner.report(Race("lx", self.core, message))


class Races:
    """Collects races of one run."""

    def __init__(self, ddr_bytes: int) -> None:
        self.found: list[Race] = []
        self._writer = np.full(ddr_bytes, -1, dtype=np.int32)
        self._reader = np.full(ddr_bytes, -1, dtype=np.int32)  # -2: several cores
        self._shared: dict[tuple[int, int], tuple[int, str, dict[int, list[int]]]] = {}

    def core(self, number: int, lx_bytes: int, channels: dict[str, int]) -> CoreRaces:
        """State of one core."""
        return CoreRaces(self, number, lx_bytes, channels)

    def report(self, race: Race) -> None:
        """Keep a race, up to a limit."""
        if len(self.found) < _MAX_REPORTS and race not in self.found:
            self.found.append(race)

    def share(self, core: int, load: int, group: int, sharers: int, bytes_: Where, what: str) -> None:
        """A core executes a load that it says it shares."""
        _, _, fetched = self._shared.setdefault((load, group), (sharers, what, {}))
        fetched.setdefault(core, []).append(hash(bytes_.tobytes()))

    def finish(self) -> None:
        """At the end of a run: the cores of a group have fetched the same bytes equally often."""
        for (_, group), (sharers, what, fetched) in self._shared.items():
            if len(fetched) != sharers:
                message = f"{what}: {len(fetched)} cores load as group {group}, which has {sharers}"
                self.report(Race("shared", min(fetched), message))
            first = min(fetched)
            for core, fetches in fetched.items():
                if fetches != fetched[first]:
                    message = f"{what} shares other bytes than core {first} of group {group}"
                    self.report(Race("shared", core, message))

    def ddr(self, core: int, bytes_: Where, write: bool, what: str) -> None:
        """A core touches DDR bytes."""
        if not bytes_.size:
            return
        owners = self._writer[bytes_]
        clash = (owners >= 0) & (owners != core)
        if write:
            readers = self._reader[bytes_]
            clash |= (readers != -1) & (readers != core)
        if clash.any():
            k = int(np.flatnonzero(clash)[0])
            other = int(owners[k]) if owners[k] >= 0 and owners[k] != core else int(self._reader[bytes_[k]])
            who = f"core {other}" if other >= 0 else "other cores"
            verb = "writes" if write else "reads"
            message = f"{what} {verb} DDR byte {int(bytes_[k])}, which {who} touch unordered"
            self.report(Race("ddr", core, message))
        if write:
            self._writer[bytes_] = core
        else:
            readers = self._reader[bytes_]
            self._reader[bytes_] = np.where((readers == -1) | (readers == core), core, -2)
