"""What lies in LX when: the life of every block of a core, from the credits of a timeline.

A channel guards copies (phases) of its blocks. The producer fills copy k mod phases and releases "full" for the
k-th time; the consumer reads it and releases "empty". So a copy is filled from the credit that freed it (and not
before the producer has finished the copy before) to the k-th full release, and in use from there to the k-th empty one.
Blocks without a channel are temporaries of one unit group; nothing tells when they are in use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_loom.profiler.trace import Section, Timeline
from torch_loom.spyrecode.model import Channel, Program

FILLING, USED, TEMPORARY = "filling", "used", "temporary"


@dataclass(frozen=True)
class Use:
    """A copy of a block: LX address and size in bytes, begin and end in cycles, and what happens to it."""

    block: str
    phase: int
    address: int
    bytes: int
    begin: float
    end: float
    state: str


def lx_uses(timeline: Timeline, section: Section, core: int) -> list[Use]:
    """Uses of the LX of one core in a launch, channel by channel in the order of time."""
    program = section.subject.program
    numbers = {name: number for number, name in enumerate(timeline.names)}
    out: list[Use] = []
    guarded: set[int] = set()
    for channel in program.channels:
        guarded |= set(channel.blocks)
        credits = [numbers.get(f"{channel.name}.{side}", -1) for side in ("full", "empty")]
        out += _channel_uses(section, program, channel, credits, core)
    for number, block in enumerate(program.blocks):
        if number not in guarded:
            size = block.bytes * block.phases
            out.append(Use(block.name, 0, block.address, size, section.begin, section.end, TEMPORARY))
    return out


def _channel_uses(section: Section, program: Program, channel: Channel, credits: list[int], core: int) -> list[Use]:
    flows = section.flows
    full, empty = (
        mine[np.argsort(flows.sent[mine], kind="stable")]
        for mine in (
            np.flatnonzero((flows.channel == credits[0]) & (flows.to_core == core)),
            np.flatnonzero((flows.channel == credits[1]) & (flows.from_core == core)),
        )
    )
    out: list[Use] = []
    for k, credit in enumerate(full):
        freed = k - channel.phases
        free = float(flows.seen[empty[freed]]) if 0 <= freed < len(empty) else section.begin
        before = float(flows.sent[full[k - 1]]) if k else section.begin
        ready = float(flows.sent[credit])
        over = float(flows.sent[empty[k]]) if k < len(empty) else section.end
        for b in channel.blocks:
            block, phase = program.blocks[b], k % channel.phases
            at = block.address + phase * block.bytes
            begin = min(max(free, before), ready)
            out.append(Use(block.name, phase, at, block.bytes, begin, ready, FILLING))
            out.append(Use(block.name, phase, at, block.bytes, ready, max(over, ready), USED))
    return out
