"""Reports: figures of the clock turned into shares, rooflines, reasons, sums and advice."""

import json

import fake_clock as fake
import pytest

from torch_loom import arch
from torch_loom.profiler import (
    ClockError,
    Figures,
    Roofs,
    Subject,
    advise,
    call_of,
    position,
    report,
    report_of,
)
from torch_loom.profiler.advice import MECHANISMS
from torch_loom.profiler.units import rate_text, size_text, time_text
from torch_loom.profiler.why import why

SPYRE = arch.load("spyre")


def figures(chip=fake.CHIP, cores=2, **changed):
    return Figures.of("kernel", fake.timing(**changed), cores, chip)


def test_utilisation_is_over_all_units_of_the_chip():
    # 0.25 of the cycles on 8 corelets; DDR is one.
    assert figures().utilisation["SFU"] == pytest.approx(0.25)
    assert figures().utilisation["DDR"] == pytest.approx(0.625)
    assert figures(chip=SPYRE).utilisation["SFU"] == pytest.approx(0.25 * 8 / 64)


def test_operations_are_two_per_mac_or_one_per_lane():
    assert figures(macs=1000).operations == 2000
    assert figures().operations == pytest.approx(0.25 * 480 * 8 * 64)


def test_the_roofs_are_the_published_peaks():
    roofs = Roofs.of(SPYRE)
    assert roofs.pt == pytest.approx(98.304e12)
    assert roofs.memory == pytest.approx(150e9, rel=0.02)  # the published measurement of one-way streams
    assert roofs.sfu == 64 * 64 * 1.5e9
    knee = roofs.pt / roofs.memory
    assert roofs.attainable(knee * 2, "PT") == roofs.pt
    assert roofs.attainable(knee / 2, "PT") == pytest.approx(roofs.pt / 2)


@pytest.mark.parametrize(
    ("macs", "read", "unit", "side"),
    [
        (10**6, 1536, "PT", "compute"),
        (10**3, 15360, "PT", "memory"),
        (0, 1536, "SFU", "compute"),
        (5, 0, "PT", "compute"),
    ],
)
def test_a_launch_stands_under_the_roof_of_its_unit(macs, read, unit, side):
    links = {"DDR read": read, "DDR write": 0}
    where = position(figures(macs=macs, link_bytes=links), fake.CHIP)
    assert (where.unit, where.side) == (unit, side)
    operations = 2 * macs or 0.25 * 480 * 8 * 64
    assert where.reached == pytest.approx(operations / 320e-9)
    assert where.intensity == (pytest.approx(operations / read) if read else None)
    assert where.share == pytest.approx(where.reached / where.attainable)


def test_the_reason_gives_rate_and_limit():
    text = why(figures(), fake.CHIP)
    assert text.startswith("DDR read: busy 62% of the time; 1.5 KiB at 4.8 GB/s of 149 GB/s")
    assert "30.7 TFLOP/s" not in text
    text = why(figures(bottleneck="PT", macs=320 * 500, shares={"PT": 0.9}), SPYRE)
    assert text == "PT: busy 90% of the time; 1 TFLOP/s of 98.3 TFLOP/s on 2 cores"
    text = why(figures(bottleneck="wait", shares={"wait": 0.5, "SFU": 0.3, "LX": 0.2}), SPYRE)
    assert "the busiest part (SFU) works 30% of the time" in text
    assert "0.06 us before the first instruction" in why(figures(bottleneck="launch"), SPYRE)


def test_every_mechanism_names_parameters_that_the_clock_has():
    for chip in (SPYRE, fake.CHIP):
        for mechanism in MECHANISMS:
            assert mechanism.params(chip, figures(), fake.subject()).keys() <= chip.clock_params().keys(), (
                mechanism.text
            )


def test_bounds_come_from_timing_again_without_the_mechanism(fake_clock):
    changes = advise(fake.subject(), figures(), fake.CHIP, count=20)
    by_text = {change.text: change for change in changes}
    bursts = by_text["longer runs in DDR (a layout whose rows follow one another)"]
    assert (bursts.gain, bursts.evidence) == (pytest.approx(0.2), "bound")
    assert bursts.gain_ns == pytest.approx(64.0)
    assert by_text["reads and writes in phases of their own"].gain == pytest.approx(0.1)
    assert "8-bit operands: half the bytes of device memory" not in by_text  # gains nothing with this clock
    zeros = [{k for k, v in params.items() if v == 0 and fake.CHIP.clock_params()[k]} for params in fake.calls]
    assert {"ddr.request_overhead_ns", "ddr.page_open_ns"} in zeros and {"launch.fixed_ns"} in zeros


def test_fetching_once_is_bounded_by_the_buffers(fake_clock):
    text = "fetch every operand once (a split whose cores share it over the ring, larger tiles)"
    (once,) = (m for m in MECHANISMS if m.text == text)
    # 1536 bytes are read, the only buffer has 1024.
    changed = once.params(fake.CHIP, figures(), fake.subject())
    assert changed["ddr.peak_bytes_per_s"] == pytest.approx(fake.CHIP.ddr.peak_bytes_per_s.value * 1.5)
    assert changed["ddr.page_open_ns"] == pytest.approx(fake.CHIP.ddr.page_open_ns.value / 1.5)
    few = figures(link_bytes={"DDR read": 512, "DDR write": 512})
    assert once.params(fake.CHIP, few, fake.subject()) == {}
    unknown = Subject.of(fake.program(), {"n": 7})
    assert unknown.buffer_bytes == 0 and once.params(fake.CHIP, figures(), unknown) == {}


def test_advice_is_ordered_by_gain_for_the_effort_and_short(fake_clock):
    changes = advise(fake.subject(), figures(), fake.CHIP)
    assert len(changes) == 3
    worth = [change.gain / change.effort for change in changes]
    assert worth == sorted(worth, reverse=True)
    assert all(change.gain >= 0.01 for change in changes)


def test_other_options_are_timed_and_equal_programs_left_out(fake_clock, monkeypatch):
    from torch_loom.scheduler import ScheduleError

    other = fake.subject("other").image

    def reschedule(options):
        if options.buffers == 4:
            raise ScheduleError("does not fit LX", op="func.func", where="@kernel")
        return other if options.buffers == 3 else fake.subject().image

    def native_time(handle, args, params):
        return fake.timing() if handle != other else fake.timing(ns=240.0)

    from types import SimpleNamespace

    from torch_loom.profiler import subject as room

    clock = SimpleNamespace(decode=lambda image: image, time=native_time)
    monkeypatch.setattr(room, "native_chip", lambda: clock)
    changes = advise(fake.subject(reschedule=reschedule), figures(), fake.CHIP, count=20)
    assert [(c.text, c.gain, c.evidence) for c in changes] == [
        ("3 copies of a shared block instead of 2", pytest.approx(0.25), "re-timed")
    ]


def test_sums_count_every_launch(fake_clock):
    result = report_of([fake.subject("a", 1), fake.subject("b", 3)], fake.CHIP, advice=1)
    assert [entry.figures.name for entry in result.entries] == ["b", "a"]
    assert (result.launches, result.ns) == (4, pytest.approx(4 * 320))
    assert result.total("link_bytes")["DDR read"] == 4 * 1536
    assert result.total("energy_pj")["DDR"] == 4 * 49152
    assert result.mean("shares")["DDR read"] == pytest.approx(0.625)
    assert result.by_bottleneck == {"DDR read": pytest.approx(1280)}
    assert result.entries[0].changes and not result.entries[1].changes


def test_a_report_is_json_and_text(fake_clock):
    result = report([fake.subject("loom_softmax", 2)], fake.CHIP)
    data = json.loads(result.json())
    kernel = data["kernels"][0]
    assert (kernel["name"], kernel["launches"], kernel["total_ns"]) == ("loom_softmax", 2, pytest.approx(640))
    assert kernel["origin"] == "model.py:3"
    assert data["energy_sources"]["DDR"].startswith("energy.ddr_byte_pj = 32 (assumed: ")
    text = str(result)
    for part in ("loom_softmax: 320 ns (480 cycles on 2 cores)", "model.py:3", "critical    DDR read", "1. "):
        assert part in text
    assert "nan" not in str(report([], fake.CHIP))


def test_an_empty_report_has_zeros():
    result = report([], "spyre-mini")
    assert (result.ns, result.launches, result.as_dict()["kernels"]) == (0, 0, [])


def test_sizes_become_a_call():
    program = fake.program()
    (address, bytes_), n = call_of(program, {"n": 5})
    assert (address % 128, n) == (0, 5) and bytes_ >= 1 << 30
    with pytest.raises(ClockError, match="kernel: give argument 'n' a value"):
        call_of(program, {})
    with pytest.raises(ClockError, match="kernel has no size m, x; its numbers are: n"):
        call_of(program, {"n": 1, "m": 2, "x": 3})
    with pytest.raises(ClockError, match="argument 'n' is an integer, not 1.5"):
        call_of(program, {"n": 1.5})


def test_a_refused_launch_names_the_kernel():
    with pytest.raises(ClockError, match="kernel: SC-E11"):
        Subject("kernel", fake.subject().image, (7, (0, 1024))).time(fake.CHIP)


def test_numbers_are_short():
    assert size_text(1020 << 20) == "1020 MiB" and size_text(1023) == "1023 B" and size_text(999.7 * 1024) == "1000 KiB"
    assert [time_text(ns) for ns in (12.0, 1500.0, 2.5e6, 3e9)] == ["12 ns", "1.5 us", "2.5 ms", "3 s"]
    assert rate_text(1.5e11, "B/s") == "150 GB/s" and rate_text(0, "B/s") == "0 B/s"
