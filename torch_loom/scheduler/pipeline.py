"""The passes in order: KTIR -> kernel -> groups -> segments -> tree -> channels -> LX -> DataflowIR ->
program.

Later passes may find that a value must lie in LX after all (``MoreRoots``); grouping then starts again
with that value forced. LX that overflows with double buffering is retried with single buffers, outermost
loops and small blocks first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch_loom.arch import Chip
from torch_loom.ktir.engines import recorded_unit
from torch_loom.ktir.program import Program
from torch_loom.scheduler import control_ops, exchange_ops, index_ops, linalg_ops, memory_ops, tensor_ops  # noqa: F401
from torch_loom.scheduler.allocate import Allocation, OutOfLx, allocate
from torch_loom.scheduler.assemble import assemble
from torch_loom.scheduler.channels import Wiring, wire
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.grouping import Grouper, Grouping
from torch_loom.scheduler.kernel import Kernel, Numerics, Value
from torch_loom.scheduler.multicast import share_loads
from torch_loom.scheduler.normalise import Normaliser
from torch_loom.scheduler.ordering import order_transfers
from torch_loom.scheduler.placement import Pieces
from torch_loom.scheduler.plan import BlockPlan, LoopPlan, Node, Plan, TransferPlan
from torch_loom.scheduler.segments import SegmentPlanner
from torch_loom.scheduler.sinks import MoreRoots
from torch_loom.scheduler.tiling import Cut, apply, cuts, leaf_scopes, overlapping
from torch_loom.spyrecode.model import Access, ArgKind, Elem, Unit

_ATTEMPTS = 16


@dataclass(frozen=True)
class Options:
    """Choices of the passes. Results never depend on them beyond rounding order.

    ``buffers``: copies of a block that two units share inside a loop. ``fuse``: several operations per segment.
    ``overlap``: bodies that run once are cut so that transfers and compute overlap. ``tile``: pieces of so many
    indices instead, wherever a body may be cut. ``corelets``: used per core (None: all). ``ieee``: 16-bit floats
    keep their IEEE format (None: as TORCH_LOOM_NUMERICS says). ``check``: prove the static rules of every program
    before it is handed out. ``multicast``: cores that load the same bytes fetch them once. ``address_unit``: what
    the text counts addresses in (None: what the module records, else elements). ``bounds``: upper bounds of size
    arguments that the text leaves open."""

    buffers: int = 2
    fuse: bool = True
    overlap: bool = True
    tile: int | None = None
    corelets: int | None = None
    ieee: bool | None = None
    check: bool = True
    multicast: bool = True
    address_unit: str | None = None
    bounds: dict[str, int] = field(default_factory=dict)

    def numerics(self) -> Numerics:
        """Storage formats: IEEE when asked for, or when TORCH_LOOM_NUMERICS says so."""
        ieee = os.environ.get("TORCH_LOOM_NUMERICS", "df16") == "ieee" if self.ieee is None else self.ieee
        return Numerics(ieee)


@dataclass
class Trace:
    """Seconds per pass, and what to call with each pass's result (for ``--print-after``)."""

    seconds: dict[str, float] = field(default_factory=dict)
    watch: Callable[[str, object], None] | None = None

    def step(self, name: str, started: float, result: object) -> None:
        """Record the end of a pass."""
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        if self.watch is not None:
            self.watch(name, result)


PASSES = (
    "normalise",
    "tile",
    "group",
    "segment",
    "assemble",
    "wire",
    "allocate",
    "share",
    "schedule-ir",
    "dataflow-ir",
    "check",
    "lower",
)


def plan_kernel(program: Program, fn: str, chip: Chip, options: Options, trace: Trace | None = None) -> Plan:
    """Plan one function for a chip. Raises ``ScheduleError``."""
    trace = trace or Trace()
    corelets = chip.corelets if options.corelets is None else options.corelets
    if not 1 <= corelets <= chip.corelets:
        raise ScheduleError(
            f"{corelets} corelets are asked for, the chip has {chip.corelets}", op="func.func", where=f"@{fn}"
        )
    sizes: dict[int, int] = {}
    for attempt in range(_ATTEMPTS):
        start = time.perf_counter()
        unit = options.address_unit or recorded_unit(program)
        normaliser = Normaliser(program, fn, options.numerics(), options.bounds, unit)
        kernel = normaliser.run()
        trace.step("normalise", start, kernel)
        if kernel.cores > chip.cores:
            raise ScheduleError(
                f"the grid has {kernel.cores} compute tiles, the chip {chip.cores} cores",
                op="func.func",
                where=f"@{fn}",
                hint="use a grid of at most that many",
            )
        start = time.perf_counter()
        possible = {scope: cuts(kernel, scope)[:1] for scope in leaf_scopes(kernel)}
        first = {scope: c[0] for scope, c in possible.items() if c}
        if not attempt and options.tile is not None:
            sizes |= {scope: options.tile for scope, c in first.items() if (c.extent.hi or 1 << 40) > options.tile}
        elif not attempt and options.overlap:
            sizes |= overlapping(kernel, first, int(chip.pt.full_rows.value))
        for scope, size in sizes.items():
            apply(kernel, normaliser.graph, possible[scope][0], size)
        trace.step("tile", start, sizes)
        try:
            return _plan(kernel, corelets, chip, options, trace)
        except OutOfLx:
            smaller = _smaller(sizes, first)
            if smaller is None:
                raise
            sizes |= smaller
    raise ScheduleError("no tile size fits LX", op="func.func", where=f"@{fn}")


def _smaller(sizes: dict[int, int], possible: dict[int, Cut]) -> dict[int, int] | None:
    """Halve the largest piece of all bodies that can be cut; None if all are down to one index."""
    found: list[tuple[int, int, int]] = []
    for scope, cut in possible.items():
        now = sizes.get(scope, cut.extent.hi)
        if now is not None and now > 1:
            found.append((cut.weight * now, scope, now))
    if not found:
        return None
    _, scope, now = max(found)
    return {scope: 1 << ((now - 1).bit_length() - 1)}


def _plan(kernel: Kernel, corelets: int, chip: Chip, options: Options, trace: Trace) -> Plan:
    grouping, pieces = _pieces(kernel, corelets, options, trace)
    start = time.perf_counter()
    body = assemble(kernel, grouping, pieces)
    trace.step("assemble", start, body)
    wiring, memory = _memory(body, pieces, chip, options, trace)
    if options.multicast:
        start = time.perf_counter()
        body = share_loads(body, kernel.cores)
        trace.step("share", start, body)
    return Plan(
        kernel.name,
        kernel.cores,
        tuple(kernel.args),
        _accesses(body),
        _elems(kernel),
        body,
        memory.blocks,
        tuple(wiring.channels),
        wiring.syncs,
    )


def _pieces(kernel: Kernel, corelets: int, options: Options, trace: Trace) -> tuple[Grouping, Pieces]:
    forced: set[Value] = set()
    for _ in range(_ATTEMPTS):
        try:
            start = time.perf_counter()
            grouping = Grouper(kernel, forced, options.fuse).run()
            trace.step("group", start, grouping)
            start = time.perf_counter()
            pieces = SegmentPlanner(kernel, grouping, corelets).run()
            trace.step("segment", start, pieces)
            return grouping, pieces
        except MoreRoots as more:
            if more.values <= forced:
                v = next(iter(more.values))
                raise ScheduleError(
                    "the value's elements cannot be addressed by affine strides", op=v.op_name, where=v.where
                ) from None
            forced |= more.values
    raise ScheduleError("too many values must be re-arranged in LX", op="func.func", where=f"@{kernel.name}")


def _memory(
    body: tuple[Node, ...], pieces: Pieces, chip: Chip, options: Options, trace: Trace
) -> tuple[Wiring, Allocation]:
    single: set[str] = set()
    while True:
        start = time.perf_counter()
        wiring = wire(body, pieces.blocks, options.buffers, single)
        order_transfers(wiring, body)
        trace.step("wire", start, wiring)
        start = time.perf_counter()
        try:
            memory = allocate(body, wiring.blocks, chip.lx_bytes)
            trace.step("allocate", start, memory)
            return wiring, memory
        except OutOfLx:
            doubled = [b for b in wiring.blocks.values() if b.phases > 1]
            if not doubled:
                raise
            depth = {c.blocks[0]: c.depth for c in wiring.channels if c.blocks}
            outermost = min(depth.get(b.name, 0) for b in doubled)
            layer = [b for b in doubled if depth.get(b.name, 0) == outermost]
            single |= _single(body, wiring.blocks, layer, chip.lx_bytes)


def _single(body: tuple[Node, ...], blocks: dict[str, BlockPlan], layer: list[BlockPlan], capacity: int) -> set[str]:
    """Which blocks of a layer get a single copy: all if even that is too much, else as few bytes as possible,
    small blocks before large ones, whose transfers take longer."""
    chosen = {b.name for b in layer}
    if not _fits(body, blocks, chosen, capacity):
        return chosen
    for b in sorted(layer, key=lambda b: (-b.bytes, b.name)):
        if len(chosen) > 1 and _fits(body, blocks, chosen - {b.name}, capacity):
            chosen.remove(b.name)
    return chosen


def _fits(body: tuple[Node, ...], blocks: dict[str, BlockPlan], single: set[str], capacity: int) -> bool:
    try:
        allocate(body, {n: replace(b, phases=1) if n in single else b for n, b in blocks.items()}, capacity)
    except OutOfLx:
        return False
    return True


def _accesses(body: tuple[Node, ...]) -> dict[int, Access]:
    found: dict[int, int] = {}
    stack = list(body)
    while stack:
        n = stack.pop()
        if isinstance(n, LoopPlan):
            stack.extend(n.body)
        elif isinstance(n, TransferPlan):
            found[n.arg] = found.get(n.arg, 0) | (Access.READ if n.unit is Unit.MNILU else Access.WRITE)
    return {k: Access(v) for k, v in found.items()}


def _elems(kernel: Kernel) -> dict[int, Elem]:
    return {a.index: kernel.numerics.elem(a.dtype) for a in kernel.args if a.kind is ArgKind.BUFFER}
