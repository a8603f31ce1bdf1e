"""Errors of the Inductor room, worded for the person who called torch.compile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep


class Unsupported(RuntimeError):
    """Something that this backend cannot compile; the message names what, the operators and the Python lines."""

    def __init__(self, what: str, nodes: Iterable[Any] = ()) -> None:
        self.what, self.nodes = what, tuple(nodes)
        super().__init__(f"Spyre backend does not support: {what}{_places(self.nodes)}")

    def within(self, nodes: Iterable[Any]) -> Unsupported:
        """This error with the FX nodes that it is about, unless it names some already."""
        return self if self.nodes else Unsupported(self.what, nodes)


def _places(nodes: Iterable[Any]) -> str:
    """`` (aten.add.Tensor at model.py:12, ..)``: FX operators and the lines that call them, at most four."""
    found = []
    for node in nodes:
        frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
        own = [f for f in frames if not f["file"].startswith(_TORCH)] or frames
        line = f" at {own[-1]['file']}:{own[-1]['line']}" if own else ""
        found.append(f"{node.meta.get('original_aten', node.target)}{line}")
    named = list(dict.fromkeys(found))
    more = ", .." if len(named) > 4 else ""
    return f" ({', '.join(named[:4])}{more})" if named else ""
