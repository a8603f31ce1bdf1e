"""The Chrome trace event format, checked as its public description states it; independent of the writer.

JSON object form: ``traceEvents`` is a list. Complete events ("X") have ts and dur in microseconds and nest on their
thread. A flow is one start ("s") and one end ("f") that agree in category, name and id, start first; with bp "e" both
belong to the slice that encloses them. Metadata ("M") names processes and threads.
"""

import json
from collections import defaultdict

EPS = 1e-6  # the writer's resolution in microseconds
REQUIRED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
    "i": {"name", "ts", "s"},
}


def problems(text):
    """Everything in which a trace breaks the format, in words."""
    data = json.loads(text)
    events = data["traceEvents"]
    found = [f"{e} lacks {REQUIRED[e['ph']] - e.keys()}" for e in events if not REQUIRED[e["ph"]] <= e.keys()]
    if found:
        return found
    threads = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            if not (e["dur"] >= 0 and e["ts"] >= 0):
                found.append(f"negative time: {e}")
            threads[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for thread, slices in threads.items():
        found += _overlaps(thread, slices)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    found += [f"thread {t} has no name" for t in threads if t not in named]
    found += [f"process {p} has no name" for p, _ in threads if p not in processes]
    return found + _flow_problems(events, threads)


def _overlaps(thread, slices):
    open_until = []
    for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_until and open_until[-1] <= begin + EPS:
            open_until.pop()
        if open_until and end > open_until[-1] + EPS:
            return [f"slices of thread {thread} overlap at {begin}"]
        open_until.append(end)
    return []


def _flow_problems(events, threads):
    found, ends = [], defaultdict(dict)
    for e in events:
        if e["ph"] not in "sf":
            continue
        if e["ph"] in ends[e["cat"], e["id"]]:
            found.append(f"flow {e['id']} has two ends of one kind")
        ends[e["cat"], e["id"]][e["ph"]] = e
        if not any(b - EPS <= e["ts"] <= c + EPS for b, c in threads[e["pid"], e["tid"]]):
            found.append(f"flow {e['id']} ends outside of any slice")
    for (_, number), pair in ends.items():
        if pair.keys() != {"s", "f"}:
            found.append(f"flow {number} is not a pair")
        elif pair["s"]["ts"] > pair["f"]["ts"] + EPS or pair["s"]["name"] != pair["f"]["name"]:
            found.append(f"flow {number} runs backwards or changes its name")
    return found
