"""A folder with every level of every kernel: KTIR, ScheduleIR, DataflowIR, SpyreCode and its disassembly.

The folder is filled under a temporary name beside its place and renamed, so a reader never sees half of
it. Only a folder that this module wrote, or an empty one, is ever replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from torch_loom.spyrecode import disassemble, read_dir
from torch_loom.spyrecode.staging import staged

MARKER = "loom-artifacts.json"


class ArtifactsError(OSError):
    """The artifacts folder cannot be written; the message says why."""


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: the name that launches carry, the name of its folder (unique where names are not),
    the text of each level and the directory of its SpyreCode."""

    name: str
    folder: str
    ktir: str
    schedule_ir: str
    dataflow_ir: str
    spyrecode_dir: Path


@dataclass(frozen=True)
class KernelPaths:
    """Where the levels of one kernel lie."""

    ktir: Path
    schedule: Path
    dataflow: Path
    spyrecode: Path
    disassembly: Path


class Artifacts:
    """A context: enter to claim the place, ``write`` kernels, leave to publish or (on error) to drop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._temporary: Path | None = None
        self._stage = contextlib.ExitStack()
        self._names: list[str] = []
        self._made: list[Path] = []

    def __enter__(self) -> Artifacts:
        try:
            self._refuse_foreign()
            self._make_parents()
            self._temporary = self._stage.enter_context(staged(self.folder, folder=True))
        except OSError as error:
            self._drop_parents()
            raise ArtifactsError(f"cannot write artifacts folder {self.folder}: {_reason(error)}") from None
        return self

    def _make_parents(self) -> None:
        missing = [p for p in (self.folder.parent, *self.folder.parent.parents) if not p.exists()]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            self._made.append(parent)

    def _drop_parents(self) -> None:
        """Remove the folders that were made for nothing, as far as nobody else has used them."""
        while self._made:
            with contextlib.suppress(OSError):
                self._made[-1].rmdir()
            self._made.pop()

    def _refuse_foreign(self) -> None:
        if self.folder.is_symlink() and not self.folder.exists():
            raise ArtifactsError("it is a link to a place that does not exist")
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise ArtifactsError("it is not a folder")
        if any(self.folder.iterdir()) and not (self.folder / MARKER).is_file():
            raise ArtifactsError("it holds other files; name an empty or new folder")

    def write(self, kernel: Kernel) -> KernelPaths:
        """Write one kernel; returns the paths that hold once the context has been left."""
        assert self._temporary is not None, "entered"
        self._names.append(kernel.folder)
        here = self._temporary / kernel.folder
        here.mkdir()
        texts = {
            "ktir.mlir": kernel.ktir,
            "schedule.mlir": kernel.schedule_ir,
            "dataflow.mlir": kernel.dataflow_ir,
            "disassembly.txt": disassemble(read_dir(kernel.spyrecode_dir)),
        }
        for name, text in texts.items():
            (here / name).write_text(text, "utf-8")
        shutil.copytree(kernel.spyrecode_dir, here / "spyrecode", ignore=shutil.ignore_patterns("debug"))
        final = self.folder / kernel.folder
        return KernelPaths(
            final / "ktir.mlir",
            final / "schedule.mlir",
            final / "dataflow.mlir",
            final / "spyrecode",
            final / "disassembly.txt",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._temporary is not None, "entered"
        try:
            if kind is None:
                (self._temporary / MARKER).write_text(json.dumps({"kernels": self._names}, indent=1) + "\n")
                self._publish(self._temporary)
        except OSError as failure:
            message = f"cannot write artifacts folder {self.folder}: {_reason(failure)}"
            raise ArtifactsError(message) from None
        finally:
            self._stage.close()
            if not self.folder.exists():
                self._drop_parents()

    def _publish(self, new: Path) -> None:
        """Put ``new`` in its place; an older folder moves aside first and is then removed."""
        self._refuse_foreign()
        with staged(self.folder, folder=True) as aside:
            if self.folder.exists():
                os.rename(self.folder, aside / "old")
            os.rename(new, self.folder)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def kernel_names(names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Folder names of kernels: the name alone where unique, with the start of its key where not."""
    return [
        name if list(names).count(name) == 1 else f"{name}-{key[:8]}" for name, key in zip(names, keys, strict=True)
    ]
