# ruff: noqa: E501
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


UNITS = """
module {{
  func.func @shift(%x: index, %z: index) attributes {{grid = [2]}} {{
    %step = arith.constant {step} : index
    %me = ktdp.get_compute_tile_id : index
    %off = arith.muli %me, %step : index
    %at = arith.addi %x, %off : index
    %to = arith.addi %z, %off : index
    %vx = ktdp.construct_memory_view %at, sizes: [64], strides: [1] {{coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 63 >= 0)>, memory_space = #ktdp.memory_space<global>}} : memref<64xf32>
    %vz = ktdp.construct_memory_view %to, sizes: [64], strides: [1] {{coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 63 >= 0)>, memory_space = #ktdp.memory_space<global>}} : memref<64xf32>
    %ax = ktdp.construct_access_tile %vx[0] {{access_tile_order = affine_map<(d0) -> (d0)>, access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 63 >= 0)>}} : memref<64xf32> -> !ktdp.access_tile<64xindex>
    %az = ktdp.construct_access_tile %vz[0] {{access_tile_order = affine_map<(d0) -> (d0)>, access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 63 >= 0)>}} : memref<64xf32> -> !ktdp.access_tile<64xindex>
    %v = ktdp.load %ax : <64xindex> -> tensor<64xf32>
    %w = arith.addf %v, %v : tensor<64xf32>
    ktdp.store %w, %az : tensor<64xf32>, <64xindex>
    return
  }}
}}
"""


@pytest.mark.parametrize("unit,step", [("elements", 64), ("bytes", 256), ("sticks", 2)])
def test_addresses_in_any_unit(unit: str, step: int) -> None:
    program = ktir.load(UNITS.format(step=step))
    x = np.arange(128, dtype=np.float32)
    for engine in ("reference", "chip"):
        out = program.run("shift", engine=engine, address_unit=unit, x=x, z=np.zeros_like(x))
        np.testing.assert_array_equal(out["z"], 2 * x)


def test_bytes_that_split_an_element_are_refused() -> None:
    program = ktir.load(UNITS.format(step=258))
    x = np.zeros(128, np.float32)
    with pytest.raises(Exception, match="not a multiple of its element size 4"):
        program.run("shift", engine="chip", address_unit="bytes", x=x, z=x)


@pytest.mark.parametrize("name", sorted(set(CASES) - {n for n, c in CASES.items() if c.baked}))
def test_chip_and_reference_agree_in_df16(name: str) -> None:
    case = CASES[name]
    program = ktir.load(PROGRAMS / f"{name}.ktir")
    arguments = case.make(np.random.default_rng(2))
    expected = case.expect(arguments)
    reference, chip = (program.run(name, engine=e, numerics="df16", **arguments) for e in ("reference", "chip"))
    for key in expected:
        a, b = np.asarray(reference[key], np.float64), np.asarray(chip[key], np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        a, b = np.where(same, 0, a), np.where(same, 0, b)
        # Neighbouring fp32 values may round to neighbouring df16 values, and steps follow one another.
        step = 2.0**-7 if chip[key].dtype == np.float16 else 2.0**-9
        scale = np.maximum(np.abs(a), np.abs(a).max() * 2.0**-2)
        assert np.max(np.abs(a - b) - step * scale) <= 0, name
