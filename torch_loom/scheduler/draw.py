"""Pictures of a schedule as SVG: the pipeline (units, buffers, credits) and LX over program time.

Drawn from the ScheduleIR text's facts. Every stage is a box in the column of its unit group; stages of one loop
body stand side by side, because they run at the same time. Every channel is an arrow from the stage that fills its
buffers to the stage that uses them, every buffer a bar at its address for as long as it lives. What is too long for its
place is shortened and given in full as a tooltip.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape

from torch_loom.dialects import schedule as sc
from torch_loom.scheduler.text import parse_module

_COLUMNS = {"MNILU": 0, "L1LU": 1, "MNISU": 2}
_TITLES = ("MNILU: DDR to LX", "L1LU, PT, SFU, L1SU", "MNISU: LX to DDR")
_COLORS = {"load": "#4878a8", "store": "#b8643c", "temp": "#6a9a5b", "index": "#8a6bb0"}
_ARROWS = ("#33658a", "#8a4f7d", "#4f772d", "#b26a00", "#7a7a7a")
_WIDTH, _GAP, _LINE, _TOP, _INDENT = 370, 70, 15, 64, 8
_GLYPH = 0.602  # width of a monospace character per unit of font size


class _Canvas:
    """Collects shapes and their extent."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.width = self.height = 0

    def box(self, x: int, y: int, w: int, h: int, fill: str, stroke: str = "#444", dash: str = "") -> None:
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="3" fill="{fill}" stroke="{stroke}"{style}/>'
        )
        self.width, self.height = max(self.width, x + w), max(self.height, y + h)

    def text(
        self,
        x: int,
        y: int,
        text: str,
        size: int = 11,
        weight: str = "normal",
        fill: str = "#222",
        room: int = 0,
    ) -> None:
        """Write a line; with ``room``, what does not fit in so many pixels is cut and becomes a tooltip."""
        shown = _short(text, int(room / (size * _GLYPH))) if room else text
        full = f"<title>{escape(text)}</title>" if shown != text else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{fill}">'
            f"{escape(shown)}{full}</text>"
        )
        self.width = max(self.width, x + int(len(shown) * size * _GLYPH))
        self.height = max(self.height, y + 4)

    def path(self, points: list[tuple[int, int]], color: str, label: str) -> None:
        """A polyline with an arrow head."""
        text = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(
            f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="1.4" marker-end="url(#tip)">'
            f"<title>{escape(label)}</title></polyline>"
        )

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width + 20}" height="{self.height + 20}" '
            'font-family="monospace">'
        )
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>'
        )
        return "\n".join([head, tip, '<rect width="100%" height="100%" fill="white"/>', *self.parts, "</svg>", ""])


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def draw(schedule_ir: str) -> str:
    """SVG of a ScheduleIR text."""
    module = parse_module(schedule_ir)
    kernel = next(op for op in module.body.block.ops if isinstance(op, sc.KernelOp))
    buffers = [op for op in kernel.body.block.ops if isinstance(op, sc.BufferOp)]
    channels = [op for op in kernel.body.block.ops if isinstance(op, sc.ChannelOp)]
    canvas = _Canvas()
    canvas.text(10, 22, f"{kernel.sym_name.data}: {kernel.cores.data} cores", 15, "bold")
    for column, title in enumerate(_TITLES):
        canvas.text(_left(column), _TOP - 12, title, 12, "bold")
    stages = _Stages(canvas)
    for op in kernel.body.block.ops:
        if isinstance(op, sc.PipelineOp):
            stages.pipeline(op, 0)
    stages.arrows(channels)
    bottom = _draw_channels(canvas, channels, max(stages.free) + 24)
    _draw_memory(canvas, buffers, stages.life, stages.clock, bottom + 34)
    return canvas.svg()


def _left(column: int) -> int:
    return 34 + column * (_WIDTH + _GAP)


class _Stages:
    """Draws loops, pipelines and stages, a column per unit group; remembers when buffers are used and where."""

    def __init__(self, canvas: _Canvas) -> None:
        self.canvas, self.clock = canvas, 0
        self.life: dict[str, list[int]] = {}
        self.free = [_TOP] * 3  # where the next stage of a column may begin
        self.boxes: list[tuple[int, int, int, set[str]]] = []  # column, top, bottom, buffers

    def pipeline(self, op: sc.PipelineOp, depth: int) -> None:
        """Draw a pipeline below what is there."""
        for child in op.body.block.ops:
            if isinstance(child, sc.LoopOp):
                self._loop(child, depth)
            elif isinstance(child, sc.StageOp):
                self._stage(child)

    def _loop(self, op: sc.LoopOp, depth: int) -> None:
        top = max(self.free)
        left = _left(0) - 28 + depth * _INDENT
        width = 3 * _WIDTH + 2 * _GAP + 2 * (28 - depth * _INDENT)
        text = f"loop {op.variable.data} x {op.count.data}"
        self.canvas.text(left + 6, top + 15, text, 11, "bold", "#555", room=_WIDTH)
        self.free = [top + 22] * 3
        for inner in op.body.block.ops:
            if isinstance(inner, sc.PipelineOp):
                self.pipeline(inner, depth + 1)
        bottom = max(self.free)
        self.canvas.box(left, top + 2, width, bottom - top, "none", "#999", "5 3")
        self.free = [bottom + 10] * 3

    def _stage(self, op: sc.StageOp) -> None:
        column = _COLUMNS[op.field("units")[0]]
        x, y = _left(column), self.free[column]
        known = Counter({name: len(uses) for name, uses in self.life.items()})
        lines: list[str] = []
        for part in op.body.block.ops:
            lines += self._lines(part)
        used = {name for name, uses in self.life.items() if len(uses) > known[name]}
        height = _LINE * (len(lines) + 2) + 8
        self.canvas.box(x, y + 4, _WIDTH, height, "#f3f5f8")
        waits, signals = (", ".join(op.field(name)) or "nothing" for name in ("waits", "signals"))
        shown = [f"waits for {waits}", *lines, f"signals {signals}"]
        for k, line in enumerate(shown):
            edge = k in (0, len(shown) - 1)
            size, fill = (10, "#777") if edge else (11, "#222")
            self.canvas.text(x + 6, y + 18 + _LINE * k, line, size, fill=fill, room=_WIDTH - 12)
        self.boxes.append((column, y + 4, y + 4 + height, used))
        self.free[column] = y + height + 8

    def arrows(self, channels: list[sc.ChannelOp]) -> None:
        """One arrow per pair of stages in neighbouring columns that share a buffer of a channel."""
        lanes: Counter[int] = Counter()
        for number, c in enumerate(channels):
            shared = set(c.field("buffers"))
            ends = [
                [b for b in self.boxes if b[0] == _COLUMNS[_group(c.field(end))]] for end in ("producer", "consumer")
            ]
            sources, targets = ([b for b in found if b[3] & shared] for found in ends)
            for source in sources:
                for target in targets:
                    if target[0] != source[0] + 1:
                        continue
                    lane = lanes[source[0]]
                    lanes[source[0]] += 1
                    x1, x2 = _left(source[0]) + _WIDTH, _left(target[0]) - 1
                    y1 = min(source[1] + 10 + 9 * lane, source[2] - 4)
                    y2 = min(target[1] + 10 + 9 * lane, target[2] - 4)
                    middle = x1 + 10 + lane % 6 * 9
                    points = [(x1, y1), (middle, y1), (middle, y2), (x2, y2)]
                    self.canvas.path(points, _ARROWS[number % len(_ARROWS)], c.field("label"))

    def _use(self, texts: list[str]) -> None:
        for t in texts:
            self.life.setdefault(t.split("[")[0].split()[0], []).append(self.clock)

    def _lines(self, op: object) -> list[str]:
        self.clock += 1
        if isinstance(op, sc.TransferOp):
            source, target = op.field("source"), op.field("target")
            self._use([source, target])
            return [f"{source.split('[')[0]} -> {target.split('[')[0]}  {' '.join(op.field('nest'))}"]
        if isinstance(op, sc.SegmentOp):
            reads, writes, pt = op.field("reads"), op.field("writes"), op.field("contracts")
            self._use([*reads, *writes, *pt[:2]])
            fed = f"PT {pt[0]} x {pt[1]} k={pt[2]}, " if pt else ""
            lines = [
                f"segment {op.field('number')} [{', '.join(op.field('extents'))}]: {fed}{op.field('operations')} ops"
            ]
            return [*lines, f"  {', '.join(reads) or '-'} -> {', '.join(writes)}"]
        return []


def _group(unit: str) -> str:
    """The unit that names the column of a unit."""
    return unit if unit in _COLUMNS else "L1LU"


def _bytes(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _draw_channels(canvas: _Canvas, channels: list[sc.ChannelOp], y: int) -> int:
    canvas.text(10, y, "channels (credits at the start)", 12, "bold")
    for number, c in enumerate(channels):
        y += 18
        canvas.parts.append(f'<circle cx="14" cy="{y - 4}" r="4" fill="{_ARROWS[number % len(_ARROWS)]}"/>')
        dots = "●" * c.field("phases")
        note = f"  {c.field('note')}" if c.field("note") else ""
        blocks = f" ({', '.join(c.field('buffers'))})" if c.field("buffers") else ""
        canvas.text(24, y, f"{c.field('label')}{blocks}: {c.field('producer')} -> {c.field('consumer')}  {dots}{note}")
    return y


@dataclass(frozen=True)
class _Bar:
    """A buffer with the steps it lives through."""

    buffer: sc.BufferOp
    first: int
    last: int

    @property
    def start(self) -> int:
        return int(self.buffer.field("address"))

    @property
    def end(self) -> int:
        return self.start + int(self.buffer.field("bytes") * self.buffer.field("phases"))

    def covers(self, other: _Bar) -> bool:
        """True if this one takes over bytes of the other one while that is still shown."""
        meet = self.start < other.end and other.start < self.end
        return meet and other.first < self.first <= other.last


def _lifetime(b: sc.BufferOp, life: dict[str, list[int]], end: int) -> tuple[int, int]:
    """First and last step; blocks that transfer units share live all the time."""
    uses = life.get(b.field("label"), [1, end])
    return (min(uses), max(uses)) if b.field("role") == "temp" else (1, end)


def _draw_memory(canvas: _Canvas, buffers: list[sc.BufferOp], life: dict[str, list[int]], end: int, y: int) -> None:
    """LX addresses from bottom to top, steps of the program from left to right."""
    canvas.text(10, y, "LX over the program's steps", 12, "bold")
    x = 260
    for role, color in _COLORS.items():
        if any(b.field("role") == role for b in buffers):
            canvas.box(x, y - 9, 10, 10, color, "none")
            canvas.text(x + 15, y, role, 10)
            x += 70
    peak = max((b.field("address") + b.field("bytes") * b.field("phases") for b in buffers), default=1)
    height, width, left, top = 320, 3 * _WIDTH + 2 * _GAP - 56, 90, y + 14
    step = width / max(end, 1)
    thin: list[str] = []
    bars = [_Bar(b, *_lifetime(b, life, end)) for b in buffers]
    for bar in bars:
        b = bar.buffer
        x = left + int((bar.first - 1) * step)
        w = max(int((bar.last - bar.first + 1) * step), 4)
        low = top + height - int(bar.end / peak * height)
        h = max(int((bar.end - bar.start) / peak * height), 2)
        canvas.box(x, low, w, h, _COLORS.get(b.field("role"), "#888"), "white")
        note = f" {b.field('note')}" if b.field("note") else ""
        label = f"{b.field('label')}{note} {_bytes(b.field('bytes'))} x {b.field('phases')}"
        # A later tenant is drawn over the end of an earlier one.
        seen = min([o.first for o in bars if o.covers(bar)] + [bar.last + 1]) - bar.first
        if h >= 12:
            canvas.text(x + 4, low + 10, label, 10, fill="white", room=max(int(seen * step), w // 8) - 8)
        else:
            thin.append(f"{label} at {b.field('address')}")
    for part in range(5):
        at = top + height - part * height // 4
        canvas.text(10, at + 4, f"{_bytes(peak * part // 4):>10}", 10, fill="#777")
    canvas.box(left, top, width, height, "none", "#888")
    for k, label in enumerate(thin):
        canvas.text(left, top + height + 16 + 14 * k, label, 10, fill="#555")
