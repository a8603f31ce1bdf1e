"""Cores that exchange data: values, order, errors; and what the ring and shared loads cost."""

import dataclasses

import numpy as np
import pytest
import torch  # noqa: F401
from chip_run import machine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from spyrecode_samples import BIG, Instr, Loop, Program, ring_shift
from test_chip_clock import PARAMS, timing, transfers

from torch_loom import _chip
from torch_loom.spyrecode import SpyreCodeError, encode
from torch_loom.spyrecode.model import (
    Dma,
    Expr,
    ExprOp,
    RingAcquire,
    RingCopy,
    RingRelease,
    Scope,
    Side,
    Slot,
    Unit,
    imm,
    slot,
)

HOP = PARAMS["ring.hop_cycles"]


def edited(program: Program, unit: Unit, change) -> Program:
    """The loop body of a unit with every instruction passed through ``change`` (None drops it)."""
    (loop,) = program.streams[unit]
    assert isinstance(loop, Loop)
    body = tuple(new for i in loop.body if (new := change(i)) is not None)
    streams = {**program.streams, unit: (dataclasses.replace(loop, body=body),)}
    return dataclasses.replace(program, streams=streams)


@settings(max_examples=20, deadline=None)
@given(cores=st.integers(1, 4), step=st.integers(1, 4), sticks=st.integers(1, 3), repeat=st.integers(1, 3))
def test_values_reach_the_core_they_are_sent_to(cores, step, sticks, repeat):
    program = ring_shift(cores, step % cores or cores, sticks, repeat)
    x = np.random.default_rng(0).normal(size=(cores, 32 * sticks)).astype(np.float32)
    y = run(program, [x, np.zeros_like(x)])[1]
    np.testing.assert_array_equal(y, np.roll(2 * x, step, axis=0))


def test_a_negative_core_is_nobody():
    x = np.ones((4, 32), np.float32)
    chip = machine(ring_shift(4, 0))
    y = run(ring_shift(4, 0), [x, x], on=chip)[1]  # LX is zero before anything is written
    np.testing.assert_array_equal(y, np.zeros_like(x))


@pytest.mark.parametrize(
    ("unit", "what", "change", "code", "message"),
    [
        (Unit.MNISU, RingRelease, None, "DEV-04", "deadlock: core 0: .*L1LU waits for c_land.full of core 3"),
        (Unit.MNISU, RingCopy, {"core": imm(9)}, "DEV-06", "core 0, MNISU: core 9 of 4 does not exist"),
        (Unit.MNISU, RingAcquire, {"core": imm(-1)}, "DEV-05", "gets a second credit for core"),
        (Unit.MNISU, RingCopy, {"leaf": 4, "dims": "far"}, "DEV-02", "of block send"),
    ],
)
def test_what_goes_wrong_is_named(unit, what, change, code, message):
    def apply(i: Instr):
        if not isinstance(i, what):
            return i
        if change is None:
            return None
        fields = dict(change)
        if fields.get("dims") == "far":
            fields["dims"] = (dataclasses.replace(i.dims[0], extent=imm(2), source_stride=imm(4096)),)
        return dataclasses.replace(i, **fields)

    x = np.ones((4, 32), np.float32)
    with pytest.raises(_chip.ChipError, match=message) as error:
        run(edited(ring_shift(4, 1, 1, 3), unit, apply), [x, x])
    assert error.value.code == code


def test_a_machine_runs_on_after_a_deadlock():
    x = np.ones((4, 32), np.float32)
    good = ring_shift(4, 1)
    chip = machine(good)
    bad = edited(good, Unit.MNISU, lambda i: None if isinstance(i, RingRelease) else i)
    with pytest.raises(_chip.ChipError):
        run(bad, [x, x], on=chip)
    np.testing.assert_array_equal(run(good, [x, x], on=chip)[1], 2 * x)


def test_the_clock_finds_the_deadlock_too():
    bad = edited(ring_shift(4, 1), Unit.MNISU, lambda i: None if isinstance(i, RingRelease) else i)
    with pytest.raises(_chip.ChipError, match="deadlock on core 0 while timing") as error:
        timing(bad)
    assert error.value.code == "DEV-04"


def shift_cycles(step: int, sticks: int = 64, **changes: float) -> float:
    return timing(ring_shift(32, step, sticks, profile=BIG), **changes).cycles


def test_neighbours_are_faster_than_the_far_side():
    near, far = shift_cycles(1), shift_cycles(16)
    # 16 messages share each clockwise link, and the last one has 15 hops more to go.
    assert far - near == pytest.approx(15 * 64 + 15 * HOP, rel=0.25)


def test_the_shorter_way_is_taken():
    assert shift_cycles(31) == pytest.approx(shift_cycles(1), rel=1e-9)
    assert shift_cycles(20) == pytest.approx(shift_cycles(12), rel=0.05)  # messages wait for links in core order


def test_a_message_takes_its_bytes_over_the_links_rate():
    short, long = (timing(ring_shift(32, 1, n, profile=BIG)) for n in (64, 128))
    busy = [t.units["ring"].busy_cycles for t in (short, long)]
    assert busy == [32 * 64, 32 * 128]  # one link per core, 128 bytes a cycle
    half = timing(ring_shift(32, 1, 64, profile=BIG), ring__bytes_per_cycle=64.0)
    assert half.units["ring"].busy_cycles == 32 * 128


def table(*numbers: tuple[ExprOp, int]) -> Slot:
    return Slot(Expr(numbers), Scope.CORE)


CORE, CONST = (ExprOp.CORE, 0), ExprOp.CONST


def shared(sharers: int, repeat: int = 20) -> Program:
    """Every core loads 512 sticks, teams of ``sharers`` neighbours the same ones."""
    base = transfers(None, 0)
    group = table(CORE, (CONST, sharers), (ExprOp.FLOORDIV, 0))
    place = table((ExprOp.SYM, 0), *group.expr.tokens, (CONST, 65536), (ExprOp.MUL, 0), (ExprOp.ADD, 0))
    load = Dma(0, slot(len(base.slots)), *transfers_load(), group=slot(len(base.slots) + 1), sharers=imm(sharers))
    program = transfers(load, repeat)
    return dataclasses.replace(program, slots=(*base.slots, place, group))


def transfers_load():
    from spyrecode_samples import dim, lx

    return lx(0), (dim(512, 128, 128),)


def test_a_shared_load_is_read_once():
    alone, team = timing(shared(1)), timing(shared(8))
    assert alone.ddr_read_bytes == 8 * team.ddr_read_bytes == 32 * 20 * 65536
    assert alone.ns - PARAMS["launch.fixed_ns"] == pytest.approx(8 * (team.ns - PARAMS["launch.fixed_ns"]), rel=0.1)
    # Each of the 4 teams fills its 7 links once per transfer.
    assert team.units["ring"].busy_cycles == 4 * 7 * 20 * 512
    assert "ring" not in alone.units


def test_values_do_not_depend_on_sharing():
    program = ring_shift(4, 1)
    load = edited(
        program, Unit.MNILU, lambda i: dataclasses.replace(i, group=imm(5), sharers=imm(1)) if isinstance(i, Dma) else i
    )
    x = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    np.testing.assert_array_equal(run(load, [x, x])[1], run(program, [x, x])[1])


def test_a_team_that_never_meets_is_a_deadlock():
    program = ring_shift(4, 1)
    bad = edited(program, Unit.MNILU, lambda i: dataclasses.replace(i, sharers=imm(5)) if isinstance(i, Dma) else i)
    with pytest.raises(_chip.ChipError, match="deadlock") as error:
        timing(bad)
    assert error.value.code == "DEV-04"


def test_credits_belong_to_sides():
    wrong = edited(
        ring_shift(4, 1),
        Unit.MNISU,
        lambda i: dataclasses.replace(i, side=Side.FULL) if isinstance(i, RingAcquire) else i,
    )
    with pytest.raises(SpyreCodeError, match="MNISU is not its consumer"):
        encode(wrong)
