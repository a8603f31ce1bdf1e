"""A page that explains launches: timeline, roofline, LX over time and tables, in one HTML file without fetches.

The page is a template and a script of this package with the data put in; arrays travel as base64.
"""

from __future__ import annotations

import base64
import json
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_loom.profiler.lxmap import lx_uses
from torch_loom.profiler.reports import Report
from torch_loom.profiler.roofline import Roofs
from torch_loom.profiler.trace import Timeline

MAX_USES = 20_000  # rectangles of the LX map, over all cores
_DATA, _SCRIPT, _TITLE = "{{data}}", "{{script}}", "{{title}}"


def html_page(report: Report, timeline: Timeline) -> str:
    """The page of a report and of the timeline of its launches."""
    folder = resources.files("torch_loom.profiler")
    page, script = ((folder / name).read_text("utf-8") for name in ("page.html", "page.js"))
    title = report.entries[0].figures.name if len(report.entries) == 1 else f"{report.launches} launches"
    # "</" would end the script element that holds the data.
    data = json.dumps(page_data(report, timeline), separators=(",", ":")).replace("</", "<\\/")
    return page.replace(_TITLE, _escaped(title)).replace(_SCRIPT, script).replace(_DATA, data)


def page_data(report: Report, timeline: Timeline) -> dict[str, Any]:
    """What the script of the page draws."""
    roofs = Roofs.of(report.chip)
    return {
        "report": report.as_dict(),
        "roofs": {"pt": roofs.pt, "sfu": roofs.sfu, "memory": roofs.memory},
        "hz": report.chip.clock_hz,
        "lxBytes": report.chip.lx_bytes,
        "notice": timeline.notice,
        "tracks": timeline.tracks,
        "names": timeline.names,
        "launches": [
            {"name": s.figures.name, "begin": s.begin, "end": s.end, "critical": s.figures.bottleneck}
            for s in timeline.sections
        ],
        "spans": _spans(timeline),
        "flows": _flows(timeline),
        "lx": _lx(timeline),
    }


def _joined(timeline: Timeline, part: str, field: str, kind: str) -> str:
    arrays = [np.asarray(getattr(getattr(section, part), field), kind) for section in timeline.sections]
    return _base64(np.concatenate(arrays) if arrays else np.zeros(0, kind))


def _spans(timeline: Timeline) -> dict[str, str]:
    kinds = {"core": "<i2", "track": "<i2", "begin": "<f8", "end": "<f8", "what": "<i4", "kind": "<i2"}
    return {name: _joined(timeline, "spans", name, kind) for name, kind in kinds.items()}


def _flows(timeline: Timeline) -> dict[str, str]:
    kinds = {"from_core": "<i2", "from_track": "<i2", "sent": "<f8", "to_core": "<i2", "to_track": "<i2", "seen": "<f8"}
    return {name: _joined(timeline, "flows", name, kind) for name, kind in kinds.items()}


def _lx(timeline: Timeline) -> dict[str, Any]:
    """Uses of LX by core, as rows [address, bytes, begin, end, state, name]; cores until the limit is reached."""
    states = {"filling": 0, "used": 1, "temporary": 2}
    cores: dict[int, list[list[Any]]] = {}
    count = 0
    for core in sorted({int(c) for section in timeline.sections for c in np.unique(section.spans.core) if c >= 0}):
        rows = [
            [use.address, use.bytes, use.begin, use.end, states[use.state], use.block]
            for section in timeline.sections
            for use in lx_uses(timeline, section, core)
        ]
        count += len(rows)
        if cores and count > MAX_USES:
            break
        cores[core] = rows[:MAX_USES]
    return {str(core): rows for core, rows in cores.items()}


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _escaped(text: str) -> str:
    from html import escape

    return escape(text)
