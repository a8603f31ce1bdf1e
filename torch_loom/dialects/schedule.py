"""The ``schedule`` dialect: a kernel as pipelines of stages that share buffers under credits.

A pipeline's stages run concurrently and are ordered only by channels; a loop around a pipeline repeats
all of it. Numbers are expression texts over launch symbols, the core number and loop variables, because
this level is read by people; the next level (``dataflow``) has them as values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr, SymbolNameConstraint
from xdsl.ir import Attribute, Block, Dialect, Operation, Region
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, region_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException


def _strings(values: Sequence[str]) -> ArrayAttr[StringAttr]:
    return ArrayAttr([StringAttr(v) for v in values])


class _Record(IRDLOperation):
    """Base of operations that hold named fields and at most a body: ``name key value key value { .. }``.

    A field is a string, an integer, or a list of strings; ``FIELDS`` gives name and kind in printed order."""

    FIELDS: ClassVar[tuple[tuple[str, type], ...]] = ()

    @classmethod
    def make(cls, values: dict[str, Any], body: Sequence[Operation] | None = None) -> _Record:
        """Build from Python values."""
        regions = [] if body is None else [Region(Block(body))]
        return cls.create(properties={k: _attribute(v) for k, v in values.items()}, regions=regions)

    def field(self, name: str) -> Any:
        """A field as a Python value."""
        value: Attribute = self.properties[name]
        if isinstance(value, ArrayAttr):
            return [v.data for v in value.data if isinstance(v, StringAttr)]
        assert isinstance(value, StringAttr | IntAttr)
        return value.data

    def print(self, printer: Printer) -> None:
        """``key value ..`` and the body."""
        for name, _ in self.FIELDS:
            value = self.field(name)
            printer.print_string(f" {name} ")
            if isinstance(value, int):
                printer.print_string(str(value))
            elif isinstance(value, str):
                printer.print_string_literal(value)
            else:
                printer.print_string("[")
                printer.print_list(value, printer.print_string_literal)
                printer.print_string("]")
        if self.regions:
            printer.print_string(" ")
            printer.print_region(self.regions[0], print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> _Record:
        """Parse the printed form."""
        values: dict[str, Any] = {}
        for name, kind in cls.FIELDS:
            parser.parse_keyword(name)
            if kind is int:
                values[name] = parser.parse_integer()
            elif kind is str:
                values[name] = parser.parse_str_literal()
            else:
                values[name] = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
        region = parser.parse_optional_region()
        if region is not None and not region.blocks:
            region.add_block(Block())
        return cls.create(
            properties={k: _attribute(v) for k, v in values.items()},
            regions=[] if region is None else [region],
        )


def _attribute(value: Any) -> Attribute:
    if isinstance(value, str):
        return StringAttr(value)
    return IntAttr(value) if isinstance(value, int) else _strings(value)


@irdl_op_definition
class KernelOp(IRDLOperation):
    """One kernel: buffers, channels, then its pipelines."""

    name = "schedule.kernel"

    sym_name = prop_def(SymbolNameConstraint())
    cores = prop_def(IntAttr)
    body = region_def("single_block")

    traits = traits_def(NoTerminator(), SymbolOpInterface())

    def __init__(self, name: str, cores: int, body: Sequence[Operation]) -> None:
        super().__init__(
            properties={"sym_name": StringAttr(name), "cores": IntAttr(cores)}, regions=[Region(Block(body))]
        )

    def print(self, printer: Printer) -> None:
        """``@name cores N { .. }``"""
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string(f" cores {self.cores.data} ")
        printer.print_region(self.body, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        """Parse the printed form."""
        name = parser.parse_symbol_name()
        parser.parse_keyword("cores")
        cores = parser.parse_integer()
        return cls.create(properties={"sym_name": name, "cores": IntAttr(cores)}, regions=[parser.parse_region()])


@irdl_op_definition
class BufferOp(_Record):
    """LX memory: ``phases`` copies of ``bytes`` from ``address`` on."""

    name = "schedule.buffer"
    FIELDS: ClassVar = (
        ("label", str),
        ("address", int),
        ("bytes", int),
        ("phases", int),
        ("role", str),
        ("note", str),
    )
    label = prop_def(StringAttr)
    address = prop_def(IntAttr)
    bytes = prop_def(IntAttr)
    phases = prop_def(IntAttr)
    role = prop_def(StringAttr)
    note = prop_def(StringAttr)


@irdl_op_definition
class ChannelOp(_Record):
    """Credits between a producing and a consuming unit over buffers that advance together."""

    name = "schedule.channel"
    FIELDS: ClassVar = (
        ("label", str),
        ("producer", str),
        ("consumer", str),
        ("phases", int),
        ("buffers", list),
        ("note", str),
    )
    label = prop_def(StringAttr)
    producer = prop_def(StringAttr)
    consumer = prop_def(StringAttr)
    phases = prop_def(IntAttr)
    buffers = prop_def(ArrayAttr[StringAttr])
    note = prop_def(StringAttr)


@irdl_op_definition
class LoopOp(_Record):
    """Repeats what it holds; ``count`` is an expression."""

    name = "schedule.loop"
    FIELDS: ClassVar = (("variable", str), ("count", str))
    variable = prop_def(StringAttr)
    count = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())


@irdl_op_definition
class PipelineOp(_Record):
    """Stages that run concurrently; ``modulo`` iterations of the enclosing loop may be in flight."""

    name = "schedule.pipeline"
    FIELDS: ClassVar = (("modulo", int),)
    modulo = prop_def(IntAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def verify_(self) -> None:
        """Children are stages and loops."""
        for op in self.body.block.ops:
            if not isinstance(op, StageOp | LoopOp):
                raise VerifyException(f"a pipeline holds stages and loops, not {op.name}")


@irdl_op_definition
class StageOp(_Record):
    """Work of one unit group between two waits: channels it waits for, what it does, channels it signals."""

    name = "schedule.stage"
    FIELDS: ClassVar = (("units", list), ("waits", list), ("signals", list))
    units = prop_def(ArrayAttr[StringAttr])
    waits = prop_def(ArrayAttr[StringAttr])
    signals = prop_def(ArrayAttr[StringAttr])
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def verify_(self) -> None:
        """Stands in a pipeline."""
        if not isinstance(self.parent_op(), PipelineOp):
            raise VerifyException("a stage stands in a pipeline")


@irdl_op_definition
class TransferOp(_Record):
    """A copy between DDR and LX: from and to as texts, the nest as ``extent x bytes`` per dim."""

    name = "schedule.transfer"
    FIELDS: ClassVar = (("source", str), ("target", str), ("nest", list), ("leaf", int), ("where", str))
    source = prop_def(StringAttr)
    target = prop_def(StringAttr)
    nest = prop_def(ArrayAttr[StringAttr])
    leaf = prop_def(IntAttr)
    where = prop_def(StringAttr)


@irdl_op_definition
class SegmentOp(_Record):
    """A step of the compute group: what it reads, contracts, computes and writes over a nest."""

    name = "schedule.segment"
    FIELDS: ClassVar = (
        ("number", int),
        ("extents", list),
        ("reads", list),
        ("contracts", list),
        ("operations", int),
        ("writes", list),
        ("where", str),
    )
    number = prop_def(IntAttr)
    extents = prop_def(ArrayAttr[StringAttr])
    reads = prop_def(ArrayAttr[StringAttr])
    contracts = prop_def(ArrayAttr[StringAttr])
    operations = prop_def(IntAttr)
    writes = prop_def(ArrayAttr[StringAttr])
    where = prop_def(StringAttr)


Schedule = Dialect("schedule", [KernelOp, BufferOp, ChannelOp, LoopOp, PipelineOp, StageOp, TransferOp, SegmentOp], [])
