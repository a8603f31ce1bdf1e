"""A timeline as Chrome trace JSON, which the public Perfetto viewer opens.

Process 0 shows the launches, process 1 the chip (DDR, ring), process 2 + n core n; a thread is a track. Slices of
one thread must nest, so spans that overlap on a track go to further threads of the same name. Credits are flow
arrows ("s" to "f"). A flow end belongs to a slice of its thread: the start to the last slice begun by then, the end
to the first slice that begins when the credit was seen, or to the wait that it ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_loom.profiler.trace import BUSY, TRANSFER, WAIT, Section, Spans, Timeline

_KINDS = {BUSY: "busy", WAIT: "wait", TRANSFER: "transfer"}
_COLORS = {WAIT: "grey"}
_LANES = 64  # threads of a track
_FIRST_CORE = 2


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The whole trace as an object ready for JSON. Times are microseconds of modelled time."""
    events = list(_names(timeline))
    number = 0
    for section in timeline.sections:
        lanes = lanes_of(section.spans)
        events.append(_launch(section, timeline))
        events += _slices(section, lanes, timeline)
        flows = list(_flows(section, lanes, timeline, number))
        number += len(flows) // 2
        events += flows
    if timeline.notice:
        last = max((section.end for section in timeline.sections), default=0.0)
        events.append({"ph": "i", "name": timeline.notice, "pid": 0, "tid": 0, "ts": _us(timeline, last), "s": "g"})
    other = {"chip": timeline.chip.name, "clock": "modelled time", "notice": timeline.notice}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def chrome_text(timeline: Timeline) -> str:
    """``chrome_trace`` as text."""
    return json.dumps(chrome_trace(timeline), separators=(",", ":"))


def lanes_of(spans: Spans) -> NDArray[np.int32]:
    """For each span the lane of its track on which it overlaps no other: the first that is free."""
    lanes = np.zeros(len(spans), np.int32)
    free: dict[tuple[int, int], list[float]] = {}
    for index in np.lexsort((-spans.end, spans.begin)):
        ends = free.setdefault((int(spans.core[index]), int(spans.track[index])), [])
        begin = spans.begin[index]
        lane = next((k for k, end in enumerate(ends) if end <= begin), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = float(spans.end[index])
        lanes[index] = lane
    return np.minimum(lanes, _LANES - 1)


def _us(timeline: Timeline, cycles: float) -> float:
    return round(cycles * 1e6 / timeline.chip.clock_hz, 6)


def _pid(core: int) -> int:
    return core + _FIRST_CORE if core >= 0 else 1


def _tid(track: int, lane: int) -> int:
    return 1 + track * _LANES + lane


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Names and order of processes and threads."""
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "launches"}}
    yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "kernels"}}
    seen: set[tuple[int, int, int]] = set()
    for section in timeline.sections:
        spans = section.spans
        seen |= set(zip(spans.core.tolist(), spans.track.tolist(), lanes_of(spans).tolist(), strict=True))
    for core in sorted({core for core, _, _ in seen}):
        name = f"core {core}" if core >= 0 else "chip"
        yield {"ph": "M", "name": "process_name", "pid": _pid(core), "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": _pid(core), "tid": 0, "args": {"sort_index": _pid(core)}}
    for core, track, lane in sorted(seen):
        where = {"pid": _pid(core), "tid": _tid(track, lane)}
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": timeline.tracks[track]}}
        yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": _tid(track, lane)}}


def _launch(section: Section, timeline: Timeline) -> dict[str, Any]:
    begin = _us(timeline, section.begin)
    figures = section.figures
    return {
        "ph": "X",
        "name": figures.name,
        "cat": "launch",
        "pid": 0,
        "tid": 0,
        "ts": begin,
        "dur": _us(timeline, section.end) - begin,
        "args": {"critical": figures.bottleneck, "ns": figures.ns, **figures.shares},
    }


def _slices(section: Section, lanes: NDArray[np.int32], timeline: Timeline) -> Iterator[dict[str, Any]]:
    spans = section.spans
    rows = zip(
        spans.core.tolist(),
        spans.track.tolist(),
        lanes.tolist(),
        spans.begin.tolist(),
        spans.end.tolist(),
        spans.what.tolist(),
        spans.kind.tolist(),
        strict=True,
    )
    for core, track, lane, begin, end, what, kind in rows:
        start = _us(timeline, begin)
        slice_ = {
            "ph": "X",
            "name": timeline.names[what],
            "cat": _KINDS[kind],
            "pid": _pid(core),
            "tid": _tid(track, lane),
            "ts": start,
            "dur": max(_us(timeline, end) - start, 0.0),
        }
        if kind in _COLORS:
            slice_["cname"] = _COLORS[kind]
        yield slice_


class _Thread:
    """The spans of one track of a core by their begin: finds the slice that a credit belongs to."""

    def __init__(self, spans: Spans, members: NDArray[np.intp]) -> None:
        self.members = members[np.argsort(spans.begin[members], kind="stable")]
        self.begin = spans.begin[self.members]
        self.spans = spans

    def started_by(self, time: float) -> int | None:
        """The last span begun at or before ``time``."""
        at = int(np.searchsorted(self.begin, time, side="right")) - 1
        return int(self.members[at]) if at >= 0 else None

    def wakes_at(self, time: float) -> int | None:
        """The first span that is no wait and begins at ``time`` or later, else the one running then."""
        at = int(np.searchsorted(self.begin, time, side="left"))
        while at < len(self.members) and self.spans.kind[self.members[at]] == WAIT:
            at += 1
        return int(self.members[at]) if at < len(self.members) else self.started_by(time)


def _flows(section: Section, lanes: NDArray[np.int32], timeline: Timeline, first: int) -> Iterator[dict[str, Any]]:
    spans, flows = section.spans, section.flows
    threads = {key: _Thread(spans, members) for key, members in _by_thread(spans).items()}
    number = first
    for index in range(len(flows)):
        source = threads.get((int(flows.from_core[index]), int(flows.from_track[index])))
        target = threads.get((int(flows.to_core[index]), int(flows.to_track[index])))
        sent, seen = float(flows.sent[index]), float(flows.seen[index])
        leaves = source.started_by(sent) if source else None
        arrives = target.wakes_at(seen) if target else None
        if leaves is None or arrives is None:
            continue
        start = _place(spans, lanes, leaves, sent, timeline)
        end = _place(spans, lanes, arrives, max(seen, sent), timeline)
        if end["ts"] < start["ts"]:  # the slice that the credit woke was cut off, or there is none
            continue
        number += 1
        base = {"cat": "credit", "name": timeline.names[int(flows.channel[index])], "id": number}
        yield {**base, "ph": "s", **start}
        yield {**base, "ph": "f", "bp": "e", **end}


def _place(spans: Spans, lanes: NDArray[np.int32], index: int, time: float, timeline: Timeline) -> dict[str, Any]:
    """Thread and time of a flow end inside span ``index``, as near to ``time`` as the span allows.

    Viewers count in ns and take a slice as over at its end, so the last ns is left out."""
    tick = timeline.chip.clock_hz * 1e-9
    inside = max(min(time, float(spans.end[index]) - tick), float(spans.begin[index]))
    return {
        "pid": _pid(int(spans.core[index])),
        "tid": _tid(int(spans.track[index]), int(lanes[index])),
        "ts": _us(timeline, inside),
    }


def _by_thread(spans: Spans) -> dict[tuple[int, int], NDArray[np.intp]]:
    """Indices of the spans of each (core, track)."""
    if not len(spans):
        return {}
    key = (spans.core.astype(np.int64) + 1) * 256 + spans.track
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    groups = np.split(order, cuts)
    return {(int(spans.core[g[0]]), int(spans.track[g[0]])): g for g in groups}
