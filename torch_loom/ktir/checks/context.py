"""What a rule sees: the function, intervals of its index values, and helpers to find where values come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from torch_loom.dialects.affine_sets import Box, PointSet, UnboundedSet, bound
from torch_loom.dialects.ktdp import (
    ConstructAccessTileOp,
    ConstructDistributedMemoryViewOp,
    ConstructIndirectAccessTileOp,
    ConstructMemoryViewOp,
)
from torch_loom.ktir.checks.ranges import Ranges
from torch_loom.ktir.diagnostics import ERROR, NOTE, WARNING
from torch_loom.ktir.engines import recorded_unit

if TYPE_CHECKING:
    from torch_loom.ktir.program import Program


@dataclass(frozen=True)
class CheckOptions:
    """Facts about the target and how much to ask.

    ``cores`` and ``lx_bytes`` describe the chip; ``bounds`` are assumed upper bounds of arguments by name;
    ``strict`` reports old spellings; ``compat`` accepts a single id on a multi-dim grid.
    """

    cores: int = 32
    lx_bytes: int = 2 << 20
    bounds: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False
    compat: bool = False
    address_unit: str | None = None


@dataclass(frozen=True)
class Finding:
    """One result of a rule."""

    severity: str
    code: str
    op: Operation
    message: str


def error(code: str, op: Operation, message: str) -> Finding:
    """A program without meaning."""
    return Finding(ERROR, code, op, message)


def warning(code: str, op: Operation, message: str) -> Finding:
    """A program that hardly means what it says."""
    return Finding(WARNING, code, op, message)


def note(code: str, op: Operation, message: str) -> Finding:
    """Something to know."""
    return Finding(NOTE, code, op, message)


@dataclass
class Context:
    """One function under check."""

    program: Program
    function: FuncOp
    options: CheckOptions

    @cached_property
    def unit(self) -> str:
        """What addresses count."""
        return self.options.address_unit or recorded_unit(self.program)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """The grid, (1,) when absent."""
        return self.program.grid(self.function.sym_name.data)

    @cached_property
    def tiles(self) -> int:
        """Number of compute tiles."""
        count = 1
        for extent in self.grid:
            count *= extent
        return count

    @cached_property
    def ops(self) -> list[Operation]:
        """Every op of the function, in order."""
        return [op for op in self.function.walk() if op is not self.function]

    @cached_property
    def ranges(self) -> Ranges:
        """Intervals over the whole grid."""
        return Ranges(self.function, self.grid, self.program.source.names, self.options.bounds)

    def ranges_of(self, tile: tuple[int, ...]) -> Ranges:
        """Intervals on one compute tile."""
        return Ranges(self.function, self.grid, self.program.source.names, self.options.bounds, tile)

    def of_type(self, *kinds: type[Any]) -> Iterator[Any]:
        """Ops of some classes."""
        return (op for op in self.ops if isinstance(op, kinds))

    def name(self, value: SSAValue) -> str:
        """How the text calls a value."""
        return "%" + (self.program.source.names.get(value) or value.name_hint or "?")


def view_points(view: ConstructMemoryViewOp) -> PointSet | None:
    """The coordinate set of a view when it is static."""
    value = view.coordinate_set.data
    if value.num_symbols:
        return None
    try:
        return bound(value)
    except (UnboundedSet, ValueError):
        return None


def partitions(value: SSAValue) -> list[ConstructMemoryViewOp] | None:
    """The views behind a view value; None when some are not visible (block arguments)."""
    owner = value.owner
    if isinstance(owner, ConstructMemoryViewOp):
        return [owner]
    if isinstance(owner, ConstructDistributedMemoryViewOp):
        found: list[ConstructMemoryViewOp] = []
        for part in owner.partitions:
            inner = partitions(part)
            if inner is None:
                return None
            found += inner
        return found
    return None


def domain_box(value: SSAValue) -> Box | None:
    """Static coordinate bounds of a view value."""
    parts = partitions(value)
    if not parts:
        return None
    boxes = []
    for part in parts:
        points = view_points(part)
        if points is None or points.bounds.empty or points.rank == 0:
            return None
        boxes.append(points.bounds)
    lower = tuple(map(min, *(b.lower for b in boxes))) if len(boxes) > 1 else boxes[0].lower
    upper = tuple(map(max, *(b.upper for b in boxes))) if len(boxes) > 1 else boxes[0].upper
    return Box(lower, upper)


def base_of(tile: SSAValue) -> SSAValue | None:
    """The view of an access tile; None when it is not visible."""
    owner = tile.owner
    if isinstance(owner, ConstructAccessTileOp | ConstructIndirectAccessTileOp):
        return owner.base
    return None


def element_type(view: SSAValue) -> Any:
    """Element type of a view value."""
    return view.type.element_type if isinstance(view.type, MemRefType) else None
