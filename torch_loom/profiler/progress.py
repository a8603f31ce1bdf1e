"""A live line while kernels compile: how many are done, which one is being worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class CompileLine:
    """Text of the line, from the events of the compiler."""

    def __init__(self) -> None:
        self.compiled = 0
        self.cached = 0
        self._stage = ""
        self.changed: Callable[[], None] = lambda: None
        self._running: list[str] = []

    def event(self, event: str, name: str) -> None:
        """Take note of "start", "done" or "cached" of a kernel."""
        if event == "start":
            self._running.append(name)
        elif event == "cached":
            self.cached += 1
        else:
            self.compiled += 1
            if name in self._running:
                self._running.remove(name)

    def stage(self, text: str) -> None:
        """Say what the kernels are compiled for."""
        self._stage = f"{text}: "
        self.changed()

    def __str__(self) -> str:
        return self._stage + self._kernels()

    def _kernels(self) -> str:
        if not (self.compiled or self.cached or self._running):
            return "tracing"
        parts = [f"{self.compiled} kernels compiled"]
        if self.cached:
            parts.append(f"{self.cached} from the cache")
        if self._running:
            parts.append(self._running[-1])
        return ", ".join(parts)


@contextmanager
def compile_progress(console: Console, title: str) -> Iterator[CompileLine]:
    """Show the line on ``console`` while the block runs; on a pipe nothing is shown."""
    from torch_loom.inductor import runtime

    line = CompileLine()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{title}: {line}")

        def show() -> None:
            progress.update(task, description=f"{title}: {line}")

        def on_event(event: str, name: str) -> None:
            line.event(event, name)
            show()

        line.changed = show
        undo = runtime.on_compile(on_event)
        try:
            yield line
        finally:
            undo()
