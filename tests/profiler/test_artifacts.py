"""The folder of artifacts: complete or absent, and never somebody else's files."""

import os

import pytest

from torch_loom import arch, spyrecode
from torch_loom.profiler import Artifacts, ArtifactsError, Kernel, kernel_names
from torch_loom.spyrecode.model import Program, Unit


@pytest.fixture
def kernel(tmp_path):
    program = Program("k", arch.load("spyre-mini").profile(), 1, (), (), (), (), (), (), dict.fromkeys(Unit, ()))
    spyrecode.write_dir(tmp_path / "cache" / "k", program, debug={"schedule.mlir": "s"})
    return Kernel("k", "k", "the ktir", "the schedule", "the dataflow", tmp_path / "cache" / "k")


def test_every_level_of_a_kernel_is_written(kernel, tmp_path):
    with Artifacts(tmp_path / "out" / "demo") as folder:
        paths = folder.write(kernel)
        assert not paths.ktir.exists()
    assert paths.ktir.read_text() == "the ktir"
    assert paths.schedule.read_text() == "the schedule"
    assert paths.dataflow.read_text() == "the dataflow"
    assert spyrecode.read_dir(paths.spyrecode) == spyrecode.read_dir(kernel.spyrecode_dir)
    assert spyrecode.assemble(paths.disassembly.read_text()) == spyrecode.read_dir(kernel.spyrecode_dir)
    assert os.listdir(tmp_path / "out") == ["demo"]


def test_a_failure_leaves_nothing(kernel, tmp_path):
    with pytest.raises(ZeroDivisionError), Artifacts(tmp_path / "new" / "demo") as folder:
        folder.write(kernel)
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()


def test_a_failure_keeps_the_older_artifacts(kernel, tmp_path):
    with Artifacts(tmp_path / "demo") as folder:
        folder.write(kernel)
    with pytest.raises(ZeroDivisionError), Artifacts(tmp_path / "demo"):
        raise ZeroDivisionError
    assert (tmp_path / "demo" / "k" / "ktir.mlir").read_text() == "the ktir"
    assert sorted(os.listdir(tmp_path)) == ["cache", "demo"]


def test_older_artifacts_are_replaced_whole(kernel, tmp_path):
    with Artifacts(tmp_path / "demo") as folder:
        folder.write(kernel)
    with Artifacts(tmp_path / "demo"):
        pass
    assert os.listdir(tmp_path / "demo") == ["loom-artifacts.json"]


def test_an_empty_folder_is_used_and_a_full_one_refused(kernel, tmp_path):
    (tmp_path / "empty").mkdir()
    with Artifacts(tmp_path / "empty") as folder:
        folder.write(kernel)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(ArtifactsError, match="other files"), Artifacts(tmp_path / "full"):
        pass
    assert os.listdir(tmp_path / "full") == ["x"]


def test_equal_names_get_the_start_of_their_key():
    assert kernel_names(["a", "b", "a"], ["0123456789", "x", "abcdefghij"]) == [
        "a-01234567",
        "b",
        "a-abcdefgh",
    ]
