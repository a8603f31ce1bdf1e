"""Pass 5b: transfers through the same buffer that must not overtake each other.

Loads and stores run on different units, so a load of a buffer that the kernel also stores needs an order
unless one of two things is proved: the tiles never meet, or the store already waits for the load's data
and tiles of different iterations are disjoint (the usual in-place kernel). Otherwise the pair gets a
channel without blocks and with one credit, which serialises the two units at that place. Stores among
themselves are in order.
"""

from __future__ import annotations

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import rewrite as rw
from torch_loom.scheduler.channels import Wiring, bracket, home_depth, reads
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.kernel import Tile
from torch_loom.scheduler.plan import ChannelPlan, LoopPlan, Node, SegmentPlan, TransferPlan
from torch_loom.spyrecode.model import Unit

Path = tuple[Node, ...]


def order_transfers(wiring: Wiring, body: tuple[Node, ...]) -> None:
    """Add the order channels a kernel needs."""
    paths = list(_transfers(body, ()))
    position = {id(p[-1]): k for k, p in enumerate(paths)}
    for load in paths:
        for store in paths:
            a, b = load[-1], store[-1]
            assert isinstance(a, TransferPlan) and isinstance(b, TransferPlan)
            if a.unit is not Unit.MNILU or b.unit is not Unit.MNISU or a.arg != b.arg or _apart(a, b):
                continue
            load_first = position[id(a)] < position[id(b)]
            depth = home_depth([load, store])
            loops = [n for n in load[:depth] if isinstance(n, LoopPlan)]
            if load_first and _depends(body, a, b) and _disjoint_iterations(a, b, loops):
                continue
            first, second = (load, store) if load_first else (store, load)
            _chain(wiring, first, second, depth, loops)


def _chain(wiring: Wiring, first: Path, second: Path, depth: int, loops: list[LoopPlan]) -> None:
    a, b = first[-1], second[-1]
    assert isinstance(a, TransferPlan) and isinstance(b, TransferPlan)
    name = f"order_{a.id}_{b.id}"
    scope = loops[-1].scope if loops else 0
    wiring.channels.append(ChannelPlan(name, a.unit, b.unit, 1, (), scope, depth, "orders DDR accesses"))
    bracket(wiring.syncs, a.unit, name, "empty", "full", [first[depth]])
    bracket(wiring.syncs, b.unit, name, "full", "empty", [second[depth]])


def _transfers(nodes: tuple[Node, ...], above: Path) -> list[Path]:
    found: list[Path] = []
    for n in nodes:
        if isinstance(n, LoopPlan):
            found += _transfers(n.body, (*above, n))
        elif isinstance(n, TransferPlan):
            found.append((*above, n))
    return found


def _boxes(t: TransferPlan) -> list[tuple[Expr, Expr]] | None:
    """(first coordinate, extent) per view dim, None for tiles that are no boxes."""
    tile = t.tile
    if tile is None:
        return None
    out = []
    for coord in tile.coords:
        if not isinstance(coord, Expr):
            return None
        zero = {v.terms[0][0][0].name: ex.ZERO for v in tile.vars if v.terms}
        base = rw.substitute(coord, zero)
        extent: Expr = ex.ONE
        moving = [j for j, v in enumerate(tile.vars) if v.terms and _occurs(v, coord)]
        if len(moving) > 1 or (moving and coord - base != tile.vars[moving[0]]):
            return None
        if moving:
            extent = tile.extents[moving[0]]
        out.append((base, extent))
    return out


def _occurs(variable: Expr, e: Expr) -> bool:
    name = variable.terms[0][0][0].name
    return any(a.name == name for a in e.atoms())


def _same_view(a: Tile, b: Tile) -> bool:
    x, y = a.view, b.view
    return (x.offset, x.strides, x.dtype) == (y.offset, y.strides, y.dtype)


def _apart(a: TransferPlan, b: TransferPlan) -> bool:
    """True if the boxes are disjoint in some dim for every value of the variables."""
    x, y = _boxes(a), _boxes(b)
    if x is None or y is None or a.tile is None or b.tile is None or not _same_view(a.tile, b.tile):
        return False
    for (first, extent), (other, size) in zip(x, y, strict=True):
        loops = any(e.depends(("var",)) for e in (first, other))
        if not loops and (ex.nonnegative(other - first - extent) or ex.nonnegative(first - other - size)):
            return True
    return False


def _depends(body: tuple[Node, ...], load: TransferPlan, store: TransferPlan) -> bool:
    """True if what the store writes is computed from what the load brought."""
    tainted = {load.ref.block}
    segments = _segments(body)
    for _ in range(2):
        for s in segments:
            if tainted & set(reads(s)):
                tainted |= {o.ref.block for o in s.outputs}
    return store.ref.block in tainted


def _segments(nodes: tuple[Node, ...]) -> list[SegmentPlan]:
    found: list[SegmentPlan] = []
    for n in nodes:
        if isinstance(n, LoopPlan):
            found += _segments(n.body)
        elif isinstance(n, SegmentPlan):
            found.append(n)
    return found


def _disjoint_iterations(a: TransferPlan, b: TransferPlan, loops: list[LoopPlan]) -> bool:
    """True if both touch the same box and boxes of different iterations never meet.

    In some dim the box must start at a mixed-radix number of the loop variables whose smallest weight is the
    box's extent; together such dims must cover every loop."""
    if not loops:
        return True
    x, y = _boxes(a), _boxes(b)
    if x is None or x != y or a.tile is None or b.tile is None or not _same_view(a.tile, b.tile):
        return False
    counts = {loop.var: loop.count for loop in loops}
    covered: set[str] = set()
    for base, extent in x:
        split = rw.linear(base, tuple(counts))
        if split is None or not split[1]:
            continue
        room = extent
        weights = sorted(split[1].items(), key=lambda t: t[1].hi if t[1].hi is not None else 1 << 60)
        for name, weight in weights:
            if not ex.nonnegative(weight - room):
                break
            covered.add(name)
            room = room + weight * (counts[name] - 1)
    return covered == set(counts)
