"""A DataflowIR module as the checks see it: declarations, streams, and numbers under comparable names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.errors import ScheduleError

GROUP = ("L1LU", "PT", "SFU", "L1SU")


@dataclass(frozen=True)
class ChannelInfo:
    """A declared channel."""

    name: str
    producer: str
    consumer: str
    phases: int
    blocks: tuple[str, ...]
    ring: bool = False

    def end(self, unit: str) -> str | None:
        """The end through which a unit works; units of the compute group act for each other."""
        if unit in (self.producer, self.consumer):
            return unit
        if unit in GROUP:
            return next((e for e in (self.consumer, self.producer) if e in GROUP), None)
        return None


@dataclass(frozen=True)
class BlockInfo:
    """A declared LX block."""

    name: str
    address: int
    bytes: int
    phases: int


@dataclass(frozen=True)
class SymbolInfo:
    """A declared symbol with the values it may take."""

    name: str
    kind: str
    minimum: int
    maximum: int
    granularity: int


@dataclass
class Streams:
    """Parsed declarations and the block of each unit; ``names`` gives values a text that is equal across units."""

    program: df.ProgramOp
    units: dict[str, Block] = field(default_factory=dict)
    channels: dict[str, ChannelInfo] = field(default_factory=dict)
    blocks: dict[str, BlockInfo] = field(default_factory=dict)
    symbols: list[SymbolInfo] = field(default_factory=list)
    args: dict[str, tuple[str, str]] = field(default_factory=dict)  # kind, access
    slots: dict[SSAValue, str] = field(default_factory=dict)
    lx_bytes: int = 0
    counts: dict[df.LoopOp, str] = field(default_factory=dict)  # trip count texts, filled by ``walk``

    @staticmethod
    def of(module: ModuleOp) -> Streams:
        """Read a module."""
        program = next((op for op in module.body.block.ops if isinstance(op, df.ProgramOp)), None)
        if program is None:
            raise ScheduleError("the module holds no dataflow.program", op="builtin.module")
        found = Streams(program)
        found.lx_bytes = int(program.profile.data[3].data)  # type: ignore[attr-defined]
        for op in program.body.block.ops:
            if isinstance(op, df.DeclareOp):
                found._declare(op)
            elif isinstance(op, df.SlotOp):
                found.slots[op.result] = f"<{op.scope.data} {op.expr.data}>"
            elif isinstance(op, df.UnitOp):
                found.units[op.unit.data] = op.body.block
        return found

    def _declare(self, op: df.DeclareOp) -> None:
        f, label = op.plain(), op.label.data
        if op.kind.data == "channel":
            blocks = tuple(str(f[3]).split())
            self.channels[label] = ChannelInfo(label, str(f[0]), str(f[1]), int(f[2]), blocks)
        elif op.kind.data == "ring":
            self.channels[label] = ChannelInfo(label, str(f[0]), str(f[1]), 1, tuple(str(f[2]).split()), True)
        elif op.kind.data == "block":
            self.blocks[label] = BlockInfo(label, int(f[0]), int(f[1]), int(f[2]))
        elif op.kind.data == "symbol":
            self.symbols.append(SymbolInfo(label, str(f[0]), int(f[2]), int(f[3]), int(f[4])))
        elif op.kind.data == "arg":
            self.args[label] = (str(f[0]), str(f[2]))

    def walk(self, unit: str) -> Iterator[tuple[Operation, tuple[str, ...]]]:
        """Operations of a unit in order, each with the trip counts of the loops around it as texts."""
        if unit in self.units:
            yield from self._walk(self.units[unit], (), dict(self.slots))

    def _walk(
        self, block: Block, loops: tuple[str, ...], names: dict[SSAValue, str]
    ) -> Iterator[tuple[Operation, tuple[str, ...]]]:
        for op in block.ops:
            if isinstance(op, df.LetOp):
                names[op.result] = _let_name(op, names)
            yield op, loops
            if isinstance(op, df.LoopOp):
                count = op.count
                text = str(count) if isinstance(count, int) else names[count]
                self.counts[op] = text
                names[op.body.block.args[0]] = f"i{len(loops)}"
                yield from self._walk(op.body.block, (*loops, text), names)


def _let_name(op: df.LetOp, names: dict[SSAValue, str]) -> str:
    operands = [names.get(v, "?") for v in op.values]
    return "(" + re.sub(r"d(\d+)", lambda m: operands[int(m[1])], op.expr.data) + ")"
