"""Files and folders that appear whole: what a killed process leaves, and who may remove it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from torch_loom.spyrecode import staging

HOLDER = """
import sys, time
from pathlib import Path
from torch_loom.spyrecode.staging import staged
with staged(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as path:
    print(path, flush=True)
    time.sleep(100)
"""


def holder(target, kind):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(target), kind], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def age(path):
    past = time.time() - 3600
    os.utime(path, (past, past))


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_a_killed_process_leaves_goes_and_what_a_living_one_holds_stays(tmp_path, kind):
    target = tmp_path / "kernel"
    (dead, left), (living, held) = holder(target, kind), holder(target, kind)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert os.path.exists(left)
        for path in (left, held):
            age(path)
        with staging.staged(target, folder=kind == "folder"):
            pass
        assert not os.path.exists(left) and os.path.exists(held)
    finally:
        living.kill()
        living.wait()


def test_fresh_and_foreign_names_stay(tmp_path):
    target = tmp_path / "out.json"
    fresh = tmp_path / f".out.json.aaaa{staging.SUFFIX}"
    others = [tmp_path / name for name in (".out.json.old", f".other.json.b{staging.SUFFIX}", "out.json.loom-tmp")]
    for path in (fresh, *others):
        path.write_text("x")
    for path in others:
        age(path)
    staging.sweep(target)
    assert fresh.exists() and all(path.exists() for path in others)
    age(fresh)
    staging.sweep(target)
    assert not fresh.exists() and all(path.exists() for path in others)


def test_nothing_stays_after_success_or_failure(tmp_path):
    with staging.staged(tmp_path / "a", folder=False) as path:
        path.write_text("x")
        os.replace(path, tmp_path / "a")
    with pytest.raises(ValueError, match="mine"), staging.staged(tmp_path / "b", folder=True) as path:
        (path / "inside").write_text("x")
        raise ValueError("mine")
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(OSError), staging.staged(tmp_path / "absent" / "c", folder=True):
        pass
