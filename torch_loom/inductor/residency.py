"""Where the buffers between the kernels of a job lie: in LX, a part on every core, or in a pool of DDR.

A job is a run of kernels that the runtime launches as one unit, so nothing touches LX between them. A buffer that is
made and used up within the job may be *kept*: core c holds its bytes [c * share, (c + 1) * share), at one address on
all cores. A kernel fetches what it needs from the holders, its own LX or another core's over the ring, and writes
there as well; as kernels are divided over the cores in order of their rows, most of it is at home. The parts lie at
the upper end of LX, above what each kernel that runs in the meantime uses itself. What does not fit, and what the
clock says is faster in DDR, goes to one pool whose bytes are used again as soon as their buffer is dead.

Everything here is a pure function of sizes; the native job checks the result once more (``csrc/runtime/job.h``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..layout import STICK_BYTES, whole_sticks

log = logging.getLogger(__name__)

# A place as the device takes it: (address or offset in the pool, bytes, share; 0 in the pool).
Place = tuple[int, int, int]


@dataclass(frozen=True)
class Between:
    """A buffer of a job: bytes, first and last step that use it, how many steps read it, cores that write it."""

    bytes: int
    first: int
    last: int
    reads: int
    cores: int

    @property
    def share(self) -> int:
        """Bytes of whole sticks that each core keeps: the rows that its writer made, if they are divided evenly."""
        return max(whole_sticks(-(-self.bytes // self.cores)), STICK_BYTES)

    @property
    def gain(self) -> float:
        """Bytes of DDR traffic saved per byte of LX and step that it takes."""
        return self.bytes * (1 + self.reads) / (self.share * (self.last - self.first + 1))

    def meets(self, other: Between) -> bool:
        """Do both live at some step?"""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Layout:
    """Places of all buffers of a job, and the bytes of its pool."""

    places: tuple[Place, ...]
    pool_bytes: int

    def kept(self, buffer: int) -> bool:
        """Does a buffer lie in LX?"""
        return self.places[buffer][2] != 0


def lay_out(buffers: Sequence[Between], used: Sequence[int], lx_bytes: int, wanted: Sequence[bool]) -> Layout:
    """Places of ``buffers``; step i uses LX up to byte ``used[i]`` itself. Only ``wanted`` buffers may lie in LX."""
    places: dict[int, Place] = {}
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].gain, i))
    for i in order:
        b = buffers[i]
        low = whole_sticks(max(used[b.first : b.last + 1]))
        taken = [(places[j][0], places[j][0] + places[j][2]) for j in places if buffers[j].meets(b)]
        at = _highest(taken, low, lx_bytes, b.share) if wanted[i] and b.bytes else None
        if at is not None:
            places[i] = (at, b.bytes, b.share)
    end = 0
    for i in sorted((i for i in range(len(buffers)) if i not in places), key=lambda i: (-buffers[i].bytes, i)):
        b = buffers[i]
        size = whole_sticks(b.bytes)
        taken = [(p[0], p[0] + whole_sticks(p[1])) for j, p in places.items() if not p[2] and buffers[j].meets(b)]
        at = _lowest(taken, size)
        places[i] = (at, b.bytes, 0)
        end = max(end, at + size)
    return Layout(tuple(places[i] for i in range(len(buffers))), end)


def demand(buffers: Sequence[Between], layout: Layout) -> int:
    """The most bytes of the pool that live at one step: no pool can be smaller."""
    steps = range(max((b.last for b in buffers), default=-1) + 1)
    sizes = [0 if layout.kept(i) else whole_sticks(b.bytes) for i, b in enumerate(buffers)]
    return max(
        (sum(s for s, b in zip(sizes, buffers, strict=True) if b.first <= t <= b.last) for t in steps), default=0
    )


def _highest(taken: Sequence[tuple[int, int]], low: int, high: int, size: int) -> int | None:
    """Highest place for ``size`` bytes in [low, high) beside what is taken."""
    end = high
    for first, last in sorted(taken, key=lambda t: t[1], reverse=True):
        if end - last >= size:
            break
        end = min(end, first)
    return end - size if end - size >= low else None


def _lowest(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Lowest place for ``size`` bytes beside what is taken."""
    at = 0
    for first, last in sorted(taken):
        if first - at >= size:
            break
        at = max(at, last)
    return at


def choose(
    buffers: Sequence[Between],
    used: Sequence[int],
    lx_bytes: int,
    users: Sequence[Sequence[int]],
    time: Callable[[int, Layout], float],
) -> Layout:
    """Places such that no buffer is kept in LX where DDR is faster.

    ``users[i]`` are the steps that use buffer i; ``time`` gives ns of a step under a layout. Every step is timed with
    all that fits in LX and with nothing there; where LX loses, its buffers are moved out one by one as long as that
    pays."""
    wanted = [True] * len(buffers)
    best = lay_out(buffers, used, lx_bytes, wanted)
    none = lay_out(buffers, used, lx_bytes, [False] * len(buffers))
    kept = [i for i in range(len(buffers)) if best.kept(i)]
    steps = sorted({s for i in kept for s in users[i]})
    slow = {s for s in steps if time(s, best) > time(s, none)}
    for i in kept:
        if not slow.intersection(users[i]):
            continue
        without = lay_out(buffers, used, lx_bytes, [w and j != i for j, w in enumerate(wanted)])
        before, after = (sum(time(s, way) for s in steps) for way in (best, without))
        if after < before:
            wanted[i], best = False, without
    if log.isEnabledFor(logging.DEBUG):
        _explain(buffers, users, best, none, time)
    return best


def _explain(
    buffers: Sequence[Between],
    users: Sequence[Sequence[int]],
    best: Layout,
    none: Layout,
    time: Callable[[int, Layout], float],
) -> None:
    """Log each buffer's place with the cost of both, and what the pool needs (``TORCH_LOGS="+loom"``)."""
    for i, b in enumerate(buffers):
        with_it, in_ddr = (sum(time(s, way) for s in users[i]) for way in (best, none))
        place, _, share = best.places[i]
        where = f"LX {place}..{place + share} of each core" if share else f"DDR pool {place}"
        log.debug(
            "buffer %d, %d bytes, steps %d..%d: %s; its kernels take %.0f ns, with all buffers in DDR %.0f ns",
            *(i, b.bytes, b.first, b.last, where, with_it, in_ddr),
        )
    log.debug("pool of %d bytes, at most %d live at once", best.pool_bytes, demand(buffers, best))
