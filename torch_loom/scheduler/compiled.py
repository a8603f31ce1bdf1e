"""A compiled kernel: its IR texts, its program, and ways to run and time it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from torch_loom import spyrecode
from torch_loom.arch import Chip
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.interpret import Interpreter
from torch_loom.scheduler.lanes import STORAGE, to_registers, to_storage
from torch_loom.scheduler.races import Race, Races
from torch_loom.spyrecode.model import Access, ArgKind, Elem, Program

Array = NDArray[Any]
_ALIGN = 128


@dataclass
class Compiled:
    """A kernel ready to run. ``schedule_ir`` and ``dataflow_ir`` are texts, ``program`` the data form."""

    schedule_ir: str
    dataflow_ir: str
    program: Program
    seconds: dict[str, float] = field(default_factory=dict)
    module: ModuleOp | None = None

    @cached_property
    def binary(self) -> bytes:
        """The SpyreCode image."""
        return spyrecode.encode(self.program)

    def save(self, path: str | Path, debug: Mapping[str, str] | None = None) -> None:
        """Write a SpyreCode directory with the IR texts beside it. Atomic."""
        texts = {"schedule.mlir": self.schedule_ir, "dataflow.mlir": self.dataflow_ir, **(debug or {})}
        spyrecode.write_dir(path, self.program, debug=texts)

    @staticmethod
    def load(path: str | Path) -> Compiled:
        """Read what ``save`` wrote; the texts are empty when the directory has none."""
        program = spyrecode.read_dir(path)
        texts = [Path(path) / "debug" / name for name in ("schedule.mlir", "dataflow.mlir")]
        schedule, dataflow = (t.read_text("utf-8") if t.is_file() else "" for t in texts)
        return Compiled(schedule, dataflow, program)

    # -- execution --------------------------------------------------------------------------------

    def run(self, *, engine: str = "chip", seed: int = 0, **args: Any) -> dict[str, Array]:
        """Run with NumPy buffers (flat element order of the device, any shape) and numbers, by argument name.

        ``engine`` is ``chip`` (SpyreCode on the functional engine) or ``dataflow`` (the DataflowIR
        interpreter). Returns every buffer as it is afterwards; inputs are not changed."""
        image = Image(self.program, args)
        if engine == "chip":
            image.run_chip(self.binary)
        elif engine == "dataflow":
            Interpreter(self._parsed(), image.ddr, image.named(), seed).run()
        else:
            raise ValueError(f"engine '{engine}' is unknown: chip or dataflow")
        return image.results()

    def check_races(self, *, seed: int = 0, **args: Any) -> list[Race]:
        """Run the DataflowIR interpreter and report accesses that nothing orders."""
        image = Image(self.program, args)
        races = Races(len(image.ddr))
        Interpreter(self._parsed(), image.ddr, image.named(), seed, races).run()
        return races.found

    def _parsed(self) -> ModuleOp:
        if self.module is None:
            from torch_loom.scheduler.text import parse_module

            self.module = parse_module(self.dataflow_ir)
        return self.module

    def time(self, chip: Chip | None = None, **sizes: int | float) -> Any:
        """Modelled time of one launch; only sizes matter, buffers need no data."""
        from torch_loom import arch

        _chip = native_chip()
        chip = chip or arch.load(self.program.profile.chip)
        args: list[Any] = []
        address = 0
        for a in self.program.args:
            if a.kind is ArgKind.BUFFER:
                args.append((address, 1 << 33))
                address += 1 << 33
            else:
                args.append(_number(a.name, sizes))
        return _chip.time(_chip.decode(self.binary), args, chip.clock_params())


def native_chip() -> Any:
    """The native engine. Its library links against torch's, which must be loaded first."""
    import torch  # noqa: F401

    from torch_loom import _chip  # type: ignore[attr-defined]

    return _chip


def _number(name: str, args: Mapping[str, Any]) -> int | float:
    if name not in args:
        raise ScheduleError(f"argument '{name}' is missing")
    value = args[name]
    return float(value) if isinstance(value, float | np.floating) else int(value)


class Image:
    """DDR contents for one launch: buffers one after another in a NumPy array."""

    def __init__(self, program: Program, args: Mapping[str, Any]) -> None:
        unknown = set(args) - {a.name for a in program.args}
        if unknown:
            raise ScheduleError(f"no argument is called {', '.join(sorted(unknown))}")
        self.program = program
        self.given: dict[str, Array] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.numbers: dict[str, int | float] = {}
        end = _ALIGN
        for a in program.args:
            if a.kind is ArgKind.BUFFER:
                if a.name not in args:
                    raise ScheduleError(f"argument '{a.name}' is missing")
                self.given[a.name] = np.asarray(args[a.name])
                size = -(-self.given[a.name].size * a.elem.bytes // _ALIGN) * _ALIGN
                self.places[a.name] = (end, size)
                end += size + _ALIGN
            else:
                value = _number(a.name, args)
                self.numbers[a.name] = float(value) if a.kind is ArgKind.FLOAT else value
        self.ddr = np.zeros(end, dtype=np.uint8)
        for a in program.args:
            if a.kind is ArgKind.BUFFER:
                self._elements(a.name, a.elem)[:] = _stored(self.given[a.name].ravel(), a.elem)

    def _elements(self, name: str, elem: Elem) -> Array:
        start, _ = self.places[name]
        count = self.given[name].size
        return self.ddr[start : start + count * elem.bytes].view(STORAGE[elem.name])

    def named(self) -> dict[str, Any]:
        """Arguments for the interpreter."""
        return {**self.places, **self.numbers}

    def run_chip(self, binary: bytes) -> None:
        """Run on a fresh machine of the program's profile."""
        _chip = native_chip()
        profile = self.program.profile
        machine = _chip.Machine(profile.cores, profile.lx_bytes, 0, len(self.ddr), blas=True)
        machine.ddr[:] = self.ddr
        args = [self.places.get(a.name, self.numbers.get(a.name)) for a in self.program.args]
        machine.run(_chip.decode(binary), args)
        self.ddr[:] = machine.ddr

    def results(self) -> dict[str, Array]:
        """Buffers after the run, in the caller's shape and type."""
        out = {}
        for a in self.program.args:
            if a.kind is not ArgKind.BUFFER:
                continue
            stored = self._elements(a.name, a.elem)
            given = self.given[a.name]
            if a.access is Access.READ:
                out[a.name] = given.copy()
                continue
            values = (
                stored if given.dtype == stored.dtype and a.elem not in _CODED else to_registers(stored, a.elem.name)
            )
            out[a.name] = values.astype(given.dtype).reshape(given.shape)
        return out


_CODED = (Elem.DF16, Elem.BF16)


def _stored(values: Array, elem: Elem) -> Array:
    if elem is Elem.F16 and values.dtype == np.float16:
        return values
    if elem in _CODED or elem is Elem.F16:
        return to_storage(values.astype(np.float32), elem.name)
    return values.astype(STORAGE[elem.name])


def pad_rows(array: Array, elems: int) -> Array:
    """Rows of the innermost dim padded with zeros to a multiple of ``elems`` (whole sticks)."""
    width = array.shape[-1]
    wide = math.ceil(width / elems) * elems
    out = np.zeros((*array.shape[:-1], wide), dtype=array.dtype)
    out[..., :width] = array
    return out
