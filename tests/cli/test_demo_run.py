"""``loom demo`` as a person runs it: a real model on the simulated chip, cold and warm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_loom import spyrecode

KEYS = {
    "cosine_min",
    "max_abs_err",
    "fallback_ops",
    "kernels",
    "modelled_us_total",
    "wall_s_compile",
    "wall_s_run",
    "wall_s_cpu_fp32",
    "kernels_compiled",
}
KERNEL_KEYS = {
    "name",
    "modelled_us",
    "pt_util",
    "sfu_util",
    "ddr_bytes",
    "bottleneck",
    "ktir",
    "dataflow",
    "spyrecode",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Figures and output of a cold and of a warm process, in a folder of their own."""
    folder = tmp_path_factory.mktemp("demo")
    environment = os.environ | {
        "TORCH_LOOM_CACHE_DIR": str(folder / "kernels"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    found = []
    for name in ("cold", "warm"):
        command = [
            sys.executable,
            "-m",
            "torch_loom.cli.main",
            "demo",
            "Hello",
            "A cat sits on a mat by the door.",
        ]
        command += ["--json", str(folder / f"{name}.json"), "--artifacts", str(folder / "artifacts")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        assert done.returncode == 0, done.stderr
        found.append((json.loads((folder / f"{name}.json").read_text()), done.stdout))
    return found


def test_the_figures_have_exactly_the_public_keys(runs):
    for figures, _ in runs:
        assert figures.keys() == KEYS
        assert figures["kernels"]
        assert all(kernel.keys() == KERNEL_KEYS for kernel in figures["kernels"])


def test_the_device_agrees_with_the_cpu_and_asks_it_for_nothing(runs):
    for figures, _ in runs:
        assert figures["cosine_min"] >= 0.999
        assert figures["fallback_ops"] == 0


def test_a_warm_process_compiles_nothing(runs):
    (cold, _), (warm, _) = runs
    assert cold["kernels_compiled"] > 0
    assert warm["kernels_compiled"] == 0


def test_modelled_time_is_the_same_in_every_process(runs):
    (cold, _), (warm, _) = runs
    assert cold["modelled_us_total"] == pytest.approx(sum(k["modelled_us"] for k in cold["kernels"]))
    assert [k["modelled_us"] for k in cold["kernels"]] == [k["modelled_us"] for k in warm["kernels"]]
    assert all(k["modelled_us"] > 0 and 0 <= k["pt_util"] <= 1 and 0 <= k["sfu_util"] <= 1 for k in cold["kernels"])


def test_every_level_of_every_kernel_lies_in_the_artifacts(runs):
    _, (figures, _) = runs
    for kernel in figures["kernels"]:
        assert "func.func" in Path(kernel["ktir"]).read_text()
        assert Path(kernel["dataflow"]).read_text()
        assert spyrecode.read_dir(kernel["spyrecode"]).args


def test_the_report_is_complete(runs):
    for _, out in runs:
        for part in (
            "cosine",
            "similarity",
            "kernel launches",
            "modelled time",
            "wall time",
            "fallbacks",
            "artifacts:",
        ):
            assert part in out
