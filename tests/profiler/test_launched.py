"""What a process launched is counted without being asked for, and launches can be timed without being run."""

import pytest
import torch
from chrome_format import problems

from torch_loom.profiler import chrome_text, launch_subjects, launched, recorded_launches, report, reset, timeline

DEVICE = pytest.importorskip("torch_loom._device")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    reset()
    yield
    DEVICE.set_timing_only(False)
    reset()


def scaled(x):
    return x * 3 + 1


def test_launches_are_counted_by_kernel_and_sizes():
    run = torch.compile(scaled, dynamic=False)
    small, large = torch.ones(5, 64).half().to("spyre"), torch.ones(900, 64).half().to("spyre")
    for x in (small, small, large, small):
        run(x)
    found = report()
    assert sorted((entry.launches, entry.figures.link_bytes["DDR read"]) for entry in found.entries) == [
        (1, 900 * 128),
        (3, 5 * 128),
    ]
    assert all(__file__ in entry.origin for entry in found.entries)
    assert found.ns == pytest.approx(sum(entry.launches * entry.figures.ns for entry in found.entries))
    # The KTIR of a compiled kernel is known, so that other schedules of it can be tried.
    assert all(subject.reschedule is not None for subject in launched())
    reset()
    assert report().launches == 0
    run(small)
    assert report().launches == 1


def test_counts_outlive_their_kernels():
    run = torch.compile(scaled, dynamic=False)
    run(torch.ones(7, 64).half().to("spyre"))
    del run
    torch._dynamo.reset()
    assert report().launches == 1


def test_the_trace_of_recorded_launches_follows_their_order():
    run = torch.compile(scaled, dynamic=False)
    x, y = torch.ones(5, 64).half().to("spyre"), torch.ones(900, 64).half().to("spyre")
    run(x), run(y)
    with recorded_launches() as records:
        run(y), run(x), run(y)
    from torch_loom import arch

    found = timeline(launch_subjects(records), arch.load("spyre"))
    reads = [section.figures.link_bytes["DDR read"] for section in found.sections]
    assert reads == [900 * 128, 5 * 128, 900 * 128]
    assert problems(chrome_text(found)) == []


def test_timing_only_checks_and_counts_but_does_not_run():
    run = torch.compile(scaled, dynamic=False)
    x = torch.ones(5, 64).half().to("spyre")
    assert run(x).cpu().eq(4).all()
    DEVICE.set_timing_only(True)
    assert DEVICE.timing_only()
    out = torch.zeros(5, 64).half().to("spyre")
    reset()
    out.copy_(run(x))
    assert [subject.launches for subject in launched()] == [1]
    assert DEVICE.copy_counts() == (1, 5 * 64 * 2)
    assert out.cpu().eq(0).all()
    with pytest.raises(Exception, match="spyre"):
        torch.compile(lambda a, b: a + b)(x, torch.ones(5, 64).half())
    DEVICE.set_timing_only(False)
    assert run(x).cpu().eq(4).all()


def test_a_model_larger_than_the_host_costs_nothing_until_touched():
    DEVICE.set_timing_only(True)
    x = torch.empty(200_000, 4096, dtype=torch.float16, device="spyre")
    y = torch.empty(200_000, 4096, dtype=torch.float16, device="spyre")
    torch.compile(lambda a, b: a + b, dynamic=False)(x, y)
    torch.spyre.synchronize()
    (entry,) = report(advice=0).entries
    assert entry.figures.link_bytes["DDR read"] == 2 * 200_000 * 4096 * 2
    assert entry.figures.bottleneck.startswith("DDR")
