"""A KTIR function in the form the passes work on: index expressions, tiles, values, a tree of statements.

Values are a graph. Elementwise operations stay unevaluated nodes; shape changes (transpose, broadcast,
collapse, expand, slice) are nodes that only map indices. Where a value is computed and whether it ever
lies in LX is decided later, so nothing here has an address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from torch_loom.scheduler.expr import Expr, variable
from torch_loom.spyrecode.model import ArgKind, Elem, Reduce, VecOp

FLOATS = ("f16", "bf16", "f32")
INTS = ("i8", "i16", "i32", "i64", "index")


@dataclass(frozen=True)
class Numerics:
    """How KTIR element types are stored: 16-bit floats as df16 (the device) or as IEEE types."""

    ieee: bool = False

    def elem(self, dtype: str) -> Elem:
        """Storage format of a KTIR element type in DDR and LX."""
        if dtype == "f16" or dtype == "i1":
            return Elem.F16 if self.ieee else Elem.DF16
        if dtype == "bf16":
            return Elem.BF16 if self.ieee else Elem.DF16
        return {
            "f32": Elem.F32,
            "i32": Elem.I32,
            "i64": Elem.I32,
            "index": Elem.I32,
            "i16": Elem.I16,
            "i8": Elem.I8,
        }[dtype]

    def rounding(self, dtype: str) -> VecOp | None:
        """The lane operation that rounds a register to a KTIR float type (None for f32)."""
        if dtype == "f32":
            return None
        if self.ieee:
            return VecOp.ROUND_F16 if dtype == "f16" else VecOp.ROUND_BF16
        return VecOp.ROUND_DF16


@dataclass(frozen=True)
class ArgInfo:
    """A kernel argument as the launch sees it."""

    index: int
    name: str
    kind: ArgKind
    dtype: str
    symbol: Expr | None  # the number of an integer argument
    lo: int | None = None
    hi: int | None = None
    granularity: int = 1


@dataclass(frozen=True)
class View:
    """Element (i_k) lies at offset + sum i_k * strides[k], in elements of ``dtype``.

    ``arg`` is the buffer argument, or -1 for LX (``ct_local``) memory: of the executing core, or of core ``owner``."""

    arg: int
    dtype: str
    offset: Expr
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    where: str = ""
    owner: int = -1

    @property
    def local(self) -> bool:
        """True for LX memory."""
        return self.arg < 0


@dataclass(frozen=True)
class Indirect:
    """A coordinate read from memory: the integer at ``at`` of ``view``.

    ``source`` is the statement that filled the view when it is LX memory of this kernel."""

    view: View
    at: tuple[Expr, ...]
    source: Store | None = None


@dataclass(frozen=True)
class Tile:
    """Points ``vars`` (counters 0 .. extent-1) of the box domain; ``coords`` gives the view coordinate
    per view dim, an expression over the variables or an ``Indirect``. Tensor dim j runs over variable
    ``order[j]``."""

    view: View
    vars: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    coords: tuple[Expr | Indirect, ...]
    order: tuple[int, ...]
    where: str = ""

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Extents of the loaded or stored tensor."""
        return tuple(self.extents[p] for p in self.order)


class Kind(Enum):
    """What a value is."""

    LOAD = auto()  # a tile read from DDR
    CONST = auto()  # one number everywhere
    SCALAR = auto()  # a float or integer argument everywhere
    INDEX = auto()  # an index expression (over ``vars``) as an integer
    MAP = auto()  # one lane operation on operands of the same shape
    REMAP = auto()  # the operand at other indices
    REDUCE = auto()  # a fold over dims
    MATMUL = auto()  # [b, m, k] x [b, k, n] -> [b, m, n]
    CELL = auto()  # what assignments have left in a cell at this point of the program


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor (or rank-0) value.

    ``vars`` are the index variables of the value's own dims; ``imap`` (REMAP) gives the operand's index and
    ``index`` (INDEX) the number, both over ``vars``. ``scope`` is the id of the loop body that holds it."""

    id: int
    kind: Kind
    dtype: str
    shape: tuple[Expr, ...]
    scope: int
    operands: tuple[Value, ...] = ()
    op: VecOp | None = None
    imm: float | int = 0
    vars: tuple[Expr, ...] = ()
    imap: tuple[Expr, ...] = ()
    index: Expr | None = None
    tile: Tile | None = None
    reduce: Reduce = Reduce.NONE
    dims: tuple[int, ...] = ()
    cell: int = -1
    arg: int = -1
    where: str = ""
    op_name: str = ""

    def __hash__(self) -> int:
        return self.id


@dataclass(eq=False)
class Load:
    """Statement: read ``value.tile`` into LX."""

    value: Value


@dataclass(eq=False)
class Store:
    """Statement: write ``value`` to ``tile``."""

    value: Value
    tile: Tile
    where: str = ""


@dataclass(frozen=True)
class Cell:
    """LX memory that statements assign to: a loop-carried tensor, the result of a branch, a tensor put
    together from parts."""

    id: int
    dtype: str
    shape: tuple[Expr, ...]


@dataclass(eq=False)
class Assign:
    """Statement: write ``value`` into a cell, its index (0, ..) at ``offset``.

    Assignments that follow each other happen at once: all values are those from before."""

    cell: Cell
    value: Value
    offset: tuple[Expr, ...]
    where: str = ""


@dataclass(eq=False)
class For:
    """Statement: run ``body`` for var = 0 .. count-1. ``id`` is the scope of the body."""

    id: int
    var: Expr
    count: Expr
    body: list[Stmt] = field(default_factory=list)
    where: str = ""


@dataclass(frozen=True)
class Hop:
    """A message of the executing core: to whom (negative: nobody), from which index of the source on, to which
    index of the target on."""

    core: Expr
    source: tuple[Expr, ...]
    target: tuple[Expr, ...]


@dataclass(eq=False)
class Ring:
    """Statement: send boxes of one cell into a cell of other cores.

    ``source`` and ``target`` read the cells; the box runs over the last dims of the target. ``senders`` are the
    cores whose messages the executing core waits for (negative: nobody)."""

    source: Value
    target: Value
    box: tuple[Expr, ...]
    hops: tuple[Hop, ...]
    senders: tuple[Expr, ...]
    where: str = ""


Stmt = Load | Store | Assign | For | Ring


@dataclass
class Kernel:
    """One function: arguments, the tree of statements, the parent of each scope."""

    name: str
    cores: int
    args: list[ArgInfo]
    body: list[Stmt]
    parents: dict[int, int]  # scope -> enclosing scope; the function body is scope 0 with parent -1
    numerics: Numerics
    cells: list[Cell] = field(default_factory=list)

    def encloses(self, outer: int, inner: int) -> bool:
        """True if scope ``outer`` is ``inner`` or around it."""
        while inner >= 0:
            if inner == outer:
                return True
            inner = self.parents[inner]
        return False

    def path(self, scope: int) -> list[int]:
        """Scopes from the function body to ``scope``."""
        chain = []
        while scope >= 0:
            chain.append(scope)
            scope = self.parents[scope]
        return chain[::-1]


def index_variables(prefix: str, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """One counter per dim of a value or tile."""
    return tuple(variable("dim", f"{prefix}.{k}", extent) for k, extent in enumerate(shape))
