"""The clock: figures it must reproduce by mechanism, and orders that must never turn around."""

import dataclasses

import numpy as np
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
    ring_shift,
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
    SegLoad,
    SegStore,
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
    return (t.ddr_read_bytes + t.ddr_write_bytes) / (t.ns - t.launch_cycles / 1.5)


def test_one_direction_reaches_150_gb_per_s():
    t = timing(transfers(load_runs(512), 50))
    assert rate(t) == pytest.approx(150, rel=0.015)
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


def test_one_core_draws_what_it_has_in_flight():
    """Window over latency (C12: 0.11 of 150 GB/s), less with a narrower engine."""
    assert rate(timing(transfers(load_runs(512), 20, cores=1))) == pytest.approx(4096 / 248, rel=0.02)
    slow = timing(transfers(load_runs(512), 20, cores=1), dma__read_bytes_per_cycle=8.0)
    assert rate(slow) == pytest.approx(8 * 1.5, rel=0.05)
    near = timing(transfers(load_runs(512), 20, cores=1), ddr__latency_ns=10.0)
    assert rate(near) == pytest.approx(54 * 1.5, rel=0.02)  # the port


@pytest.mark.parametrize(("cores", "factor"), [(1, 0.11), (2, 0.22), (4, 0.43), (8, 0.54), (16, 0.54), (32, 1.0)])
def test_few_cores_draw_a_part_of_the_memory(cores, factor):
    """C12."""
    assert rate(timing(transfers(load_runs(512), 50, cores=cores))) == pytest.approx(150 * factor, rel=0.04)


def strided(stride: int, sticks: int = 512, run: int = 64) -> Dma:
    return Dma(0, slot(0), lx(0), (dim(sticks // run, stride, 128 * run), dim(run, 128, 128)))


def test_runs_beyond_the_open_pages_open_pages_again():
    """16 channels x 16 banks x 2 KiB stay open; two runs in turn fit up to half of that apart."""
    reach = 16 * 16 * 2048
    rates = [rate(timing(transfers(strided(reach // 2 * n), 50))) for n in (1, 2, 4, 8, 64)]
    assert rates[0] == pytest.approx(rate(timing(transfers(strided(8192), 50))), rel=0.001)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(114, rel=0.04)  # C11 at many rows
    longer = rate(timing(transfers(strided(reach * 4, 512, 256), 50)))  # 32 KiB: whole pages
    assert longer == pytest.approx(rates[0], rel=0.01)


def test_a_small_transfer_takes_the_latency():
    """One stick: issue, its own draw, and the rest of the latency."""
    one = timing(transfers(load_runs(1, 1), 1, cores=1))
    assert one.cycles - one.launch_cycles == pytest.approx(248 * 1.5, rel=0.05)


def test_mixed_traffic_pays_for_the_smaller_direction():
    """Twice as many bytes read as written: bytes / rate + 0.00574 ns per written byte."""
    loads = transfers(load_runs(512), 100).streams
    stores = transfers(None, 50, Dma(2, slot(2), lx(1), (dim(512, 128, 128),))).streams
    t = timing(dataclasses.replace(transfers(None, 0), streams={**loads, **stores}))
    fixed = t.launch_cycles / 1.5
    expected = (t.ddr_read_bytes + t.ddr_write_bytes) / 148.6 + 0.00574 * t.ddr_write_bytes
    assert t.ns - fixed == pytest.approx(expected, rel=0.06)


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
    assert macs_per_ns == pytest.approx(1140 * share, rel=0.09)
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
    assert timing(plain).ns >= timing(copy).ns  # the window hides 32 indices
    assert timing(plain, dma__index_cycles=100.0).ns > timing(copy, dma__index_cycles=100.0).ns + 32 * 70 / 1.5


def test_the_result_is_the_same_every_time():
    first, second = timing(stream(20)), timing(stream(20))
    assert first.cycles == second.cycles
    assert {k: (u.busy_cycles, u.wait_cycles) for k, u in first.units.items()} == {
        k: (u.busy_cycles, u.wait_cycles) for k, u in second.units.items()
    }


def test_an_empty_launch_costs_the_launch():
    """The doorbell, and per number of the table its evaluation, its transfer and its use."""
    program = dataclasses.replace(transfers(None, 0), streams={})
    t = timing(program)
    words = _chip.decode(encode(program)).table_words
    expected = 400 + words * (0.5 + 8 / 20) + len(program.slots) * 2 / 1.5
    assert t.bottleneck == "launch"
    assert t.cycles == t.launch_cycles
    assert t.ns == pytest.approx(expected)


def test_bytes_read_once_are_saved_while_the_memory_limits():
    """An operand that stays in LX saves exactly the time of its bytes (hardware page, section 8, 4)."""
    again, once = stream(40), stream(40)
    (loop,) = once.streams[Unit.MNILU]
    copies = [i for i in loop.body if isinstance(i, Dma)]
    kept = dataclasses.replace(loop, body=tuple(i for i in loop.body if i is not copies[1]))
    once = dataclasses.replace(once, streams={**once.streams, Unit.MNILU: (kept,)})
    a, b = timing(again), timing(once)
    saved = a.ddr_read_bytes - b.ddr_read_bytes
    assert saved == 40 * 32 * 512 * 128
    assert a.ns - b.ns == pytest.approx(saved / 150, rel=0.05)


def test_partners_beside_each_other_finish_earlier():
    near, far = (timing(ring_shift(32, step, 64, profile=BIG)).cycles for step in (1, 8))
    assert near < far


def test_time_grows_with_products_and_falls_with_memory_rate():
    times = [timing(matmul(1, m, 64, 64)).ns for m in (1, 8, 63, 64, 65, 200)]
    assert times == sorted(times)
    slow, fast = (timing(stream(20), ddr__peak_bytes_per_s=p).ns for p in (100e9, 300e9))
    assert fast < slow


def test_segments_overlap_on_free_units():
    """Two independent segments in a row take less than twice the time of one: L1LU works on the second while L1SU
    still stores the first. With a start of 1000 cycles the second does not pay it again."""
    program = map_program([VOp(VecOp.EXP, 1, 0)], [Elem.F32], Elem.F32, 2048)
    one, two, three = (timing(repeated(program, n), sfu__start_cycles=1000.0).cycles for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=0.01)
    assert two - one < 300


def test_a_segment_waits_for_what_an_earlier_one_stores():
    """In place: each round reads what the one before wrote, so the start is paid every time."""
    program = map_program([VOp(VecOp.EXP, 1, 0)], [Elem.F32], Elem.F32, 2048)
    (load,) = (i for i in program.streams[Unit.L1LU] if isinstance(i, SegLoad))
    streams = dict(program.streams)
    streams[Unit.L1SU] = tuple(
        dataclasses.replace(i, lx=load.lx) if isinstance(i, SegStore) else i for i in streams[Unit.L1SU]
    )
    alone = dataclasses.replace(program, streams=streams)
    one, two = (timing(repeated(alone, n), sfu__start_cycles=1000.0).cycles for n in (1, 2))
    assert two - one > 1000


def test_shares_bytes_and_energy_add_up():
    t = timing(stream(40))
    assert set(t.shares) == {"PT", "SFU", "LX", "DDR read", "DDR write", "ring", "launch", "wait"}
    assert all(0 <= v <= 1 for v in t.shares.values())
    assert t.shares["DDR read"] == pytest.approx(2 * t.shares["DDR write"], rel=0.2)
    assert t.link_bytes["DDR read"] == t.ddr_read_bytes
    assert t.link_bytes["LX write"] == t.ddr_read_bytes + t.ddr_write_bytes  # loads, and what the SFU stores
    energy = t.energy_pj
    assert energy["DDR"] == pytest.approx((t.ddr_read_bytes + t.ddr_write_bytes) * PARAMS["energy.ddr_byte_pj"])
    assert energy["idle"] == pytest.approx(PARAMS["energy.idle_w"] * t.ns * 1e3)
    assert energy["PT"] == energy["ring"] == t.macs == 0
    product = timing(matmul(1, 64, 128, 32))
    assert product.macs == 64 * 128 * 32
    assert product.energy_pj["PT"] == pytest.approx(product.macs * PARAMS["energy.mac_pj"])
    assert t.events > 40 * 32


def recorded(program: Program, limit: int = 1 << 20) -> dict:
    return _chip.trace(_chip.decode(encode(program)), [(0, 0)] * len(program.args), PARAMS, limit)


def test_a_trace_agrees_with_the_timing():
    program = stream(5, cores=4)
    trace, t = recorded(program), timing(program)
    assert trace["timing"].cycles == t.cycles
    assert not trace["truncated"]
    assert np.all(trace["end"] > trace["begin"])
    assert trace["end"].max() <= t.cycles
    for name, share in (("MNILU", 2), ("MNISU", 1)):
        spans = (trace["track"] == trace["tracks"].index(name)) & (trace["kind"] == 2)
        assert spans.sum() == 5 * 4 * share
        busy = (trace["end"] - trace["begin"])[spans].sum()
        assert busy == pytest.approx(t.units[name].busy_cycles)
    names = {trace["names"][i] for i in trace["what"]}
    assert {"launch", "load a", "load b", "store c"} <= names
    # A unit does one thing at a time.
    for core in range(4):
        for track in range(len(trace["tracks"])):
            mine = (trace["core"] == core) & (trace["track"] == track) & (trace["kind"] != 1)
            order = np.argsort(trace["begin"][mine])
            assert np.all(trace["begin"][mine][order][1:] >= trace["end"][mine][order][:-1] - 1e-6)
    # Each round passes full and empty of every channel; for the initial credits there is no arrow.
    assert len(trace["flow_sent"]) == 4 * 5 * 2 * len(program.channels)
    assert np.all(trace["flow_seen"] >= trace["flow_sent"])
    assert set(trace["flow_from_core"]) == set(trace["flow_to_core"]) == {0, 1, 2, 3}
    assert {c.rpartition(".")[2] for c in (trace["names"][i] for i in trace["flow_channel"])} == {"full", "empty"}


def test_a_trace_says_when_it_is_cut():
    trace = recorded(stream(5), 10)
    assert trace["truncated"]
    assert len(trace["begin"]) == len(trace["flow_sent"]) == 10


@pytest.mark.parametrize(("link", "start"), [("pcie", 1500), ("card", 2000)])
def test_transfers_over_links(link, start):
    """Start-up, then packets of 256 bytes with 28 of overhead at 63 GB/s."""
    assert _chip.transfer_ns(0, link, PARAMS) == start
    assert _chip.transfer_ns(1 << 30, link, PARAMS) - start == pytest.approx((1 << 30) * 284 / 256 / 63)
    assert _chip.transfer_ns(1, link, PARAMS) - start == pytest.approx(29 / 63)
    with pytest.raises(_chip.ChipError, match="link 'usb' is unknown: pcie or card"):
        _chip.transfer_ns(1, "usb", PARAMS)
    with pytest.raises(_chip.ChipError, match="a transfer of -1 bytes"):
        _chip.transfer_ns(-1, link, PARAMS)


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
