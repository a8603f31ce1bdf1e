"""Pictures of a schedule as SVG: the pipeline (units, buffers, credits) and LX over program time.

Drawn from the ScheduleIR text's facts: every stage is a box in the column of its unit group, every channel an
arrow with its number of credits, every buffer a bar at its address for as long as it lives.
"""

from __future__ import annotations

from html import escape

from torch_loom.dialects import schedule as sc
from torch_loom.scheduler.text import parse_module

_COLUMNS = {"MNILU": 0, "L1LU": 1, "MNISU": 2}
_TITLES = ("MNILU: DDR to LX", "L1LU, PT, SFU, L1SU", "MNISU: LX to DDR")
_COLORS = {"load": "#4878a8", "store": "#b8643c", "temp": "#6a9a5b", "index": "#8a6bb0"}
_WIDTH, _GAP, _LINE, _TOP = 330, 40, 15, 64


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

    def text(self, x: int, y: int, text: str, size: int = 11, weight: str = "normal", fill: str = "#222") -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
        )
        self.width, self.height = max(self.width, x + int(len(text) * size * 0.6)), max(self.height, y + 4)

    def arrow(self, x1: int, y1: int, x2: int, y2: int, color: str) -> None:
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.4" '
            'marker-end="url(#tip)"/>'
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
    return text if len(text) <= limit else text[: limit - 1] + "…"


def draw(schedule_ir: str) -> str:
    """SVG of a ScheduleIR text."""
    module = parse_module(schedule_ir)
    kernel = next(op for op in module.body.block.ops if isinstance(op, sc.KernelOp))
    buffers = [op for op in kernel.body.block.ops if isinstance(op, sc.BufferOp)]
    channels = [op for op in kernel.body.block.ops if isinstance(op, sc.ChannelOp)]
    canvas = _Canvas()
    canvas.text(10, 22, f"{kernel.sym_name.data}: {kernel.cores.data} cores", 15, "bold")
    for column, title in enumerate(_TITLES):
        canvas.text(10 + column * (_WIDTH + _GAP), _TOP - 12, title, 12, "bold")
    life: dict[str, list[int]] = {}
    stages = _Stages(canvas, life)
    bottom = _TOP
    for op in kernel.body.block.ops:
        if isinstance(op, sc.PipelineOp):
            bottom = stages.pipeline(op, bottom, 0)
    bottom = _draw_channels(canvas, channels, bottom + 24)
    _draw_memory(canvas, buffers, life, stages.clock, bottom + 30)
    return canvas.svg()


class _Stages:
    """Draws loops, pipelines and stages from top to bottom; remembers when buffers are used."""

    def __init__(self, canvas: _Canvas, life: dict[str, list[int]]) -> None:
        self.canvas, self.life, self.clock = canvas, life, 0

    def pipeline(self, op: sc.PipelineOp, y: int, depth: int) -> int:
        """Draw a pipeline from ``y`` on; returns where it ends."""
        for child in op.body.block.ops:
            if isinstance(child, sc.LoopOp):
                top = y
                text = f"loop {child.variable.data} x {child.count.data}"
                self.canvas.text(10 + depth * 6, y + 14, _short(text, 150), 11, "bold", "#555")
                y += 22
                for inner in child.body.block.ops:
                    if isinstance(inner, sc.PipelineOp):
                        y = self.pipeline(inner, y, depth + 1)
                width = 3 * _WIDTH + 2 * _GAP + 12 - depth * 12
                self.canvas.box(4 + depth * 6, top + 2, width, y - top, "none", "#999", "5 3")
                y += 10
            elif isinstance(child, sc.StageOp):
                y = self.stage(child, y)
        return y

    def stage(self, op: sc.StageOp, y: int) -> int:
        """Draw one stage."""
        column = _COLUMNS[op.field("units")[0]]
        x = 10 + column * (_WIDTH + _GAP)
        lines: list[str] = []
        for part in op.body.block.ops:
            lines += self._lines(part)
        height = _LINE * (len(lines) + 2) + 8
        self.canvas.box(x, y + 4, _WIDTH, height, "#f3f5f8")
        self.canvas.text(x + 6, y + 18, _short("waits " + ", ".join(op.field("waits")), 52), 10, fill="#777")
        for k, line in enumerate(lines):
            self.canvas.text(x + 6, y + 18 + _LINE * (k + 1), _short(line, 50))
        end = y + 18 + _LINE * (len(lines) + 1)
        self.canvas.text(x + 6, end, _short("signals " + ", ".join(op.field("signals")), 52), 10, fill="#777")
        if column < 2:
            self.canvas.arrow(x + _WIDTH, y + 4 + height // 2, x + _WIDTH + _GAP - 4, y + 4 + height // 2, "#555")
        return y + height + 8

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


def _draw_channels(canvas: _Canvas, channels: list[sc.ChannelOp], y: int) -> int:
    canvas.text(10, y, "channels (credits at the start)", 12, "bold")
    for c in channels:
        y += 18
        dots = "●" * c.field("phases")
        note = f"  {c.field('note')}" if c.field("note") else ""
        text = f"{c.field('label')}: {c.field('producer')} -> {c.field('consumer')}  {dots}{note}"
        canvas.text(20, y, text)
    return y


def _draw_memory(canvas: _Canvas, buffers: list[sc.BufferOp], life: dict[str, list[int]], end: int, y: int) -> None:
    """LX addresses from bottom to top, steps of the program from left to right."""
    canvas.text(10, y, "LX over the program's steps (bytes)", 12, "bold")
    peak = max((b.field("address") + b.field("bytes") * b.field("phases") for b in buffers), default=1)
    height, width, left, top = 320, 3 * _WIDTH, 90, y + 14
    step = width / max(end, 1)
    for b in buffers:
        size = b.field("bytes") * b.field("phases")
        uses = life.get(b.field("label"), [1, end])
        first, last = (min(uses), max(uses)) if b.field("role") == "temp" else (1, end)
        x = left + int((first - 1) * step)
        w = max(int((last - first + 1) * step), 4)
        low = top + height - int((b.field("address") + size) / peak * height)
        h = max(int(size / peak * height), 2)
        canvas.box(x, low, w, h, _COLORS.get(b.field("role"), "#888"), "white")
        if h >= 11:
            canvas.text(
                x + 4, low + 10, f"{b.field('label')} {b.field('bytes')} x {b.field('phases')}", 10, fill="white"
            )
    for part in range(5):
        at = top + height - part * height // 4
        canvas.text(10, at + 4, f"{peak * part // 4:>9}", 10, fill="#777")
    canvas.box(left, top, width, height, "none", "#888")
