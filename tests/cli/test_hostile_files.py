"""Outputs that must not be lost, replaced or half written, and arguments far outside of any use."""

import os
import threading
from pathlib import Path

import pytest

from torch_loom.cli import main

PROGRAMS = Path(__file__).parents[1] / "ktir" / "programs"
MATMUL = PROGRAMS / "matmul.ktir"
DYNAMIC = PROGRAMS / "vector_add_dynamic.ktir"


def loom(capsys, *args):
    status = main.run([str(a) for a in args])
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys, *args):
    """The one line that a refusal is."""
    status, out, err = loom(capsys, *args)
    assert (status, out) == (2, "") and err.count("\n") == 1, err
    return err


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    assert main.run(["schedule", str(MATMUL), "-o", str(folder / "matmul")]) == 0
    assert main.run(["disasm", str(folder / "matmul"), "-o", str(folder / "matmul.txt")]) == 0
    return folder


@pytest.mark.parametrize("writer", ["schedule", "asm"])
@pytest.mark.parametrize("spoiled", [False, True])
def test_a_folder_with_other_files_is_never_replaced(capsys, tmp_path, code, writer, spoiled):
    place = tmp_path / "work"
    place.mkdir()
    if spoiled:
        assert loom(capsys, "schedule", MATMUL, "-o", place)[0] == 0
    (place / "thesis.txt").write_text("years")
    source = MATMUL if writer == "schedule" else code / "matmul.txt"
    assert f"cannot write {place}: it holds other files" in refused(capsys, writer, source, "-o", place)
    assert (place / "thesis.txt").read_text() == "years"
    assert os.listdir(tmp_path) == ["work"]


@pytest.mark.parametrize("writer", ["schedule", "asm"])
def test_a_file_is_never_replaced_by_a_folder(capsys, tmp_path, code, writer):
    (tmp_path / "notes").write_text("x")
    source = MATMUL if writer == "schedule" else code / "matmul.txt"
    assert "Not a directory" in refused(capsys, writer, source, "-o", tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "x"


def test_a_folder_of_an_earlier_run_is_replaced_and_a_link_to_it_stays(capsys, tmp_path, code):
    (tmp_path / "link").symlink_to("real")
    for _ in range(2):
        assert loom(capsys, "schedule", MATMUL, "-o", tmp_path / "link") == (0, "", "")
        assert loom(capsys, "asm", code / "matmul.txt", "-o", tmp_path / "link") == (0, "", "")
    assert (tmp_path / "link").is_symlink() and sorted(os.listdir(tmp_path)) == ["link", "real"]


OUTPUTS = [
    ["trace", MATMUL, "-o"],
    ["report", MATMUL, "-o"],
    ["schedule", MATMUL, "--draw"],
    ["ktir", "print", MATMUL, "-o"],
]


@pytest.mark.parametrize("command", OUTPUTS, ids=lambda c: c[0])
def test_links_stay_links(capsys, tmp_path, command):
    (tmp_path / "link").symlink_to("real.json")
    assert loom(capsys, *command, tmp_path / "link")[0] == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real.json").stat().st_size > 0


@pytest.mark.parametrize("command", OUTPUTS, ids=lambda c: c[0])
def test_a_pipe_is_written_to_and_stays(capsys, tmp_path, command):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    assert loom(capsys, *command, pipe)[0] == 0
    reader.join()
    assert pipe.is_fifo() and len(got[0]) > 100


@pytest.mark.parametrize("command", OUTPUTS, ids=lambda c: c[0])
def test_places_that_cannot_be_written_are_one_line(capsys, tmp_path, command):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "loop", tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        assert f"cannot write {place}" in refused(capsys, *command, place)
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["time", DYNAMIC, "--size", f"n={2**63}"], "'n' = 9223372036854775808 does not fit 64 bits"),
        (["time", DYNAMIC, "--size", "n=4", "--size", "n=5"], "--size gives n twice"),
        (["schedule", DYNAMIC, "--bound", "n=4", "--bound", "n=5"], "--bound gives n twice"),
        (["schedule", DYNAMIC, "--bound", "m=4"], "has no size m; its sizes are: n"),
        (["schedule", MATMUL, "--bound", "m=4"], "has no size m; its sizes are: none"),
        (["time", MATMUL, "--chip", "x" * 5000], "neither a preset"),
        (["schedule", "x" * 5000], "no such file"),
        (["chip", "show", "x" * 5000], "neither a preset"),
        (["trace", MATMUL, "-o", "t.json", "--max-spans", 10**30], "--max-spans"),
        (["trace", MATMUL, "-o", "t.json", "--launches", 10**30], "--launches"),
    ],
)
def test_arguments_without_sense_are_one_line(capsys, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *args)
    assert os.listdir(tmp_path) == []
