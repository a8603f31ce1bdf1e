"""Build and run the native stress test, plain or with a sanitizer.

``python tests/device/native/run.py [--sanitize thread|address] [-- STREAMS STEPS ALLOCATIONS SEED]``
The full load of the acceptance list is ``-- 64 10000 1000000``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(ROOT)]


def build(folder: Path, sanitize: str | None) -> Path:
    """Compile runtime, chip and stress.cpp into ``folder``; objects are built two at a time."""
    flags = ["-std=c++20", "-O1", "-g", f"-I{ROOT / 'csrc'}", "-march=x86-64-v3", "-pthread"]
    if sanitize:
        flags.append(f"-fsanitize={sanitize}")
    sources = [*sorted((ROOT / "csrc/chip").glob("*.cpp")), *sorted((ROOT / "csrc/runtime").glob("*.cpp"))]
    sources.append(HERE / "stress.cpp")
    objects = [folder / f"{s.parent.name}_{s.stem}.o" for s in sources]
    jobs = [["g++", *flags, "-c", str(s), "-o", str(o)] for s, o in zip(sources, objects, strict=True)]
    for pair in range(0, len(jobs), 2):
        running = [subprocess.Popen(job) for job in jobs[pair : pair + 2]]
        for process in running:
            if process.wait():
                raise SystemExit(1)
    program = folder / "stress"
    subprocess.run(["g++", *flags, *map(str, objects), "-o", str(program)], check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sanitize", choices=["thread", "address"])
    parser.add_argument("--folder", type=Path, help="where to build; a temporary folder by default")
    parser.add_argument("numbers", nargs="*", help="STREAMS STEPS ALLOCATIONS SEED")
    options = parser.parse_args()
    import programs

    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        image = folder / "scale.bin"
        image.write_bytes(programs.scale())
        program = build(folder, options.sanitize)
        return subprocess.run([str(program), str(image), *options.numbers]).returncode


if __name__ == "__main__":
    raise SystemExit(main())
