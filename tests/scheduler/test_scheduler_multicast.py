"""Loads that several cores do alike are fetched once; which ones is proved from the addresses."""

from __future__ import annotations

import numpy as np
import pytest
import torch  # noqa: F401  (the native module finds its libraries through it)
from scheduler_kernels import down
from test_scheduler_checks import broken
from test_scheduler_values import CHIP, build, close, data, run_all

from torch_loom import scheduler
from torch_loom.ktir.builder import KernelBuilder
from torch_loom.spyrecode.model import Dma, Loop, Operand, OperandKind, Program, Unit

ROWS, DEPTH, COLUMNS = 64, 128, 256


def product(cores: int, grid_n: int, ragged: bool = False) -> str:
    """c = a @ w: cores in a grid of ``grid_n`` columns; weights come in tiles of 64 columns."""
    b = KernelBuilder("product", cores)
    a, w, c = b.buffer("a"), b.buffer("w"), b.buffer("c")
    va, vw, vc = (
        b.view(v, shape, [shape[1], 1], "f16")
        for v, shape in ((a, [ROWS, DEPTH]), (w, [DEPTH, COLUMNS]), (c, [ROWS, COLUMNS]))
    )
    rows, columns = ROWS // (cores // grid_n), COLUMNS // grid_n
    row = b.mul(b.floordiv(b.tile_id(), grid_n), rows)
    column = b.mul(b.mod(b.tile_id(), grid_n), columns)
    kept = b.load(va, [row, 0], [rows, DEPTH])
    stop = b.min(columns, b.mul(b.add(b.tile_id(), 1), 64)) if ragged else columns
    with b.loop(0, stop, 64) as j:
        at = b.add(column, j)
        b.store(down(b, b.matmul(kept, b.load(vw, [0, at], [DEPTH, 64]))), vc, [row, at], [rows, 64])
    return b.text()


def loads(program: Program) -> dict[str, Dma]:
    """The transfer of each argument."""
    found: dict[str, Dma] = {}
    stack = list(program.streams[Unit.MNILU])
    while stack:
        i = stack.pop()
        if isinstance(i, Loop):
            stack.extend(i.body)
        elif isinstance(i, Dma):
            found[program.args[i.arg].name] = i
    return found


def per_core(c: scheduler.Compiled, operand: Operand) -> list[int]:
    """The value of an operand on each core."""
    from torch_loom import _chip, spyrecode

    program = c.program
    if operand.kind is OperandKind.IMM:
        return [operand.value] * program.cores
    table = _chip.table(_chip.decode(spyrecode.encode(program)), [(0, 1 << 20)] * len(program.args))
    at = sum(program.cores if s.scope else 1 for s in program.slots[: operand.value])
    return [int(v) for v in table[at : at + program.cores]]


def test_rows_share_one_operand_and_columns_the_other() -> None:
    c = build(product(8, 2))
    found = loads(c.program)
    assert per_core(c, found["a"].sharers) == [2] * 8
    assert per_core(c, found["a"].group) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert per_core(c, found["w"].sharers) == [4] * 8
    assert per_core(c, found["w"].group) == [0, 1, 0, 1, 0, 1, 0, 1]


def test_memory_is_read_once() -> None:
    text = product(8, 2)
    once, often = (build(text, multicast=m).time(CHIP).ddr_read_bytes for m in (True, False))
    assert once == 2 * (ROWS * DEPTH + DEPTH * COLUMNS)
    assert often == 2 * (2 * ROWS * DEPTH + 4 * DEPTH * COLUMNS)


def test_values_do_not_change() -> None:
    a, w = data((ROWS, DEPTH)), data((DEPTH, COLUMNS), 1)
    results = [
        run_all(build(product(8, 2), multicast=m), a=a, w=w, c=np.zeros((ROWS, COLUMNS), np.float32))["c"]
        for m in (True, False)
    ]
    np.testing.assert_array_equal(results[0], results[1])
    close(results[0], a @ w, 1.1, atol=1e-4)


@pytest.mark.parametrize("cores", [1, 4])
def test_loads_of_one_core_each_are_not_marked(cores: int) -> None:
    c = build(product(cores, cores))
    assert per_core(c, loads(c.program)["w"].sharers) == [1] * cores


def test_loops_that_depend_on_the_core_share_nothing() -> None:
    found = loads(build(product(8, 2, ragged=True)).program)
    assert found["w"].sharers == Operand(OperandKind.IMM, 1)
    assert found["a"].sharers != Operand(OperandKind.IMM, 1)
    assert build(product(8, 2, ragged=True)).time(CHIP).cycles > 0


def test_the_text_keeps_the_sharers() -> None:
    c = build(product(8, 2))
    module = scheduler.parse_module(c.dataflow_ir)
    assert " shared [" in c.dataflow_ir
    assert scheduler.print_module(module) == c.dataflow_ir
    assert scheduler.lower(module) == c.program


def arguments() -> dict[str, np.ndarray]:
    return {"a": data((ROWS, DEPTH)), "w": data((DEPTH, COLUMNS), 1), "c": np.zeros((ROWS, COLUMNS), np.float32)}


def test_a_promise_that_is_kept_passes() -> None:
    assert build(product(8, 2)).check_races(**arguments()) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ((r"shared \[(%\d+), 2\]", r"shared [\1, 3]"), "2 cores load as group 0, which has 3"),
        ((r"shared \[%\d+, 4\]", "shared [0, 8]"), "shares other bytes than core 0 of group 0"),
    ],
)
def test_a_promise_that_is_broken_is_found(edit: tuple[str, str], message: str) -> None:
    races = broken(product(8, 2), edit, unit="MNILU").check_races(**arguments())
    assert any(r.kind == "shared" and message in r.message for r in races), races
