"""The timeline of launches: what every unit did when, and which credits passed between units.

The native clock gives spans and credits of one launch as arrays; a ``Timeline`` puts launches one after another.
Times are cycles of the chip from the start of the first launch. A core number of -1 is the chip as a whole (DDR, ring).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_loom.arch import Chip
from torch_loom.profiler.figures import Figures
from torch_loom.profiler.launches import LaunchRecord
from torch_loom.profiler.subject import Subject

Ints = NDArray[np.int32]
Times = NDArray[np.float64]

BUSY, WAIT, TRANSFER = 0, 1, 2  # kinds of a span
MAX_SPANS = 100_000


@dataclass(frozen=True)
class Spans:
    """Parallel arrays, one entry per span: core, track (number in ``Timeline.tracks``), begin and end in cycles,
    what (number in ``Timeline.names``) and kind."""

    core: Ints
    track: Ints
    begin: Times
    end: Times
    what: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.core)


@dataclass(frozen=True)
class Flows:
    """Parallel arrays, one entry per credit: sent from a track of a core, seen by a track of a core, in cycles, and
    which credit it is (number in ``Timeline.names`` of "channel.full" or "channel.empty")."""

    from_core: Ints
    from_track: Ints
    sent: Times
    to_core: Ints
    to_track: Ints
    seen: Times
    channel: Ints

    def __len__(self) -> int:
        return len(self.channel)


@dataclass(frozen=True)
class Section:
    """One launch in a timeline: figures, begin and end in cycles, its spans and credits. ``truncated``: the launch
    has more spans than were kept."""

    subject: Subject
    figures: Figures
    begin: float
    end: float
    spans: Spans
    flows: Flows
    truncated: bool


@dataclass(frozen=True)
class Timeline:
    """Launches one after another. ``left_out`` launches did not fit the limit of spans and are missing."""

    chip: Chip
    tracks: list[str]
    names: list[str]
    sections: list[Section]
    left_out: int

    @property
    def notice(self) -> str:
        """What is missing, in words; empty for a complete timeline."""
        cut = sum(section.truncated for section in self.sections)
        parts = []
        if cut:
            parts.append(f"{cut} of {len(self.sections)} launches end early")
        if self.left_out:
            parts.append(f"{self.left_out} launches are missing")
        kept = sum(len(section.spans) for section in self.sections)
        return f"cut at {kept} spans: {' and '.join(parts)}; a higher --max-spans shows more" if parts else ""


def timeline(subjects: Sequence[Subject], chip: Chip, max_spans: int = MAX_SPANS) -> Timeline:
    """Trace every launch of every subject, at most ``max_spans`` spans in all. Raises ``ClockError``.

    The limit is shared: a launch gets what the ones before it left over, so the first launches are complete."""
    launches = [subject for subject in subjects for _ in range(subject.launches)]
    names: dict[str, int] = {}
    tracks: dict[str, int] = {}
    sections: list[Section] = []
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    at, left = 0.0, max_spans
    for number, subject in enumerate(launches):
        if left <= 0:
            return Timeline(chip, list(tracks), list(names), sections, len(launches) - number)
        key = (subject.image, tuple(subject.call))
        if key not in known:
            known[key] = subject.trace(chip, max_spans)
        section = _section(subject, known[key], chip, at, left, tracks, names)
        sections.append(section)
        left -= len(section.spans)
        at = section.end
    return Timeline(chip, list(tracks), list(names), sections, 0)


def launch_subjects(records: Sequence[LaunchRecord]) -> list[Subject]:
    """One subject per recorded launch (see ``recorded_launches``), in order: what ``timeline`` takes."""
    return [Subject(r.name, r.plan.image, tuple(r.call), 1, r.origin) for r in records]


def _section(
    subject: Subject,
    raw: dict[str, Any],
    chip: Chip,
    at: float,
    limit: int,
    tracks: dict[str, int],
    names: dict[str, int],
) -> Section:
    """One launch that starts at ``at``, cut at ``limit`` spans, with the timeline's numbers for the launch's."""
    track = _renumbered(raw["tracks"], tracks)
    name = _renumbered(raw["names"], names)
    figures = Figures.of(subject.name, raw["timing"], subject.program.cores, chip)
    cut = {key: np.asarray(value)[:limit] for key, value in raw.items() if isinstance(value, np.ndarray)}
    spans = Spans(
        cut["core"].astype(np.int32),
        track[cut["track"]],
        cut["begin"] + at,
        cut["end"] + at,
        name[cut["what"]],
        cut["kind"].astype(np.int32),
    )
    flows = Flows(
        cut["flow_from_core"].astype(np.int32),
        track[cut["flow_from_track"]],
        cut["flow_sent"] + at,
        cut["flow_to_core"].astype(np.int32),
        track[cut["flow_to_track"]],
        cut["flow_seen"] + at,
        name[cut["flow_channel"]],
    )
    truncated = bool(raw["truncated"]) or len(raw["core"]) > limit or len(raw["flow_sent"]) > limit
    return Section(subject, figures, at, at + figures.cycles, spans, flows, truncated)


def _renumbered(texts: Sequence[str], known: dict[str, int]) -> Ints:
    """Numbers of texts in ``known``, which grows by those that are new. Never empty, so that it can be indexed."""
    found = [known.setdefault(text, len(known)) for text in texts]
    return np.asarray(found or [0], np.int32)
