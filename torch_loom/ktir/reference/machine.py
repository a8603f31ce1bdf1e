"""The reference machine: a grid of compute tiles, each running the function body as a coroutine.

A tile runs until it needs values that other tiles have not produced, then yields; the machine resumes tiles in
ascending order until all are done or none can go on. Ops are executed by handlers registered per op name (one module
per dialect); a block is turned once into a list of steps with its handlers and the values that die at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.traits import IsTerminator

from torch_loom.dialects.elements import element_bytes
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array, Formats
from torch_loom.ktir.reference.memory import Buffer, Memory
from torch_loom.ktir.reference.tiles import Access, describe

Values = list[Any]
Run = Generator[str, None, Values]
Handler = Callable[["Tile", Any, Values], Values]
RegionHandler = Callable[["Tile", Any, Values], Run]

HANDLERS: dict[str, Handler] = {}
REGION_HANDLERS: dict[str, RegionHandler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for ops without regions of statements."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def handles_region(*names: str) -> Callable[[RegionHandler], RegionHandler]:
    """Register a handler that runs blocks and may wait."""

    def register(handler: RegionHandler) -> RegionHandler:
        REGION_HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


@dataclass(frozen=True)
class Empty:
    """A tensor whose elements were never given: shape only. Reading one is KT-X03."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass
class Partial:
    """A tensor of which some elements were given, by ``insert_slice`` into an empty one."""

    data: Array
    valid: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.data.shape


class Undefined:
    """The result of a delivery on a compute tile that is no consumer. Reading it is KT-X05."""


UNDEFINED = Undefined()


def tensor(value: Any, what: str = "reads") -> Array:
    """The array of a fully initialised tensor value."""
    if isinstance(value, Empty | Partial):
        raise ExecutionError("KT-X03", f"{what} elements of a tensor.empty that were never written")
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Options:
    """How to execute. ``lx_bytes`` None means no capacity check; ``fold`` is the order of sums and products."""

    numerics: str = "ieee"
    accumulate: str = "f32"
    fold: str = "ascending"
    address_unit: str = "elements"
    strict_bounds: bool = False
    check_collisions: bool = False
    compat: bool = False
    lx_bytes: int | None = 2 << 20

    def __post_init__(self) -> None:
        for name, allowed in (("accumulate", ("f32", "storage")), ("fold", ("ascending", "pairwise"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is one of {', '.join(allowed)}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Step:
    """One op of a block, ready to run. ``dying`` are tensors whose last use this is."""

    op: Operation
    handler: Handler | None
    region_handler: RegionHandler | None
    operands: tuple[SSAValue, ...]
    results: tuple[OpResult, ...]
    dying: tuple[SSAValue, ...]
    counted: bool


# Results that take no LX of their own: they re-map or need no storage until used.
_FREE = {
    "tensor.empty",
    "tensor.splat",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    "tensor.extract_slice",
    "tensor.cast",
    "arith.constant",
    "linalg.transpose",
    "linalg.broadcast",
}


class Machine:
    """Everything the tiles of one launch share."""

    def __init__(self, grid: tuple[int, ...], options: Options, functions: dict[str, FuncOp]) -> None:
        self.grid = grid
        self.options = options
        self.functions = functions
        self.formats = Formats(options.numerics)
        self.access = Access(options.strict_bounds, options.check_collisions)
        self.ddr = Memory("DDR")
        self.plans: dict[Block, list[Step]] = {}
        self.mail: dict[Any, dict[int, Values]] = {}
        self.roles: dict[tuple[Operation, int], dict[str, list[int]]] = {}
        self.caches: dict[Any, Any] = {}
        self.deposits = 0
        count = int(np.prod(grid))
        self.tiles = [Tile(self, number) for number in range(count)]

    def plan(self, block: Block) -> list[Step]:
        """The steps of a block."""
        found = self.plans.get(block)
        if found is None:
            found = self.plans[block] = plan_block(block)
        return found

    def run(self, function: FuncOp, arguments: Values) -> None:
        """Run the function on every tile."""
        running: dict[int, Run] = {t.number: t.call(function, arguments) for t in self.tiles}
        waiting: dict[int, str] = {}
        while running:
            progress = False
            for number in list(running):
                before = self.deposits
                try:
                    waiting[number] = next(running[number])
                except StopIteration:
                    del running[number]
                    waiting.pop(number, None)
                    progress = True
                progress |= self.deposits != before
            if not progress:
                raise self._stuck(waiting)
        self._check_counts()

    def _stuck(self, waiting: dict[int, str]) -> ExecutionError:
        shown = "; ".join(f"tile {n} waits for {why}" for n, why in sorted(waiting.items())[:8])
        more = f"; and {len(waiting) - 8} more" if len(waiting) > 8 else ""
        error = ExecutionError("KT-X06", f"no compute tile can go on: {shown}{more}")
        error.op = next((t.current for t in self.tiles if t.number in waiting), None)
        return error

    def _check_counts(self) -> None:
        """Every member of a group must have reached an exchange equally often."""
        for (op, group), roles in self.roles.items():
            counts = {
                (number, role): self.tiles[number].reached.get((op, group, role), 0)
                for role, numbers in roles.items()
                for number in numbers
            }
            if len(set(counts.values())) > 1:
                shown = ", ".join(f"{role} {number}: {count}" for (number, role), count in sorted(counts.items()))
                error = ExecutionError("KT-X06", f"group {group} reached the exchange unequally often ({shown})")
                error.op = op
                raise error


def plan_block(block: Block) -> list[Step]:
    """Resolve handlers and find where tensor values die (nested uses count at the op of this block)."""
    last_use: dict[SSAValue, Operation] = {}
    roots: dict[SSAValue, SSAValue] = {}

    def root(value: SSAValue) -> SSAValue:
        while value in roots:
            value = roots[value]
        return value

    ops = list(block.ops)
    local: set[SSAValue] = set(block.args)
    for op in ops:
        for inner in op.walk():
            for operand in inner.operands:
                last_use[root(operand)] = op
        if op.name in _FREE and op.operands and isinstance(op.operands[0].type, TensorType):
            roots[op.results[0]] = root(op.operands[0])
        local.update(op.results)
    dying: dict[Operation, list[SSAValue]] = {}
    for value in local:
        if isinstance(value.type, TensorType) and value not in roots:
            owner = last_use.get(value)
            if owner is None and isinstance(value, OpResult):
                owner = value.op
            if owner is not None:
                dying.setdefault(owner, []).append(value)
    steps = []
    for op in ops:
        handler, region = HANDLERS.get(op.name), REGION_HANDLERS.get(op.name)
        steps.append(
            Step(
                op,
                handler,
                region,
                tuple(op.operands),
                tuple(op.results),
                tuple(dying.get(op, ())),
                op.name not in _FREE,
            )
        )
    return steps


@dataclass
class Tile:
    """One compute tile: its ids, values, LX and what it is doing."""

    machine: Machine
    number: int
    env: dict[SSAValue, Any] = field(default_factory=dict)
    live: dict[SSAValue, int] = field(default_factory=dict)
    live_bytes: int = 0
    current: Operation | None = None
    reached: dict[Any, int] = field(default_factory=dict)
    instances: dict[Operation, int] = field(default_factory=dict)
    depth: int = 0
    _lx: Memory | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """Coordinates in the grid, x fastest."""
        rest, found = self.number, []
        for extent in self.machine.grid:
            found.append(rest % extent)
            rest //= extent
        return tuple(found)

    @property
    def lx(self) -> Memory:
        """The tile's scratchpad, made on first use."""
        if self._lx is None:
            size = self.machine.options.lx_bytes or 2 << 20
            self._lx = Memory(f"LX of compute tile {self.number}")
            self._lx.add(Buffer("LX", 0, np.zeros(size, np.uint8), np.zeros(size, bool)))
        return self._lx

    def call(self, function: FuncOp, arguments: Values) -> Run:
        """Run a function; yields while waiting, returns its results."""
        outer, self.env = self.env, {}
        block = function.body.block
        results = yield from self.block(block, arguments)
        self.env = outer
        return results

    def block(self, block: Block, arguments: Sequence[Any]) -> Run:
        """Run a block; returns the operands of its terminator."""
        env = self.env
        checked = self.machine.options.lx_bytes is not None
        for argument, value in zip(block.args, arguments, strict=True):
            env[argument] = value
            if checked and isinstance(argument.type, TensorType):
                self.count(argument, value)
        values: Values = []
        for step in self.machine.plan(block):
            values = [env[v] for v in step.operands]
            if step.region_handler is None and step.handler is None:
                if step.op.next_op is None and step.op.has_trait(IsTerminator):
                    break
                self.current = step.op
                raise self.locate(ExecutionError("KT-X10", f"'{step.op.name}' is not implemented"), step, values)
            self.current = step.op
            try:
                if step.region_handler is not None:
                    if checked:
                        self.release(step.dying)
                    results = yield from step.region_handler(self, step.op, values)
                else:
                    if any(v is UNDEFINED for v in values):
                        raise ExecutionError("KT-X05", "reads the result of a delivery that this tile does not consume")
                    assert step.handler is not None
                    results = step.handler(self, step.op, values)
            except ExecutionError as error:
                raise self.locate(error, step, values) from None
            for name, value in zip(step.results, results, strict=True):
                env[name] = value
                if checked and step.counted and isinstance(name.type, TensorType):
                    try:
                        self.count(name, value)
                    except ExecutionError as error:
                        raise self.locate(error, step, values) from None
            if checked:
                self.release(step.dying)
        if checked:
            self.release(block.args)
        return values

    def now(self, block: Block, arguments: Sequence[Any]) -> Values:
        """Run a block that cannot wait (bodies of structured ops and combiners)."""
        run = self.block(block, arguments)
        try:
            next(run)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        raise ExecutionError("KT-X10", "an exchange inside the body of this op is not implemented")

    def locate(self, error: ExecutionError, step: Step, values: Values) -> ExecutionError:
        """Attach the op, the tile and the operands, unless an inner op did."""
        if error.op is None:
            error.op = step.op
            shown = [describe(v) for v in values[:6]]
            error.operands = ", ".join(shown) + (", ..." if len(values) > 6 else "")
        if error.tile is None:
            error.tile = self.number
        return error

    def count(self, name: SSAValue, value: Any) -> None:
        """Add a tensor to the live values; more than the LX holds is KT-X01."""
        limit = self.machine.options.lx_bytes
        if not isinstance(value, np.ndarray | Partial) or limit is None or name in self.live:
            return
        assert isinstance(name.type, TensorType)
        size = int(np.prod(value.shape)) * (element_bytes(name.type.element_type) or 0)
        self.live[name] = size
        self.live_bytes += size
        if self.live_bytes > limit:
            largest = sorted(self.live.items(), key=lambda item: -item[1])[:8]
            shown = ", ".join(f"%{v.name_hint or '?'} {v.type} {size}" for v, size in largest)
            raise ExecutionError(
                "KT-X01", f"live tensors take {self.live_bytes} bytes of {limit} in LX (largest: {shown})"
            )

    def release(self, names: Sequence[SSAValue]) -> None:
        """Values die."""
        for name in names:
            self.live_bytes -= self.live.pop(name, 0)
