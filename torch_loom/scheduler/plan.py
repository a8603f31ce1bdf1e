"""The schedule as data: what ScheduleIR and DataflowIR are written from.

One tree holds the transfers and segments of every unit in an order that a sequential machine could run.
Blocks name LX memory, channels order the units. Numbers are expressions over launch symbols, the core
number and loop variables; bytes everywhere except element strides of segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_loom.scheduler.expr import ONE, ZERO, Expr
from torch_loom.scheduler.kernel import ArgInfo, Tile
from torch_loom.spyrecode.model import Access, Elem, Reduce, Unit, VecOp


@dataclass(frozen=True)
class BlockPlan:
    """LX memory: ``phases`` copies of ``bytes``. ``role``: load, store, index, temp (compute group only)."""

    name: str
    bytes: int
    role: str
    phases: int = 1
    channel: str | None = None
    address: int = -1
    note: str = ""


@dataclass(frozen=True)
class Ref:
    """Byte ``offset`` in the current phase of a block."""

    block: str
    offset: Expr


@dataclass(frozen=True)
class DimPlan:
    """One loop of a transfer (``model.DmaDim``)."""

    extent: Expr
    lo: Expr
    hi: Expr
    ddr_stride: Expr
    lx_stride: Expr


@dataclass(frozen=True)
class GatherPlan:
    """An index read from LX that moves the DDR side (``model.Gather``)."""

    ref: Ref
    strides: tuple[Expr, ...]
    scale: Expr
    bound: Expr


@dataclass(frozen=True)
class LanePlan:
    """Element-granular addressing of a tiled layout (``model.LaneSplit``).

    Strides in elements, the tile stride in bytes."""

    start: Expr
    strides: tuple[Expr, ...]
    elems: int
    tile_stride: Expr


@dataclass(frozen=True)
class TransferPlan:
    """DDR -> LX (unit MNILU) or LX -> DDR (unit MNISU)."""

    id: int
    unit: Unit
    arg: int
    ddr: Expr
    ref: Ref
    dims: tuple[DimPlan, ...]
    leaf: int
    zero_fill: bool = False
    gathers: tuple[GatherPlan, ...] = ()
    byte_lo: Expr = ZERO
    byte_hi: Expr | None = None
    lanes: LanePlan | None = None
    where: str = ""
    group: Expr = ZERO  # loads: the cores of one group
    sharers: Expr = ONE  # and their number, which fetch the same bytes
    tile: Tile | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class RingDimPlan:
    """One loop of a copy between cores; strides in bytes."""

    extent: Expr
    source_stride: Expr
    target_stride: Expr


@dataclass(frozen=True)
class RingPlan:
    """LX -> LX of core ``core`` (negative: nobody), by MNISU (``model.RingCopy`` and its credits)."""

    id: int
    core: Expr
    source: Ref
    target: Ref
    dims: tuple[RingDimPlan, ...]
    leaf: int
    senders: tuple[Expr, ...]  # from whom this core receives into the target block
    where: str = ""
    unit: Unit = Unit.MNISU


@dataclass(frozen=True)
class InputPlan:
    """Elements of a block streamed into a segment; strides in elements per nest dim."""

    ref: Ref
    elem: Elem
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class PtPlan:
    """The contraction of a segment: operands over (b, m, k) and (b, k, n)."""

    a: InputPlan
    b: InputPlan
    k: Expr


@dataclass(frozen=True)
class OpPlan:
    """One lane operation; ``imm`` of SCALAR operations is an expression."""

    op: VecOp
    dst: int
    args: tuple[int, ...] = ()
    imm: float | int | Expr = 0


@dataclass(frozen=True)
class OutputPlan:
    """Register ``reg`` written to a block, folded over ``dims`` first when ``reduce`` is set."""

    reg: int
    ref: Ref
    elem: Elem
    strides: tuple[Expr, ...]
    reduce: Reduce = Reduce.NONE
    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class SegmentPlan:
    """One step of the compute group."""

    id: int
    extents: tuple[Expr, ...]
    inputs: tuple[InputPlan, ...]
    pt: PtPlan | None
    ops: tuple[OpPlan, ...]
    outputs: tuple[OutputPlan, ...]
    corelet_dim: int
    where: str = ""


@dataclass(frozen=True)
class LoopPlan:
    """Run ``body`` for var = 0 .. count-1; ``scope`` identifies the body."""

    scope: int
    var: str
    count: Expr
    body: tuple[Node, ...]


Node = LoopPlan | TransferPlan | SegmentPlan | RingPlan


@dataclass(frozen=True)
class ChannelPlan:
    """Credits between two units. ``scope`` is the body whose every run exchanges one pair of credits."""

    name: str
    producer: Unit
    consumer: Unit
    phases: int
    blocks: tuple[str, ...]
    scope: int
    depth: int  # enclosing loops
    why_single: str = ""
    ring: bool = False  # between cores


@dataclass(frozen=True)
class Sync:
    """Acquire or release of a channel side, before or after a node of one unit's stream. On a ring channel once
    for each core of ``cores``."""

    channel: str
    side: str  # "empty" or "full"
    acquire: bool
    cores: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A whole kernel. ``syncs`` maps (unit, node id, "before"/"after") to synchronisation in order."""

    name: str
    cores: int
    args: tuple[ArgInfo, ...]
    accesses: dict[int, Access]
    elems: dict[int, Elem]
    body: tuple[Node, ...]
    blocks: tuple[BlockPlan, ...]
    channels: tuple[ChannelPlan, ...]
    syncs: dict[tuple[Unit, int, str], tuple[Sync, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def node_id(node: Node) -> int:
    """Identity of a node for ``syncs``: loops count down from -1, others are their ids."""
    return -1 - node.scope if isinstance(node, LoopPlan) else node.id


def units_of(node: Node) -> frozenset[Unit]:
    """Units that have work in a node."""
    if isinstance(node, TransferPlan | RingPlan):
        return frozenset((node.unit,))
    if isinstance(node, SegmentPlan):
        return frozenset((Unit.L1LU, Unit.PT, Unit.SFU, Unit.L1SU))
    return frozenset().union(*(units_of(n) for n in node.body)) if node.body else frozenset()
