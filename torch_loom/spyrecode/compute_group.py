"""Rules of the compute group: L1LU, PT, SFU and L1SU work on the same segments in the same loops.

A stream without instructions takes no part. Between two loops each stream lists its parts of the same
segments in the same order; the SFU names every segment, so its stream is the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch_loom.spyrecode import limits
from torch_loom.spyrecode.errors import malformed
from torch_loom.spyrecode.model import (
    COMPUTE_UNITS,
    Elem,
    Instr,
    Loop,
    Operand,
    OperandKind,
    Program,
    Reduce,
    SegLoad,
    SegPt,
    SegStore,
    SegVec,
    Unit,
    VecOp,
)
from torch_loom.spyrecode.ops import ANY, FLOAT, INT, SIGNATURE

_INTEGERS = frozenset({Elem.I32, Elem.I16, Elem.I8, Elem.U8, Elem.I64})
_ZERO = Operand(OperandKind.IMM, 0)
_INT_REDUCE = frozenset({Reduce.ADD_I, Reduce.MUL_I, Reduce.MAX_I, Reduce.MIN_I})


@dataclass
class Segment:
    """The joined parts of one segment."""

    number: int
    loads: list[SegLoad] = field(default_factory=list)
    pt: SegPt | None = None
    vec: SegVec | None = None
    stores: list[SegStore] = field(default_factory=list)


def check_compute_group(program: Program) -> None:
    """Raises SC-E17 unless the four streams join."""
    streams = {u: program.streams[u] for u in COMPUTE_UNITS if program.streams.get(u)}
    _check_bodies(streams, "")


def _regions(body: Sequence[Instr]) -> tuple[list[list[Instr]], list[Loop]]:
    """Straight-line instructions before, between and after the loops of a body, and the loops."""
    regions: list[list[Instr]] = [[]]
    loops = []
    for instr in body:
        if isinstance(instr, Loop):
            loops.append(instr)
            regions.append([])
        else:
            regions[-1].append(instr)
    return regions, loops


def _check_bodies(bodies: Mapping[Unit, Sequence[Instr]], where: str) -> None:
    cut = {unit: _regions(body) for unit, body in bodies.items()}
    counts = {unit.name: len(loops) for unit, (_, loops) in cut.items()}
    if len(set(counts.values())) > 1:
        raise malformed(f"compute streams differ in loops{where}: {counts}")
    for i in range(max((len(regions) for regions, _ in cut.values()), default=0)):
        _check_region({unit: regions[i] for unit, (regions, _) in cut.items()}, where)
        loops = {unit: found[i] for unit, (_, found) in cut.items() if i < len(found)}
        if loops:
            heads = {(loop.reg, loop.count) for loop in loops.values()}
            if len(heads) > 1:
                raise malformed(f"compute streams differ in loop {i}{where}: {sorted(map(str, heads))}")
            reg = next(iter(heads))[0]
            _check_bodies({u: loop.body for u, loop in loops.items()}, f"{where} in loop r{reg}")


def _check_region(region: dict[Unit, list[Instr]], where: str) -> None:
    segments: dict[int, Segment] = {}
    for instr in region.get(Unit.SFU, []):
        if isinstance(instr, SegVec):
            if instr.seg in segments or not 0 <= instr.seg < limits.SEGMENTS:
                raise malformed(f"segment {instr.seg}{where}: number used twice or out of range")
            segments[instr.seg] = Segment(instr.seg, vec=instr)
    order = list(segments)
    for unit in (Unit.L1LU, Unit.PT, Unit.L1SU):
        last = -1
        for instr in region.get(unit, []):
            if not isinstance(instr, SegLoad | SegPt | SegStore):
                continue
            if instr.seg not in segments:
                raise malformed(f"segment {instr.seg}{where}: {unit.name} has a part, SFU has none here")
            at = order.index(instr.seg)
            if at < last:
                raise malformed(f"segment {instr.seg}{where}: {unit.name} has another order than SFU")
            last = at
            segment = segments[instr.seg]
            if isinstance(instr, SegLoad):
                segment.loads.append(instr)
            elif isinstance(instr, SegStore):
                segment.stores.append(instr)
            elif segment.pt is not None:
                raise malformed(f"segment {instr.seg}{where}: two PT parts")
            else:
                segment.pt = instr
    for segment in segments.values():
        check_segment(segment)


def check_segment(s: Segment) -> None:
    """Queues, ranks, registers and types of one segment."""
    assert s.vec is not None
    rank = len(s.vec.extents)

    def require(ok: bool, message: str) -> None:
        if not ok:
            raise malformed(f"segment {s.number}: {message}")

    loads = {load.queue: load for load in s.loads}
    require(len(loads) == len(s.loads), "two loads into one queue")
    sources: dict[int, str] = {q: INT if load.elem in _INTEGERS else FLOAT for q, load in loads.items()}
    ranks = dict.fromkeys(loads, rank)
    if s.pt is not None:
        require(rank == 3, f"PT needs a nest of rank 3 (b, m, n), this has {rank}")
        require(s.pt.a != s.pt.b and {s.pt.a, s.pt.b} <= set(loads), "PT operands must be two loaded queues")
        require(
            loads[s.pt.a].elem not in _INTEGERS and loads[s.pt.b].elem not in _INTEGERS,
            "PT multiplies floats only",
        )
        require(s.pt.out not in sources, f"queue {s.pt.out} is written twice")
        del sources[s.pt.a], sources[s.pt.b]
        ranks[s.pt.a] = ranks[s.pt.b] = 3
        sources[s.pt.out] = FLOAT
    for queue, load in loads.items():
        require(len(load.strides) == ranks[queue], f"load of queue {queue} has {len(load.strides)} strides")
    inputs = s.vec.inputs
    require(len(inputs) <= limits.VEC_PORTS and len(s.vec.outputs) <= limits.VEC_PORTS, "too many queues")
    require(len(set(inputs)) == len(inputs), "a queue is read twice")
    require(set(inputs) == set(sources), f"SFU reads queues {sorted(inputs)}, filled are {sorted(sources)}")
    require(all(0 <= q < limits.QUEUES for q in loads), "queue out of range")
    require(-1 <= s.vec.corelet_dim < rank, f"corelet dim {s.vec.corelet_dim} of rank {rank}")
    types = check_ops(s.vec, [sources[q] for q in inputs], require)

    outputs = {out.queue: out for out in s.vec.outputs}
    stores = {store.queue: store for store in s.stores}
    require(len(outputs) == len(s.vec.outputs) > 0, "no output, or a queue is written twice")
    require(len(stores) == len(s.stores), "a queue is stored twice")
    require(set(outputs) == set(stores), f"SFU writes {sorted(outputs)}, stored are {sorted(stores)}")
    require(not set(outputs) & set(sources) and not set(outputs) & set(loads), "a queue is written twice")
    require(all(0 <= q < limits.QUEUES for q in (*outputs, *sources)), "queue out of range")
    for queue, out in outputs.items():
        store = stores[queue]
        require(len(store.strides) == rank, f"store of queue {queue} has {len(store.strides)} strides")
        require(out.reg in types, f"output register {out.reg} is never set")
        dims = list(out.dims)
        require(dims == sorted(set(dims)) and all(0 <= d < rank for d in dims), f"reduced dims {dims}")
        require(bool(dims) == (out.reduce is not Reduce.NONE), "a reduction needs dims, and dims a reduction")
        require(
            all(store.strides[d] == _ZERO for d in dims),
            "the store of a reduced output must have stride 0 along the reduced dims",
        )
        kind = types[out.reg]
        if out.reduce is not Reduce.NONE:
            want = INT if out.reduce in _INT_REDUCE else FLOAT
            require(kind == want, f"{out.reduce.name} of a register of the other type")
        require(
            kind == (INT if store.elem in _INTEGERS else FLOAT),
            f"store of queue {queue} as {store.elem.name}: the register holds the other type",
        )


def check_ops(vec: SegVec, inputs: list[str], require: Callable[[bool, str], None]) -> dict[int, str]:
    """Registers set before use and used with their type; returns the type of every register."""
    require(len(vec.ops) <= limits.VEC_OPS, f"{len(vec.ops)} operations")
    types: dict[int, str] = dict(enumerate(inputs))
    rank = len(vec.extents)
    for i, op in enumerate(vec.ops):
        operands, result = SIGNATURE[op.op]
        free = None
        for want, reg in zip(operands, (op.a, op.b, op.c), strict=False):
            require(reg in types, f"operation {i} ({op.op.name}) reads register {reg} before it is set")
            have = types[reg]
            if want == ANY:
                free = free or have
                require(have == free, f"operation {i} ({op.op.name}) mixes float and integer")
            else:
                require(have == want, f"operation {i} ({op.op.name}): register {reg} holds the other type")
        unused = (op.a, op.b, op.c)[len(operands) :]
        require(not any(unused), f"operation {i} ({op.op.name}) takes {len(operands)} operands")
        require(0 <= op.dst < limits.VEC_REGISTERS, f"operation {i}: register {op.dst}")
        if op.op is VecOp.IOTA:
            require(0 <= op.imm < rank, f"operation {i}: IOTA along dim {op.imm} of rank {rank}")
        if op.op is VecOp.CONST_I:
            require(-(1 << 31) <= op.imm < 1 << 31, f"operation {i}: constant {op.imm} exceeds 32 bits")
        types[op.dst] = str(free) if result == ANY else result
    return types
