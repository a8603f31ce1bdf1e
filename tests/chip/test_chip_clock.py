"""The clock: figures it must reproduce by mechanism, and orders that must never turn around."""

import dataclasses

import pytest
import torch  # noqa: F401
from spyrecode_samples import (
    BIG,
    add_rows,
    dim,
    gather_rows,
    lx,
    map_program,
    matmul,
    row_sum,
)

from torch_loom import _chip, arch
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import (
    Block,
    Dma,
    Elem,
    Loop,
    Program,
    Unit,
    VecOp,
    VOp,
    imm,
    slot,
)

CHIP = arch.load("spyre")
PARAMS = CHIP.clock_params()


def timing(program: Program, **changes: float) -> _chip.Timing:
    loaded = _chip.decode(encode(program))
    params = {**PARAMS, **{k.replace("__", "."): v for k, v in changes.items()}}
    return _chip.time(loaded, [(0, 0)] * len(program.args), params)


def stream(tiles: int, cores: int = 32, sticks: int = 512, phases: int = 2) -> Program:
    """add_rows with more and larger tiles: two reads and one write of ``sticks`` sticks per tile."""
    base = add_rows()
    size = sticks * 128
    blocks = tuple(Block(b.name, i * size * phases, size, phases) for i, b in enumerate(base.blocks))
    streams = {}
    for unit, (loop,) in base.streams.items():
        body = tuple(
            dataclasses.replace(i, dims=(dim(sticks, 128, 128),)) if isinstance(i, Dma) else i for i in loop.body
        )
        if unit is Unit.SFU:
            body = tuple(dataclasses.replace(i, extents=(imm(1), imm(sticks * 64))) for i in body)
        streams[unit] = (dataclasses.replace(loop, count=imm(tiles), body=body),)
    channels = tuple(dataclasses.replace(c, phases=phases) for c in base.channels)
    return dataclasses.replace(base, profile=BIG, cores=cores, blocks=blocks, channels=channels, streams=streams)


def transfers(load: Dma | None, repeat: int, store: Dma | None = None, cores: int = 32) -> Program:
    """Only transfers of the DMA engines, ``repeat`` times, nothing between them."""
    base = dataclasses.replace(stream(1, cores), channels=())
    streams = {}
    if load:
        streams[Unit.MNILU] = (Loop(0, imm(repeat), (load,)),)
    if store:
        streams[Unit.MNISU] = (Loop(0, imm(repeat), (store,)),)
    return dataclasses.replace(base, streams=streams)


def load_runs(run_sticks: int, sticks: int = 512) -> Dma:
    runs = sticks // run_sticks
    return Dma(0, slot(0), lx(0), (dim(runs, 256 * run_sticks, 128 * run_sticks), dim(run_sticks, 128, 128)))


def rate(t: _chip.Timing) -> float:
    """GB/s of the launch without its fixed cost."""
    fixed = PARAMS["launch.fixed_ns"]
    return (t.ddr_read_bytes + t.ddr_write_bytes) / (t.ns - fixed)


def test_one_direction_reaches_150_gb_per_s():
    t = timing(transfers(load_runs(512), 50))
    assert rate(t) == pytest.approx(150, rel=0.01)
    assert t.bottleneck == "DDR read"


def test_equal_reads_and_writes_reach_105_gb_per_s():
    store = Dma(2, slot(2), lx(1), (dim(512, 128, 128),))
    t = timing(transfers(load_runs(512), 50, store))
    assert t.ddr_read_bytes == t.ddr_write_bytes
    assert rate(t) == pytest.approx(104.9, rel=0.01)


def test_short_runs_reach_116_gb_per_s():
    assert rate(timing(transfers(load_runs(1), 50))) == pytest.approx(116, rel=0.01)


def test_longer_runs_are_never_slower():
    times = [timing(transfers(load_runs(n), 20)).ns for n in (1, 2, 4, 8, 16, 32, 64)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.25 * times[-1]


def test_elementwise_addition_is_bound_by_ddr():
    """6 bytes per element at 150 GB/s plus 2 written bytes of turnaround."""
    t = timing(stream(40))
    elements = t.ddr_write_bytes / 2
    expected = elements * (6 / 150 + 2 * 0.00574)
    assert t.ns - PARAMS["launch.fixed_ns"] == pytest.approx(expected, rel=0.05)
    assert t.bottleneck == "DDR read"


def test_one_core_stays_below_its_engine_and_the_memory():
    t = timing(transfers(load_runs(512), 20, cores=1))
    assert rate(t) < 150.5
    slow = timing(transfers(load_runs(512), 20, cores=1), dma__read_bytes_per_cycle=16.0)
    assert rate(slow) == pytest.approx(16 * 1.5, rel=0.05)


def test_more_cores_are_never_slower_for_the_same_total():
    times = [timing(stream(64 // cores, cores)).ns for cores in (1, 2, 4, 8, 16, 32)]
    assert all(b <= a * 1.02 for a, b in zip(times, times[1:], strict=False))


def test_double_buffering_is_never_slower():
    for tiles in (1, 2, 5, 20):
        assert timing(stream(tiles, phases=2, sticks=64)).ns <= timing(stream(tiles, phases=1, sticks=64)).ns


def test_time_grows_with_work():
    assert [t.ns for t in map(timing, (stream(n) for n in (1, 2, 3, 10)))] == sorted(
        t.ns for t in map(timing, (stream(n) for n in (1, 2, 3, 10)))
    )
    chain = [VOp(VecOp.EXP, 1, 0)]
    times = []
    for n in range(1, 6):
        times.append(timing(map_program(chain * n, [Elem.F32], Elem.F32, 1024)).ns)
    assert times == sorted(times)


def repeated(program: Program, repeat: int) -> Program:
    """The segments of a one-shot program ``repeat`` times."""
    streams = dict(program.streams)
    for unit in (Unit.L1LU, Unit.L1SU):
        first, *parts, last = streams[unit]
        streams[unit] = (first, Loop(0, imm(repeat), tuple(parts)), last)
    for unit in (Unit.PT, Unit.SFU):
        if unit in streams:
            streams[unit] = (Loop(0, imm(repeat), streams[unit]),)
    return dataclasses.replace(program, streams=streams)


@pytest.mark.parametrize(("rows", "share"), [(64, 1.0), (32, 0.785), (16, 0.616), (8, 0.483), (1, 0.233)])
def test_pt_throughput_follows_the_rows(rows, share):
    """1140 MAC/ns/core at 64 rows and more, less below (hardware page, C7 and C8)."""
    n, k, repeat = 512, 512, 400
    program = matmul(1, rows, n, k)
    split = dataclasses.replace(program.streams[Unit.SFU][0], corelet_dim=2)
    program = dataclasses.replace(program, streams={**program.streams, Unit.SFU: (split,)})
    once, many = timing(repeated(program, 1)), timing(repeated(program, 1 + repeat))
    macs_per_ns = rows * n * k * repeat / (many.ns - once.ns)
    assert macs_per_ns == pytest.approx(1140 * share, rel=0.07)
    assert many.bottleneck == "PT"


def test_both_corelets_halve_the_compute_time():
    program = map_program([VOp(VecOp.EXP, 1, 0)] * 20, [Elem.F32], Elem.F32, 2048)
    vec = program.streams[Unit.SFU][0]
    both = dataclasses.replace(
        program, streams={**program.streams, Unit.SFU: (dataclasses.replace(vec, corelet_dim=0),)}
    )
    one, two = (timing(repeated(p, 1000)) for p in (program, both))
    assert 1.5 < one.ns / two.ns < 2.05
    assert one.bottleneck == "SFU"


def test_gathers_cost_more_than_copies():
    plain = gather_rows(32, 2, 100)
    loads = plain.streams[Unit.MNILU]
    straight = dataclasses.replace(loads[2], gathers=(), dims=(dim(32, 256, 256), dim(2, 128, 128)))
    copy = dataclasses.replace(plain, streams={**plain.streams, Unit.MNILU: (*loads[:2], straight, loads[3])})
    assert timing(plain).ns > timing(copy).ns


def test_the_result_is_the_same_every_time():
    first, second = timing(stream(20)), timing(stream(20))
    assert first.cycles == second.cycles
    assert {k: (u.busy_cycles, u.wait_cycles) for k, u in first.units.items()} == {
        k: (u.busy_cycles, u.wait_cycles) for k, u in second.units.items()
    }


def test_an_empty_launch_costs_the_launch():
    t = timing(dataclasses.replace(transfers(None, 0), streams={}))
    assert t.bottleneck == "launch"
    assert t.ns == pytest.approx(PARAMS["launch.fixed_ns"], rel=0.2)


def test_the_report_covers_every_unit():
    t = timing(row_sum(64, 512))
    assert set(t.units) == {"MNILU", "MNISU", "L1LU", "PT", "SFU", "L1SU", "DDR"}
    assert t.ddr_read_bytes == 64 * 512 * 4
    assert 0 <= t.sfu_util <= 1


def test_a_missing_parameter_is_named():
    params = dict(PARAMS)
    del params["pt.rows"]
    loaded = _chip.decode(encode(add_rows()))
    with pytest.raises(_chip.ChipError, match="clock parameter pt.rows is missing") as error:
        _chip.time(loaded, [(0, 0)] * 3, params)
    assert error.value.code == "DEV-08"


def test_a_deadlock_is_found_without_data():
    program = add_rows()
    mnilu = program.streams[Unit.MNILU][0]
    broken = dataclasses.replace(mnilu, body=mnilu.body[:-1])
    program = dataclasses.replace(program, streams={**program.streams, Unit.MNILU: (broken,)})
    with pytest.raises(_chip.ChipError, match="deadlock on core 0") as error:
        timing(program)
    assert error.value.code == "DEV-04"


def test_an_endless_loop_ends_the_timing():
    loop = Loop(0, imm(1 << 62), ())
    program = dataclasses.replace(transfers(None, 0, cores=1), streams={Unit.MNILU: (loop,)})
    with pytest.raises(_chip.ChipError, match="step limit of the clock") as error:
        timing(program)
    assert error.value.code == "DEV-07"
