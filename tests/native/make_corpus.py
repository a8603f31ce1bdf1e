"""Writes the binaries that the native fuzzer damages: ``python tests/native/make_corpus.py FOLDER``.

Every hand-written sample and every program of the KTIR library, compiled for a chip with a small LX, each with the
arguments of a run (see csrc/tests/fuzz.cpp), and the rates of that chip's clock.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.extend(str(Path(__file__).parent.parent / room) for room in ("ktir", "spyrecode", "scheduler"))
import ktir_library as library
import scheduler_kernels as kernels
from spyrecode_samples import SAMPLES

from torch_loom import arch, ktir, scheduler
from torch_loom.scheduler.compiled import Image
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import ArgKind, Program

CORES, LX_BYTES = 32, 256 << 10  # also in csrc/tests/fuzz.cpp
CHIP_FILE = f"""
extends = "spyre"
name = "fuzz"
[core]
count = {CORES}
[lx]
bytes = {LX_BYTES}
reserved_fraction = 0.0
"""
ROWS = 16  # of the symbolic kernels
BYTES = 1 << 16  # of their buffers, and of those of the samples


def library_programs(chip: arch.Chip) -> dict[str, tuple[Program, list[str]]]:
    """Programs of the library with the arguments of their test case."""
    found = {}
    for name, case in sorted(library.CASES.items()):
        options = scheduler.Options(ieee=True, bounds={"n": 1000})
        program = ktir.load(library.PROGRAMS / f"{name}.ktir")
        compiled = scheduler.compile(program, name, chip, options).program
        arguments = case.make(np.random.default_rng(0))
        if case.baked:
            arguments |= {k: np.zeros_like(v) for k, v in case.expect(arguments).items()}
            arguments = {f"at{k}": v for k, v in arguments.items()}
        image = Image(compiled, arguments)
        sizes = {name: size for name, (_, size) in image.places.items()}
        found[name] = (compiled, lines(compiled, sizes, image.numbers))
    return found


def plain_programs(chip: arch.Chip) -> dict[str, tuple[Program, list[str]]]:
    """Samples and kernels with symbolic sizes on buffers of one size."""
    found = {}
    for name, make in SAMPLES.items():
        program = replace(make(), profile=chip.profile())
        found[f"sample_{name}"] = (program, lines(program, {}, {}))
    for name, text in {
        "softmax": kernels.softmax(100, 4),
        "linear": kernels.linear(100, 128, 8, 64),
        "embedding": kernels.embedding(50, 100, 8, computed=True),
        "attention": kernels.attention(50, 64, 3),
        "dynamic": kernels.dynamic_tiles(70, 8),
    }.items():
        program = ktir.load(text)
        compiled = scheduler.compile(program, program.functions[0], chip).program
        found[f"kernel_{name}"] = (compiled, lines(compiled, {}, {}))
    return found


def lines(program: Program, sizes: dict[str, int], numbers: dict[str, int | float]) -> list[str]:
    """The arguments of a launch as the fuzzer reads them."""
    texts = []
    for a in program.args:
        if a.kind is ArgKind.BUFFER:
            texts.append(f"buffer {sizes.get(a.name, BYTES)}")
        elif a.kind is ArgKind.INT:
            texts.append(f"int {numbers.get(a.name, ROWS)}")
        else:
            texts.append(f"float {numbers.get(a.name, 1.0)}")
    return texts


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    description = folder / "chip.toml"
    description.write_text(CHIP_FILE)
    chip = arch.load(description)
    for name, (program, arguments) in (library_programs(chip) | plain_programs(chip)).items():
        (folder / f"{name}.bin").write_bytes(encode(program))
        (folder / f"{name}.args").write_text("\n".join(arguments) + "\n")
    rates = "".join(f"{name} {value!r}\n" for name, value in chip.clock_params().items())
    (folder / "clock.txt").write_text(rates)
    print(f"{len(list(folder.glob('*.bin')))} binaries in {folder}")


if __name__ == "__main__":
    main()
