"""Run a DataflowIR module in NumPy: the executor of this level, independent of the chip's engine.

Units of a core are coroutines that run until they must wait. Transfer units wait for credits; the
compute group waits for each other: a segment runs when its vector part and all its loads and stores have
been reached, and a unit does not pass a release, or a part of another segment, before its own segment
has run. When nobody can go on and somebody is not finished, that is a deadlock and the error names every
waiting unit. The order in which units are tried is random (``seed``); results must not depend on it.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from torch_loom.dialects import dataflow as df
from torch_loom.scheduler.lanes import LANES, STORAGE, LaneError, reduce_lanes, to_registers, to_storage
from torch_loom.scheduler.postfix import parse
from torch_loom.scheduler.races import Races

Bytes = NDArray[np.uint8]
Env = dict[SSAValue, int]


class DataflowError(Exception):
    """A program that cannot run: deadlock, an address outside its memory, a bad index."""


@dataclass(frozen=True, eq=False)
class Wait:
    """Why a unit stopped: a credit (``key``) or a segment that has not run."""

    kind: str
    key: Any  # (channel, side), (channel, side, core), or the Segment


@dataclass(eq=False)
class Segment:
    """Parts of one run of a segment as units reach them, with their numbers already evaluated."""

    number: int
    done: bool = False
    loads: dict[int, tuple[df.SegLoadOp, int, list[int]]] = field(default_factory=dict)
    stores: dict[int, tuple[df.SegStoreOp, int, list[int]]] = field(default_factory=dict)
    pt: tuple[df.SegPtOp, int] | None = None
    vec: tuple[df.SegVecOp, list[int]] | None = None

    def complete(self) -> bool:
        """True when every part that the vector part names is there."""
        if self.vec is None:
            return False
        inputs = {int(q) for q in self.vec[0].inputs.get_values()}
        need = set(inputs)
        if self.pt is not None:
            a, b, out = (int(q) for q in self.pt[0].queues.get_values())
            need = (need - {out}) | {a, b}
        return need == set(self.loads) and len(self.stores) == len(self.vec[0].outputs.data)


class Interpreter:
    """Executes one module on a DDR image; ``args`` are (address, bytes) or numbers by name.

    With ``races`` every access is watched; ``run`` itself does not fail for a race."""

    def __init__(
        self, module: ModuleOp, ddr: Bytes, args: dict[str, Any], seed: int = 0, races: Races | None = None
    ) -> None:
        self.ddr = ddr
        self.races = races
        self.args = args
        self.random = random.Random(seed)
        self.program = next(op for op in module.body.block.ops if isinstance(op, df.ProgramOp))
        self.units: dict[str, Block] = {}
        self.blocks: dict[str, tuple[int, int, int]] = {}
        self.channels: dict[str, int] = {}
        self.rings: dict[str, list[str]] = {}  # ring channels and their blocks
        self.symbols: list[int] = []
        self.slots: list[df.SlotOp] = []
        self.lx_bytes = int(self.program.profile.data[3].data)  # type: ignore[attr-defined]
        for op in self.program.body.block.ops:
            if isinstance(op, df.DeclareOp):
                self._declare(op)
            elif isinstance(op, df.SlotOp):
                self.slots.append(op)
            elif isinstance(op, df.UnitOp):
                self.units[op.unit.data] = op.body.block

    def _declare(self, op: df.DeclareOp) -> None:
        f, label = op.plain(), op.label.data
        if op.kind.data == "block":
            self.blocks[label] = (int(f[0]), int(f[1]), int(f[2]))
        elif op.kind.data == "channel":
            self.channels[label] = int(f[2])
        elif op.kind.data == "ring":
            self.rings[label] = str(f[2]).split()
        elif op.kind.data == "symbol":
            self.symbols.append(self._symbol(label, str(f[0]), int(f[2]), int(f[3]), int(f[4])))

    def _symbol(self, name: str, kind: str, lo: int, hi: int, grain: int) -> int:
        given = self.args[name]
        if kind == "ADDRESS":
            return int(given[0])
        if isinstance(given, float):
            return int(np.float32(given).view(np.int32))
        if not lo <= given <= hi or given % grain:
            raise DataflowError(f"argument '{name}' = {given} is not a multiple of {grain} in {lo}..{hi}")
        return int(given)

    def run(self) -> None:
        """Run every core to its end: one after the other, or together when they exchange data."""
        cores = range(self.program.cores.data)
        if self.rings:
            interleave([Core(self, c) for c in cores], self.units, self.random)
        else:
            for core in cores:
                interleave([Core(self, core)], self.units, self.random)
        if self.races is not None:
            self.races.finish()


_parsed = lru_cache(maxsize=1 << 14)(parse)


def evaluate(text: str, leaf: dict[str, int]) -> int:
    """Value of an expression text."""
    stack: list[int] = []
    for op, value in _parsed(text):
        if op == "CONST":
            stack.append(int(value))
        elif op == "LEAF":
            stack.append(leaf[str(value)])
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(_OPERATORS[op](a, b))
    return stack[0]


_OPERATORS: dict[str, Any] = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
    "FLOORDIV": lambda a, b: a // b,
    "MOD": lambda a, b: a % b,
    "MIN": min,
    "MAX": max,
}


def _reason(wait: Wait) -> str:
    if wait.kind == "segment":
        return f"segment {wait.key.number}"
    if wait.kind == "ring":
        return "{1} of {0} with core {2}".format(*wait.key)
    channel, side = wait.key
    return f"{side} of {channel}"


def interleave(cores: list[Core], units: dict[str, Block], order_by: random.Random) -> None:
    """Run the streams of cores until all end. Raises ``DataflowError`` when none can go on."""
    for core in cores:
        core.peers = cores
    running = {(core, u): core.unit(u, block, dict(core.slots)) for core in cores for u, block in units.items()}
    waiting: dict[tuple[Core, str], Wait | None] = dict.fromkeys(running)
    while running:
        progress = False
        order = list(running)
        order_by.shuffle(order)
        for key in order:
            wait = waiting[key]
            if wait is not None and not key[0].ready(wait):
                continue
            progress = True
            try:
                waiting[key] = next(running[key])
            except StopIteration:
                del running[key]
        if not progress:
            _deadlock({key: waiting[key] for key in running})
    for core in cores:
        core.check_end()


def _deadlock(waits: dict[tuple[Core, str], Wait | None]) -> None:
    rows: dict[int, list[str]] = {}
    for (core, unit), wait in waits.items():
        if wait is not None:
            rows.setdefault(core.number, []).append(f"{unit} waits for {_reason(wait)}")
    raise DataflowError("; ".join(f"deadlock on core {c}: {'; '.join(r)}" for c, r in rows.items()))


class Core:
    """One core: its LX, credits and unit coroutines."""

    def __init__(self, owner: Interpreter, number: int) -> None:
        self.owner, self.number = owner, number
        self.lx = np.zeros(owner.lx_bytes, dtype=np.uint8)
        self._reset(owner.channels, owner.rings)
        races = owner.races
        self.races = None if races is None else races.core(number, owner.lx_bytes, owner.channels)
        if self.races is not None:
            for block in (b for held in owner.rings.values() for b in held):
                self.races.landing(*owner.blocks[block][:2])
        leaf = {f"s{k}": v for k, v in enumerate(owner.symbols)} | {"core": number}
        self.slots: Env = {op.result: evaluate(op.expr.data, leaf) for op in owner.slots}

    def _reset(self, channels: dict[str, int], rings: Iterable[str] = ()) -> None:
        """Credits and segments as they are before the first instruction."""
        self.phases = channels
        self.credits = {(c, "empty"): phases for c, phases in channels.items()}
        self.credits |= {(c, "full"): 0 for c in channels}
        self.rings = set(rings)
        self.ring: dict[tuple[str, str, int], int] = {}  # where it differs from 1 (empty) and 0 (full)
        self.peers: list[Core] = [self]
        self.releases: dict[tuple[str, str], int] = {}
        self.segments: dict[int, Segment] = {}

    def ready(self, wait: Wait) -> bool:
        """True if what a unit waits for is there."""
        if wait.kind == "ring":
            return self._ring_credit(wait.key) > 0
        return bool(self.credits[wait.key] > 0 if wait.kind == "credit" else wait.key.done)

    def _ring_credit(self, key: tuple[str, str, int]) -> int:
        return self.ring.get(key, int(key[1] == "empty"))

    def check_end(self) -> None:
        """All credits are back where they started."""
        left: dict[Any, int] = {
            k: v for k, v in self.credits.items() if v != (self.phases[k[0]] if k[1] == "empty" else 0)
        }
        left |= {k: v for k, v in self.ring.items() if v != int(k[1] == "empty")}
        if left:
            raise DataflowError(f"core {self.number} ends with credits {left}")

    # -- streams ----------------------------------------------------------------------------------

    def unit(self, unit: str, block: Block, env: Env) -> Generator[Wait, None, None]:
        """The stream of a unit as a coroutine that yields what it must wait for."""
        pending: list[Segment] = []
        yield from self._body(unit, block, env, pending)
        yield from self._settle(pending, None)

    def _settle(self, pending: list[Segment], keep: Segment | None) -> Generator[Wait, None, None]:
        """Wait until the unit's open segments, except ``keep``, have run."""
        for segment in list(pending):
            if segment is not keep:
                while not segment.done:
                    yield Wait("segment", segment)
                pending.remove(segment)

    def _body(self, unit: str, block: Block, env: Env, pending: list[Segment]) -> Generator[Wait, None, None]:
        for op in block.ops:
            if isinstance(op, df.LoopOp):
                for i in self._iterations(op, env):
                    env[op.body.block.args[0]] = i
                    yield from self._body(unit, op.body.block, env, pending)
            elif isinstance(op, df.LetOp):
                self._let(op, env)
            elif isinstance(op, df.AcquireOp):
                key = (op.channel.data, op.side.data)
                while self.credits[key] <= 0:
                    yield Wait("credit", key)
                self.credits[key] -= 1
                if self.races is not None:
                    self.races.acquire(unit, *key)
            elif isinstance(op, df.ReleaseOp):
                yield from self._settle(pending, None)
                self.credits[op.channel.data, op.side.data] += 1
                if self.races is not None:
                    self.races.release(unit, op.channel.data, op.side.data)
                count = (unit, op.channel.data)
                self.releases[count] = self.releases.get(count, 0) + 1
            elif isinstance(op, df.RingAcquireOp | df.RingReleaseOp | df.RingCopyOp):
                yield from self._ring(unit, op, env, pending)
            elif isinstance(op, df.CopyOp):
                self._copy(unit, op, self._numbers(op, env))
            else:
                yield from self._part(unit, op, env, pending)

    def _ring(self, unit: str, op: Any, env: Env, pending: list[Segment]) -> Generator[Wait, None, None]:
        """A credit of, or a copy to, another core."""
        core = self._peer(op, env)
        if core < 0:
            return
        if core >= len(self.peers):
            raise DataflowError(f"core {self.number}: {op.name} names core {core} of {len(self.peers)}")
        other = self.peers[core]
        if isinstance(op, df.RingCopyOp):
            self._send(op, self._numbers(op, env))
            return
        channel, side = op.channel.data, op.side.data
        if isinstance(op, df.RingAcquireOp):
            key = (channel, side, core)
            while self._ring_credit(key) <= 0:
                yield Wait("ring", key)
            self.ring[key] = self._ring_credit(key) - 1
            if self.races is not None:
                self.races.ring_acquire(unit, key)
            return
        yield from self._settle(pending, None)
        key = (channel, side, self.number)
        other.ring[key] = other._ring_credit(key) + 1
        if other.ring[key] > 1:
            raise DataflowError(f"core {core} gets a second credit {side} of {channel} from core {self.number}")
        if self.races is not None and other.races is not None:
            self.races.ring_release(unit, other.races, key)

    def _peer(self, op: Any, env: Env) -> int:
        return self._numbers(op, env)[0]

    def _send(self, op: df.RingCopyOp, n: list[int]) -> None:
        other = self.peers[n[0]]
        source, target = (
            np.int64(self._address("MNISU", pair.data[0].data, pair.data[1].data, offset))
            for pair, offset in ((op.source, n[1]), (op.target, n[2]))
        )
        dims = [n[k : k + 3] for k in range(3, len(n), 3)]
        grid = np.indices([max(d[0], 0) for d in dims], dtype=np.int64)
        lanes = np.arange(op.leaf.data, dtype=np.int64)
        at: list[NDArray[np.int64]] = []
        for side, start in ((1, source), (2, target)):
            first = np.full(grid.shape[1:], start, dtype=np.int64)
            for k, d in enumerate(dims):
                first += grid[k] * d[side]
            at.append(first[..., None] + lanes)
        for where in at:
            if where.size and not 0 <= where.min() <= where.max() < self.lx.size:
                raise DataflowError(f"LX bytes {where.min()}..{where.max()} lie outside LX at {_where(op)}")
        if self.races is not None and other.races is not None:
            self.races.access("MNISU", at[0].ravel(), 1, False, _where(op))
            other.races.access("MNISU", at[1].ravel(), 1, True, _where(op), by=self.races)
        other.lx[at[1]] = self.lx[at[0]]

    def _numbers(self, op: Any, env: Env) -> list[int]:
        return [n if isinstance(n, int) else env[n] for n in op.numbers()]

    def _iterations(self, op: df.LoopOp, env: Env) -> Iterable[int]:
        return range(self._trips(op, env))

    def _trips(self, op: df.LoopOp, env: Env) -> int:
        return self._numbers(op, env)[0]

    def _let(self, op: df.LetOp, env: Env) -> None:
        env[op.result] = evaluate(op.expr.data, {f"d{k}": env[v] for k, v in enumerate(op.values)})

    def _address(self, unit: str, block: str, channel: str, offset: int) -> int:
        start, size, phases = self.owner.blocks[block]
        phase = self.releases.get((unit, channel), 0) % phases if channel else 0
        return start + phase * size + offset

    def _part(self, unit: str, op: Any, env: Env, pending: list[Segment]) -> Generator[Wait, None, None]:
        number = op.seg.data
        part = self.segments.setdefault(number, Segment(number))
        while self._has_part(part, op):  # the unit is one run of the segment ahead
            yield Wait("segment", part)
            part = self.segments.setdefault(number, Segment(number))
        yield from self._settle(pending, part)
        if part not in pending:
            pending.append(part)
        n = self._numbers(op, env)
        if isinstance(op, df.SegLoadOp | df.SegStoreOp):
            at = self._address(unit, op.lx.data[0].data, op.lx.data[1].data, n[0])
            table: Any = part.loads if isinstance(op, df.SegLoadOp) else part.stores
            table[op.queue.data] = (op, at, n[1:])
        elif isinstance(op, df.SegPtOp):
            part.pt = (op, n[0])
        else:
            part.vec = (op, n)
        if part.complete():
            self._run(part)
            part.done = True
            del self.segments[number]

    def _has_part(self, part: Segment, op: Any) -> bool:
        if isinstance(op, df.SegLoadOp):
            return op.queue.data in part.loads
        if isinstance(op, df.SegStoreOp):
            return op.queue.data in part.stores
        return (part.pt if isinstance(op, df.SegPtOp) else part.vec) is not None

    # -- segments ---------------------------------------------------------------------------------

    def _elements(self, at: int, elem: str, strides: list[int], extents: list[int]) -> NDArray[np.int64]:
        """Element positions in LX (in units of the element) over a nest."""
        size = np.dtype(STORAGE[elem]).itemsize
        if at % size:
            raise DataflowError(f"address {at} is not a multiple of the element size {size}")
        where = np.zeros([1] * len(extents), dtype=np.int64)
        for k, (stride, extent) in enumerate(zip(strides, extents, strict=True)):
            shape = [1] * len(extents)
            shape[k] = extent
            where = where + (np.arange(extent, dtype=np.int64) * stride).reshape(shape)
        where = where + at // size
        if where.size and not 0 <= where.min() <= where.max() < self.lx.size // size:
            raise DataflowError(f"LX elements {where.min()}..{where.max()} of {elem} lie outside LX")
        return where

    def _read(self, port: tuple[df.SegLoadOp, int, list[int]], extents: list[int]) -> NDArray[Any]:
        op, at, strides = port
        where = self._elements(at, op.elem.data, strides, extents)
        self._watch("L1LU", where, op, write=False)
        memory = self.lx.view(STORAGE[op.elem.data])
        return to_registers(memory[where], op.elem.data)

    def _watch(self, unit: str, where: NDArray[np.int64], op: Any, write: bool) -> None:
        if self.races is not None:
            size = np.dtype(STORAGE[op.elem.data]).itemsize
            what = f"segment {op.seg.data} ({op.lx.data[0].data})"
            self.races.access(unit, where * size, size, write, what)

    def _run(self, s: Segment) -> None:
        assert s.vec is not None
        op, numbers = s.vec
        rank = op.rank.data
        extents = [max(e, 0) for e in numbers[:rank]]
        queues: dict[int, NDArray[Any]] = {}
        if s.pt is not None:
            a, b, out = (int(q) for q in s.pt[0].queues.get_values())
            batch, m, n = extents
            left = self._read(s.loads[a], [batch, m, s.pt[1]])
            right = self._read(s.loads[b], [batch, s.pt[1], n])
            queues[out] = np.matmul(left, right)
        for queue in map(int, op.inputs.get_values()):
            if queue not in queues:
                queues[queue] = self._read(s.loads[queue], extents)
        registers = {k: np.broadcast_to(queues[int(q)], extents) for k, q in enumerate(op.inputs.get_values())}
        with np.errstate(all="ignore"):
            for text in op.ops.data:
                self._lane(text.data, registers, extents, numbers[rank:])
            for text in op.outputs.data:
                self._write(text.data, registers, extents, s)

    def _lane(self, text: str, registers: dict[int, NDArray[Any]], extents: list[int], scalars: list[int]) -> None:
        words = text.split()
        dst, name = int(words[0][1:]), words[2]
        value: NDArray[Any]
        if name in ("const_f", "const_i"):
            value = np.full(extents, float(words[3]) if name == "const_f" else int(words[3]))
            value = value.astype(np.float32 if name == "const_f" else np.int32)
        elif name in ("scalar_f", "scalar_i"):
            bits = np.array([scalars[int(words[3])] & 0xFFFFFFFF], dtype=np.uint32)
            value = np.broadcast_to(bits.view(np.float32 if name == "scalar_f" else np.int32), extents)
        elif name == "iota":
            dim = int(words[3])
            shape = [1] * len(extents)
            shape[dim] = extents[dim]
            value = np.broadcast_to(np.arange(extents[dim], dtype=np.int32).reshape(shape), extents)
        else:
            try:
                value = LANES[name](*(registers[int(w[1:])] for w in words[3:]))
            except LaneError as error:
                raise DataflowError(str(error)) from error
        registers[dst] = value

    def _write(self, text: str, registers: dict[int, NDArray[Any]], extents: list[int], s: Segment) -> None:
        words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
        value = np.broadcast_to(registers[int(words[0][1:])], extents)
        op, at, strides = s.stores[int(words[2])]
        if len(words) > 3:
            dims = tuple(int(w) for w in words[4:])
            value = reduce_lanes(value, words[3], dims)
            extents = [1 if k in dims else e for k, e in enumerate(extents)]
        where = self._elements(at, op.elem.data, strides, extents)
        self._watch("L1SU", where, op, write=True)
        self.lx.view(STORAGE[op.elem.data])[where] = to_storage(value, op.elem.data)

    # -- transfers --------------------------------------------------------------------------------

    def _copy(self, unit: str, op: df.CopyOp, n: list[int]) -> None:
        rank, leaf = op.rank.data, op.leaf.data
        base = self._address(unit, op.lx.data[0].data, op.lx.data[1].data, n[1])
        dims = [n[4 + 5 * k : 9 + 5 * k] for k in range(rank)]
        shape = [max(d[0], 0) for d in dims]
        grid = np.indices(shape, dtype=np.int64) if rank else np.zeros((0,), dtype=np.int64)
        ddr = np.full(shape, n[0], dtype=np.int64)
        lx = np.full(shape, base, dtype=np.int64)
        inside = np.ones(shape, dtype=bool)
        for k, (_, lo, hi, ddr_stride, lx_stride) in enumerate(dims):
            ddr += grid[k] * ddr_stride
            lx += grid[k] * lx_stride
            inside &= (grid[k] >= lo) & (grid[k] < hi)
        at = 4 + 5 * rank
        for pair in op.gathers.data:
            index = np.full(shape, self._address(unit, pair.data[0].data, pair.data[1].data, n[at]), dtype=np.int64)
            for k in range(rank):
                index += grid[k] * n[at + 3 + k]
            if self.races is not None:
                self.races.access(unit, index[inside], 4, False, f"the indices of {_where(op)}")
            found = self.lx.view(np.int32)[index[inside] // 4].astype(np.int64)
            if found.size and not 0 <= found.min() <= found.max() < n[at + 2]:
                raise DataflowError(f"index {found.min()}..{found.max()} outside 0..{n[at + 2] - 1} at {_where(op)}")
            ddr[inside] += found * n[at + 1]
            at += 3 + rank
        if op.elems.data:
            x = np.full(shape, n[at], dtype=np.int64)
            for k in range(rank):
                x += grid[k] * n[at + 2 + k]
            ddr += x // op.elems.data * n[at + 1] + x % op.elems.data * leaf
        lanes = np.arange(leaf, dtype=np.int64)
        if unit == "MNILU" and op.zero_fill.data:
            if self.races is not None:
                self.races.access(unit, lx[~inside], leaf, True, f"the zero fill of {_where(op)}")
            self.lx[(lx[~inside][:, None] + lanes).ravel()] = 0
        from_ddr = (ddr[inside][:, None] + lanes).ravel()
        in_lx = (lx[inside][:, None] + lanes).ravel()
        start, size = self.owner.args[op.arg.data]
        keep = np.ones(len(from_ddr), dtype=bool)
        if unit == "MNISU" and rank:
            position = (grid[rank - 1][inside][:, None] * leaf + lanes).ravel()
            keep = (position >= n[2]) & (position < n[3])
        from_ddr, in_lx = from_ddr[keep], in_lx[keep]
        if from_ddr.size and not start <= from_ddr.min() <= from_ddr.max() < start + size:
            first, last = from_ddr.min() - start, from_ddr.max() - start
            raise DataflowError(f"bytes {first}..{last} of '{op.arg.data}' ({size} bytes) at {_where(op)}")
        if in_lx.size and not 0 <= in_lx.min() <= in_lx.max() < self.lx.size:
            raise DataflowError(f"LX bytes {in_lx.min()}..{in_lx.max()} lie outside LX at {_where(op)}")
        if self.races is not None and self.owner.races is not None:
            self.races.access(unit, in_lx, 1, unit == "MNILU", _where(op))
            self.owner.races.ddr(self.number, from_ddr, unit == "MNISU", _where(op))
            if op.shared is not None and n[-1] > 1:
                self.owner.races.share(self.number, id(op), n[-2], n[-1], from_ddr, _where(op))
        if unit == "MNILU":
            self.lx[in_lx] = self.owner.ddr[from_ddr]
        else:
            self.owner.ddr[from_ddr] = self.lx[in_lx]


def _where(op: df.CopyOp | df.RingCopyOp) -> str:
    return op.where.data if op.where is not None else op.name
