"""Runs of kernel calls in the generated host program become jobs (``job.py``).

The lines of a host program are calls, allocations, frees and whatever else Inductor writes (fallbacks, copies,
views, reads of scalars). A run ends where a line is none that is understood here. Buffers that a run allocates and
frees belong to its job: they get a place when the sizes are known, in LX or in the job's pool, instead of an
allocation each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import sympy

from ..layout import STICK_BYTES
from . import config
from .access import ceil_sticks, geometry, public_layout
from .compat import LineContext, V, graph_output
from .compat import host_lines as lines
from .domain import product

# A job of one kernel would only add a layer.
MIN_KERNELS = 2


def device_bytes(name: str) -> sympy.Expr:
    """Bytes of a buffer in rows of sticks."""
    g = geometry(name)
    sticks = ceil_sticks(g.dims[-1].extent, g.format.per_stick) if g.dims else sympy.Integer(1)
    return sympy.expand(product([d.extent for d in g.dims[:-1]] + [sticks]) * STICK_BYTES)


def _on_device(node: Any) -> bool:
    device = node.get_device()
    return device is not None and device.type == "spyre"


def is_buffer(argument: str) -> bool:
    """Is an argument of a call a tensor rather than a number?"""
    graph = V.graph
    inputs = graph.graph_inputs.get(argument)
    known = argument in graph.constants or graph.try_get_buffer(argument) is not None
    return known or (inputs is not None and not isinstance(inputs, sympy.Expr))


@dataclass
class Run:
    """Lines of one run, in order, and by what they do."""

    every: list[Any] = field(default_factory=list)
    first: list[Any] = field(default_factory=list)  # definitions, comments, checks of arguments
    calls: list[Any] = field(default_factory=list)
    allocated: dict[str, Any] = field(default_factory=dict)  # buffers by name
    freed: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, Any] = field(default_factory=dict)  # lines of views of these buffers, by name of the view

    def take(self, line: Any) -> bool:
        """Add a line; False if it is none of a run."""
        if isinstance(line, (lines.KernelDefinitionLine, lines.CommentLine, LineContext)):
            self.first.append(line)
        elif isinstance(line, lines.AssertSizeStrideLine) and line.name not in self.allocated:
            self.first.append(line)  # of an argument of the graph, before its first use
        elif isinstance(line, lines.KernelCallLine) and line.device.type == "spyre":
            self.calls.append(line)
        elif isinstance(line, lines.AllocateLine) and _on_device(line.node) and not line.comm_buffer:
            self.allocated[line.node.get_name()] = line.node
        elif isinstance(line, lines.FreeIfNotReusedLine) and not line.comm_buffer:
            if not line.is_reused:
                self.freed[line.node.get_name()] = line.node
        elif isinstance(line, lines.FreeLine):
            self.freed[line.node.get_name()] = line.node
        elif isinstance(line, lines.ReuseLine) and _on_device(line.node):
            self.allocated[line.reused_as.get_name()] = line.reused_as
            if line.delete_old and not graph_output(line.node.get_name()):
                self.freed[line.node.get_name()] = line.node
        elif isinstance(line, lines.ReinterpretLine) and line.node.get_name() in self.allocated:
            self.aliases[line.reused_as.get_name()] = line
        elif not isinstance(line, lines.NullLine):
            return False
        self.every.append(line)
        return True

    def own(self, last: bool) -> list[str]:
        """Buffers that nothing but the calls of the run can see. Behind the ``last`` run of a program only what the
        graph returns is needed; Inductor writes no frees there."""
        used = {a for call in self.calls for a in map(str, call.call_args)}
        viewed = {line.node.get_name() for a, line in self.aliases.items() if a not in self.freed}
        return [
            b
            for b in self.allocated
            if (last or b in self.freed)
            and b in used
            and b not in viewed
            and not graph_output(b)
            and not public_layout(b)
        ]


class JobLine(lines.WrapperLine):
    """The call of a job; its definition goes to the header of the program."""

    def __init__(self, wrapper: Any, name: str, calls: list[Any], own: list[str]) -> None:
        self.wrapper, self.name, self.calls, self.own = wrapper, name, calls, own

    def codegen(self, code: Any) -> None:
        """Write definition and call."""
        own = {b: i for i, b in enumerate(self.own)}
        tensors: dict[str, int] = {}
        numbers: dict[str, int] = {}
        steps = []
        for call in self.calls:
            arguments: list[tuple[str, int]] = []
            for argument in map(str, call.call_args):
                if argument in own:
                    arguments.append(("own", own[argument]))
                elif is_buffer(argument):
                    arguments.append(("external", tensors.setdefault(argument, len(tensors))))
                else:
                    arguments.append(("number", numbers.setdefault(argument, len(numbers))))
            steps.append(f"    ({call.kernel_name}, {arguments}),")
        body = "\n".join(steps)
        self.wrapper.header.splice(f"\n\n{self.name} = loom_job({self.name!r}, [\n{body}\n], {config.residency})")
        sizes = [self.wrapper.codegen_sizevar(device_bytes(b)) for b in self.own]
        code.writeline(f"{self.name}({_tuple(tensors)}, {_tuple(numbers)}, {_tuple(sizes)})")


def _tuple(parts: Iterable[str]) -> str:
    return "(" + "".join(f"{p}, " for p in parts) + ")"


def make_jobs(wrapper: Any, program: list[Any]) -> list[Any]:
    """The lines of a program with every run of at least two kernel calls replaced by a job."""
    out: list[Any] = []
    run = Run()
    count = 0
    for line in [*program, None]:
        if line is not None and run.take(line):
            continue
        if len(run.calls) < MIN_KERNELS:
            out.extend(run.every)
        else:
            out.extend(_job(wrapper, f"loom_job_{count}", run, line is None))
            count += 1
        run = Run()
        if line is not None:
            out.append(line)
    return out


def _job(wrapper: Any, name: str, run: Run, last: bool) -> list[Any]:
    """Lines of a run as a job: first what it needs, then its call, then what is freed."""
    own = run.own(last)
    hidden = {*own, *(a for a in run.aliases if a in run.freed)}
    return [
        *run.first,
        *(wrapper.make_buffer_allocation(node) for b, node in run.allocated.items() if b not in hidden),
        *(line for a, line in run.aliases.items() if a not in hidden),
        JobLine(wrapper, name, run.calls, own),
        *(wrapper.make_buffer_free(node) for b, node in run.freed.items() if b not in hidden),
    ]
