"""Compiled kernels at run time: content-addressed cache, compilation, launch.

A kernel's identity is the hash of its KTIR, the chip, and the compiler's own sources. The cache holds one
SpyreCode directory per identity, written to a temporary name and renamed, so processes never see half of
one. A launch hands the tensors to the native plan; nothing is computed here per call.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .. import _device
from . import config
from .relaid import relaid, run_of
from .workers import Job, Pool, pool_size

log = logging.getLogger(__name__)


@dataclass
class KernelRecord:
    """A kernel known to this process, with the artifact of every level."""

    name: str
    key: str
    ktir: str
    schedule_ir: str
    dataflow_ir: str
    spyrecode_dir: Path
    compiled: bool
    seconds: float


_records: dict[str, KernelRecord] = {}
_callbacks: list[Callable[[str, str], None]] = []
_lock = threading.Lock()
counters = {"kernels_compiled": 0, "kernels_loaded": 0}


def kernels() -> list[KernelRecord]:
    """Kernels prepared by this process, in order of preparation."""
    return list(_records.values())


def on_compile(callback: Callable[[str, str], None]) -> Callable[[], None]:
    """Call ``callback(event, name)`` with event "start", "done" or "cached"; returns the undo."""
    _callbacks.append(callback)
    return lambda: _callbacks.remove(callback)


def _tell(event: str, name: str) -> None:
    for callback in list(_callbacks):
        callback(event, name)


def cache_dir() -> Path:
    """Folder of compiled kernels: ``TORCH_LOOM_CACHE_DIR`` or ``~/.cache/torch_loom``.

    Raises RuntimeError where it cannot be made."""
    chosen = os.environ.get("TORCH_LOOM_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_loom"
    return _made(base / "kernels")


@cache
def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"no kernel can be kept in {folder} ({error.strerror}); set TORCH_LOOM_CACHE_DIR to a folder"
        ) from None
    return folder


@cache
def sources(*rooms: str) -> str:
    """Hash of the sources of the given rooms (and of the chip descriptions in them)."""
    import torch_loom

    root = Path(torch_loom.__file__).parent
    digest = hashlib.sha256()
    for room in rooms:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(str(path.relative_to(root)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def toolchain() -> str:
    """Hash of the sources that turn KTIR into SpyreCode, and of the chip description."""
    return sources("arch", "dialects", "ktir", "scheduler", "spyrecode")


def chip_name() -> str:
    """Chip that kernels are compiled for."""
    return os.environ.get("TORCH_LOOM_CHIP", "spyre")


def _key(text: str) -> str:
    numerics = os.environ.get("TORCH_LOOM_NUMERICS", "df16")
    return hashlib.sha256("\0".join([text, chip_name(), numerics, toolchain()]).encode()).hexdigest()[:40]


@cache
def _pool() -> Pool:
    return Pool(pool_size(config.compile_workers))


def _held(path: Path) -> bool:
    """Does the cache hold a whole kernel under ``path``?"""
    parts = ("spyreCodeDir/spyrecode.json", "debug/schedule.mlir", "debug/dataflow.mlir")
    return all((path / part).is_file() for part in parts)


def request(name: str, text: str) -> None:
    """Say that a kernel will be needed: it is compiled beside this process unless a cache holds it."""
    key = _key(text)
    path = cache_dir() / key
    if key in _records or _held(path):
        return
    wanted = {"text": text, "chip": chip_name(), "path": str(path)}
    _pool().submit(Job(key, wanted, lambda: _tell("start", name)))


def timed_plan(text: str) -> tuple[Any, str]:
    """A native plan of a kernel to ask the clock about, and the kernel's key; it is none of ``kernels()``.

    Raises ScheduleError where the kernel cannot be built."""
    key = _key(text)
    path = cache_dir() / key
    if not _held(path):
        _compile(text, path)
    return _device.prepare(str(path), "kernel"), key


def _compile(text: str, path: Path) -> None:
    from .. import arch, ktir, scheduler

    scheduler.compile(ktir.load(text), "kernel", arch.load(chip_name())).save(path)


def _prepare(name: str, text: str) -> KernelRecord:
    key = _key(text)
    if key in _records:
        return _records[key]
    label = name
    if any(r.name == name for r in _records.values()):  # another graph's kernel, or other sizes of this one
        name = f"{name}_{key[:6]}"
    path = cache_dir() / key
    started = time.perf_counter()
    compiled = _pool().take(key)
    if compiled:
        _tell("done", label)
    elif _held(path):
        _tell("cached", name)
    else:
        _tell("start", name)
        _compile(text, path)
        compiled = True
        _tell("done", name)
    counters["kernels_compiled"] += compiled
    counters["kernels_loaded"] += 1
    debug = path / "debug"
    record = KernelRecord(
        name,
        key,
        text,
        (debug / "schedule.mlir").read_text(),
        (debug / "dataflow.mlir").read_text(),
        path,
        compiled,
        time.perf_counter() - started,
    )
    _records[key] = record
    return record


class LoomKernel:
    """A callable kernel: ``kernel(*buffers, *sizes)``."""

    def __init__(self, name: str, text: str, access: Sequence[str], layouts: Sequence[str]) -> None:
        with _lock:
            self.record = _prepare(name, text)
        self.name = self.record.name
        self.access = tuple(access)
        self.layouts = tuple(layouts)
        self.kinds = tuple("default" if k == "default" else "row_major" for k in layouts)
        self.runs = {i: run for i, k in enumerate(layouts) if (run := run_of(k)) is not None}
        self.plan = self._load(text)
        self.text, self.label = text, name
        names = re.findall(r"%(\w+): (index|!ktdp\.runtime_arg<index, upperbound=(\d+)>|f32|i32)", text)
        self.bounds = [(i, n, int(top)) for i, (n, _, top) in enumerate(names) if top]

    def _load(self, text: str) -> Any:
        """The native plan of the kernel; a damaged cache entry is reported and compiled again."""
        path = self.record.spyrecode_dir
        try:
            return _device.prepare(str(path), self.name)
        except (RuntimeError, ValueError) as damage:  # SpyreCodeError is a ValueError
            if self.record.compiled:
                raise
            log.warning("cached kernel %s in %s is damaged (%s); compiling it again", self.name, path, damage)
            with _lock:
                shutil.rmtree(path, ignore_errors=True)
                del _records[self.record.key]
                self.record = _prepare(self.name, text)
            return _device.prepare(str(path), self.name)

    def grow(self, args: Sequence[Any]) -> None:
        """Compile for a larger maximum when a size has outgrown the one the kernel was planned for."""
        for i, name, top in self.bounds:
            if args[i] > top:
                pattern = rf"(%{name} ?: (?:!ktdp\.runtime_arg)?<index, upperbound=)\d+"
                text = re.sub(pattern, rf"\g<1>{1 << (args[i] - 1).bit_length()}", self.text)
                self.__init__(self.label, text, self.access, self.layouts)  # type: ignore[misc]

    def __call__(self, *args: Any) -> None:
        if any(args[i] > top for i, _, top in self.bounds):
            self.grow(args)
        ready = list(args)
        for i, run in self.runs.items():
            ready[i] = relaid(ready[i], run)
        written = []
        for i, kind in enumerate(self.kinds):
            if not _device.expect(ready[i], kind):
                writes = self.access[i] != "r"
                ready[i] = in_layout(ready[i], kind, writes, f"{self.name}: argument {i}")
                if writes:
                    written.append(i)
        self.plan.launch(ready)
        for i in written:  # such as a cache that another graph allocated, in rows of sticks
            args[i].copy_(ready[i])


def in_layout(tensor: torch.Tensor, kind: str, written: bool, what: str) -> torch.Tensor:
    """A copy of an argument in the layout that its kernel was compiled for.

    Of a written one it holds the old values too, as a kernel may write only a part. Raises RuntimeError if elements of
    a written argument, which ``what`` names, overlap in memory."""
    for d, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and size > 1:
            if written:
                raise RuntimeError(
                    f"{what} is written in place but its elements along dimension {d} share memory; pass a clone of it"
                )
            tensor = tensor.narrow(d, 0, 1)
    return _device.relayout(tensor, kind)


def loom_kernel(name: str, text: str, access: Sequence[str], layouts: Sequence[str]) -> LoomKernel:
    """Entry point of generated wrappers."""
    return LoomKernel(name, text, access, layouts)


def empty_strided_spyre(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, index: int = 0, kind: str = "row_major"
) -> torch.Tensor:
    """Intermediate of a compiled graph, in rows of sticks, or an output in the layout ``kind``."""
    return _device.empty_strided(size, stride, dtype, index, kind)


def get_raw_stream(index: int) -> int:
    """Stream handle for generated code; kernels use the thread's current stream."""
    return 0
