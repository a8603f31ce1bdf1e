"""Parameters in the layout in which kernels read them best, made once.

A parameter keeps the public layout. A kernel that was compiled for another one (``layouts.py``) gets a copy along the
dims that it names, which is kept as long as the parameter lives. The device numbers the contents of its storages: after
whatever changes the parameter (an optimizer step, ``load_state_dict``, another compiled graph, a write through
``parameter.data``, another storage) the number is another one, and the next launch makes the copy again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _device

if TYPE_CHECKING:  # a program from the cache runs without the compiler
    from .layouts import Run

log = logging.getLogger(__name__)

# How the layout of an argument is written in a host program: "run 1 3".
PREFIX = "run"


@dataclass
class _Copies:
    """Copies of one content of a parameter, by the dims along their sticks."""

    content: int
    by_run: dict[Run, torch.Tensor] = field(default_factory=dict)


@dataclass
class Counts:
    """Copies that were made so far, first and again after a change of their parameter."""

    made: int = 0
    made_again: int = 0


_held: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
counts = Counts()


def written(run: Run) -> str:
    """The layout of an argument as text."""
    return f"{PREFIX} {run[0]} {run[1]}"


def run_of(layout: str) -> Run | None:
    """The dims that a layout names, None for one that names none."""
    word, *ends = layout.split()
    return (int(ends[0]), int(ends[1])) if word == PREFIX else None


def relaid(tensor: torch.Tensor, run: Run) -> torch.Tensor:
    """``tensor`` in rows of sticks along the dims ``run[0]`` to ``run[1] - 1`` of those with more than one element."""
    held = _held.get(tensor)
    content = _device.content_of(tensor)
    again = held is not None and held.content != content
    if held is None or again:
        held = _held[tensor] = _Copies(content)
    found = held.by_run.get(run)
    if found is None:
        found = held.by_run[run] = _copy(tensor, run)
        counts.made += not again
        counts.made_again += again
        log.debug("parameter of sizes %s laid out along dims %d..%d%s", list(tensor.shape), *run, " again" * again)
    return found


def held_bytes() -> int:
    """Device memory of all copies that are kept."""
    return sum(t.untyped_storage().nbytes() for c in _held.values() for t in c.by_run.values())


def _copy(tensor: torch.Tensor, run: Run) -> torch.Tensor:
    sizes = [s for s in tensor.shape if s != 1]
    first, end = run
    order = [*range(first), *range(end, len(sizes)), *range(first, end)]
    lanes = torch.Size(sizes[first:end]).numel()
    # Contiguous, since rows lie along the innermost host dim, which in a transposed view is another one.
    rows = tensor.detach().reshape(sizes).permute(order).reshape(-1, lanes).contiguous()
    copy: torch.Tensor = _device.relayout(rows, "row_major")
    torch.accelerator.current_stream(tensor.device).synchronize()  # launches of other streams may read it next
    return copy
