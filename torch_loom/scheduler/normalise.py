"""Pass 1: a KTIR function becomes a ``Kernel``.

Index arithmetic is evaluated symbolically, loops are brought to the form 0 .. count, loops of one iteration
dissolve, and tensor operations become the value graph. Handlers are rows of a table by operation name; an
operation without a row is refused by name and location.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AffineSetAttr,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from torch_loom.ktir.program import ADDRESS, Program
from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.affine import apply_expr, apply_map, box_extents, permutation
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.graph import Graph
from torch_loom.scheduler.kernel import (
    FLOATS,
    ArgInfo,
    Assign,
    Cell,
    For,
    Indirect,
    Kernel,
    Kind,
    Load,
    Numerics,
    Stmt,
    Store,
    Tile,
    Value,
    View,
    index_variables,
)
from torch_loom.spyrecode.model import ArgKind

Handler = Callable[["Normaliser", Operation], None]
HANDLERS: dict[str, Handler] = {}
"""KTIR operation name -> what it does to the kernel under construction."""

_INDEX_LIMIT = 1 << 62


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

    def __init__(self, program: Program, fn: str, numerics: Numerics, bounds: dict[str, int]) -> None:
        self.func = program.function(fn)
        self.arguments = program.arguments(fn)
        self.locations = Locations(program)
        self.graph = Graph(numerics)
        self.env: dict[SSAValue, Any] = {}
        self.body: list[Stmt] = []
        self.parents = {0: -1}
        self.cells: list[Cell] = []
        self.locals: dict[tuple[Expr, str], Store] = {}
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
        return Kernel(
            self.name, self.cores, self.args, self.body, self.parents, self.graph.numerics, self.cells
        )

    def _arguments(self, block: Block) -> None:
        for k, (arg, known) in enumerate(zip(block.args, self.arguments, strict=True)):
            name = known.name
            kind, lo, hi, grain = _argument_type(arg.type)
            if known.kind == ADDRESS:
                symbol = ex.symbol(f"&{name}", lo=0, granularity=128)
                info = ArgInfo(
                    k, name, ArgKind.BUFFER, dtype_of(known.element) if known.element else "f16", symbol
                )
            elif kind in FLOATS:
                info = ArgInfo(k, name, ArgKind.FLOAT, kind, ex.symbol(f"bits:{k}"))
                self.env[arg] = self.graph.scalar(k, kind)
            else:
                hi = self.bounds.get(name, hi)
                symbol = ex.symbol(name, lo=lo, hi=hi, granularity=grain)
                info = ArgInfo(k, name, ArgKind.INT, kind, symbol, lo, hi, grain)
            if arg not in self.env:
                self.env[arg] = info.symbol
            self.args.append(info)

    # -- walking ----------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Normalise the operations of a block in order."""
        for op in block.ops:
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


# ---- index arithmetic and constants ---------------------------------------------------------------------

_INDEX_OPS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": ex.truncdiv,
    "arith.divui": ex.floordiv,
    "arith.floordivsi": ex.floordiv,
    "arith.ceildivsi": ex.ceildiv,
    "arith.ceildivui": ex.ceildiv,
    "arith.remsi": lambda a, b: a - b * ex.truncdiv(a, b) if a.lo is None or a.lo < 0 else ex.mod(a, b),
    "arith.remui": ex.mod,
    "arith.minsi": ex.minimum,
    "arith.minui": ex.minimum,
    "arith.maxsi": ex.maximum,
    "arith.maxui": ex.maximum,
}

_INDEX_COMPARE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "eq": ex.equal,
    "ne": lambda a, b: ex.ONE - ex.equal(a, b),
    "slt": ex.less,
    "ult": ex.less,
    "sgt": lambda a, b: ex.less(b, a),
    "ugt": lambda a, b: ex.less(b, a),
    "sle": lambda a, b: ex.ONE - ex.less(b, a),
    "ule": lambda a, b: ex.ONE - ex.less(b, a),
    "sge": lambda a, b: ex.ONE - ex.less(a, b),
    "uge": lambda a, b: ex.ONE - ex.less(a, b),
}


def index_arithmetic(n: Normaliser, op: Operation) -> bool:
    """Evaluate integer arithmetic on index expressions; False if an operand is data."""
    if op.name not in _INDEX_OPS or not all(n.is_number(v) for v in op.operands):
        return False
    a, b = (n.number(v) for v in op.operands)
    if "div" in op.name or "rem" in op.name:
        if b.static and b.value <= 0:
            n.fail(f"divides by {b.value}")
        if not b.static and (b.lo is None or b.lo < 0):
            n.fail("divides by a number that may be negative")
    n.set(op.results[0], _INDEX_OPS[op.name](a, b))
    return True


def index_compare(n: Normaliser, predicate: str, a: Expr, b: Expr) -> Expr:
    """arith.cmpi on index expressions: 0 or 1."""
    return _INDEX_COMPARE[predicate](a, b)


@handles("arith.constant")
def _constant(n: Normaliser, op: Operation) -> None:
    attr = op.properties["value"]
    result = op.results[0]
    dtype = dtype_of(result.type)
    if isinstance(result.type, TensorType):
        values = list(attr.get_values())  # type: ignore[attr-defined]
        if any(v != values[0] for v in values[1:]):
            n.fail("only splat constants can be scheduled", hint="pass the table as an argument")
        shape = tuple(Expr(s) for s in result.type.get_shape())
        n.set(result, n.graph.const(values[0], dtype, shape))
    elif isinstance(attr, FloatAttr):
        n.set(result, n.graph.const(attr.value.data, dtype))
    else:
        assert isinstance(attr, IntegerAttr)
        bits = attr.value.data
        n.set(result, Expr(bits & 1 if dtype == "i1" else bits))


@handles("ktdp.get_compute_tile_id")
def _tile_id(n: Normaliser, op: Operation) -> None:
    linear = ex.core_number(n.cores)
    if len(op.results) == 1:
        n.set(op.results[0], linear)
        return
    for k, result in enumerate(op.results):
        size = n.grid[k] if k < len(n.grid) else 1
        n.set(result, ex.mod(linear, size))
        linear = ex.floordiv(linear, size)


@handles("ktdp.runtime_arg_extract")
def _runtime_arg(n: Normaliser, op: Operation) -> None:
    kind = op.properties["kind"]
    which = kind.value.data if isinstance(kind, IntegerAttr) else getattr(kind, "data", 0)
    source = op.operands[0]
    promises = getattr(source.type, "promises", {})
    if which in (0, "value"):
        n.set(op.results[0], n.env[source])
    else:
        name = "granularity" if which in (1, "granularity") else "upperbound"
        n.set(op.results[0], Expr(promises[name]))


# ---- memory -----------------------------------------------------------------------------------------


@handles("ktdp.construct_memory_view")
def _view(n: Normaliser, op: Operation) -> None:
    groups = n.segments(op)
    offset = n.number(op.operands[0])
    sizes = n.mixed(op, "static_sizes", groups[1])
    strides = n.mixed(op, "static_strides", groups[2])
    space = op.properties["memory_space"]
    dtype = dtype_of(op.results[0].type)
    arg = -1
    if getattr(space, "is_global", None) or "global" in str(space):
        bases = [
            a
            for a in n.args
            if a.kind is ArgKind.BUFFER and a.symbol is not None and _occurs(a.symbol, offset)
        ]
        if len(bases) != 1:
            n.fail(
                "the view's address must be one buffer argument plus an offset",
                hint="pass the buffer as index",
            )
        arg = bases[0].index
        assert bases[0].symbol is not None
        offset = offset - bases[0].symbol
        if offset.depends(("sym",)) and any(a.name.startswith("&") for a in offset.atoms()):
            n.fail("the view's address scales or repeats a buffer argument")
    n.set(op.results[0], View(arg, dtype, offset, sizes, strides, n.graph.where))


def _occurs(symbol: Expr, e: Expr) -> bool:
    name = symbol.terms[0][0][0].name
    return any(a.name == name for a in e.atoms())


@handles("ktdp.construct_access_tile")
def _tile(n: Normaliser, op: Operation) -> None:
    view, ids, symbols = n.segments(op)
    base_map = op.properties["base_map"]
    points = op.properties["access_tile_set"]
    order = op.properties["access_tile_order"]
    assert (
        isinstance(base_map, AffineMapAttr)
        and isinstance(points, AffineSetAttr)
        and isinstance(order, AffineMapAttr)
    )
    extents = box_extents(points.data, [n.number(s) for s in symbols], n.graph.where)
    variables = index_variables(f"t{len(n.graph.values)}", extents)
    base = apply_map(base_map.data, [n.number(i) for i in ids])
    coords = tuple(b + v for b, v in zip(base, variables, strict=True))
    tile = Tile(_as_view(n, view[0]), variables, extents, coords, permutation(order.data), n.graph.where)
    n.set(op.results[0], tile)


def _as_view(n: Normaliser, v: SSAValue) -> View:
    view = n.env.get(v)
    if not isinstance(view, View):
        n.fail("distributed views cannot be scheduled yet")
    assert isinstance(view, View)
    return view


@handles("ktdp.construct_indirect_access_tile")
def _indirect_tile(n: Normaliser, op: Operation) -> None:
    base, index_views, captured, symbols = n.segments(op)
    points = op.properties["variables_space_set"]
    order = op.properties["variables_space_order"]
    assert isinstance(points, AffineSetAttr) and isinstance(order, AffineMapAttr)
    extents = box_extents(points.data, [n.number(s) for s in symbols], n.graph.where)
    variables = index_variables(f"t{len(n.graph.values)}", extents)
    dims = [*(n.number(c) for c in captured), *variables]
    views = iter(index_views)
    coords: list[Expr | Indirect] = []
    maps = op.properties["per_dim_subscript_maps"].data  # type: ignore[attr-defined]
    for indirect, m in zip(op.kinds, maps, strict=True):  # type: ignore[attr-defined]
        at = tuple(apply_expr(e, dims) for e in m.data.results)
        coords.append(_indirect(n, _as_view(n, next(views)), at) if indirect else at[0])
    tile = Tile(
        _as_view(n, base[0]), variables, extents, tuple(coords), permutation(order.data), n.graph.where
    )
    n.set(op.results[0], tile)


def _indirect(n: Normaliser, view: View, at: tuple[Expr, ...]) -> Indirect:
    if not view.local:
        return Indirect(view, at)
    source = n.locals.get((view.offset, view.dtype))
    if source is None:
        n.fail("reads LX memory that this kernel has not stored before")
    return Indirect(view, at, source)


@handles("ktdp.load")
def _load(n: Normaliser, op: Operation) -> None:
    tile = n.env[op.operands[0]]
    if tile.view.local:
        n.set(op.results[0], _from_local(n, tile))
        return
    value = n.graph.load(tile)
    n.body.append(Load(value))
    n.set(op.results[0], value)


def _from_local(n: Normaliser, tile: Tile) -> Value:
    """A load from LX memory is the stored value at other indices."""
    source = n.locals.get((tile.view.offset, tile.view.dtype))
    if source is None:
        return n.fail("reads LX memory that this kernel has not stored before")
    shape = tile.shape

    def imap(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        at = {tile.vars[p].terms[0][0][0].name: i[j] for j, p in enumerate(tile.order) if tile.vars[p].terms}
        coords = [ex.substitute(c, at) for c in tile.coords if isinstance(c, Expr)]
        return stored_index(source, coords, n)

    return n.graph.remap(source.value, shape, imap)


def stored_index(source: Store, coords: Sequence[Expr], n: Normaliser | None = None) -> tuple[Expr, ...]:
    """Index of the value that a local store wrote at view coordinates ``coords``."""
    inner = []
    for v, extent, own, at in zip(
        source.tile.vars, source.tile.extents, source.tile.coords, coords, strict=True
    ):
        assert isinstance(own, Expr)
        index = at - (own - v)
        if not ex.nonnegative(index) or not ex.nonnegative(extent - 1 - index):
            raise ScheduleError(
                "cannot prove that this LX memory was stored before",
                where=source.where,
                hint="store the whole tile",
            )
        inner.append(index)
    return tuple(inner[p] for p in source.tile.order)


@handles("ktdp.store")
def _store(n: Normaliser, op: Operation) -> None:
    store = Store(n.value(op.operands[0]), n.env[op.operands[1]], n.graph.where)
    if store.tile.view.local:
        if any(isinstance(c, Indirect) for c in store.tile.coords):
            n.fail("scatters to LX memory cannot be scheduled")
        n.locals[store.tile.view.offset, store.tile.view.dtype] = store
    n.body.append(store)


# ---- control ----------------------------------------------------------------------------------------


@handles("func.return", "scf.yield", "linalg.yield", "ktdp.region_terminator")
def _terminator(n: Normaliser, op: Operation) -> None:
    return None


@handles("scf.for")
def _for(n: Normaliser, op: Operation) -> None:
    lower, upper, step = (n.number(v) for v in op.operands[:3])
    if step.static and step.value <= 0:
        n.fail(f"a loop step must be positive, got {step.value}")
    block = op.regions[0].blocks[0]
    count = ex.ceildiv(upper - lower, step)
    initial = [n.env[v] for v in op.operands[3:]]
    if (count.hi is not None and count.hi <= 0) or count == 1:
        if count == 1:
            _bind(n, block, lower, initial)
            n.block(block)
            initial = [n.env[v] for v in list(block.ops)[-1].operands]
        for result, value in zip(op.results, initial, strict=True):
            n.set(result, value)
        return
    scope = len(n.parents)
    var = ex.variable("var", f"i{scope}", count)
    loop = For(scope, var, count, where=n.graph.where)
    _carried_loop(n, op, loop, lower + var * step, initial)


def _bind(n: Normaliser, block: Block, index: Expr, carried: Sequence[Any]) -> None:
    for arg, value in zip(block.args, [index, *carried], strict=True):
        n.set(arg, value)


def _carried_loop(n: Normaliser, op: Operation, loop: For, index: Expr, initial: list[Any]) -> None:
    """A loop whose iter_args are tensors (cells) or indices that grow by a fixed step."""
    block = op.regions[0].blocks[0]
    steps = _index_steps(n, op, loop, index, initial)
    cells: dict[int, Cell] = {}
    inside: list[Any] = []
    n.parents[loop.id] = n.graph.scope
    for k, value in enumerate(initial):
        if isinstance(value, Expr):
            inside.append(value + loop.var * steps[k])
            continue
        first = n.value(op.operands[3 + k])
        cells[k] = n.new_cell(dtype_of(op.operands[3 + k].type), first.shape)
        n.assign(cells[k], first)
        inside.append(None)
    outer_body, n.body = n.body, loop.body
    outer = n.graph.enter(loop.id)
    for k, cell in cells.items():
        inside[k] = n.read(cell)
    _bind(n, block, index, inside)
    n.block(block)
    yielded = list(block.ops)[-1].operands
    for k, cell in cells.items():
        n.assign(cell, n.value(yielded[k]))
    n.graph.leave(outer)
    n.body = outer_body
    n.body.append(loop)
    for k, result in enumerate(op.results):
        n.set(result, n.read(cells[k]) if k in cells else initial[k] + steps[k] * ex.maximum(loop.count, 0))


def _index_steps(n: Normaliser, op: Operation, loop: For, index: Expr, initial: list[Any]) -> dict[int, Expr]:
    """How much each carried index grows per iteration, found by a trial run of the body."""
    carried = [k for k, v in enumerate(initial) if isinstance(v, Expr)]
    if not carried:
        return {}
    block = op.regions[0].blocks[0]
    names = {k: ex.of(ex.Atom("var", f"carry{loop.id}.{k}")) for k in carried}
    saved = (n.body, dict(n.env), dict(n.parents), dict(n.locals), len(n.cells))
    n.body = []
    n.parents[loop.id] = n.graph.scope
    outer = n.graph.enter(loop.id)
    trial = [names[k] if k in names else n.read(Cell(-1, dtype_of(op.operands[3 + k].type), v.shape))
             for k, v in enumerate(initial)]  # fmt: skip
    _bind(n, block, index, trial)
    n.block(block)
    yielded = list(block.ops)[-1].operands
    grown = {k: n.number(yielded[k]) - names[k] for k in carried}
    n.graph.leave(outer)
    n.body, n.env, n.parents, n.locals = saved[:4]
    del n.cells[saved[4] :]
    for e in grown.values():
        if e.depends(("var",)) and any(
            a.name.startswith((f"carry{loop.id}.", f"i{loop.id}")) for a in e.atoms()
        ):
            n.fail("a carried index must grow by the same amount in every iteration")
    return grown


@handles("scf.if")
def _if(n: Normaliser, op: Operation) -> None:
    if not n.is_number(op.operands[0]):
        n.fail("the condition must be known at launch", hint="use arith.select on the values")
    condition = n.number(op.operands[0])
    branches = [(condition, op.regions[0])]
    if len(op.regions) > 1 and op.regions[1].blocks:
        branches.append((ex.ONE - condition, op.regions[1]))
    if condition.static:
        taken = [r for c, r in branches if c == 1]
        for region in taken:
            n.block(region.blocks[0])
            for result, v in zip(op.results, list(region.blocks[0].ops)[-1].operands, strict=True):
                n.set(result, n.env[v])
        return
    cells: list[Cell] = []
    numbers: list[Expr] = [ex.ZERO] * len(op.results)
    for count, region in branches:
        _branch(n, op, count, region.blocks[0], cells, numbers)
    for k, result in enumerate(op.results):
        n.set(result, numbers[k] if isinstance(result.type, IndexType) else n.read(cells[k]))


def _branch(
    n: Normaliser, op: Operation, count: Expr, block: Block, cells: list[Cell], numbers: list[Expr]
) -> None:
    """One side of an if: a loop of zero or one iterations that assigns the results."""
    scope = len(n.parents)
    n.parents[scope] = n.graph.scope
    branch = For(scope, ex.ZERO, count, where=n.graph.where)
    outer_body, n.body = n.body, branch.body
    outer = n.graph.enter(scope)
    n.block(block)
    for k, v in enumerate(list(block.ops)[-1].operands):
        if isinstance(op.results[k].type, IndexType):
            numbers[k] = numbers[k] + count * n.number(v)
            if len(cells) <= k:
                cells.append(Cell(-1, "index", ()))
            continue
        value = n.value(v)
        if len(cells) <= k:
            cells.append(n.new_cell(dtype_of(v.type), value.shape))
        n.assign(cells[k], value)
    n.graph.leave(outer)
    n.body = outer_body
    n.body.append(branch)
