"""S1, S3, S5: both ends of a channel exchange the same credits. S4, S6: nobody waits for ever.

Deadlock is decided by running the synchronisation alone. Trip counts are replaced by small ones: every
loop count that occurs is tried with 0, 1 and phases + 1 iterations in all combinations (beyond four
different counts, all equal ones). Both ends of a channel stand in loops of equal counts, so longer runs
repeat what these runs show.

A program whose cores exchange data is run on all cores together, every loop equally often on each core unless its
count follows from the core number. Partners must follow from the core number, too, so the run shows exactly that
all messages that are sent are received.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.interpret import Core, DataflowError, Env, Segment, evaluate, interleave
from torch_loom.scheduler.streams import ChannelInfo, Streams

Found = Iterator[tuple[str, str]]
_COMBINED = 4
_CREDITS = (df.AcquireOp, df.ReleaseOp, df.RingAcquireOp, df.RingReleaseOp)


def credits_match(s: Streams) -> Found:
    """Per unit, a channel alternates acquire and release in one body; the nests of both ends are equal."""
    nests: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for unit in s.units:
        open_: dict[str, tuple[str, ...]] = {}
        for op, loops in s.walk(unit):
            if not isinstance(op, _CREDITS):
                continue
            channel = s.channels.get(op.channel.data)
            if channel is None:
                yield "S5", f"{unit} uses the channel '{op.channel.data}', which is not declared"
                continue
            role = _role(unit, op, channel)
            if role is None:
                yield "S5", f"{unit} {op.name.split('.')[1]}s {op.side.data} of '{channel.name}', which is not its end"
                continue
            between = isinstance(op, df.RingAcquireOp | df.RingReleaseOp)
            if between != channel.ring:
                yield "S5", f"'{channel.name}' is {'' if channel.ring else 'not '}a channel between cores"
                continue
            name = channel.name
            if isinstance(op, df.RingAcquireOp | df.RingReleaseOp):
                core = op.core
                name = f"{name} of core {core if isinstance(core, int) else s.slots.get(core, '?')}"
            if isinstance(op, df.AcquireOp | df.RingAcquireOp):
                if name in open_:
                    yield "S1", f"{unit} acquires '{name}' twice without a release"
                open_[name] = loops
                nests.setdefault((channel.name, role), []).append(loops)
            elif open_.pop(name, None) != loops:
                yield "S1", f"{unit} releases '{name}' without an acquire in the same body"
        for name in open_:
            yield "S1", f"{unit} never gives back the credit of '{name}'"
    for name, channel in s.channels.items():
        producing, consuming = nests.get((name, "producer"), []), nests.get((name, "consumer"), [])
        if channel.ring:  # how many cores exchange messages is for the run on all cores to tell
            producing, consuming = list(set(producing)), list(set(consuming))
        if sorted(producing) != sorted(consuming):
            yield "S3", f"the ends of '{name}' run in different loops: {producing} and {consuming}"


def _role(unit: str, op: Any, channel: ChannelInfo) -> str | None:
    producing = isinstance(op, df.AcquireOp | df.RingAcquireOp) == (op.side.data == "empty")
    role = "producer" if producing else "consumer"
    return role if unit == (channel.producer if producing else channel.consumer) else None


def no_deadlock(s: Streams) -> Found:
    """Run all units on credits and segments only, for small trip counts."""
    for unit in s.units:
        for _ in s.walk(unit):
            pass
    counts = sorted(set(s.counts.values()))
    deepest = max((c.phases for c in s.channels.values()), default=1) + 1
    choices = (0, 1, deepest)
    rings = {c.name for c in s.channels.values() if c.ring}
    cores = s.program.cores.data if rings else 1
    combined = len(counts) <= _COMBINED and not rings
    trials = product(choices, repeat=len(counts)) if combined else ((n,) * len(counts) for n in choices)
    for trial in trials:
        trips = dict(zip(counts, trial, strict=True))
        try:
            together = [_DryCore(s, trips, rings, c, deepest) for c in range(cores)]
            interleave(list(together), s.units, random.Random(0))
        except DataflowError as stuck:
            shown = ", ".join(f"{c} = {n}" for c, n in trips.items()) or "no loops"
            yield "S4", f"{stuck} with trip counts {shown}"
            return


class _DryCore(Core):
    """The interpreter's core without memory: loops run as often as told, nothing is moved or computed."""

    def __init__(self, s: Streams, trips: dict[str, int], rings: set[str], number: int, most: int) -> None:
        self.number = number
        self.races = None
        self.most = most
        self.slots = _of_core(s, number) if rings else {}
        self._counts = {op: trips[text] for op, text in s.counts.items()}
        self._reset({c.name: c.phases for c in s.channels.values() if not c.ring}, rings)

    def _trips(self, op: df.LoopOp, env: Env) -> int:
        count = op.count
        if not isinstance(count, int) and count in env:
            return min(env[count], self.most)
        return self._counts[op]

    def _peer(self, op: Any, env: Env) -> int:
        core: df.Number = op.numbers()[0]
        if isinstance(core, int):
            return core
        if core not in env:
            raise DataflowError(f"the partner of core {self.number} at {op.name} does not follow from the core number")
        return env[core]

    def _let(self, op: df.LetOp, env: Env) -> None:
        return None

    def _numbers(self, op: Any, env: Env) -> list[int]:
        return [0]

    def _address(self, unit: str, block: str, channel: str, offset: int) -> int:
        return 0

    def _send(self, op: df.RingCopyOp, n: list[int]) -> None:
        return None

    def _copy(self, unit: str, op: df.CopyOp, n: list[int]) -> None:
        return None

    def _run(self, s: Segment) -> None:
        return None


def _of_core(s: Streams, number: int) -> Env:
    """Slots that follow from the core number alone."""
    found: Env = {}
    for op in s.program.body.block.ops:
        if isinstance(op, df.SlotOp) and op.scope.data == "core":
            try:
                found[op.result] = evaluate(op.expr.data, {"core": number})
            except KeyError:  # also names a symbol
                continue
    return found
