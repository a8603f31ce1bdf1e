"""``loom ktir`` and ``loom opt``: exit status, what is printed, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torch_loom.cli.main import run

PROGRAMS = Path(__file__).parent / "programs"
GOOD = str(PROGRAMS / "scale_shift.ktir")


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.ktir"
    path.write_text("func.func @f(%a: f32) {\n  %b = arith.adf %a, %a : f32\n  return\n}\n")
    return str(path)


def test_check_is_quiet_and_zero_for_clean_files(capsys):
    assert run(["ktir", "check", GOOD, str(PROGRAMS / "row_peak.ktir")]) == 0
    assert capsys.readouterr().out == ""


def test_check_shows_line_and_caret_and_ends_with_one(bad, capsys):
    assert run(["ktir", "check", GOOD, bad]) == 1
    out, err = capsys.readouterr()
    assert f"{bad}:2:8: error: unknown operation 'arith.adf'" in out and "^~~~" in out
    assert err == "1 errors, 0 warnings\n"


def test_check_reports_json_for_tools(bad, capsys):
    assert run(["ktir", "check", "--json", bad]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["errors"] == 1
    (found,) = report["diagnostics"]
    assert (found["code"], found["line"], found["col"], found["severity"]) == ("KT-P01", 2, 8, "error")


def test_check_strict_reports_old_spellings(capsys):
    old = str(PROGRAMS / "old_spelling.ktir")
    assert run(["ktir", "check", old]) == 0
    assert run(["ktir", "check", "--strict", old]) == 1
    assert "KT-S01" in capsys.readouterr().out


def test_check_splits_programs_on_request(tmp_path, bad, capsys):
    path = tmp_path / "two.ktir"
    path.write_text(Path(GOOD).read_text() + "// -----\n" + Path(bad).read_text())
    assert run(["ktir", "check", "--split-input", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.count("error") == 1 and f"two.ktir:{Path(GOOD).read_text().count(chr(10)) + 3}:8" in out


def test_run_writes_arrays(tmp_path, capsys):
    x = np.linspace(-1, 1, 96 * 192).astype(np.float16).reshape(96, 192)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "out"
    arguments = [
        "--fn",
        "scale_shift",
        "--arg",
        f"x={tmp_path / 'x.npy'}",
        "--arg",
        "z=zeros:96x192xf16",
        "-o",
        str(out),
    ]
    assert run(["ktir", "run", GOOD, *arguments]) == 0
    once = (x.astype(np.float32) * np.float32(2.5)).astype(np.float16)
    expected = (once.astype(np.float32) + np.float32(2.5)).astype(np.float16)
    np.testing.assert_array_equal(np.load(out / "z.npy"), expected)
    assert "z: float16[96, 192]" in capsys.readouterr().out
    assert run(["ktir", "run", GOOD, *arguments[:-1], str(tmp_path / "all.npz")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "all.npz")["z"], expected)


def test_run_takes_scalars_and_fixed_addresses(tmp_path, capsys):
    peak = str(PROGRAMS / "row_peak.ktir")
    assert (
        run(["ktir", "run", peak, "--arg", "x=randn:22x160xf32", "--arg", "out=zeros:22xf32", "--arg", "rows=22"]) == 0
    )
    np.save(tmp_path / "m.npy", np.ones((16, 64), np.float16))
    baked = str(PROGRAMS / "baked_addresses.ktir")
    assert run(["ktir", "run", baked, "--memory", f"0={tmp_path / 'm.npy'}", "--json"]) == 0
    text = capsys.readouterr().out
    assert set(json.loads(text[text.index("{") :])["arrays"]) == {"0", "4096"}


def test_run_errors_of_the_program_end_with_one(tmp_path, capsys):
    status = run(["ktir", "run", GOOD, "--arg", "x=zeros:95x192xf16", "--arg", "z=zeros:96x192xf16"])
    assert status == 1 and "KT-X02" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ktir", "check", "missing.ktir"], "cannot read missing.ktir"),
        (["ktir", "check", GOOD, "--chip", "none"], "chip 'none'"),
        (["ktir", "check", GOOD, "--address-unit", "mile"], "element, byte or stick"),
        (["ktir", "check", GOOD, "--assume-bound", "n"], "NAME=VALUE"),
        (["ktir", "run", GOOD], "'x' is missing"),
        (["ktir", "run", GOOD, "--arg", "x=no.npy"], "cannot read no.npy"),
        (["ktir", "run", GOOD, "--arg", "x=zeros:4xf99"], "unknown element type"),
        (["ktir", "run", GOOD, "--fn", "g"], "no function 'g'"),
        (["ktir", "run", GOOD, "--numerics", "exact"], "ieee or df16"),
        (["ktir", "print", "missing.ktir"], "cannot read"),
        (["ktir", "draw", GOOD, "--view", "q"], "no view '%q'"),
        (["opt", GOOD, "--passes", "magic"], "no pass 'magic'"),
        (["opt"], "name a file"),
    ],
)
def test_wrong_usage_is_one_line_and_status_two(arguments, message, capsys):
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_print_gives_canonical_or_generic_text(tmp_path, capsys):
    old = str(PROGRAMS / "old_spelling.ktir")
    assert run(["ktir", "print", old]) == 0
    assert "#ktdp.memory_space<global>" in capsys.readouterr().out
    assert run(["ktir", "print", old, "--generic", "-o", str(tmp_path / "g.mlir")]) == 0
    assert '"ktdp.load"' in (tmp_path / "g.mlir").read_text()
    assert run(["ktir", "print", old, "--print-locs"]) == 0
    assert 'loc("kernel.py":7:3)' in capsys.readouterr().out


def test_diff_compares_meaning_not_spelling(tmp_path, capsys):
    old = str(PROGRAMS / "old_spelling.ktir")
    assert run(["ktir", "print", old, "-o", str(tmp_path / "new.ktir")]) == 0
    assert run(["ktir", "diff", old, str(tmp_path / "new.ktir")]) == 0
    assert run(["ktir", "diff", old, GOOD]) == 1
    assert "+++" in capsys.readouterr().out


def test_draw_writes_svg(tmp_path):
    assert run(["ktir", "draw", GOOD, "--view", "vz", "-o", str(tmp_path / "v.svg")]) == 0
    text = (tmp_path / "v.svg").read_text()
    assert text.startswith("<svg") and text.count("<title>compute tile") == 6


def test_opt_lists_and_runs_passes(capsys):
    assert run(["opt", "--list"]) == 0
    assert "generalize" in capsys.readouterr().out
    assert run(["opt", GOOD, "--passes", "generalize,cse,dce"]) == 0
    assert "linalg.generic" in capsys.readouterr().out
