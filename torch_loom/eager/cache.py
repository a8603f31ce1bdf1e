"""Op programs on disk: one JSON file per structural key, content-addressed and safe across processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import torch

from ..inductor.op_program import Program, Refusal
from ..spyrecode.staging import staged

log = logging.getLogger(__name__)


def digest(key: str, identity: str) -> str:
    """Name of an entry: the key, the target's identity, and the version of torch that traces."""
    return hashlib.sha256("\0".join([key, identity, torch.__version__]).encode()).hexdigest()[:40]


def load(folder: Path, name: str) -> list[Program] | Refusal | None:
    """The programs (or the refusal) of an entry; None when there is none. A damaged entry counts as none."""
    path = folder / f"{name}.json"
    try:
        data = json.loads(path.read_text("utf-8"))
        if "refused" in data:
            return Refusal(str(data["refused"]))
        return [Program.from_json(json.dumps(p)) for p in data["programs"]]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as damage:
        log.warning("cached op program %s is damaged (%s); compiling it again", path, damage)
        return None


def save(folder: Path, name: str, key: str, entry: list[Program] | Refusal) -> None:
    """Write an entry under a temporary name and rename it."""
    data: dict[str, object] = {"key": key}
    if isinstance(entry, Refusal):
        data["refused"] = entry.reason
    else:
        data["programs"] = [json.loads(p.to_json()) for p in entry]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    with staged(path, folder=False) as temporary:
        temporary.write_text(json.dumps(data), "utf-8")
        os.replace(temporary, path)
