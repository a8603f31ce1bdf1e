"""Handlers of pass 1 for memory: views, access tiles, loads and stores.

Sets that are no boxes become a box and a condition: loads select zero where it fails, stores keep what memory held.
A distributed view becomes its partitions: loads select among them, stores write to each what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr, AffineSetAttr
from xdsl.ir import Operation, SSAValue

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import lane_ops
from torch_loom.scheduler import rewrite as rw
from torch_loom.scheduler.affine import Points, apply_expr, apply_map, lower_corner, permutation, points_of
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.exchange_ops import remote_read
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.kernel import FLOATS, ArgInfo, Indirect, Load, Store, Tile, Value, View, index_variables
from torch_loom.scheduler.normalise import Normaliser, dtype_of, handles
from torch_loom.spyrecode.model import ArgKind, VecOp

# Bytes of an element in memory; index buffers hold 32 bits.
STORED_BYTES = {"f16": 2, "bf16": 2, "i16": 2, "f32": 4, "i32": 4, "i64": 4, "index": 4}


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
        base = _buffer(n, offset, dtype)
        arg = base.index
        assert base.symbol is not None
        offset = ex.ZERO if offset.static else _elements(n, offset - base.symbol, dtype)
        if any(a.name.startswith("&") for a in offset.atoms()):
            n.fail("the view's address scales or repeats a buffer argument")
    owner = getattr(space, "ct_id", None)
    number = -1 if owner is None else int(owner)
    if number >= n.cores:
        n.fail(f"compute tile {number} of {n.cores} does not exist")
    n.set(op.results[0], View(arg, dtype, offset, sizes, strides, n.graph.where, number))


def _elements(n: Normaliser, displacement: Expr, dtype: str) -> Expr:
    """A displacement in the address unit of the text as one in elements."""
    size = STORED_BYTES.get(dtype, 1)
    if n.unit == "sticks":
        return displacement * ex.const(128 // size)
    if n.unit == "elements" or size == 1:
        return displacement
    whole = ex.floordiv(displacement, ex.const(size))
    if whole * ex.const(size) - displacement != ex.ZERO:
        n.fail(f"the view's displacement in bytes is not a multiple of its element size {size}")
    return whole


def _buffer(n: Normaliser, offset: Expr, dtype: str) -> ArgInfo:
    """The buffer argument a view lies in. A fixed address becomes an argument of its own, ``at<address>``."""
    if offset.static:
        name = f"at{offset.value}"
        for a in n.args:
            if a.name == name:
                return a
        symbol = ex.symbol(f"&{name}", lo=0, granularity=128)
        n.args.append(ArgInfo(len(n.args), name, ArgKind.BUFFER, dtype, symbol))
        return n.args[-1]
    bases = [a for a in n.args if a.kind is ArgKind.BUFFER and a.symbol is not None and _occurs(a.symbol, offset)]
    if len(bases) != 1:
        raise n.error("the view's address must be one buffer argument plus an offset", "pass the buffer as index")
    return bases[0]


def _occurs(symbol: Expr, e: Expr) -> bool:
    name = symbol.terms[0][0][0].name
    return any(a.name == name for a in e.atoms())


@dataclass(frozen=True)
class Distributed:
    """One view over several: coordinate c lies in part k at c - lows[k]."""

    parts: tuple[View, ...]
    lows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True)
class Access:
    """What an access tile selects when it is more than one box of one view: a tile per part, and conditions on
    the tile's points (``rules`` over ``dims``, see ``affine.Points``)."""

    tiles: tuple[Tile, ...]
    points: Points

    def condition(self, n: Normaliser, rule: tuple[Expr, bool], tile: Tile) -> Value:
        """A rule as a mask over the tensor's dims."""
        gap, equal = rule

        def at(i: tuple[Expr, ...]) -> Expr:
            names = {_name(self.points.dims[p]): i[j] for j, p in enumerate(tile.order)}
            return rw.substitute(gap, names)

        number = n.graph.index(at, "i32", tile.shape)
        return lane_ops.compare_int(n.graph, "eq" if equal else "sge", number, n.graph.const(0, "i32"))

    def inside(self, n: Normaliser, tile: Tile) -> Value | None:
        """Mask of the points whose coordinates lie in a part; None when all do."""
        mask: Value | None = None
        for coord, size in zip(tile.coords, tile.view.sizes, strict=True):
            assert isinstance(coord, Expr)
            for gap in (coord, size - 1 - coord):
                if not ex.nonnegative(gap):
                    mask = _both(n, mask, self._over(n, gap, tile))
        return mask

    def _over(self, n: Normaliser, gap: Expr, tile: Tile) -> Value:
        def at(i: tuple[Expr, ...]) -> Expr:
            names = {_name(tile.vars[p]): i[j] for j, p in enumerate(tile.order) if tile.vars[p].terms}
            return rw.substitute(gap, names)

        number = n.graph.index(at, "i32", tile.shape)
        return lane_ops.compare_int(n.graph, "sge", number, n.graph.const(0, "i32"))


def _name(variable: Expr) -> str:
    return variable.terms[0][0][0].name


def _both(n: Normaliser, a: Value | None, b: Value) -> Value:
    return b if a is None else n.graph.map(VecOp.AND_M, "i1", a, b)


@handles("ktdp.construct_distributed_memory_view")
def _distributed(n: Normaliser, op: Operation) -> None:
    parts = tuple(_as_view(n, v) for v in op.operands)
    lows = []
    for v in op.operands:
        owner = v.owner
        assert isinstance(owner, Operation)
        held = owner.properties["coordinate_set"]
        assert isinstance(held, AffineSetAttr)
        symbols = [n.number(s) for s in n.segments(owner)[1]]
        lows.append(lower_corner(held.data, symbols))
    n.set(op.results[0], Distributed(parts, tuple(lows)))


@handles("ktdp.construct_access_tile")
def _tile(n: Normaliser, op: Operation) -> None:
    view, ids, symbols = n.segments(op)
    base_map = op.properties["base_map"]
    held = op.properties["access_tile_set"]
    order = op.properties["access_tile_order"]
    assert isinstance(base_map, AffineMapAttr) and isinstance(held, AffineSetAttr)
    assert isinstance(order, AffineMapAttr)
    points = points_of(held.data, [n.number(s) for s in symbols], n.graph.where)
    base = apply_map(base_map.data, [n.number(i) for i in ids])
    source = n.env.get(view[0])
    tiles = []
    parts = source.parts if isinstance(source, Distributed) else (_as_view(n, view[0]),)
    for k, part in enumerate(parts):
        variables = index_variables(f"t{len(n.graph.values)}.{k}", points.extents)
        low = source.lows[k] if isinstance(source, Distributed) else (ex.ZERO,) * len(base)
        coords = tuple(b - o + v for b, o, v in zip(base, low, variables, strict=True))
        tiles.append(Tile(part, variables, points.extents, coords, permutation(order.data), n.graph.where))
    simple = len(tiles) == 1 and not points.rules
    n.set(op.results[0], tiles[0] if simple else Access(tuple(tiles), points))


def _as_view(n: Normaliser, v: SSAValue) -> View:
    view = n.env.get(v)
    if not isinstance(view, View):
        raise n.error("distributed views can be loaded and stored only")
    return view


@handles("ktdp.construct_indirect_access_tile")
def _indirect_tile(n: Normaliser, op: Operation) -> None:
    base, index_views, captured, symbols = n.segments(op)
    points = op.properties["variables_space_set"]
    order = op.properties["variables_space_order"]
    assert isinstance(points, AffineSetAttr) and isinstance(order, AffineMapAttr)
    held = points_of(points.data, [n.number(s) for s in symbols], n.graph.where)
    if held.rules:
        n.fail("the variables of an indirect tile must range over a box", hint="mask the values instead")
    extents = held.extents
    variables = index_variables(f"t{len(n.graph.values)}", extents)
    dims = [*(n.number(c) for c in captured), *variables]
    views = iter(index_views)
    coords: list[Expr | Indirect] = []
    maps = op.properties["per_dim_subscript_maps"].data  # type: ignore[attr-defined]
    for indirect, m in zip(op.kinds, maps, strict=True):  # type: ignore[attr-defined]
        at = tuple(apply_expr(e, dims) for e in m.data.results)
        coords.append(_indirect(n, _as_view(n, next(views)), at) if indirect else at[0])
    tile = Tile(_as_view(n, base[0]), variables, extents, tuple(coords), permutation(order.data), n.graph.where)
    n.set(op.results[0], tile)


def _local_store(n: Normaliser, view: View) -> Store:
    """The statement that filled LX memory. It must stand in a body around this one."""
    found = n.locals.get((view.offset, view.dtype))
    scope = n.graph.scope
    while found is not None and scope != found[1] and scope >= 0:
        scope = n.parents[scope]
    if found is None or scope < 0:
        raise n.error("reads LX memory that this kernel has not stored before on this way")
    return found[0]


def _indirect(n: Normaliser, view: View, at: tuple[Expr, ...]) -> Indirect:
    return Indirect(view, at, _local_store(n, view) if view.local else None)


@handles("ktdp.load")
def _load(n: Normaliser, op: Operation) -> None:
    access = n.env[op.operands[0]]
    if isinstance(access, Tile):
        n.set(op.results[0], _load_tile(n, access))
        return
    value = _load_tile(n, access.tiles[0])
    for tile in access.tiles[1:]:
        inside = access.inside(n, tile)
        part = _load_tile(n, tile)
        value = part if inside is None else lane_ops.select(n.graph, inside, part, value)
    for rule in access.points.rules:
        zero = n.graph.const(0.0 if value.dtype in FLOATS else 0, value.dtype)
        value = lane_ops.select(n.graph, access.condition(n, rule, access.tiles[0]), value, zero)
    n.set(op.results[0], value)


def _load_tile(n: Normaliser, tile: Tile) -> Value:
    if tile.view.local:
        return _from_local(n, tile) if tile.view.owner < 0 else _from_core(n, tile)
    key = (n.graph.scope, _tile_key(tile))
    if key in n.loaded:
        return n.loaded[key]
    value = n.loaded[key] = n.graph.load(tile)
    n.body.append(Load(value))
    return value


def _tile_key(tile: Tile) -> tuple[Any, ...]:
    """Equal for tiles that read the same elements in the same order."""
    places = {_name(v): ex.of(ex.Atom("dim", f"#{k}")) for k, v in enumerate(tile.vars) if v.terms}
    coords = tuple(
        (id(c.source), c.view, *(rw.substitute(a, places) for a in c.at))
        if isinstance(c, Indirect)
        else rw.substitute(c, places)
        for c in tile.coords
    )
    v = tile.view
    return (v.arg, v.dtype, v.offset, v.sizes, v.strides, coords, tile.extents, tile.order)


def _from_local(n: Normaliser, tile: Tile) -> Value:
    """A load from LX memory is the stored value at other indices."""
    source = _local_store(n, tile.view)

    def imap(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        at = {_name(tile.vars[p]): i[j] for j, p in enumerate(tile.order) if tile.vars[p].terms}
        coords = [rw.substitute(c, at) for c in tile.coords if isinstance(c, Expr)]
        return stored_index(source, coords)

    return n.graph.remap(source.value, tile.shape, imap)


def _from_core(n: Normaliser, tile: Tile) -> Value:
    """A load from the LX memory of a named core: what that core stored there is sent to all cores.

    Points of the tile outside the view keep whatever is in the landing cell: the parts of a distributed view
    select what they hold."""
    source = _local_store(n, tile.view)
    key = (n.graph.scope, (id(source), _tile_key(tile)))
    if key in n.loaded:
        return n.loaded[key]
    box, start, target = [], [], []
    order = source.tile.order
    for k, (coord, size) in enumerate(zip(tile.coords, tile.view.sizes, strict=True)):
        v, own = tile.vars[k], source.tile.coords[k]
        if not isinstance(coord, Expr) or not isinstance(own, Expr):
            raise n.error("gathers from the LX memory of another core cannot be scheduled")
        shift, held = coord - v, own - source.tile.vars[k]
        if not (shift.static and size.static and tile.extents[k].static and held == 0):
            raise n.error("which part of another core's LX memory is read must be known", "use static tiles and views")
        low, high = max(0, -shift.value), min(tile.extents[k].value, size.value - shift.value)
        if low >= high:
            low, high = 0, 0
        if not ex.nonnegative(source.tile.extents[k] - (high + shift.value)):
            raise n.error("cannot prove that this LX memory was stored before", "store the whole tile")
        box.append(Expr(high - low))
        start.append(Expr(low + shift.value))
        target.append(Expr(low))
    if tuple(tile.order) != tuple(range(len(box))) or tuple(order) != tuple(range(len(box))):
        raise n.error("tiles in other cores' LX memory must keep the order of their dims")
    value = n.loaded[key] = remote_read(
        n, source.value, tile.view.owner, tuple(box), tuple(start), tuple(target), tile.shape
    )
    return value


def stored_index(source: Store, coords: Sequence[Expr]) -> tuple[Expr, ...]:
    """Index of the value that a local store wrote at view coordinates ``coords``."""
    inner = []
    for v, extent, own, at in zip(source.tile.vars, source.tile.extents, source.tile.coords, coords, strict=True):
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
    value, access = n.value(op.operands[0]), n.env[op.operands[1]]
    if isinstance(access, Tile):
        _store_tile(n, value, access)
        return
    for tile in access.tiles:
        kept = value
        for rule in access.points.rules:
            before = _load_tile(n, tile)
            kept = lane_ops.select(n.graph, access.condition(n, rule, tile), kept, before)
        _store_tile(n, kept, tile)


def _store_tile(n: Normaliser, value: Value, tile: Tile) -> None:
    store = Store(value, tile, n.graph.where)
    if tile.view.local:
        if tile.view.owner >= 0:
            n.fail("LX memory of another core can only be read", hint="send the value with an exchange")
        if any(isinstance(c, Indirect) for c in tile.coords):
            n.fail("scatters to LX memory cannot be scheduled")
        n.locals[tile.view.offset, tile.view.dtype] = (store, n.graph.scope)
    else:  # what was loaded before may have changed
        n.loaded.clear()
    n.body.append(store)
