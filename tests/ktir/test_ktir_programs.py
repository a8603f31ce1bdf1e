"""Every program of the library gives NumPy's values, checks clean, and survives printing."""

from __future__ import annotations

import numpy as np
import pytest
from ktir_library import CASES, PROGRAMS

from torch_loom.ktir import load
from torch_loom.ktir.diagnostics import ERROR, WARNING

ROUNDOFF = {np.dtype(np.float16): 2.0**-11, np.dtype(np.float32): 2.0**-24}


def assert_close(found, expected, ulps, relative, name):
    """Exact for integers and 0 ulps; else within ``ulps`` units of roundoff of the largest magnitude in play."""
    found = np.asarray(found)
    if ulps == 0:
        np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype), err_msg=name)
        return
    expected = np.asarray(expected, np.float64)
    bound = 2 * ulps * ROUNDOFF[found.dtype] * np.maximum(np.abs(expected), np.abs(expected).max() * 2**-4)
    bound = bound + relative * np.abs(expected).max()
    worst = np.max(np.abs(found.astype(np.float64) - expected) - bound)
    assert worst <= 0, f"{name}: {worst} beyond the bound"


def test_every_file_has_a_case():
    assert {p.stem for p in PROGRAMS.glob("*.ktir")} == set(CASES)
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", sorted(CASES))
def test_program_gives_the_values_of_numpy(name):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(0))
    program = load(PROGRAMS / f"{name}.ktir")
    if case.baked:
        results = program.run(name, memory=arguments)
    else:
        results = program.run(name, **arguments)
    for key, expected in case.expect(arguments).items():
        assert_close(results[key], expected, case.ulps, case.relative, f"{name}.{key}")


@pytest.mark.parametrize("name", sorted(CASES))
def test_program_checks_clean(name):
    found = load(PROGRAMS / f"{name}.ktir").check()
    assert [d.format() for d in found if d.severity in (ERROR, WARNING)] == []


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("name", sorted(CASES))
def test_printing_and_reading_gives_the_same_module(name, generic):
    program = load(PROGRAMS / f"{name}.ktir")
    text = program.print(generic=generic)
    again = load(text)
    assert again.module.is_structurally_equivalent(program.module)
    assert again.print(generic=generic) == text
