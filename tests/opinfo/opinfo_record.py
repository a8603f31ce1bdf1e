"""What is known of every operator of PyTorch: ``operators.json`` and the page ``docs/ops.md`` made of it.

A section is a way to run operators in one dtype: ``compile float16``, ``eager float32``, ``eager float32 backward``. It
holds a row ``[status, reason, aten operators, samples]`` for every operator that PyTorch defines for the dtype: it has
been tried with so many samples at most.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from opinfo_workers import SECONDS, Row

ROOT = Path(__file__).parent.parent.parent
RECORD = Path(__file__).parent / "operators.json"
PAGE = ROOT / "docs" / "ops.md"
KINDS = ("pass", "refused", "wrong", "crash", "hang", "skip", "untried")
Record = dict[str, dict[str, Row]]  # section -> operator -> row
SAMPLES = 4  # of an operator, at most, unless the command line says otherwise
UNTRIED: Row = ["untried", "", [], 0]

HEAD = f"""# Operators

PyTorch's own samples of every operator (OpInfo) on `spyre` without any fallback, compared with the host: under
`torch.compile` and in eager mode, there also in place, with `out=` and differentiated. Written by
`tests/opinfo/sweep.py --record`; `make test-opinfo` runs all of them again and fails for every difference in either
direction, `tests/opinfo/test_opinfo.py` some. An operator has the result of the worst of its samples: *refused* is
one clear error, *wrong* a different value, *crash* any other error, *hang* no result within {SECONDS} s of processor
time a sample, *skip* no sample, nothing to differentiate, or only a dtype without a device format, *untried* not run
yet. An operator is tried with its first sample or, as the column *{SAMPLES} samples* counts among those that pass,
with up to {SAMPLES} of them, spread over those that PyTorch has. Random and uninitialized results are compared in
shape and dtype only. *aten* counts the distinct aten operators, overloads taken together, that ran on tensors of
the device for the operators that pass (compiled: that the program is made of).
`loom ops` lists the route of every overload.
"""


def jobs(dtype: str, match: str = "") -> list[tuple[str, str]]:
    """(name, variant) of the operators that PyTorch defines for a dtype."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = getattr(torch, dtype)
    found = [(o.name, o.variant_test_name) for o in op_db if wanted in o.dtypes]
    return [j for j in found if re.search(match, key(*j))]


def key(name: str, variant: str) -> str:
    """Name of an operator in the record."""
    return f"{name}.{variant}" if variant else name


def sections(mode: str, dtype: str) -> list[str]:
    """Sections that a run of operators fills, in the order of a worker's rows."""
    return [f"{mode} {dtype}", f"{mode} {dtype} backward"] if mode == "eager" else [f"{mode} {dtype}"]


def load() -> Record:
    """The record."""
    return json.loads(RECORD.read_text())


def text(record: Record) -> str:
    """The record as JSON with a line for each operator, so that a change of one is a change of one line."""
    parts = []
    for section, run in sorted(record.items()):
        rows = ",\n".join(f"{json.dumps(n)}: {json.dumps(r)}" for n, r in sorted(run.items()))
        parts.append(f"{json.dumps(section)}: {{\n{rows}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def spread(mode: str, dtype: str, rows: dict[str, list[Row]]) -> dict[str, dict[str, Row]]:
    """Rows by section. Where a process failed its one row says it for all."""
    return {s: {k: r[min(i, len(r) - 1)] for k, r in rows.items()} for i, s in enumerate(sections(mode, dtype))}


def keep(mode: str, dtype: str, samples: dict[str, int], rows: dict[str, list[Row]]) -> None:
    """Merge results, each of so many samples, into the record and write the page. A result of more samples stays."""
    record = load()
    names = {key(*job) for job in jobs(dtype)}
    for section, found in spread(mode, dtype, rows).items():
        before = record.get(section, {})
        record[section] = {n: before.get(n, UNTRIED) for n in sorted(names)}
        record[section] |= {n: [*r, samples[n]] for n, r in found.items() if record[section][n][3] <= samples[n]}
    RECORD.write_text(text(record))
    PAGE.write_text(page(record))


def differences(record: Record, section: str, rows: dict[str, Row]) -> list[str]:
    """Where fresh rows are not what the record says: unlisted failures, and failures that are none any more."""
    known = {n: r[0] for n, r in record[section].items()}
    return [
        f"{section}: {n} is {r[0]}, recorded as {known.get(n, 'nothing')}: {r[1]}"
        for n, r in rows.items()
        if r[0] != known.get(n)
    ]


def _cell(reason: str) -> str:
    """A reason as one short cell of a table, without paths and inputs."""
    short = re.sub(r"/\S*/", "", reason.split("; inputs")[0])[:140]
    return short.translate(str.maketrans("|<>", "/()"))


def page(record: Record) -> str:
    """Counts of every section, each operator that fails somewhere with its reason, and all operators."""
    columns = [*KINDS, f"{SAMPLES} samples", "aten"]
    lines = [HEAD, "| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for section, run in record.items():
        rows = run.values()
        counts = [sum(r[0] == k for r in rows) for k in KINDS]
        counts += [sum(r[0] == "pass" and r[3] >= SAMPLES for r in rows), len({c for r in rows for c in r[2]})]
        lines.append(f"| {section} | " + " | ".join(map(str, counts)) + " |")
    for section, run in record.items():
        failed = {n: r for n, r in sorted(run.items()) if r[0] not in ("pass", "untried", "skip")}
        lines += ["", f"## {section}: what does not pass", "", "| operator | result | reason |", "|---|---|---|"]
        lines += [f"| `{n}` | {r[0]} | {_cell(r[1])} |" for n, r in failed.items()]
    ran = sorted({c for s, run in record.items() if s.startswith("eager") for r in run.values() for c in r[2]})
    lines += ["", f"## The {len(ran)} aten operators that ran in eager mode", "", ", ".join(f"`{c}`" for c in ran)]
    lines += ["", "## All", "", "| operator | " + " | ".join(record) + " |", "|---" * (len(record) + 1) + "|"]
    for n in sorted({n for run in record.values() for n in run}):
        cells = [run.get(n, ["-"])[0] for run in record.values()]
        lines.append(f"| `{n}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
