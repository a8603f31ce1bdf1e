"""The directory of a compiled kernel: plan, image and debug dumps, written so that readers never see half."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from torch_loom.spyrecode import plan as plans
from torch_loom.spyrecode.codec import decode, encode
from torch_loom.spyrecode.container import MAGIC
from torch_loom.spyrecode.errors import SpyreCodeError
from torch_loom.spyrecode.expr import table_words
from torch_loom.spyrecode.model import Program
from torch_loom.spyrecode.staging import staged

CODE_DIR = "spyreCodeDir"
DEBUG_DIR = "debug"
PLAN_FILE = "spyrecode.json"
IMAGE_FILE = "init_binary.bin"


def write_dir(path: str | Path, program: Program, *, debug: Mapping[str, str] | None = None) -> bytes:
    """Write ``path`` with the plan, the image and ``debug/NAME`` texts; returns the image.

    A temporary folder beside ``path`` is filled first and renamed, so ``path`` holds a whole program or
    what it held before. Raises OSError when the place cannot be written, or holds anything but an empty folder
    or what an earlier call wrote."""
    path = Path(os.path.realpath(path))
    _refuse_foreign(path)
    image = encode(program)
    plan = plans.for_image(program.name, len(image), 8 * table_words(program), len(program.args), IMAGE_FILE)
    for name in debug or {}:
        if not name or Path(name).name != name:
            raise ValueError(f"debug file {name!r} must be a plain file name")
    path.parent.mkdir(parents=True, exist_ok=True)
    with staged(path, folder=True) as temporary:
        (temporary / CODE_DIR).mkdir()
        (temporary / CODE_DIR / IMAGE_FILE).write_bytes(image)
        (temporary / CODE_DIR / PLAN_FILE).write_text(plan.to_json(), "utf-8")
        if debug:
            (temporary / DEBUG_DIR).mkdir()
            for name, text in debug.items():
                (temporary / DEBUG_DIR / name).write_text(text, "utf-8")
        _replace(temporary, path)
    return image


def _refuse_foreign(path: Path) -> None:
    """The folder at ``path`` will be replaced, so it must not hold a file of anybody else."""
    try:
        found = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return
    if found and not {CODE_DIR} <= found <= {CODE_DIR, DEBUG_DIR}:
        raise FileExistsError(errno.EEXIST, "it holds other files; name an empty or new folder", str(path))


def _replace(new: Path, path: Path) -> None:
    """Put ``new`` at ``path``; an older folder there is moved aside first and then removed."""
    if not path.exists():
        try:
            os.rename(new, path)
            return
        except OSError:
            if not path.exists():
                raise
    with staged(path, folder=True) as aside:
        os.rename(path, aside / "old")
        os.rename(new, path)


def read_plan(path: str | Path) -> tuple[plans.Plan, Path]:
    """The validated plan of a directory and the folder that holds its images."""
    folder = Path(path) / CODE_DIR
    if not folder.is_dir():
        raise SpyreCodeError("SC-E01", f"{path}: folder {CODE_DIR} is missing")
    return plans.load(folder / PLAN_FILE), folder


def read_image(path: str | Path) -> bytes:
    """The image a directory's plan loads. Raises SC-E01..E10, and SC-E15 for closed images."""
    plan, folder = read_plan(path)
    transfers = [c for c in plan.preparation if isinstance(c, plans.InitTransfer)]
    if len(transfers) != 1:
        raise SpyreCodeError("SC-E15", f"{path}: {len(transfers)} images; programs of torch-loom have one")
    path = folder / transfers[0].init_bin_file
    try:
        data = path.read_bytes()[: transfers[0].size]
    except OSError as error:
        raise SpyreCodeError("SC-E04", f"{path}: cannot be read ({error})") from None
    if not data.startswith(MAGIC):
        raise SpyreCodeError("SC-E15", f"{path}: a closed image, not one of torch-loom")
    return data


def read_dir(path: str | Path) -> Program:
    """The program of a directory written by ``write_dir``."""
    return decode(read_image(path))
