"""Pass 2: which values are written to LX, and which of them one segment computes.

Elementwise values are computed inside the segments that use them. A value becomes a *root* (lies in LX,
computed once) when it is a reduction, a contraction or a part of one that other segments read, when
several segments would repeat its work, when it would be repeated along a broadcast, or when a loop inside
its scope uses it. Stores are sinks, too: they write to the block their transfer reads.

Sinks of one scope with one iteration space form a segment if none of them reads another at other indices.
A scope's statements are cut into *runs* at its loops and wherever a transfer must wait for the run before;
within a run segments are ordered by *level*, the longest chain of roots below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.inverse import Index, strip
from torch_loom.scheduler.kernel import Assign, For, Indirect, Kernel, Kind, Load, Ring, Stmt, Store, Tile, Value
from torch_loom.scheduler.roots import RootChooser
from torch_loom.scheduler.sinks import MoreRoots, Sink

S = TypeVar("S", Load, Ring)


@dataclass(eq=False)
class Group:
    """Sinks that one segment computes; ``matmul`` is the contraction that feeds it."""

    scope: int
    run: int
    level: int
    space: tuple[Expr, ...]
    matmul: Value | None
    sinks: list[Sink] = field(default_factory=list)


@dataclass
class Grouping:
    """Result of the pass."""

    groups: list[Group]
    roots: set[Value]
    forced: set[Value]
    sinks: dict[Value, Sink]
    targets: dict[int, Sink]  # by id of the store or assignment
    loads: list[Load]  # live loads
    rings: list[Ring]  # live exchanges
    cells: list[Value]  # live reads of cells
    load_run: dict[Value, int]
    runs: dict[int, list[list[Stmt]]]  # scope -> runs of statements (a loop is a run of its own)


class Grouper(RootChooser):
    """The pass; ``forced`` are values that a later step could not use where they are."""

    def __init__(self, kernel: Kernel, forced: set[Value], fuse: bool = True) -> None:
        self.kernel = kernel
        self.forced = forced
        self.fuse = fuse
        self.roots: set[Value] = set()
        self.sinks: dict[Value, Sink] = {}
        self.targets: dict[int, Sink] = {}
        self.runs: dict[int, list[list[Stmt]]] = {}
        self.run_of_loop: dict[int, int] = {}
        self.assign_runs: set[tuple[int, int]] = set()
        self.load_run: dict[Value, int] = {}
        self.live: list[Value] = []
        self.users: dict[Value, list[Value]] = {}

    def run(self) -> Grouping:
        """Group the whole kernel."""
        self._cut_runs(0, self.kernel.body)
        self._find_live()
        self._choose_roots()
        self._protect_cells()
        self._level_all()
        loads = [s for s in _statements(self.kernel.body, Load) if s.value in self._live_set]
        return Grouping(
            self._groups(),
            self.roots,
            self.forced,
            self.sinks,
            self.targets,
            loads,
            [r for r in _statements(self.kernel.body, Ring) if r.target.cell in self._read],
            [v for v in self.live if v.kind is Kind.CELL],
            self.load_run,
            self.runs,
        )

    # -- runs -------------------------------------------------------------------------------------

    def _cut_runs(self, scope: int, body: list[Stmt]) -> None:
        runs: list[list[Stmt]] = [[]]
        written: set[int] = set()

        def cut() -> None:
            runs.append([])
            written.clear()

        batch: set[int] = set()  # cells of the assignments that happen at once
        for s in body:
            if isinstance(s, Ring):
                cut()
                batch.clear()
                runs[-1].append(s)
                cut()
                continue
            if batch and not (isinstance(s, Assign) and s.cell.id not in batch):
                cut()
                batch.clear()
            if isinstance(s, For):
                cut()
                self.run_of_loop[s.id] = len(runs) - 1
                runs[-1].append(s)
                cut()
                self._cut_runs(s.id, s.body)
                continue
            if isinstance(s, Assign):
                if not batch:
                    cut()
                    self.assign_runs.add((scope, len(runs) - 1))
                batch.add(s.cell.id)
                self.targets[id(s)] = Sink(s.value, scope, len(runs) - 1, s)
            elif isinstance(s, Load):
                if _reads(s.value) & written:
                    cut()
                self.load_run[s.value] = len(runs) - 1
            else:
                written.add(id(s) if s.tile.view.local else s.tile.view.arg)
                self.targets[id(s)] = Sink(s.value, scope, len(runs) - 1, s)
            runs[-1].append(s)
        if batch:
            cut()
        self.runs[scope] = runs

    # -- liveness ---------------------------------------------------------------------------------

    def _find_live(self) -> None:
        seen: dict[int, Value] = {}
        needed: set[int] = set()
        stack: list[Value] = []

        def reads_indices(tile: Tile) -> None:
            for source in index_sources(tile):
                needed.add(id(source))
                stack.append(source.value)

        for sink in self.targets.values():
            if sink.store is not None and not sink.store.tile.view.local:
                stack.append(sink.value)
                reads_indices(sink.store.tile)
        assigned: dict[int, list[Value]] = {}
        for sink in self.targets.values():
            if isinstance(sink.target, Assign):
                assigned.setdefault(sink.target.cell.id, []).append(sink.value)
        sent = {r.target.cell: r.source.cell for r in _statements(self.kernel.body, Ring)}
        read: set[int] = set()
        while stack:
            v = stack.pop()
            if v.id not in seen:
                seen[v.id] = v
                stack.extend(v.operands)
                if v.tile is not None:
                    reads_indices(v.tile)
                if v.kind is Kind.CELL:
                    for cell in (v.cell, sent.get(v.cell, v.cell)):
                        read.add(cell)
                        stack.extend(assigned.get(cell, []))
        self.targets = {k: s for k, s in self.targets.items() if _is_live(s, needed, read)}
        self._read = read
        self.live = [seen[k] for k in sorted(seen)]
        self._live_set = set(self.live)
        for v in self.live:
            for o in v.operands:
                self.users.setdefault(o, []).append(v)

    # -- cones and levels ---------------------------------------------------------------------------

    def _level_all(self) -> None:
        for sink in sorted([*self.sinks.values(), *self.targets.values()], key=_sink_order):
            sink.level = self._level(sink)

    def _level(self, sink: Sink) -> int:
        level = 0
        source = sink.source
        opened = sink.target is None and not sink.reduces
        for leaf, index in self.cone(source, source.vars, top=opened or source not in self.roots):
            if leaf.kind is Kind.MATMUL and (leaf not in self.roots or (opened and leaf is source)):
                for o in leaf.operands:
                    level = max(level, self._below(sink, o))
                continue
            if leaf not in self.sinks:
                continue
            other = self.sinks[leaf]
            if other.scope != sink.scope or other.run != sink.run:
                continue
            level = max(level, other.level + (not self._pointwise(sink, leaf, index)))
        return level

    def _pointwise(self, sink: Sink, leaf: Value, index: Index) -> bool:
        """True if the sink needs an elementwise root only at the point where it computes itself."""
        other = self.sinks[leaf]
        return (
            self.fuse
            and leaf.kind is Kind.MAP
            and (other.scope, other.run) == (sink.scope, sink.run)
            and leaf.shape == sink.source.shape
            and index == sink.source.vars
        )

    def _below(self, sink: Sink, operand: Value) -> int:
        operand = strip(operand)
        while operand.kind is Kind.REMAP and operand not in self.roots:
            operand = strip(operand.operands[0])
        other = self.sinks.get(operand)
        if other is None or other.scope != sink.scope or other.run != sink.run:
            return 0
        return other.level + 1

    # -- groups ---------------------------------------------------------------------------------------

    def _groups(self) -> list[Group]:
        groups: dict[tuple[object, ...], Group] = {}
        group_of: dict[Sink, Group] = {}
        for sink in sorted([*self.sinks.values(), *self.targets.values()], key=_sink_order):
            source = sink.source
            opened = sink.target is None and not sink.reduces
            products = []
            for leaf, index in self.cone(source, source.vars, top=opened or source not in self.roots):
                if leaf.kind is Kind.MATMUL and leaf not in self.roots:
                    products.append(leaf)
                elif leaf in self.sinks and self._pointwise(sink, leaf, index):
                    near = group_of.get(self.sinks[leaf])
                    if near is not None and near.level == sink.level and near.matmul is not None:
                        products.append(near.matmul)
            if sink.value.kind is Kind.MATMUL and sink.target is None:
                products = [sink.value]
            products = list(dict.fromkeys(products))
            if len(products) > 1:
                raise MoreRoots(set(products[:-1]))
            matmul = products[0] if products else None
            space = matmul.shape if matmul is not None else source.shape
            key = (
                sink.scope,
                sink.run,
                sink.level,
                tuple(e.key for e in space),
                matmul.id if matmul else -1,
                0 if self.fuse else id(sink),
            )
            group = groups.setdefault(key, Group(sink.scope, sink.run, sink.level, space, matmul))
            group.sinks.append(sink)
            group_of[sink] = group
        return sorted(groups.values(), key=lambda g: (g.scope, g.run, g.level))


def _sink_order(s: Sink) -> tuple[int, int]:
    return (s.value.id, 0 if s.target is None else 1)


def _statements(body: list[Stmt], kind: type[S]) -> Iterator[S]:
    for s in body:
        if isinstance(s, kind):
            yield s
        elif isinstance(s, For):
            yield from _statements(s.body, kind)


def _is_live(s: Sink, needed: set[int], read: set[int]) -> bool:
    """True for stores to DDR, local stores whose indices are needed, assignments to cells that are read."""
    if isinstance(s.target, Assign):
        return s.target.cell.id in read
    assert s.target is not None
    return not s.target.tile.view.local or id(s.target) in needed


def index_sources(tile: Tile) -> list[Store]:
    """Local stores whose indices the transfer of a tile reads."""
    return [c.source for c in tile.coords if isinstance(c, Indirect) and c.source is not None]


def _reads(v: Value) -> set[int]:
    """Buffers that a load reads, and the local stores whose indices it needs (by identity)."""
    assert v.tile is not None
    views = [v.tile.view, *(c.view for c in v.tile.coords if isinstance(c, Indirect) and c.source is None)]
    return {w.arg for w in views} | {id(s) for s in index_sources(v.tile)}
