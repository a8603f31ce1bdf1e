"""What the recorder needs of a device: compile graphs, prepare kernels, and name itself.

Allocation, copies and launches happen in native code; a target's kernels are launchable objects of that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from ..inductor.op_program import Kernel, Program, Refusal


class Target(Protocol):
    """A device that the recorder compiles for."""

    def identity(self) -> str:
        """Changes with everything that decides what programs look like; part of every cache entry's name."""
        ...

    def cache_dir(self) -> Path:
        """Folder of op programs."""
        ...

    def decompositions(self) -> dict[Any, Any]:
        """Decompositions that graphs are traced with."""
        ...

    def compile_graph(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], numbers: Sequence[str]
    ) -> Program | Refusal:
        """An op program for a graph, or why there is none. ``inputs`` are example arguments, ``numbers`` the
        integer symbols among them that are no sizes."""
        ...

    def prepare(self, kernel: Kernel) -> Any:
        """The launchable form of a kernel."""
        ...
