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

from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import ONE, Expr, substitute
from torch_loom.scheduler.kernel import Assign, For, Indirect, Kernel, Kind, Load, Stmt, Store, Tile, Value
from torch_loom.spyrecode.model import VecOp

Index = tuple[Expr, ...]

_CHEAP = 1  # lane operations that are repeated rather than stored
_HEAVY = {VecOp.EXP, VecOp.EXP2, VecOp.LOG, VecOp.TANH, VecOp.ERF, VecOp.POW, VecOp.DIV_F, VecOp.RSQRT,
          VecOp.SQRT, VecOp.SIGMOID, VecOp.SILU, VecOp.GELU, VecOp.SIN, VecOp.COS, VecOp.RECIP}  # fmt: skip
_UNIFORM = (Kind.CONST, Kind.SCALAR, Kind.INDEX)


@dataclass(eq=False)
class Sink:
    """A value written to LX by a segment: a root, or what a store or assignment writes (``target``).

    ``source`` is evaluated over ``source.vars``; for a reduction it is the operand."""

    value: Value
    scope: int
    run: int
    target: Store | Assign | None = None
    level: int = 0

    @property
    def store(self) -> Store | None:
        """The store it serves, if any."""
        return self.target if isinstance(self.target, Store) else None

    @property
    def source(self) -> Value:
        """What is computed per point of the iteration space."""
        return self.value.operands[0] if self.reduces else self.value

    @property
    def reduces(self) -> bool:
        """True if the points are folded."""
        return self.target is None and self.value.kind is Kind.REDUCE


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
    cells: list[Value]  # live reads of cells
    load_run: dict[Value, int]
    runs: dict[int, list[list[Stmt]]]  # scope -> runs of statements (a loop is a run of its own)


class Grouper:
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
        loads = [s for s in _loads(self.kernel.body) if s.value in self._live_set]
        return Grouping(
            self._groups(),
            self.roots,
            self.forced,
            self.sinks,
            self.targets,
            loads,
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
        read: set[int] = set()
        while stack:
            v = stack.pop()
            if v.id not in seen:
                seen[v.id] = v
                stack.extend(v.operands)
                if v.tile is not None:
                    reads_indices(v.tile)
                if v.kind is Kind.CELL:
                    read.add(v.cell)
                    stack.extend(assigned.get(v.cell, []))
        self.targets = {k: s for k, s in self.targets.items() if _is_live(s, needed, read)}
        self.live = [seen[k] for k in sorted(seen)]
        self._live_set = set(self.live)
        for v in self.live:
            for o in v.operands:
                self.users.setdefault(o, []).append(v)

    # -- roots --------------------------------------------------------------------------------------

    def _choose_roots(self) -> None:
        cost = self._costs()
        level = self._barriers()
        reached: dict[Value, list[tuple[Sink, bool]]] = {v: [] for v in self.live}
        for s in self.targets.values():
            reached[s.value].append((s, False))
        for v in reversed(self.live):
            if v.kind in (Kind.LOAD, Kind.CELL, *_UNIFORM) and v not in self.forced:
                continue
            flows = reached[v]
            if not flows:
                raise ScheduleError("a live value reaches no store", op=v.op_name, where=v.where)
            if self._is_root(v, flows, cost, level):
                sink = Sink(v, v.scope, self._run_for(v, [s for s, _ in flows]))
                self.roots.add(v)
                self.sinks[v] = sink
                flows = [(sink, False)]
            spread = v.kind is Kind.REMAP and _spreads(v)
            for o in v.operands:
                if v.kind is Kind.REDUCE or v in self.roots:
                    reached[o].append((self.sinks[v], spread))
                else:
                    reached[o].extend((s, b or spread) for s, b in flows)

    def _is_root(
        self, v: Value, flows: list[tuple[Sink, bool]], cost: dict[Value, int], level: dict[Value, int]
    ) -> bool:
        if v in self.forced or v.kind is Kind.REDUCE:
            return True
        if v.kind is Kind.REMAP or (v.kind is Kind.MAP and v.op is VecOp.COPY):
            return False
        if self._feeds_matmul(v):
            return True
        work = cost[v]
        if v.kind is Kind.MAP and not self.fuse:
            return True
        if v.kind is Kind.MATMUL:
            work = 1 << 30
        if any(spread for _, spread in flows) and work > 0:
            return True
        places = {(s.scope, s.run, level[s.source], tuple(e.key for e in s.source.shape)) for s, _ in flows}
        if work > _CHEAP and (len(places) > 1 or any(s.scope != v.scope for s, _ in flows)):
            return True
        return v.kind is Kind.MATMUL and any(
            invert(self._to_matmul(s.source, v), s.source, v) is None for s, _ in flows
        )

    def _feeds_matmul(self, v: Value) -> bool:
        """True if a contraction reads the value itself, perhaps converted or at other indices."""
        stack = list(self.users.get(v, []))
        while stack:
            u = stack.pop()
            if u.kind is Kind.MATMUL:
                return True
            if u not in self.roots and (u.kind is Kind.REMAP or (u.kind is Kind.MAP and u.op is VecOp.COPY)):
                stack.extend(self.users.get(u, []))
        return False

    def _plain(self, v: Value) -> bool:
        """True if PT can read the value where it lies: a load or root, perhaps at other indices."""
        v = strip(v)
        if v.kind is Kind.REMAP:
            v = strip(v.operands[0])
        return v.kind in (Kind.LOAD, Kind.CELL, Kind.REDUCE) or v in self.roots or v in self.forced

    def _to_matmul(self, source: Value, m: Value) -> Index:
        for leaf, index in self.cone(source, source.vars):
            if leaf is m:
                return index
        return ()

    def _costs(self) -> dict[Value, int]:
        cost: dict[Value, int] = {}
        for v in self.live:
            if v.kind in (Kind.LOAD, Kind.REDUCE, Kind.MATMUL, Kind.CELL, *_UNIFORM) or v in self.forced:
                cost[v] = 0
            else:
                own = 0
                if v.kind is Kind.MAP and v.op is not VecOp.COPY:
                    own = 4 if v.op in _HEAVY else 1
                cost[v] = own + sum(cost[o] for o in v.operands)
                if not _has_data(v):
                    cost[v] = 0
        return cost

    def _barriers(self) -> dict[Value, int]:
        level: dict[Value, int] = {}
        for v in self.live:
            below = max((level[o] for o in v.operands), default=0)
            step = v.kind is Kind.REDUCE
            if v.kind is Kind.MATMUL:
                step = any(not self._plain(o) for o in v.operands)
            level[v] = below + step
        return level

    def _run_for(self, v: Value, sinks: list[Sink]) -> int:
        """The earliest run of v's scope in which one of the sinks (or a loop holding it) stands."""
        runs = []
        for s in sinks:
            if s.scope == v.scope:
                late = (s.scope, s.run) in self.assign_runs  # assignments read only what is complete
                runs.append(s.run - late)
            else:
                chain = self.kernel.path(s.scope)
                child = chain[chain.index(v.scope) + 1]
                runs.append(self.run_of_loop[child] - 1)
        return min(runs)

    def _protect_cells(self) -> None:
        """An assignment may compute in place only from its own cell at the same point; values that need other
        cells of the same batch (or other points) are computed before the batch."""
        batches: dict[tuple[int, int], list[Sink]] = {}
        for s in self.targets.values():
            if isinstance(s.target, Assign):
                batches.setdefault((s.scope, s.run), []).append(s)
        clash: set[Value] = set()
        for batch in batches.values():
            written = {s.target.cell.id for s in batch if isinstance(s.target, Assign)}
            for s in batch:
                assert isinstance(s.target, Assign)
                for leaf, index in self.cone(s.value, s.value.vars, top=s.value not in self.roots):
                    if leaf.kind is not Kind.CELL or leaf.cell not in written:
                        continue
                    own = leaf.cell == s.target.cell.id and index == s.value.vars
                    if not own or any(o != 0 for o in s.target.offset):
                        clash.add(s.value)
        clash = {v for v in clash if v not in self.roots}
        if clash:
            raise MoreRoots(clash)

    # -- cones and levels ---------------------------------------------------------------------------

    def cone(self, v: Value, index: Index, top: bool = True) -> Iterator[tuple[Value, Index]]:
        """Leaves below a value at an index: loads, roots, contractions (the value itself is opened)."""
        seen: set[tuple[int, Index]] = set()
        stack = [(v, index, top)]
        while stack:
            u, at, first = stack.pop()
            if (u.id, at) in seen and not first:
                continue
            seen.add((u.id, at))
            if u.kind in _UNIFORM and u not in self.forced:
                continue
            if not first and u in self.roots or u.kind in (Kind.LOAD, Kind.MATMUL):
                yield u, at
            elif u.kind is Kind.REMAP:
                names = _index_names(u, at)
                stack.append((u.operands[0], tuple(substitute(e, names) for e in u.imap), False))
            elif u.kind is Kind.MAP:
                stack.extend((o, at, False) for o in u.operands)
            else:
                yield u, at

    def _level_all(self) -> None:
        for sink in sorted([*self.sinks.values(), *self.targets.values()], key=_sink_order):
            sink.level = self._level(sink)

    def _level(self, sink: Sink) -> int:
        level = 0
        source = sink.source
        opened = sink.target is None and not sink.reduces
        for leaf, index in self.cone(source, source.vars, top=opened or source not in self.roots):
            if leaf.kind is Kind.MATMUL and leaf not in self.roots:
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


class MoreRoots(Exception):
    """Planning found values that must lie in LX after all; grouping starts again with them forced."""

    def __init__(self, values: set[Value]) -> None:
        super().__init__(f"{len(values)} more roots")
        self.values = values


def _sink_order(s: Sink) -> tuple[int, int]:
    return (s.value.id, 0 if s.target is None else 1)


def _loads(body: list[Stmt]) -> Iterator[Load]:
    for s in body:
        if isinstance(s, Load):
            yield s
        elif isinstance(s, For):
            yield from _loads(s.body)


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


def _has_data(v: Value) -> bool:
    stack = [v]
    while stack:
        u = stack.pop()
        if u.kind in (Kind.LOAD, Kind.REDUCE, Kind.MATMUL, Kind.CELL):
            return True
        stack.extend(u.operands)
    return False


def _spreads(v: Value) -> bool:
    """True for a REMAP that reads one operand element at several indices (a broadcast)."""
    used = {a.name for e in v.imap for a in e.atoms()}
    return any(e != 1 and x.terms[0][0][0].name not in used for e, x in zip(v.shape, v.vars, strict=True))


def strip(v: Value) -> Value:
    """Skip conversions that keep every value (extf)."""
    while v.kind is Kind.MAP and v.op is VecOp.COPY:
        v = v.operands[0]
    return v


def _index_names(v: Value, index: Index) -> dict[str, Expr]:
    return {x.terms[0][0][0].name: i for x, i in zip(v.vars, index, strict=True) if x.terms}


def invert(index: Index, source: Value, target: Value) -> Index | None:
    """Source index as a function of the target's variables, for target index ``index(source.vars)``.

    Solves permutations, merged and split dims; None when the map is not one-to-one in that form."""
    from torch_loom.scheduler import expr as ex

    if not index:
        return None
    found: list[Expr] = []
    for var, extent in zip(source.vars, source.shape, strict=True):
        if extent == ONE:
            found.append(ex.ZERO)
            continue
        name = var.terms[0][0][0].name
        parts: Expr = ex.ZERO
        for component, at in zip(index, target.vars, strict=True):
            if not any(a.name == name for a in component.atoms()):
                continue
            split = ex.linear(component, (name,))
            if split is not None:
                factor = split[1][name]
                if not factor.static:
                    return None
                parts = ex.floordiv(at, factor.value)
                parts = (
                    ex.mod(parts, extent)
                    if parts.hi is None or not ex.nonnegative(extent - 1 - parts)
                    else parts
                )
                break
            weight = _digit_weight(component, name)
            if weight is None:
                return None
            parts = parts + at * weight
        found.append(parts)
    names = _index_names(source, tuple(found))
    back = tuple(substitute(e, names) for e in index)
    return tuple(found) if back == target.vars else None


def _digit_weight(component: Expr, name: str) -> Expr | None:
    """x floordiv d -> d; x mod d -> 1; (x floordiv a) mod b -> a."""
    if (
        component.const
        or len(component.terms) != 1
        or component.terms[0][1] != 1
        or len(component.terms[0][0]) != 1
    ):
        return None
    atom = component.terms[0][0][0]
    if atom.kind == "floordiv":
        inner, d = atom.args
        return d if inner.terms and inner.terms[0][0][0].name == name and len(inner.terms) == 1 else None
    if atom.kind == "mod":
        inner = atom.args[0]
        if len(inner.terms) == 1 and inner.terms[0][0][0].name == name:
            return ONE
        return _digit_weight(inner, name)
    return None
