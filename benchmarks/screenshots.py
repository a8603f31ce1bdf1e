"""Pictures of the report page for the documentation: headless Chromium on pages that are made here.

    python benchmarks/screenshots.py [FOLDER]       # default: docs/figures

Prints one line per picture. Needs a ``chromium`` (or ``chromium-browser``, ``google-chrome``) on the path.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch_loom import arch, ktir, scheduler
from torch_loom.profiler import Subject, html_page, report_of, timeline

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tests" / "ktir" / "programs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Picture:
    """A page about KTIR programs: what to show of it (``place`` is the part behind # in its address) and how large."""

    name: str
    programs: tuple[str, ...]
    place: str
    width: int
    height: int


PICTURES = (
    Picture("report_page", ("softmax_wide", "matmul", "fused_mlp"), "", 1500, 1640),
    Picture("report_timeline", ("softmax_online",), "cores=0&pick={load}", 1500, 700),
)


def browser() -> str:
    """The browser to use."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is on the path")
    return found


def main() -> None:
    """Make every picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "figures"
    program = browser()
    chip = arch.load("spyre")
    for picture in PICTURES:
        subjects = []
        for name in picture.programs:
            loaded = ktir.load(PROGRAMS / f"{name}.ktir")
            compiled = scheduler.compile(loaded, loaded.functions[0], chip)
            subjects.append(Subject.of(compiled.program, {}))
        found = timeline(subjects, chip)
        spans = found.sections[0].spans
        loads = [
            i
            for i in range(len(spans))
            if found.tracks[spans.track[i]] == "MNILU" and spans.core[i] == spans.kind[i] - 2 == 0
        ]
        with tempfile.TemporaryDirectory() as place:
            page = Path(place) / "page.html"
            page.write_text(html_page(report_of(subjects, chip), found), "utf-8")
            target = folder / f"{picture.name}.png"
            where = picture.place.format(load=loads[len(loads) // 2])
            flags = (
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={place}/user",
            )
            size = f"--window-size={picture.width},{picture.height}"
            command = [program, *flags, size, f"--screenshot={target}", f"file://{page}#{where}"]
            subprocess.run(command, check=True, capture_output=True)
        print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
