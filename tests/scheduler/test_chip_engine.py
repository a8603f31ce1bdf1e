"""``Program.run(engine="chip")`` agrees with the reference interpreter on the library of programs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from torch_loom import ktir

sys.path.append(str(Path(__file__).parent.parent / "ktir"))
from ktir_library import CASES, PROGRAMS


@pytest.mark.parametrize("name", sorted(CASES))
def test_chip_and_reference_agree(name: str) -> None:
    case = CASES[name]
    program = ktir.load(PROGRAMS / f"{name}.ktir")
    arguments = case.make(np.random.default_rng(1))
    expected = case.expect(arguments)
    if case.baked:
        memory = dict(arguments) | {k: np.zeros_like(v) for k, v in expected.items()}
        reference, chip = (program.run(name, engine=e, memory=memory) for e in ("reference", "chip"))
    else:
        reference, chip = (program.run(name, engine=e, **arguments) for e in ("reference", "chip"))
    for key in expected:
        a, b = np.asarray(reference[key], np.float64), np.asarray(chip[key], np.float64)
        # Both keep IEEE storage here; they differ by the order of fp32 sums and by fp32 functions.
        step = 2.0**-10 if chip[key].dtype == np.float16 else 2.0**-20
        same = a == b  # infinities of a mask
        a, b = np.where(same, 0, a), np.where(same, 0, b)
        scale = np.maximum(np.abs(a), np.abs(a).max() * 2.0**-3)
        assert np.max(np.abs(a - b) - step * scale) <= 0, name


def test_an_option_the_chip_does_not_have_is_refused() -> None:
    program = ktir.load(PROGRAMS / "vector_add.ktir")
    arguments = CASES["vector_add"].make(np.random.default_rng(0))
    with pytest.raises(ValueError, match="engine 'chip' has no option strict_bounds=True"):
        program.run("vector_add", engine="chip", strict_bounds=True, **arguments)
