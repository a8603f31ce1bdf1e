"""Diagnostics: what is wrong, where, and how it is shown to people and to tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

ERROR = "error"
WARNING = "warning"
NOTE = "note"


@dataclass(frozen=True)
class Position:
    """A place in a text: 1-based line and column, length of the marked part, the line itself."""

    file: str
    line: int
    col: int
    length: int
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One finding. ``function`` and ``op`` are empty where they do not apply."""

    severity: str
    code: str
    message: str
    position: Position | None = None
    function: str = ""
    op: str = ""

    def format(self) -> str:
        """Compiler style: ``file:line:col: error: message [KT-V01]``, the line and a caret."""
        place = f"{self.position.file}:{self.position.line}:{self.position.col}: " if self.position else ""
        where = [f"in '{self.op}'"] if self.op else []
        if self.function:
            where.append(f"of function @{self.function}")
        suffix = f" ({' '.join(where)})" if where else ""
        lines = [f"{place}{self.severity}: {self.message}{suffix} [{self.code}]"]
        if self.position and self.position.text.strip():
            shown = self.position.text.expandtabs(1)
            lines.append("  " + shown)
            lines.append("  " + " " * (self.position.col - 1) + "^" + "~" * max(0, self.position.length - 1))
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        place = asdict(self.position) if self.position else {"file": "", "line": 0, "col": 0, "length": 0, "text": ""}
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "file": place["file"],
            "line": place["line"],
            "col": place["col"],
            "length": place["length"],
            "function": self.function,
            "op": self.op,
        }


def position_in(text: str, file: str, start: int, end: int) -> Position:
    """The position of ``text[start:end]``; a mark that spans lines is cut at the first line's end."""
    start = max(0, min(start, len(text)))
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    line = text.count("\n", 0, line_start) + 1
    length = max(1, min(end, line_end) - start)
    return Position(file, line, start - line_start + 1, length, text[line_start:line_end].rstrip("\r"))


class KtirError(Exception):
    """A text or program that cannot be used. ``diagnostics`` says why; the message shows the errors."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(d.format() for d in self.diagnostics))


def errors(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Only the errors."""
    return [d for d in diagnostics if d.severity == ERROR]
