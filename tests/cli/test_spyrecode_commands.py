"""``loom asm`` and ``loom disasm``: a program goes to text and back unchanged."""

import pytest

from torch_loom import arch, spyrecode
from torch_loom.cli import main
from torch_loom.spyrecode.model import Arg, ArgKind, Program, Symbol, SymbolKind, Unit


@pytest.fixture
def program():
    chip = arch.load("spyre-mini")
    return Program(
        name="idle",
        profile=chip.profile(),
        cores=1,
        args=(Arg("x", ArgKind.BUFFER), Arg("n", ArgKind.INT)),
        symbols=(Symbol("x", SymbolKind.ADDRESS, 0), Symbol("n", SymbolKind.DIM, 1)),
        slots=(),
        exprs=(),
        blocks=(),
        channels=(),
        streams=dict.fromkeys(Unit, ()),
    )


def test_text_and_directory_round_trip(program, tmp_path, capsys):
    spyrecode.write_dir(tmp_path / "a", program)
    assert main.run(["disasm", str(tmp_path / "a"), "-o", str(tmp_path / "a.txt")]) == 0
    assert main.run(["asm", str(tmp_path / "a.txt"), "-o", str(tmp_path / "b")]) == 0
    assert spyrecode.encode(spyrecode.read_dir(tmp_path / "b")) == spyrecode.encode(program)
    capsys.readouterr()
    assert main.run(["disasm", str(tmp_path / "b" / "spyreCodeDir" / "init_binary.bin")]) == 0
    assert capsys.readouterr().out == (tmp_path / "a.txt").read_text()


def test_a_damaged_binary_is_named(program, tmp_path, capsys):
    image = bytearray(spyrecode.encode(program))
    image[len(image) // 2] ^= 1
    (tmp_path / "bad.bin").write_bytes(image)
    assert main.run(["disasm", str(tmp_path / "bad.bin")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"loom disasm: {tmp_path}/bad.bin: SC-E1") and error.count("\n") == 1


def test_text_with_an_error_names_file_and_line(tmp_path, capsys):
    (tmp_path / "bad.txt").write_text(".spyrecode 1\nwhat is this\n")
    assert main.run(["asm", str(tmp_path / "bad.txt"), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "bad.txt" in error and "line 2" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pair", ["n", "n=", "=3", "n=x", "n=-1"])
def test_a_size_must_be_name_and_number(program, tmp_path, capsys, pair):
    spyrecode.write_dir(tmp_path / "a", program)
    assert main.run(["time", str(tmp_path / "a"), "--size", pair]) == 2
    assert "is not NAME=NUMBER" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give argument 'n' a value"),
        (["--size", "n=1", "--size", "m=2"], "idle has no size m; its numbers are: n"),
    ],
)
def test_time_asks_for_every_size_and_no_other(program, tmp_path, capsys, args, message):
    spyrecode.write_dir(tmp_path / "a", program)
    assert main.run(["time", str(tmp_path / "a"), "--chip", "spyre-mini", *args]) == 2
    assert message in capsys.readouterr().err
