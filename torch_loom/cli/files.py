"""Reading programs and writing results for subcommands, with errors as people read them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from torch_loom.cli.errors import Usage
from torch_loom.spyrecode.staging import staged

if TYPE_CHECKING:
    from torch_loom.spyrecode.model import Program


def read_program(path: Path) -> Program:
    """The program of a SpyreCode directory, or of a binary file."""
    from torch_loom import spyrecode

    try:
        if path.is_dir():
            return spyrecode.read_dir(path)
        return spyrecode.decode(path.read_bytes())
    except spyrecode.SpyreCodeError as error:
        raise Usage(f"{path}: {error}") from None
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None


class PendingFile:
    """A context that claims a file's place on entry and holds the whole file, or nothing new, on exit.

    Claiming first means that a place that cannot be written is found before any work is done. A link stays a link:
    the file that it names is written. Devices and pipes are written to, never replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = path
        self._temporary: Path | None = None
        self._stage = contextlib.ExitStack()

    def __enter__(self) -> PendingFile:
        try:
            self._place = Path(os.path.realpath(self.path))
            if self._place.is_dir():
                raise IsADirectoryError(None, "it is a folder")
            if self._place.is_file() or not _exists(self._place):
                self._temporary = self._stage.enter_context(staged(self._place, folder=False))
        except OSError as error:
            raise Usage(f"cannot write {self.path}: {error.strerror}") from None
        return self

    def commit(self, data: str | bytes) -> None:
        """Write the text (as UTF-8) or the bytes and put the file in place."""
        raw = data.encode("utf-8") if isinstance(data, str) else data
        try:
            (self._temporary or self._place).write_bytes(raw)
            if self._temporary is not None:
                os.replace(self._temporary, self._place)
        except OSError as error:
            raise Usage(f"cannot write {self.path}: {error.strerror}") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage.close()


def _exists(path: Path) -> bool:
    """Whether there is something; raises OSError for a path that cannot be (too long, a loop of links)."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with PendingFile(path) as pending:
        pending.commit(data)
