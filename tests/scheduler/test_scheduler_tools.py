"""The command, the pictures and the saved directory."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import scheduler_kernels as kernels
from test_scheduler_values import CHIP, build, data

from torch_loom import ktir, scheduler
from torch_loom.cli.main import run
from torch_loom.scheduler.compiled import pad_rows
from torch_loom.scheduler.draw import draw
from torch_loom.scheduler.pipeline import PASSES


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    file = tmp_path / "softmax.ktir"
    file.write_text(kernels.softmax(100, 8))
    return file


def test_command_prints_dataflow_ir(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", str(kernel)]) == 0
    text = capsys.readouterr().out
    assert scheduler.lower(scheduler.parse_module(text)).name == "softmax"


def test_command_prints_after_every_pass(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", str(kernel), "--print-after", "all"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in PASSES if f"// after {name}\n" in shown] == list(PASSES)


def test_command_writes_directory_and_picture(kernel: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "out", tmp_path / "softmax.svg"
    assert run(["schedule", str(kernel), "-o", str(out), "--draw", str(picture)]) == 0
    assert scheduler.Compiled.load(out).program.name == "softmax"
    assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("flags", "choices"),
    [
        (["--buffers", "3"], {"buffers": 3}),
        (["--no-double-buffering"], {"buffers": 1}),
        (["--no-fusion"], {"fuse": False}),
        (["--no-tiling"], {"overlap": False}),
        (["--tile", "2"], {"tile": 2}),
        (["--no-multicast"], {"multicast": False}),
        (["--corelets", "1"], {"corelets": 1}),
        (["--ieee"], {"ieee": True}),
        (["--address-unit", "bytes"], {"address_unit": "bytes"}),
        (["--bound", "n=64"], {"bounds": {"n": 64}}),
        (["--no-check", "--df16"], {"check": False, "ieee": False}),
    ],
)
def test_every_option_has_a_flag(flags: list[str], choices: dict, tmp_path: Path, capsys) -> None:
    """The command prints what the compiler gives for the option, in most cases not what it gives without."""
    file = tmp_path / "k.ktir"
    file.write_text(shared_rows())
    assert run(["schedule", str(file), *flags]) == 0
    shown = capsys.readouterr().out
    program = ktir.load(file)
    compiled, plain = (
        scheduler.compile(program, "shared", CHIP, scheduler.Options(**o)).dataflow_ir for o in (choices, {})
    )
    assert shown == compiled
    assert (shown == plain) == bool({"check", "address_unit"} & set(choices))  # nothing to see in this kernel


def shared_rows() -> str:
    """Two cores: y = exp(x - max x) + w over rows of a whole tile, and w for both; n has no bound in the text."""
    b = kernels.KernelBuilder("shared", 2)
    x, w, y = (b.buffer(s) for s in "xwy")
    n = b.size("n", 4096)
    vx, vy = (b.view(v, [n, 128], [128, 1], "f16") for v in (x, y))
    vw = b.view(w, [128], [1], "f16")
    shape = [128, 128]
    first = b.mul(b.tile_id(), 128)
    f = kernels.up(b, b.load(vx, [first, 0], shape))
    peak = b.broadcast(b.reduce("arith.maximumf", f, [1]), shape, [1])
    e = b.op("math.exp", b.op("arith.subf", f, peak))
    e = b.op("arith.addf", e, b.broadcast(kernels.up(b, b.load(vw, [0], [128])), shape, [0]))
    b.store(kernels.down(b, e), vy, [first, 0], shape)
    return b.text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{kernel}", "--corelets", "3"], "3 corelets are asked for, the chip has 2"),
        (["{kernel}", "--address-unit", "words"], "--address-unit is elements, bytes, sticks"),
        (["missing.ktir"], "no such file"),
        (["{kernel}", "--print-after", "nothing"], "no pass is called 'nothing'"),
        (["{kernel}", "--function", "other"], "no function 'other'"),
        (["{kernel}", "--bound", "n"], "NAME=N"),
        (["{kernel}", "--chip", "nowhere"], "neither a preset"),
    ],
)
def test_command_errors_are_one_line(
    kernel: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["schedule", *(a.format(kernel=kernel) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_picture_shows_stages_credits_and_memory() -> None:
    text = draw(build(kernels.linear(100, 128, 8, 64)).schedule_ir)
    labels = ["".join(e.itertext()) for e in ET.fromstring(text).iter() if e.tag.endswith("text")]
    assert any("PT b" in t for t in labels)
    assert any("c_b" in t and "●●" in t for t in labels)
    assert any(t.startswith("LX over") for t in labels)


def test_a_saved_program_runs_like_the_compiled_one(tmp_path: Path) -> None:
    c = build(kernels.softmax(100, 8))
    c.save(tmp_path / "kernel")
    again = scheduler.Compiled.load(tmp_path / "kernel")
    assert (again.program, again.binary, again.dataflow_ir) == (c.program, c.binary, c.dataflow_ir)
    args = {"x": pad_rows(data((9, 100)), 64), "y": np.zeros((9, 128), np.float32), "n": 9}
    for engine in ("dataflow", "chip"):
        np.testing.assert_array_equal(again.run(engine=engine, **args)["y"], c.run(engine=engine, **args)["y"])


def test_missing_and_unknown_arguments_are_named() -> None:
    c = build(kernels.softmax(100, 8))
    with pytest.raises(scheduler.ScheduleError, match="'x' is missing"):
        c.run(y=np.zeros(128), n=1)
    with pytest.raises(scheduler.ScheduleError, match="no argument is called z"):
        c.run(x=np.zeros(128), y=np.zeros(128), z=1, n=1)


def test_equal_kernels_give_equal_bytes() -> None:
    assert build(kernels.layernorm(100, 8)).binary == build(kernels.layernorm(100, 8)).binary
