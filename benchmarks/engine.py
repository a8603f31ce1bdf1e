"""Speed of the functional engine, one kind of segment a row.

Every case is a small hand-made program on 32 cores: load a tile per core, run the segment ``REPEAT`` times,
store. Printed are the best of five runs and the rate that matters for the case.

    python benchmarks/engine.py [--threads 2]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch  # noqa: F401  (its BLAS serves the PT segments)

from torch_loom import _chip, arch
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import (
    Access,
    Acquire,
    Arg,
    ArgKind,
    Block,
    Channel,
    Dma,
    DmaDim,
    Elem,
    Expr,
    ExprOp,
    Instr,
    Loop,
    LxRef,
    Program,
    Reduce,
    Release,
    Scope,
    SegLoad,
    SegPt,
    SegStore,
    SegVec,
    Side,
    Slot,
    Symbol,
    SymbolKind,
    Unit,
    VecOp,
    VecOut,
    VOp,
    imm,
    slot,
)

CHIP = arch.load("spyre")
REPEAT = 16  # times each core runs the segment on its tile


@dataclass(frozen=True)
class Case:
    name: str
    elems: tuple[Elem, ...]  # of the blocks, inputs first, output last
    sizes: tuple[int, ...]  # bytes per core of the blocks
    parts: dict[Unit, tuple[Instr, ...]]
    work: float  # per core and repetition
    unit: str  # what ``work`` counts, per second / 1e9


def nums(*values: int) -> tuple:
    return tuple(imm(v) for v in values)


def elementwise(name: str, ops: Sequence[VOp], inputs: int, rows: int, columns: int) -> Case:
    n = rows * columns * 2
    loads = tuple(SegLoad(0, i, LxRef(i, 0, imm(0)), Elem.DF16, nums(columns, 1)) for i in range(inputs))
    out = ops[-1].dst if ops else 0
    parts: dict[Unit, tuple[Instr, ...]] = {
        Unit.L1LU: loads,
        Unit.SFU: (SegVec(0, nums(rows, columns), tuple(range(inputs)), tuple(ops), (VecOut(out, inputs),), 0),),
        Unit.L1SU: (SegStore(0, inputs, LxRef(inputs, 1, imm(0)), Elem.DF16, nums(columns, 1)),),
    }
    blocks = inputs + 1
    return Case(name, (Elem.DF16,) * blocks, (n,) * blocks, parts, rows * columns, "Gelem/s")


def softmax(rows: int, columns: int) -> Case:
    """Three segments: row maximum; exp(x - max) with row sum; scale by the reciprocal."""
    n = rows * columns
    x, e, top, total, y = (LxRef(i, c, imm(0)) for i, c in ((0, 0), (1, -1), (2, -1), (3, -1), (4, 1)))
    whole, row = nums(columns, 1), nums(1, 0)
    nest = nums(rows, columns)
    parts: dict[Unit, tuple[Instr, ...]] = {
        Unit.L1LU: (
            SegLoad(0, 0, x, Elem.DF16, whole),
            SegLoad(1, 0, x, Elem.DF16, whole),
            SegLoad(1, 1, top, Elem.F32, row),
            SegLoad(2, 0, e, Elem.F32, whole),
            SegLoad(2, 1, total, Elem.F32, row),
        ),
        Unit.SFU: (
            SegVec(0, nest, (0,), (), (VecOut(0, 2, Reduce.MAX, (1,)),), 0),
            SegVec(
                1,
                nest,
                (0, 1),
                (VOp(VecOp.SUB_F, 2, 0, 1), VOp(VecOp.EXP, 3, 2)),
                (VecOut(3, 2), VecOut(3, 3, Reduce.ADD, (1,))),
                0,
            ),
            SegVec(2, nest, (0, 1), (VOp(VecOp.DIV_F, 2, 0, 1),), (VecOut(2, 2),), 0),
        ),
        Unit.L1SU: (
            SegStore(0, 2, top, Elem.F32, row),
            SegStore(1, 2, e, Elem.F32, whole),
            SegStore(1, 3, total, Elem.F32, row),
            SegStore(2, 2, y, Elem.DF16, whole),
        ),
    }
    small = -(-rows * 4 // 128) * 128
    elems = (Elem.DF16, Elem.F32, Elem.F32, Elem.F32, Elem.DF16)
    return Case(f"softmax {rows}x{columns}", elems, (2 * n, 4 * n, small, small, 2 * n), parts, n, "Gelem/s")


def gemm(m: int, n: int, k: int, *, transpose_b: bool = False, batch: int = 1) -> Case:
    stride_b = (k * n, 1, k) if transpose_b else (k * n, n, 1)
    parts: dict[Unit, tuple[Instr, ...]] = {
        Unit.L1LU: (
            SegLoad(0, 0, LxRef(0, 0, imm(0)), Elem.DF16, nums(m * k, k, 1)),
            SegLoad(0, 1, LxRef(1, 0, imm(0)), Elem.DF16, nums(*stride_b)),
        ),
        Unit.PT: (SegPt(0, 0, 1, 2, imm(k)),),
        Unit.SFU: (SegVec(0, nums(batch, m, n), (2,), (), (VecOut(0, 3),), 1),),
        Unit.L1SU: (SegStore(0, 3, LxRef(2, 1, imm(0)), Elem.DF16, nums(m * n, n, 1)),),
    }
    sizes = tuple(-(-2 * batch * s // 128) * 128 for s in (m * k, k * n, m * n))
    name = f"gemm {batch}x{m}x{k}x{n}{' (B transposed)' if transpose_b else ''}"
    return Case(name, (Elem.DF16,) * 3, sizes, parts, 2.0 * batch * m * n * k, "GFLOP/s")


def program(case: Case, repeat: int = REPEAT) -> Program:
    """Load every block but the last, run the segments ``repeat`` times, store the last block."""
    count = len(case.sizes)
    starts = [sum(case.sizes[:i]) for i in range(count)]
    moved = {0, count - 1, *(i for i in range(count - 1) if len(case.parts[Unit.SFU]) == 1)}
    args: list[Arg] = []
    slots: list[Slot] = []
    dmas: dict[int, Dma] = {}
    for i in sorted(moved):
        last = i == count - 1
        access = Access.WRITE if last else Access.READ
        dim = DmaDim(imm(case.sizes[i] // 128), imm(0), imm(case.sizes[i] // 128), imm(128), imm(128))
        dmas[i] = Dma(len(args), slot(len(args)), LxRef(i, int(last), imm(0)), (dim,))
        tokens = (
            (ExprOp.SYM, len(args)),
            *((ExprOp.CORE, 0), (ExprOp.CONST, case.sizes[i]), (ExprOp.MUL, 0), (ExprOp.ADD, 0)),
        )
        slots.append(Slot(Expr(tokens), Scope.CORE))
        args.append(Arg(f"a{i}", ArgKind.BUFFER, case.elems[i], access))
    e, f = Side.EMPTY, Side.FULL
    ids = tuple(range(count))
    body = {u: (Loop(0, imm(repeat), p),) for u, p in case.parts.items()}
    streams: dict[Unit, tuple[Instr, ...]] = {
        Unit.MNILU: (Acquire(0, e), *(dmas[i] for i in sorted(moved) if i != count - 1), Release(0, f)),
        Unit.MNISU: (Acquire(1, f), dmas[count - 1], Release(1, e)),
        **body,
        Unit.L1LU: (Acquire(0, f), *body[Unit.L1LU], Release(0, e)),
        Unit.L1SU: (Acquire(1, e), *body[Unit.L1SU], Release(1, f)),
    }
    return Program(
        name=case.name,
        profile=CHIP.profile(),
        cores=CHIP.cores,
        args=tuple(args),
        symbols=tuple(Symbol(a.name, SymbolKind.ADDRESS, i, granularity=128) for i, a in enumerate(args)),
        slots=tuple(slots),
        exprs=(),
        blocks=tuple(Block(f"b{i}", starts[i], case.sizes[i]) for i in range(count)),
        channels=(
            Channel("in", Unit.MNILU, Unit.L1LU, 1, ids),
            Channel("out", Unit.L1SU, Unit.MNISU, 1, ids),
        ),
        streams=streams,
    )


def copy_case(run_bytes: int) -> Program:
    """Load and store 1 MiB per core in runs of ``run_bytes`` (an LX-to-LX identity of one stick between)."""
    base = program(elementwise("copy", (), 1, 1, 64), 1)
    size = 1 << 20
    runs = size // run_bytes
    spread = 2 * run_bytes if runs > 1 else run_bytes
    dims = (
        DmaDim(imm(runs), imm(0), imm(runs), imm(spread), imm(run_bytes)),
        DmaDim(imm(run_bytes // 128), imm(0), imm(run_bytes // 128), imm(128), imm(128)),
    )
    tokens = ((ExprOp.CORE, 0), (ExprOp.CONST, 2 * size), (ExprOp.MUL, 0), (ExprOp.ADD, 0))
    return Program(
        name=f"copy, runs of {run_bytes} B",
        profile=base.profile,
        cores=base.cores,
        args=base.args,
        symbols=base.symbols,
        slots=tuple(Slot(Expr(((ExprOp.SYM, i), *tokens)), Scope.CORE) for i in range(2)),
        exprs=(),
        blocks=(Block("b0", 0, size), Block("b1", size, size)),
        channels=base.channels,
        streams={
            **base.streams,
            Unit.MNILU: (
                Acquire(0, Side.EMPTY),
                Dma(0, slot(0), LxRef(0, 0, imm(0)), dims),
                Release(0, Side.FULL),
            ),
            Unit.MNISU: (
                Acquire(1, Side.FULL),
                Dma(1, slot(1), LxRef(1, 1, imm(0)), dims),
                Release(1, Side.EMPTY),
            ),
        },
    )


def best_seconds(machine: _chip.Machine, prog: Program) -> float:
    loaded = _chip.decode(encode(prog))
    share = len(machine.ddr) // len(prog.args) // 128 * 128
    args = [(i * share, share) for i in range(len(prog.args))]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        machine.run(loaded, args)
        times.append(time.perf_counter() - start)
    return min(times)


CHAIN = (
    VOp(VecOp.ADD_F, 2, 0, 1),
    VOp(VecOp.MUL_F, 3, 2, 1),
    VOp(VecOp.SUB_F, 4, 3, 0),
    VOp(VecOp.MAX_F, 5, 4, 1),
)

CASES = (
    elementwise("identity 128x1536", (), 1, 128, 1536),
    elementwise("add 128x1536", CHAIN[:1], 2, 128, 1536),
    elementwise("chain of 4, 128x1536", CHAIN, 2, 128, 1536),
    elementwise("gelu 128x1536", (VOp(VecOp.GELU, 1, 0),), 1, 128, 1536),
    elementwise("exp 128x1536", (VOp(VecOp.EXP, 1, 0),), 1, 128, 1536),
    elementwise("tanh 128x1536", (VOp(VecOp.TANH, 1, 0),), 1, 128, 1536),
    elementwise("sin 128x1536", (VOp(VecOp.SIN, 1, 0),), 1, 128, 1536),
    softmax(128, 128),
    softmax(512, 384),
    gemm(128, 192, 384),
    gemm(128, 64, 384),
    gemm(128, 384, 1536),
    gemm(64, 64, 64, batch=12),
    gemm(128, 128, 32, transpose_b=True, batch=12),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    machine = _chip.Machine(CHIP.cores, CHIP.lx_bytes, threads, 1 << 28, blas=True)
    own = _chip.Machine(CHIP.cores, CHIP.lx_bytes, threads, 1 << 28)
    rng = np.random.default_rng(0)
    codes = _chip.f32_to_df16(rng.standard_normal(len(machine.ddr) // 2, dtype=np.float32))
    for m in (machine, own):
        m.ddr[:] = codes.view(np.uint8)
    print(f"{threads} threads, BLAS {'found' if machine.has_blas else 'not found'}")
    print(f"{'case':<34}{'ms':>9}{'rate':>10}")
    for case in CASES:
        seconds = best_seconds(machine, program(case))
        rate = case.work * REPEAT * CHIP.cores / seconds / 1e9
        print(f"{case.name:<34}{seconds * 1e3:>9.2f}{rate:>10.2f} {case.unit}")
    for case in (c for c in CASES if c.name.startswith("gemm")):
        seconds = best_seconds(own, program(case))
        rate = case.work * REPEAT * CHIP.cores / seconds / 1e9
        print(f"{case.name + ', own kernel':<34}{seconds * 1e3:>9.2f}{rate:>10.2f} {case.unit}")
    for run in (128, 1024, 1 << 20):
        prog = copy_case(run)
        seconds = best_seconds(machine, prog)
        print(f"{prog.name:<34}{seconds * 1e3:>9.2f}{2 * CHIP.cores * (1 << 20) / seconds / 1e9:>10.2f} GB/s")


if __name__ == "__main__":
    main()
