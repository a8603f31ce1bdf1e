"""Every program of the KTIR library schedules and gives NumPy's values on every engine, whatever the options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_scheduler_values import CHIP, engines

from torch_loom import ktir, scheduler
from torch_loom.scheduler.check import check

sys.path.append(str(Path(__file__).parent.parent / "ktir"))
from ktir_library import CASES, PROGRAMS

ROUNDOFF = {np.dtype(np.float16): 2.0**-11, np.dtype(np.float32): 2.0**-24}
BOUNDS = {"n": 1000}


#: Every switch once on its own side, and the depths of buffers.
CHOICES = {
    "default": {},
    "plain": {"buffers": 1, "fuse": False, "overlap": False, "corelets": 1, "multicast": False},
    "deep": {"buffers": 4, "corelets": 1},
    "small pieces": {"buffers": 3, "tile": 1, "fuse": False},
    "shared": {"buffers": 1, "overlap": False},
}


def build(name: str, **choices: Any) -> scheduler.Compiled:
    program = ktir.load(PROGRAMS / f"{name}.ktir")
    return scheduler.compile(program, name, CHIP, scheduler.Options(ieee=True, bounds=BOUNDS, **choices))


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("name", sorted(CASES))
def test_library_program(name: str, choices: str) -> None:
    case = CASES[name]
    compiled = build(name, **CHOICES[choices])
    assert check(compiled.module) == []
    for engine in engines():
        arguments = case.make(np.random.default_rng(0))
        expected = case.expect(arguments)
        if case.baked:
            arguments = {f"at{k}": v for k, v in arguments.items()} | {
                f"at{k}": np.zeros_like(v) for k, v in expected.items()
            }
            expected = {f"at{k}": v for k, v in expected.items()}
        results = compiled.run(engine=engine, **arguments)
        for key, values in expected.items():
            close(results[key], values, case.ulps, case.relative)


def close(found: np.ndarray, expected: np.ndarray, ulps: float, relative: float) -> None:
    """Exact for integers and 0 ulps, else within the roundings the case allows (one more for f32 folds)."""
    if ulps == 0:
        np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype))
        return
    expected = np.asarray(expected, np.float64)
    largest = np.abs(expected).max()
    bound = 2 * (ulps + 1) * ROUNDOFF[found.dtype] * np.maximum(np.abs(expected), largest * 2**-4)
    assert np.max(np.abs(found.astype(np.float64) - expected) - bound - relative * largest) <= 0
