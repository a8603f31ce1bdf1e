"""Mutated job plans and directories: each loads to a plan that keeps every rule, or is refused with one error.

    python tests/spyrecode/fuzz_plans.py [COUNT] [FIRST]

The number of a mutant alone decides it. Every third one is a whole directory: its plan, and now and then its image
or what stands in their place, are damaged, and it is read as a program.
"""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spyrecode_samples import SAMPLES

from torch_loom.spyrecode import SpyreCodeError, plan, read_dir, write_dir
from torch_loom.spyrecode.directory import CODE_DIR, IMAGE_FILE, PLAN_FILE

OLD = {"init_bin_file": "file_path", "dirn": "direction", "ishape": "iargs", "ohandle": "oshape"}
BASE = plan.PROGRAM_BASE

#: Values that a reader may not expect, in place of any other.
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, float("nan"), float("inf"), 10**30, "", "0", "00", "-1", "+1", " 1", "1 ", "1e3",
    "0x80", "1_0", "\u0661", "\u00b2", "9" * 20, "9" * 21, "128", "127", str(BASE), str(BASE + 128),
    str(BASE + (16 << 30)), str(BASE - 128), str((1 << 64) - 128),
    "true", "false", "values", "..", ".", "/etc/passwd", "a/b", "a\\b", "a\0b",
    "\ud800", "x" * 300, "x" * 5000, "\n", "init_binary.bin", [], [[]], ["0"], ["0", "3"], ["3", 3], {},
    {"size": "128"}, {"command": "Allocate"},
    "Allocate", "InitTransfer", "ComputeOnHost", "DataTransfer", "ComputeOnDevice",
)  # fmt: skip


def corpus() -> list[dict[str, Any]]:
    """Plans as the compiler writes them, in both spellings, and one with more of every command."""
    plans = [json.loads(plan.for_image("k", 10240, table, 3, IMAGE_FILE).to_json()) for table in (0, 8, 2000)]
    long = copy.deepcopy(plans[2])
    long["JobPreparationPlan"].append(
        {"command": "InitTransfer", "properties": {"init_bin_file": "b", "dev_ptr": str(BASE + 12288), "size": "64"}}
    )
    long["JobPreparationPlan"][0]["properties"]["size"] = "16384"
    long["JobExecPlan"].append(copy.deepcopy(long["JobExecPlan"][-1]))
    back = {"dirn": "true", "host_handle": "out", "dev_ptr": str(BASE), "size": "256"}
    moved = copy.deepcopy(plans[0])
    moved["JobExecPlan"].append({"command": "DataTransfer", "properties": back})
    old = copy.deepcopy(plans[2])
    for entry in old["JobPreparationPlan"] + old["JobExecPlan"]:
        entry["properties"] = {OLD.get(k, k): v for k, v in entry["properties"].items()}
    return [*plans, long, moved, old]


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a node."""
    found = []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found.append((node, key))
        found += places(value)
    return found


def change_tree(top: dict[str, Any], rng: random.Random) -> None:
    """One change of structure or value, in place."""
    container, key = rng.choice(places(top))
    what = rng.randrange(6)
    if what == 0:
        container[key] = copy.deepcopy(rng.choice(STRANGE))
    elif what == 1:
        del container[key]
    elif what == 2 and isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
    elif what == 3 and isinstance(container, list):
        container.append(container.pop(key))
    elif what == 4 and isinstance(container, dict):
        container[rng.choice([*OLD, *OLD.values(), "size", "dev_ptr", "hcm", "name", key.upper()])] = container.pop(key)
    elif isinstance(container[key], str) and re.fullmatch("[0-9]{1,40}", container[key]):
        step = rng.choice((-128, -1, 1, 64, 128, 4096, 1 << 34))
        container[key] = str(max(int(container[key]) + step, 0))
    else:
        other, place = rng.choice(places(top))
        container[key] = copy.deepcopy(other[place])


def change_text(text: str, rng: random.Random) -> str:
    """Damage of the text itself."""
    at = rng.randrange(len(text))
    what = rng.randrange(8)
    if what == 0:
        return text[:at]
    if what == 1:
        return text[:at] + chr(rng.randrange(128)) + text[at + 1 :]
    if what == 2:
        end = min(len(text), at + rng.randrange(1, 40))
        return text[:at] + text[end:]
    if what == 3:
        end = min(len(text), at + rng.randrange(1, 80))
        to = rng.randrange(len(text))
        return text[:to] + text[at:end] + text[to:]
    if what == 4:
        depth = rng.choice((40, 300, 900, 5000, 100_000))
        return text.replace("[]", "[" * depth + "]" * depth) if "[]" in text else text[:at] + "[" * depth + text[at:]
    if what == 5:
        return re.sub(r'"(\d+)"', lambda m: m[1], text, count=rng.randrange(1, 9))
    if what == 6:
        digits = rng.choice((20, 400, 5000))
        return re.sub(r'"\d+"', "1" * digits, text, count=1)
    return text.replace('": ', '": ' + rng.choice(("NaN", "1e999", "\\u0000", '"\\ud800"', "-0")) + ", ", 1)


def mutant(plans: list[dict[str, Any]], rng: random.Random) -> str:
    """The text of a damaged plan."""
    top = copy.deepcopy(rng.choice(plans))
    if rng.random() < 0.7:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if places(top):
                change_tree(top, rng)
        return json.dumps(top)
    return change_text(json.dumps(top), rng)


def check_plan(loaded: plan.Plan) -> None:
    """What a loaded plan promises, looked at anew."""
    end = BASE + loaded.preparation[0].size  # type: ignore[union-attr]
    for c in (*loaded.preparation, *loaded.execution):
        start = getattr(c, "dev_ptr", getattr(c, "job_bin_ptr", BASE))
        placed = isinstance(c, plan.InitTransfer | plan.DataTransfer)
        assert start % 128 == 0 and start >= BASE
        assert start + (c.size if placed else 0) <= end
    assert plan.loads(loaded.to_json()) == loaded


def change_folder(folder: Path, rng: random.Random) -> None:
    """Damage of the files beside the plan."""
    image = folder / IMAGE_FILE
    data = image.read_bytes()
    what = rng.randrange(6)
    image.unlink()
    if what == 0:
        image.write_bytes(data[: rng.randrange(len(data))])
    elif what == 1:
        at = rng.randrange(len(data))
        image.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
    elif what == 2:
        image.mkdir()
    elif what == 3:
        image.symlink_to(image.name)  # a link to itself
    elif what == 4:
        image.write_bytes(data + bytes(rng.randrange(1, 300)))


def refused(action: Callable[[], Any]) -> str:
    """The code of the error, "accepted" without one."""
    try:
        action()
    except SpyreCodeError as error:
        str(error).encode("utf-8")  # a message can be shown
        return error.code
    return "accepted"


def run(count: int, first: int = 0) -> Counter[str]:
    """Try ``count`` mutants; how they ended, by error code."""
    plans = corpus()
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        program = SAMPLES["add_rows"]()
        write_dir(whole, program)
        own = json.loads((whole / CODE_DIR / PLAN_FILE).read_text("utf-8"))
        folder = Path(temporary) / "mutant"
        for number in range(first, first + count):
            rng = random.Random(number)
            if number % 3:
                text = mutant(plans, rng)
                ends[refused(lambda text=text: check_plan(plan.loads(text)))] += 1
                continue
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            if rng.random() < 0.8:
                text = mutant([own], rng)
                (folder / CODE_DIR / PLAN_FILE).write_bytes(text.encode("utf-8", "surrogatepass"))
            if rng.random() < 0.3:
                change_folder(folder / CODE_DIR, rng)
            found = []
            end = refused(lambda found=found: found.append(read_dir(folder)))
            assert not found or found[0] == program, f"mutant {number} reads as another program"
            ends[f"directory {end}"] += 1
    return ends


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    ends = run(count, first)
    print(f"{count} plans and directories from number {first}")
    for end, n in sorted(ends.items()):
        print(f"  {end:<24} {n:8}")


if __name__ == "__main__":
    main()
