"""S8: cores do not touch DDR bytes that another one writes. S10: a core's loads and stores of the same bytes are
ordered, so no iteration depends on when another one's transfers happen to run.

Decided on instances: sizes get a few values within their bounds, buffers lie apart, and the program runs without data
on the first, middle and last cores (all of them when they exchange data), each loop with its first, second and last
iteration. Every transfer leaves the byte ranges it touches (of large boxes the first, second and last index per dim)
and its vector clock, which follows credits as in the race detector. What is reported did meet in an instance; transfers
whose addresses come from data (gathers, scatters, lane splits) are the race detector's to watch.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.interpret import Core, DataflowError, Env, Segment, evaluate, interleave
from torch_loom.scheduler.races import CoreRaces, Races
from torch_loom.scheduler.streams import Streams, SymbolInfo

Found = Iterator[tuple[str, str]]
Where = NDArray[np.int64]

_SIZES = (65, 1000)  # what symbolic sizes are tried with
_APART = 1 << 42  # bytes between buffers


@dataclass(frozen=True)
class _Access:
    """Byte ranges [start, end) of one buffer that a transfer touches, and when."""

    core: int
    unit: str
    arg: str
    starts: Where
    ends: Where
    write: bool
    clock: dict[str, int]
    what: str

    @property
    def key(self) -> str:
        return f"{self.core} {self.unit}"

    def before(self, other: _Access) -> bool:
        """True if credits order this access before the other one."""
        return other.clock.get(self.key, 0) >= self.clock[self.key]


def ddr_order(s: Streams) -> Found:
    """Run the instances and compare what they touched."""
    sizes = [x for x in s.symbols if x.kind == "DIM"]
    rings = any(c.ring for c in s.channels.values())
    told: set[tuple[str, str]] = set()
    for size in _SIZES[: 2 if sizes else 1]:
        accesses = _run(s, [_sample(x, k, size) for k, x in enumerate(s.symbols)], rings)
        by_arg: dict[str, list[_Access]] = defaultdict(list)
        for a in accesses:
            by_arg[a.arg].append(a)
        chosen = ", ".join(f"{x.name} = {_sample(x, 0, size)}" for x in sizes)
        for arg, found in by_arg.items():
            if not any(a.write for a in found):
                continue
            for code, clash in (("S8", _between_cores(found, rings)), ("S10", _within_core(found))):
                if clash is not None and (code, arg) not in told:
                    told.add((code, arg))
                    yield code, _message(arg, clash, s, chosen)


def _message(arg: str, clash: tuple[_Access, _Access, int], s: Streams, chosen: str) -> str:
    a, b, at = clash
    base = _APART * (1 + next(k for k, x in enumerate(s.symbols) if x.name == arg))
    verbs = ["writes" if x.write else "reads" for x in (a, b)]
    where = f" with {chosen}" if chosen else ""
    return (
        f"core {a.core} {verbs[0]} and core {b.core} {verbs[1]} byte {at - base} of '{arg}' and nothing orders "
        f"them ({a.what} and {b.what}){where}"
    )


def _sample(symbol: SymbolInfo, number: int, size: int) -> int:
    if symbol.kind == "ADDRESS":
        return _APART * (1 + number)
    if symbol.kind != "DIM":
        return 1
    return max(symbol.minimum, min(symbol.maximum, size) // symbol.granularity * symbol.granularity)


def _run(s: Streams, symbols: list[int], rings: bool) -> list[_Access]:
    """What the transfers of an instance touch; nothing when it cannot run, which other checks report."""
    count = s.program.cores.data
    numbers = range(count) if rings else sorted({c for m in (0, count // 2, count - 2) for c in (m, m + 1, m + 2)})
    cores = [_Traced(s, n, symbols) for n in numbers if 0 <= n < count]
    try:
        for together in [cores] if rings else [[c] for c in cores]:
            interleave(list(together), s.units, random.Random(0))
    except DataflowError:
        return []
    return [a for c in cores for a in c.accesses]


def _between_cores(found: list[_Access], rings: bool) -> tuple[_Access, _Access, int] | None:
    """Two accesses of different cores that meet, one of them a write, without order."""
    for core in sorted({a.core for a in found}):
        others = [a for a in found if a.core != core]
        if not others:
            continue
        starts = np.concatenate([a.starts for a in others])
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        reach = np.maximum.accumulate(np.concatenate([a.ends for a in others])[order])
        for a in found:
            if a.core != core or not a.write:
                continue
            # Of all ranges that begin before this one ends, does any end after this one begins?
            last = np.searchsorted(starts, a.ends) - 1
            if not ((last >= 0) & (reach[np.maximum(last, 0)] > a.starts)).any():
                continue
            for b in others:
                at = _meet(a, b)
                if at is not None and not (rings and (a.before(b) or b.before(a))):
                    return a, b, at
    return None


def _within_core(found: list[_Access]) -> tuple[_Access, _Access, int] | None:
    """A load and a store of one core that meet without order."""
    for load in found:
        for store in found if not load.write else ():
            if not store.write or store.core != load.core or load.before(store) or store.before(load):
                continue
            at = _meet(load, store)
            if at is not None:
                return load, store, at
    return None


def _meet(a: _Access, b: _Access) -> int | None:
    """The first common byte."""
    low = np.maximum(a.starts[:, None], b.starts[None])
    common = low[low < np.minimum(a.ends[:, None], b.ends[None])]
    return int(common.min()) if common.size else None


class _Traced(Core):
    """The interpreter's core without memory, which keeps what its transfers touch."""

    def __init__(self, s: Streams, number: int, symbols: list[int]) -> None:
        self.number = number
        self._reset({c.name: c.phases for c in s.channels.values() if not c.ring})
        self.rings = {c.name for c in s.channels.values() if c.ring}
        self.races = CoreRaces(Races(0), number, 0, self.phases)
        leaf = {f"s{k}": v for k, v in enumerate(symbols)} | {"core": number}
        slots = [op for op in s.program.body.block.ops if isinstance(op, df.SlotOp)]
        self.slots: Env = {op.result: evaluate(op.expr.data, leaf) for op in slots}
        self.accesses: list[_Access] = []

    def _iterations(self, op: df.LoopOp, env: Env) -> Iterable[int]:
        return _few(0, self._trips(op, env)).tolist()

    def _address(self, unit: str, block: str, channel: str, offset: int) -> int:
        return 0

    def _send(self, op: df.RingCopyOp, n: list[int]) -> None:
        return None

    def _run(self, s: Segment) -> None:
        return None

    def _copy(self, unit: str, op: df.CopyOp, n: list[int]) -> None:
        if op.gathers.data or op.elems.data:
            return
        ranges = _ranges(op.rank.data, op.leaf.data, n, unit == "MNISU")
        if ranges is not None:
            assert self.races is not None
            clock = dict(self.races._clock(self.races._unit(unit)))
            what = op.where.data if op.where is not None else f"a transfer of {unit}"
            self.accesses.append(_Access(self.number, unit, op.arg.data, *ranges, unit == "MNISU", clock, what))


def _few(low: int, high: int) -> Where:
    """The first two and the last index of a range."""
    return np.unique([i for i in (low, low + 1, high - 1) if low <= i < high]).astype(np.int64)


def _ranges(rank: int, leaf: int, n: list[int], store: bool) -> tuple[Where, Where] | None:
    """Byte ranges of a box; contiguous dims become one range. None if the box is empty."""
    dims = [(max(n[k + 1], 0), min(n[k + 2], n[k]), n[k + 3]) for k in range(4, 4 + 5 * rank, 5)]
    if any(high <= low for low, high, _ in dims):
        return None
    starts, ends = np.array([n[0]], np.int64), np.array([n[0] + leaf], np.int64)
    if dims:
        low, high, stride = dims.pop()
        first, last = low * leaf, high * leaf
        if store:  # the byte mask counts along the innermost dim
            first, last = max(first, n[2]), min(last, n[3])
        if last <= first:
            return None
        if stride == leaf:
            starts, ends = n[0] + np.array([first]), n[0] + np.array([last])
        else:
            index = _few(first // leaf, -(-last // leaf))
            at = n[0] + index * stride
            starts = at + np.maximum(first - index * leaf, 0)
            ends = at + np.minimum(last - index * leaf, leaf)
    for low, high, stride in reversed(dims):
        if len(starts) == 1 and stride == ends[0] - starts[0]:
            starts, ends = starts + low * stride, ends + (high - 1) * stride
        else:
            steps = _few(low, high)[:, None] * stride
            starts, ends = (starts + steps).ravel(), (ends + steps).ravel()
    return starts, ends
