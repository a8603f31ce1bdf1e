"""Handlers of pass 1 for exchanges between compute tiles.

A producer writes its partial into a *send* cell; a ``Ring`` statement copies each consumer's share of it into a
*landing* cell of that core, at the place where it belongs in the result; the consumer reads the landing cell.
For a reduction the landing cell has a slot per producer, and the fold over them is ordinary elementwise code in
ascending order of the producers' local index. The sets are known when the kernel is scheduled; who exchanges
with whom becomes expressions of the core number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.ir import Block, Operation

from torch_loom.dialects.errors import CodedVerifyError
from torch_loom.ktir import groups
from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import lane_ops
from torch_loom.scheduler.core_table import partner, table
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.kernel import Cell, For, Hop, Ring, Value
from torch_loom.scheduler.normalise import Normaliser, handles

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class Future:
    """What a produce left behind: the producers of each group, and the send cells."""

    producers: dict[int, list[int]]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Pair:
    """One message: sender, receiver, the receiver's local index, the sender's place among its sources."""

    sender: int
    receiver: int
    local: int
    place: int


@handles("ktdp.yield_partial", "ktdp.yield_reduced")
def _terminator(n: Normaliser, op: Operation) -> None:
    return None


@handles("ktdp.inter_tile_produce")
def _produce(n: Normaliser, op: Operation) -> None:
    producers = _checked(n, lambda: groups.producer_groups(op, n.cores))  # type: ignore[arg-type]
    group_of: list[int | None] = [None] * n.cores
    for group, ids in producers.items():
        for core in ids:
            group_of[core] = group
    block = op.regions[0].blocks[0]
    outer: Any = None
    if len(list(block.ops)) > 1 and None in group_of:  # only producers run the region
        scope = len(n.parents)
        n.parents[scope] = n.graph.scope
        outer = (n.body, n.graph.enter(scope), For(scope, ex.ZERO, _member(group_of), where=n.graph.where))
        n.body = outer[2].body
    n.set(block.args[0], table(tuple(group_of)))
    n.block(block)
    cells = []
    for v in list(block.ops)[-1].operands:
        value = n.value(v)
        cells.append(n.new_cell(value.dtype, value.shape))
        n.assign(cells[-1], value)
    if outer is not None:
        n.graph.leave(outer[1])
        n.body = outer[0]
        n.body.append(outer[2])
    n.set(op.results[0], Future(producers, tuple(cells)))


def _member(group_of: Sequence[int | None]) -> Expr:
    return table(tuple(int(g is not None) for g in group_of))


def _checked(n: Normaliser, question: Any) -> Any:
    """Answer a question about groups; a broken rule becomes an error at the operation."""
    try:
        return question()
    except CodedVerifyError as error:
        raise n.error(str(error)) from None


@handles(
    "ktdp.inter_tile_consume",
    "ktdp.inter_tile_reduce",
    "ktdp.inter_tile_gather",
    "ktdp.inter_tile_scatter",
    "ktdp.inter_tile_all_to_all",
    "ktdp.inter_tile_reduce_scatter",
)
def _deliver(n: Normaliser, op: Operation) -> None:
    delivery = Delivery(n, op)
    kind = op.name.removeprefix("ktdp.inter_tile_")
    if kind in ("reduce", "reduce_scatter"):
        results = delivery.fold()
    else:
        results = [n.read(delivery.land(k)) for k in range(len(op.results))]
    for result, value in zip(op.results, results, strict=True):
        n.set(result, value)


class Delivery:
    """One delivery: who receives what from whom, and where it lands."""

    def __init__(self, n: Normaliser, op: Any) -> None:
        self.n, self.op = n, op
        self.kind = op.name.removeprefix("ktdp.inter_tile_")
        self.future: Future = n.env[op.operands[0]]
        self.pairs: list[Pair] = []
        self.sources: dict[int, list[int]] = {}
        self.locals: dict[int, int] = {}
        sizes = {(len(self._consumers(g)), len(p)) for g, p in self.future.producers.items()}
        for group, producers in self.future.producers.items():
            self._group(group, producers)
        if len(sizes) > 1 and self.kind not in ("consume", "reduce"):
            n.fail("groups of different sizes cannot share one result type")
        self.consumers, self.producers = max(sizes) if sizes else (1, 1)
        if self.kind in ("gather", "all_to_all") and self.sources:
            counts = {len(s) for s in self.sources.values()}
            if len(counts) > 1:
                n.fail(f"consumers with {sorted(counts)} sources cannot share one result type")
            self.producers = counts.pop()

    def _consumers(self, group: int) -> list[int]:
        return groups.members(self.op.consumer_tiles_per_group, (group,), self.n.cores)

    def _group(self, group: int, producers: list[int]) -> None:
        n = self.n
        for local, core in enumerate(self._consumers(group)):
            if core in self.sources:
                n.fail(f"compute tile {core} consumes from several groups")
            needed = _checked(n, lambda c=core: groups.sources(self.op, c, group, producers, n.cores))
            if self.kind in ("consume", "scatter") and len(needed) != 1:
                n.fail(f"consumer {core} needs exactly one source, it has {needed}")
            self.sources[core], self.locals[core] = needed, local
            self.pairs += [Pair(p, core, local, place) for place, p in enumerate(needed)]

    # -- placement ------------------------------------------------------------------------------------

    def land(self, k: int) -> Cell:
        """Send value k; returns the landing cell."""
        source = self.n.read(self.future.cells[k])
        box, split, landing, join = self._boxes(k, source.shape)
        cell = self.n.new_cell(source.dtype, landing)
        hops = self._hops(
            lambda pair: self._start(split, pair.local, box),
            lambda pair: self._slot(join, pair.place, box, len(landing)),
        )
        senders = self._senders()
        self.n.body.append(Ring(source, self.n.read(cell), box, hops, senders, self.n.graph.where))
        return cell

    def _boxes(self, k: int, partial: Shape) -> tuple[Shape, dict[int, int], Shape, dict[int, int]]:
        """(extents of a message, parts per split axis, landing shape, parts per joined axis)."""
        result = self.op.results[k].type
        assert isinstance(result, TensorType)
        shape = list(result.get_shape())
        fixed = [e.value if e.static else DYNAMIC_INDEX for e in partial]
        split: dict[int, int] = {}
        join: dict[int, int] = {}
        op, static = self.op, DYNAMIC_INDEX not in (*fixed, *shape)
        if static:
            _checked(self.n, lambda: groups.check_placement(op, fixed, shape, self.producers, self.consumers))
        if self.kind in ("scatter", "reduce_scatter"):
            axes = op.dimensions("scatter_dimensions")
            split = self._counts(
                axes, self.consumers, static and (lambda: groups.divided(fixed, shape, axes, self.consumers))
            )
        elif self.kind == "all_to_all":
            axes = op.dimensions("split_dimensions")
            joined = op.dimensions("concat_dimensions")
            split = self._counts(
                axes,
                self.consumers,
                static and (lambda: groups.split_counts(fixed, shape, axes, joined, self.consumers)),
            )
        box = tuple(self._part(e, split.get(a, 1)) for a, e in enumerate(partial))
        if self.kind in ("gather", "all_to_all"):
            into = op.dimensions("gather_dimensions" if self.kind == "gather" else "concat_dimensions")
            inner = [e.value if e.static else DYNAMIC_INDEX for e in box]
            join = self._counts(
                into, self.producers, static and (lambda: groups.multiplied(inner, shape, into, self.producers))
            )
        landing = tuple(e * join.get(a, 1) for a, e in enumerate(box))
        if self.kind in ("reduce", "reduce_scatter"):
            landing = (Expr(max((len(s) for s in self.sources.values()), default=1)), *landing)
        return box, split, landing, join

    def _counts(self, axes: Sequence[int], parts: int, exact: Any) -> dict[int, int]:
        if exact:
            return dict(zip(axes, _checked(self.n, exact), strict=True))
        if len(axes) != 1:
            self.n.fail("dynamic extents can be divided or joined along one axis only")
        return {axes[0]: parts}

    def _part(self, extent: Expr, count: int) -> Expr:
        if count > 1 and not extent.divisible(count):
            self.n.fail(f"cannot prove that {count} divides the extent {extent}")
        return ex.floordiv(extent, count)

    @staticmethod
    def _start(counts: dict[int, int], number: int, box: Shape) -> Shape:
        """First index of part ``number`` of a split: mixed-radix digits, first axis slowest."""
        start = [ex.ZERO] * len(box)
        for axis in sorted(counts, reverse=True):
            start[axis] = box[axis] * (number % counts[axis])
            number //= counts[axis]
        return tuple(start)

    def _slot(self, counts: dict[int, int], place: int, box: Shape, rank: int) -> Shape:
        if rank > len(box):  # one slot per producer
            return (Expr(place), *(ex.ZERO for _ in box))
        return self._start(counts, place, box)

    def _hops(self, source: Any, target: Any) -> tuple[Hop, ...]:
        """Step k of a sender goes to its k-th receiver after itself, so that steps spread over the ring."""
        cores = self.n.cores
        lists: list[list[Pair]] = [[] for _ in range(cores)]
        for pair in self.pairs:
            lists[pair.sender].append(pair)
        for core, mine in enumerate(lists):
            mine.sort(key=lambda p: (p.receiver - core) % cores)
        hops = []
        for k in range(max((len(m) for m in lists), default=0)):
            step = [m[k] if k < len(m) else None for m in lists]
            to = partner([p.receiver if p else None for p in step])
            hops.append(Hop(to, _per_core(step, source), _per_core(step, target)))
        return tuple(hops)

    def _senders(self) -> tuple[Expr, ...]:
        """Source k of each core, its own first: the order in which messages can be expected."""
        cores = self.n.cores
        lists = {c: sorted(s, key=lambda p: (c - p) % cores) for c, s in self.sources.items()}
        most = max((len(s) for s in lists.values()), default=0)
        return tuple(
            partner([lists[c][k] if c in lists and k < len(lists[c]) else None for c in range(cores)])
            for k in range(most)
        )

    # -- folds ----------------------------------------------------------------------------------------

    def fold(self) -> list[Value]:
        """Land all values, then combine the slots one after the other, from the identity on."""
        n = self.n
        block: Block = self.op.combiner[0].block
        strange = [o.name for o in block.ops if not o.name.startswith(("arith.", "math.", "ktdp.yield"))]
        if strange and self.kind == "reduce_scatter":
            n.fail(f"the combiner must be elementwise, it has {strange[0]}")
        cells = [self.land(k) for k in range(len(self.op.results))]
        landed = [n.read(c) for c in cells]
        boxes = [v.shape[1:] for v in landed]
        folded = [self._identity(k, n.value(v), boxes[k]) for k, v in enumerate(list(self.op.operands)[1:])]
        counts = {len(s) for s in self.sources.values()}
        least = min(counts, default=0)
        have = table(tuple(len(self.sources[c]) if c in self.sources else None for c in range(n.cores)))
        for m in range(max(counts, default=0)):
            parts = [self._slice(v, m, box) for v, box in zip(landed, boxes, strict=True)]
            for arg, value in zip(block.args, [*folded, *parts], strict=True):
                n.set(arg, value)
            n.block(block)
            fresh = [n.value(v) for v in list(block.ops)[-1].operands]
            n.at(self.op)
            if m >= least:
                there = self._positive(have - m)
                fresh = [lane_ops.select(n.graph, there, new, old) for new, old in zip(fresh, folded, strict=True)]
            folded = fresh
        return folded

    def _positive(self, left: Expr) -> Value:
        """True on cores where a number that depends on the core is above 0."""
        number = self.n.graph.index(lambda _: left, "i32")
        return lane_ops.compare_int(self.n.graph, "sgt", number, self.n.graph.const(0, "i32"))

    def _slice(self, landed: Value, m: int, box: Shape) -> Value:
        return self.n.graph.remap(landed, box, lambda i: (Expr(m), *i))

    def _identity(self, k: int, value: Value, box: Shape) -> Value:
        if value.shape == box or not value.shape:
            return value
        split = self._boxes(k, value.shape)[1]
        starts: list[Shape | None] = [
            self._start(split, self.locals[c], box) if c in self.locals else None for c in range(self.n.cores)
        ]
        offset = _joined(starts, len(box))
        return self.n.graph.remap(value, box, lambda i: tuple(o + x for o, x in zip(offset, i, strict=True)))


def _per_core(step: Sequence[Pair | None], place: Any) -> Shape:
    places: list[Shape | None] = [place(p) if p else None for p in step]
    rank = max((len(p) for p in places if p is not None), default=0)
    return _joined(places, rank)


def _joined(places: Sequence[Shape | None], rank: int) -> Shape:
    """One index per core as one index of expressions of the core number. A start is a part number times the
    extent of a part, which may be symbolic."""
    out = []
    for a in range(rank):
        entries = [p[a] if p is not None else None for p in places]
        unit = next((e for e in entries if e is not None and not e.static), None)
        if unit is None:
            out.append(table(tuple(None if e is None else e.value for e in entries)))
            continue
        base = next(e for e in entries if e is not None and e != 0)
        whole = _unit(base)
        numbers = tuple(None if e is None else _multiple(e, whole) for e in entries)
        out.append(table(numbers) * whole)
    return tuple(out)


def _unit(e: Expr) -> Expr:
    """An expression divided by the greatest common divisor of its coefficients."""
    common = gcd(e.const, *(c for _, c in e.terms))
    return Expr(e.const // common, tuple((m, c // common) for m, c in e.terms))


def _multiple(e: Expr, unit: Expr) -> int:
    if e == 0:
        return 0
    first = next(c for m, c in e.terms if m == unit.terms[0][0])
    return first // unit.terms[0][1]


def remote_read(
    n: Normaliser, value: Value, owner: int, box: Shape, source: Shape, target: Shape, shape: Shape
) -> Value:
    """``box`` of a value of core ``owner`` on every core, in a cell of ``shape`` at ``target``."""
    sent = n.new_cell(value.dtype, value.shape)
    n.assign(sent, value)
    cell = n.new_cell(value.dtype, shape)
    cores = n.cores
    hops = tuple(
        Hop(partner([(owner + k) % cores if c == owner else None for c in range(cores)]), source, target)
        for k in range(cores)
    )
    n.body.append(Ring(n.read(sent), n.read(cell), box, hops, (Expr(owner),), n.graph.where))
    return n.read(cell)
