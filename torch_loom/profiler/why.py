"""One sentence that says what a launch waits for."""

from __future__ import annotations

from collections.abc import Callable

from torch_loom.arch import Chip
from torch_loom.profiler.figures import Figures
from torch_loom.profiler.roofline import Roofs
from torch_loom.profiler.units import rate_text, size_text

Detail = Callable[[Figures, Chip], str]


def why(figures: Figures, chip: Chip) -> str:
    """Why the critical part of a launch is critical."""
    busy = "" if figures.bottleneck in ("wait", "launch") else "busy "
    share = f"{busy}{figures.shares.get(figures.bottleneck, 0.0):.0%} of the time"
    return f"{figures.bottleneck}: {share}; {_DETAIL.get(figures.bottleneck, _nothing)(figures, chip)}"


def _pt(figures: Figures, chip: Chip) -> str:
    rate = 2 * figures.macs / figures.ns * 1e9
    return f"{rate_text(rate, 'FLOP/s')} of {rate_text(Roofs.of(chip).pt, 'FLOP/s')} on {figures.cores} cores"


def _sfu(figures: Figures, chip: Chip) -> str:
    rate = figures.lane_operations / figures.ns * 1e9
    return f"{rate_text(rate, 'op/s')} of {rate_text(Roofs.of(chip).sfu, 'op/s')} on {figures.cores} cores"


def _link(*links: str) -> Detail:
    def detail(figures: Figures, chip: Chip) -> str:
        count = sum(figures.link_bytes.get(link, 0) for link in links)
        text = f"{size_text(count)} at {rate_text(count / figures.ns * 1e9, 'B/s')}"
        return f"{text} of {rate_text(Roofs.of(chip).memory, 'B/s')}" if links[0].startswith("DDR") else text

    return detail


def _launch(figures: Figures, chip: Chip) -> str:
    return f"{figures.launch_ns / 1000:.2f} us before the first instruction"


def _wait(figures: Figures, chip: Chip) -> str:
    rest = {k: v for k, v in figures.shares.items() if k != "wait"}
    most = max(rest, key=lambda k: rest[k]) if rest else ""
    second = f", the busiest part ({most}) works {rest[most]:.0%} of the time" if most else ""
    return f"units wait for one another's credits{second}"


def _nothing(figures: Figures, chip: Chip) -> str:
    return f"{figures.ns / 1000:.2f} us in all"


_DETAIL: dict[str, Detail] = {
    "PT": _pt,
    "SFU": _sfu,
    "LX": _link("LX read", "LX write"),
    "DDR read": _link("DDR read"),
    "DDR write": _link("DDR write"),
    "ring": _link("ring"),
    "launch": _launch,
    "wait": _wait,
}
