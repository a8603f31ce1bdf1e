"""Temporary files and folders beside their place, and the removal of those that a killed process left.

Whoever fills one holds a lock on it (``flock``), which the system drops when the process ends in any way. A leftover
is therefore one whose lock can be taken; a minute's grace covers the moment between making and locking.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".loom-tmp"
_GRACE_SECONDS = 60.0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def sweep(target: Path) -> None:
    """Remove what killed processes left beside ``target``; never fails."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(target.parent)):
            if entry.name.startswith(f".{target.name}.") and entry.name.endswith(SUFFIX):
                _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.lstat().st_mtime < _GRACE_SECONDS:
            return
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        finally:
            os.close(handle)


@contextlib.contextmanager
def staged(target: Path, *, folder: bool) -> Iterator[Path]:
    """A new empty file or folder beside ``target``; what is left of it at the end is removed.

    Raises OSError when the place cannot be written."""
    sweep(target)
    prefix, place = f".{target.name}.", target.parent
    if folder:
        path = Path(tempfile.mkdtemp(SUFFIX, prefix, place))
        handle = os.open(path, os.O_RDONLY)
    else:
        handle, name = tempfile.mkstemp(SUFFIX, prefix, place)
        path = Path(name)
    try:
        os.chmod(path, 0o755 if folder else 0o644)
        # A file system without locks only loses the sweeping of leftovers to the grace time.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield path
    finally:
        os.close(handle)
        _remove(path)
