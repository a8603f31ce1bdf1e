"""Every public measurement of the hardware page against the clock, on the kernels of benchmarks/calibration.py."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
import calibration
import calibration_kernels as kernels

from torch_loom import arch

MODEL = calibration.Model(arch.load("spyre"))


@pytest.fixture(scope="module")
def found() -> list[calibration.Row]:
    return list(calibration.rows(MODEL))


def test_every_figure_is_within_ten_percent(found):
    assert {r.number for r in found} >= {f"C{n}" for n in (*range(1, 5), *range(6, 15), 17, 18, 19)}
    far = [f"{r.number} {r.what}: {r.error:+.1%}" for r in found if abs(r.error) > 0.10]
    assert not far


def test_the_root_mean_square_is_within_five_percent(found):
    assert math.sqrt(sum(r.error**2 for r in found) / len(found)) < 0.05


@pytest.mark.parametrize("inputs", [1, 2, 3, 6])
def test_any_mix_of_reads_and_writes_follows_the_turnaround(inputs):
    """bytes / 150 + 0.00574 ns per byte of the smaller direction (C2, C4)."""
    elements = 1 << 22
    expected = 2 * elements * ((inputs + 1) / 150 + 0.00574)
    assert MODEL.ns(MODEL.time(kernels.elementwise(elements, inputs))) == pytest.approx(expected, rel=0.05)


def test_a_restickify_never_beats_a_copy_of_the_same_bytes():
    copy = MODEL.time(kernels.elementwise(64**4, 1)).ns
    times = [MODEL.time(kernels.restickify(64, 64, 64, run)).ns for run in (1, 2)]
    assert min(times) > copy
    assert times == sorted(times, reverse=True)


def test_more_cores_never_read_more_slowly():
    """8 and 16 cores share one port: equal but for the ends of their parts."""
    times = [MODEL.time(kernels.row_reduction(2048, 1024, cores)).ns for cores in (1, 2, 4, 8, 16, 32)]
    assert all(more <= fewer * 1.001 for fewer, more in zip(times, times[1:], strict=False))


def test_odd_shapes_keep_the_order_of_work():
    times = [MODEL.time(kernels.products(64, k, 65, 20)).ns for k in (1, 63, 64, 65, 127, 129)]
    assert times == sorted(times)
