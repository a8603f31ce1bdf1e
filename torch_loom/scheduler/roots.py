"""Pass 2a: which values lie in LX.

Values are visited from the stores upwards. Each carries the sinks it flows into and whether a broadcast lies
between; that and the work below it decide whether it is computed once and stored, or where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.inverse import Index, index_names, invert, strip
from torch_loom.scheduler.kernel import Assign, Kernel, Kind, Value
from torch_loom.scheduler.rewrite import substitute
from torch_loom.scheduler.sinks import MoreRoots, Sink
from torch_loom.spyrecode.model import VecOp

_NEVER = 1 << 30
_CHEAP = 1  # lane operations that are repeated rather than stored
_HEAVY = {VecOp.EXP, VecOp.EXP2, VecOp.LOG, VecOp.TANH, VecOp.ERF, VecOp.POW, VecOp.DIV_F, VecOp.RSQRT,
          VecOp.SQRT, VecOp.SIGMOID, VecOp.SILU, VecOp.GELU, VecOp.SIN, VecOp.COS, VecOp.RECIP}  # fmt: skip
UNIFORM = (Kind.CONST, Kind.SCALAR, Kind.INDEX)


class RootChooser:
    """Chooses roots. ``forced`` are values that a later step could not use where they are."""

    kernel: Kernel
    forced: set[Value]
    fuse: bool
    roots: set[Value]
    sinks: dict[Value, Sink]
    targets: dict[int, Sink]
    run_of_loop: dict[int, int]
    assign_runs: set[tuple[int, int]]
    live: list[Value]
    users: dict[Value, list[Value]]

    def _choose_roots(self) -> None:
        cost = self._costs()
        level = self._barriers()
        # In order, and each once: a value of many operators reaches a sink along very many paths.
        reached: dict[Value, dict[tuple[Sink, bool], None]] = {v: {} for v in self.live}
        for s in self.targets.values():
            reached[s.value][s, False] = None
        for v in reversed(self.live):
            if v.kind in (Kind.LOAD, Kind.CELL, *UNIFORM) and v not in self.forced:
                continue
            flows = list(reached[v])
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
                    reached[o][self.sinks[v], spread] = None
                else:
                    reached[o].update(dict.fromkeys((s, b or spread) for s, b in flows))

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
            work = _NEVER
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
            if v.kind is Kind.MATMUL and v not in self.forced:
                cost[v] = _NEVER  # nothing that contains a contraction is computed twice
            elif v.kind in (Kind.LOAD, Kind.REDUCE, Kind.MATMUL, Kind.CELL, *UNIFORM) or v in self.forced:
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

    def cone(self, v: Value, index: Index, top: bool = True) -> Iterator[tuple[Value, Index]]:
        """Leaves below a value at an index: loads, roots, contractions (the value itself is opened)."""
        seen: set[tuple[int, Index]] = set()
        stack = [(v, index, top)]
        while stack:
            u, at, first = stack.pop()
            if (u.id, at) in seen and not first:
                continue
            seen.add((u.id, at))
            if u.kind in UNIFORM and u not in self.forced:
                continue
            if not first and u in self.roots or u.kind in (Kind.LOAD, Kind.MATMUL):
                yield u, at
            elif u.kind is Kind.REMAP:
                names = index_names(u, at)
                stack.append((u.operands[0], tuple(substitute(e, names) for e in u.imap), False))
            elif u.kind is Kind.MAP:
                stack.extend((o, at, False) for o in u.operands)
            else:
                yield u, at


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
