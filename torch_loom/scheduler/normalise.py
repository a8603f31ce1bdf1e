"""Pass 1: a KTIR function becomes a ``Kernel``.

Index arithmetic is evaluated symbolically, loops are brought to the form 0 .. count, loops of one iteration
dissolve, and tensor operations become the value graph. Handlers are rows of a table by operation name; an
operation without a row is refused by name and location.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import prod
from typing import Any

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IndexType,
    IntegerType,
    MemRefType,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from torch_loom.ktir.program import ADDRESS, Program
from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.graph import Graph
from torch_loom.scheduler.kernel import (
    FLOATS,
    ArgInfo,
    Assign,
    Cell,
    Kernel,
    Kind,
    Numerics,
    Stmt,
    Store,
    Value,
)
from torch_loom.spyrecode.model import ArgKind

Handler = Callable[["Normaliser", Operation], None]
HANDLERS: dict[str, Handler] = {}
"""KTIR operation name -> what it does to the kernel under construction."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for operation names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


class Empty:
    """``tensor.empty``: a shape without values."""

    def __init__(self, shape: tuple[Expr, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype


def dtype_of(t: Attribute) -> str:
    """Element type name of a scalar, tensor or memref type."""
    if isinstance(t, TensorType | MemRefType):
        return dtype_of(t.element_type)
    if isinstance(t, IndexType):
        return "index"
    if isinstance(t, IntegerType):
        return f"i{t.width.data}"
    name = str(t)
    return name if name in ("f16", "bf16", "f32") else {"!spyreop.df16": "f16"}.get(name, name)


class Locations:
    """Source positions of operations as ``file:line:col``, found by bisection."""

    def __init__(self, program: Program) -> None:
        self._source = program.source
        self._starts = [0]
        for line in program.source.text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def of(self, op: Operation) -> str:
        """Where an operation stands, "" when it was not read from text."""
        span = self._source.ops.get(op)
        if span is None:
            return ""
        line = bisect_right(self._starts, span[0])
        return f"{self._source.file}:{line}:{span[0] - self._starts[line - 1] + 1}"


class Normaliser:
    """State of the pass: the environment of SSA values, the graph, the statement list being filled."""

    def __init__(
        self, program: Program, fn: str, numerics: Numerics, bounds: dict[str, int], unit: str = "elements"
    ) -> None:
        self.program, self.unit = program, unit
        self.func = program.function(fn)
        self.arguments = program.arguments(fn)
        self.locations = Locations(program)
        self.graph = Graph(numerics)
        self.env: dict[SSAValue, Any] = {}
        self.body: list[Stmt] = []
        self.parents = {0: -1}
        self.cells: list[Cell] = []
        self.loaded: dict[tuple[int, Any], Value] = {}  # loads of a scope that can be shared
        self.locals: dict[tuple[Expr, str], tuple[Store, int]] = {}
        self.bounds = bounds
        self.name = fn
        self.grid = list(program.grid(fn))
        self.cores = prod(self.grid)
        self.loop_extents: tuple[Expr, ...] = ()
        self.args: list[ArgInfo] = []

    # -- results ----------------------------------------------------------------------------------

    def run(self) -> Kernel:
        """Normalise the whole function."""
        block = self.func.regions[0].blocks[0]
        self._arguments(block)
        self.block(block)
        return Kernel(self.name, self.cores, self.args, self.body, self.parents, self.graph.numerics, self.cells)

    def _arguments(self, block: Block) -> None:
        for k, (arg, known) in enumerate(zip(block.args, self.arguments, strict=True)):
            name = known.name
            kind, lo, hi, grain = _argument_type(arg.type)
            if known.kind == ADDRESS:
                symbol = ex.symbol(f"&{name}", lo=0, granularity=128)
                info = ArgInfo(k, name, ArgKind.BUFFER, dtype_of(known.element) if known.element else "f16", symbol)
            elif kind in FLOATS:
                info = ArgInfo(k, name, ArgKind.FLOAT, kind, ex.symbol(f"bits:{k}"))
                self.env[arg] = self.graph.scalar(k, kind)
            else:
                asked = self.bounds.get(name, hi)
                hi = asked if hi is None or asked is None else min(asked, hi)  # the text's own bound holds
                symbol = ex.symbol(name, lo=lo, hi=hi, granularity=grain)
                info = ArgInfo(k, name, ArgKind.INT, kind, symbol, lo, hi, grain)
            if arg not in self.env:
                self.env[arg] = info.symbol
            self.args.append(info)

    # -- walking ----------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Normalise the operations of a block in order."""
        for op in block.ops:
            self.one(op)

    def one(self, op: Operation) -> None:
        """Normalise one operation."""
        handler = HANDLERS.get(op.name)
        self.at(op)
        if handler is None:
            raise self.error("this operation cannot be scheduled")
        handler(self, op)

    def at(self, op: Operation) -> None:
        """Make an operation the one that new values and errors refer to."""
        self.graph.where, self.graph.op_name = self.locations.of(op), op.name

    def fail(self, message: str, hint: str = "") -> Any:
        """Raise a located error about the operation at hand."""
        raise self.error(message, hint)

    def error(self, message: str, hint: str = "") -> ScheduleError:
        """A located error about the operation at hand."""
        return ScheduleError(message, op=self.graph.op_name, where=self.graph.where, hint=hint)

    # -- environment ------------------------------------------------------------------------------

    def set(self, result: SSAValue, value: Any) -> None:
        """Bind an SSA result."""
        self.env[result] = value

    def number(self, v: SSAValue) -> Expr:
        """An SSA value as an index expression."""
        found = self.env.get(v)
        if isinstance(found, Expr):
            return found
        if isinstance(found, Value) and found.kind is Kind.CONST and isinstance(found.imm, int):
            return Expr(found.imm)
        return self.fail("needs an index known at launch, but the value is computed from data")

    def is_number(self, v: SSAValue) -> bool:
        """True if the SSA value is an index expression."""
        return isinstance(self.env.get(v), Expr)

    def value(self, v: SSAValue) -> Value:
        """An SSA value as a graph value; index expressions become rank-0 integers."""
        found = self.env.get(v)
        if isinstance(found, Value):
            return found
        if isinstance(found, Expr):
            dtype = dtype_of(v.type)
            if dtype == "i1":
                g = self.graph
                from torch_loom.scheduler.lane_ops import compare_int

                return compare_int(g, "ne", g.index(lambda _: found, "i32"), g.const(0, "i32"))
            if found.static:
                return self.graph.const(found.value, dtype)
            return self.graph.index(lambda _: found, dtype)
        if isinstance(found, Empty):
            return self.fail("reads a tensor.empty, which has no values")
        return self.fail(f"operand %{v.name_hint or '?'} has no value here")

    def shape(self, v: SSAValue) -> tuple[Expr, ...]:
        """Extents of a tensor value."""
        found = self.env.get(v)
        if isinstance(found, Value | Empty):
            return found.shape
        return ()

    def new_cell(self, dtype: str, shape: tuple[Expr, ...]) -> Cell:
        """LX memory to assign to."""
        self.cells.append(Cell(len(self.cells), dtype, shape))
        return self.cells[-1]

    def assign(self, cell: Cell, value: Value, offset: tuple[Expr, ...] | None = None) -> None:
        """Statement: write into a cell."""
        at = tuple(ex.ZERO for _ in cell.shape) if offset is None else offset
        self.body.append(Assign(cell, value, at, self.graph.where))

    def read(self, cell: Cell) -> Value:
        """What a cell holds at this point of the program."""
        return self.graph.fresh(Kind.CELL, cell.dtype, cell.shape, cell=cell.id)

    def mixed(self, op: Operation, static: str, operands: list[SSAValue]) -> tuple[Expr, ...]:
        """A static list with markers where SSA values stand."""
        rest = iter(operands)
        prop = op.properties[static]
        assert isinstance(prop, DenseArrayBase)
        return tuple(self.number(next(rest)) if s == DYNAMIC_INDEX else Expr(s) for s in prop.get_values())

    def segments(self, op: Operation) -> list[list[SSAValue]]:
        """Operands split by ``operandSegmentSizes``."""
        sizes = op.properties.get("operandSegmentSizes") or op.attributes.get("operandSegmentSizes")
        assert isinstance(sizes, DenseArrayBase)
        out, at = [], 0
        for size in sizes.get_values():
            out.append(list(op.operands[at : at + size]))
            at += size
        return out


def _argument_type(t: Attribute) -> tuple[str, int, int | None, int]:
    """(dtype, lowest, highest, granularity) of an argument type."""
    promises = getattr(t, "promises", None)
    if promises is not None:
        dtype = dtype_of(t.value_type)  # type: ignore[attr-defined]
        return dtype, 0, promises.get("upperbound"), promises.get("granularity", 1)
    dtype = dtype_of(t)
    if dtype == "index":
        return dtype, 0, None, 1
    return dtype, -(1 << 31), (1 << 31) - 1, 1
