"""Op programs: what a target's compiler hands back for a graph, as plain data.

A program is a list of steps that the native recorder runs without Python: allocate, view, launch, free. Sizes are
expressions over the sizes of the inputs and the numbers of the call, written as nested lists so that they travel
through JSON unchanged:

* an int; ``["t", i, d]``, the size of dim ``d`` of input ``i``; ``["n", k]``, number ``k`` of the call;
* ``[op, a, b]`` with op one of ``+ - * // % min max == != < <= > >= and or``, ``["not", a]``.

Steps: ``["alloc", buffer, sizes, strides, dtype, kind]``, ``["view", buffer, base, sizes, strides, offset]``,
``["launch", kernel, arguments, lines]``, ``["free", buffer]``. Buffers 0..n-1 are the inputs. A launch argument is
``["b", buffer]`` or ``["e", expression]``; ``lines`` are the numbers of the operators of a graph that the kernel
computes (none for the program of one operator).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

Expr = Any  # int or nested list, see above
FORMAT = 1


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: its text is its identity, ``access`` and ``layouts`` say what it does to its buffers."""

    name: str
    text: str
    access: tuple[str, ...]
    layouts: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """What runs for one structural key. ``guards`` must all hold (non-zero) for the sizes of a call."""

    inputs: int
    steps: list[list[Any]] = field(default_factory=list)
    outputs: list[int | None] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    guards: list[Expr] = field(default_factory=list)
    special: bool = False
    """Made for the sizes at hand, because the target could not leave them open."""

    def to_json(self) -> str:
        """Text of the program."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> Program:
        """Inverse of ``to_json``. Raises ValueError for anything else."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise ValueError("another format")
            kernels = [Kernel(k["name"], k["text"], tuple(k["access"]), tuple(k["layouts"])) for k in data["kernels"]]
            return Program(data["inputs"], data["steps"], data["outputs"], kernels, data["guards"], data["special"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an op program: {error}") from error


@dataclass(frozen=True)
class Refusal:
    """The target cannot compile the graph, for this reason."""

    reason: str
