"""The examples of docs/ktir.md are true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from torch_loom.ktir import load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/ktir.md").read_text("utf-8")
KERNELS = re.findall(r"```mlir\n(.*?)```", TEXT, re.S)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("text", KERNELS)
def test_kernels_of_the_page_check_clean(text):
    assert load(text).check() == []


def test_kernels_of_the_page_compute_what_it_says():
    double, row_sum, group_sum = (load(k) for k in KERNELS)
    x = np.arange(640, dtype=np.float16).reshape(10, 64)
    assert (double.run(x=x, z=np.zeros_like(x))["z"] == x + x).all()
    y = np.arange(22 * 256, dtype=np.float32).reshape(22, 256)
    assert (row_sum.run(x=y, z=np.zeros(22, np.float32), rows=22)["z"] == y.sum(1)).all()
    w = np.arange(512, dtype=np.float32).reshape(8, 64)
    expected = np.repeat(w.reshape(2, 4, 64).sum(1), 4, 0)
    assert (group_sum.run(x=w, z=np.zeros_like(w))["z"] == expected).all()


@pytest.mark.parametrize("code", PYTHON)
def test_python_of_the_page_runs(code, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(compile(code, "docs/ktir.md", "exec"), {})


def test_the_figure_of_the_page_is_what_the_tool_draws():
    from torch_loom.ktir.draw import draw_tiles

    program = load(ROOT / "tests/ktir/programs/matmul_loop.ktir")
    assert (ROOT / "docs/figures/ktir_tiles.svg").read_text("utf-8") == draw_tiles(program, view="vc")
