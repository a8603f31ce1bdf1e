"""Parsing and printing of the scheduler's IR texts."""

from __future__ import annotations

from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from torch_loom.dialects.dataflow import Dataflow


def context() -> Context:
    """A context with the dialects of the schedule levels."""
    from torch_loom.dialects.schedule import Schedule

    found = Context()
    for dialect in (Builtin, Dataflow, Schedule):
        found.load_dialect(dialect)
    return found


def parse_module(text: str, file: str = "<text>") -> ModuleOp:
    """Read ScheduleIR or DataflowIR. Raises xDSL's ``ParseError``."""
    return Parser(context(), text, file).parse_module()


def print_module(module: ModuleOp) -> str:
    """The text of a module."""
    stream = StringIO()
    Printer(stream).print_op(module)
    return stream.getvalue() + "\n"
