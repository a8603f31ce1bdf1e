"""The command line: fast help, lazy loading, one line per usage error."""

import subprocess
import sys

import pytest

from torch_loom.cli import main


def loom(capsys, *args):
    status = main.run(args)
    out, err = capsys.readouterr()
    return status, out, err


def test_help_lists_the_commands(capsys):
    status, out, err = loom(capsys, "--help")
    assert (status, err) == (0, "")
    for name in ("demo", "chip", "asm", "disasm", "time"):
        assert name in out


def test_no_arguments_show_the_help(capsys):
    status, out, _ = loom(capsys)
    assert status == 0
    assert "Usage" in out


def test_a_group_alone_shows_its_help(capsys):
    status, out, err = loom(capsys, "chip")
    assert (status, err) == (0, "")
    assert "show" in out and "list" in out


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from torch_loom.cli import main; main.run(['--help']);"
        "print([m for m in ('torch', 'xdsl', 'numpy', 'transformers', 'sympy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_of_the_table_loads(capsys):
    for name in main.LazyGroup(name="loom").list_commands(None):
        status, out, err = loom(capsys, name, "--help")
        assert (status, err) == (0, ""), name
        assert name in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "loom: No such command 'nothing'. (see 'loom --help')"),
        (["--nothing"], "loom: No such option: --nothing (see 'loom --help')"),
        (["time"], "loom time: Missing argument 'path'. (see 'loom time --help')"),
        (["disasm", "/nonexistent"], "loom disasm: cannot read /nonexistent: No such file or directory"),
        (["chip", "show", "abacus"], "loom chip: abacus: neither a preset (spyre, spyre-mini) nor a file"),
    ],
)
def test_usage_errors_are_one_line_and_status_2(capsys, args, message):
    status, out, err = loom(capsys, *args)
    assert (status, out, err) == (2, "", message + "\n")


def test_chip_show_draws_and_lists(capsys):
    status, out, _ = loom(capsys, "chip", "show", "spyre")
    assert status == 0
    assert "98.304 TFLOP/s" in out
    assert loom(capsys, "chip", "list")[1].split() == ["spyre", "spyre-mini"]


def test_the_module_is_a_program_with_exit_status():
    done = subprocess.run([sys.executable, "-m", "torch_loom.cli.main", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
