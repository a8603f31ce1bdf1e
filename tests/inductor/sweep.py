"""PyTorch's own operator samples through ``torch.compile`` (or eager mode) on ``spyre``, op by op, against the host.

``python tests/inductor/sweep.py [--eager] [--dtype float16] [--match REGEX] [--shard I/N] [--samples K] [-o FILE]``
prints one line per operator: ``pass``, ``refused`` (one clear error), ``wrong``, ``crash`` (a foreign error) or
``hang``, with the reason of the worst of its samples. Falling back to the host counts as refused. ``--record FILE...``
writes the results of earlier runs into ``operators.json`` and the page ``docs/ops.md``, which ``test_operators.py``
keeps true.

The expected value is computed on the host in float32 from the values that the device holds, so differences are the
arithmetic of the kernels. Half results may differ by ``ROUNDINGS`` df16 roundings of the largest magnitude involved.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

DTYPES = ("float16", "float32", "int64", "bool")
ROUNDINGS = 8  # df16 roundings on the way to a result: intermediates that leave a kernel round once each
HALF_STEP = 2.0**-10
# The contents of these results are not defined, or random: only shape and dtype are compared.
CONTENTS_OPEN = re.compile(
    r"^(new_)?empty(_like|_strided|_permuted)?$|^(bernoulli|multinomial|normal|rand|randn|randint|uniform|cauchy|exponential|"
    r"geometric|log_normal)(_like)?$|dropout|rrelu|fractional_max_pool"
)
SECONDS = 120  # of processor time per operator: a busy machine does not make a hang
WAITS = 20  # times as long on the clock, for a process that waits for ever
Result = tuple[str, str, list[str]]  # status, reason, aten operators called


def _map(value: Any, leaf: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, (list, tuple)):
        parts = [_map(v, leaf) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: _map(v, leaf) for k, v in value.items()}
    return value


def _leaves(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in _leaves(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in _leaves(v)]
    return [value]


def _same(out: Any, expected: Any, half: bool) -> str | None:
    """Why ``out`` is not ``expected``; None when it is, within the arithmetic of the dtype."""
    import torch

    if not isinstance(expected, torch.Tensor):
        return None if out == expected else f"{out!r} instead of {expected!r}"
    if out.shape != expected.shape:
        return f"shape {tuple(out.shape)} instead of {tuple(expected.shape)}"
    if not out.is_floating_point():
        wrong = (out.cpu() != expected.to(out.dtype)).sum().item()
        return f"{wrong} of {out.numel()} integers differ" if wrong else None
    got, want = out.detach().cpu().double(), expected.detach().double()
    if half:  # overflow of a half is infinity; the device has one code for it and NaN
        got = torch.where(got.abs() > 65504, torch.full_like(got, float("nan")), got)
        want = torch.where(want.abs() > 65504, torch.full_like(want, float("nan")), want)
    scale = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
    step = HALF_STEP if half else 2.0**-23
    absolute = step * ROUNDINGS * max(scale, 2.0**-14)
    try:
        torch.testing.assert_close(got, want, rtol=step * ROUNDINGS, atol=absolute, equal_nan=True)
    except AssertionError as e:
        text = " ".join(str(e).split())
        found = re.search(r"Mismatched elements: (\d+ / \d+).*?Greatest absolute difference: (\S+)", text)
        return f"{found[1]} differ by up to {found[2]} (largest {scale:.3g})" if found else text[:120]
    return None


def _held(value: Any) -> Any:
    """What the device holds of a host value, widened to float32."""
    import torch

    def leaf(t: Any) -> Any:
        t = t.detach()
        if t.dtype == torch.float16:
            return t.to("spyre").cpu().float()
        return t.clone()

    return _map(value, leaf)


def _without_format() -> set[Any]:
    import torch

    return {torch.float64, torch.complex32, torch.complex64, torch.complex128}


def _calls() -> tuple[Any, set[str]]:
    """A mode that notes the aten operators (without overloads) that run under it, and the set it notes them in."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: set[str] = set()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "aten":
                seen.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    return Calls(), seen


def run_sample(op: Any, sample: Any, dtype: Any, eager: bool = False) -> Result:
    """(status, reason, aten operators called) of one sample."""
    import torch

    torch._dynamo.reset()
    half = dtype == torch.float16
    arguments = (sample.input, sample.args, sample.kwargs)
    host = _map(arguments, lambda t: t.detach())
    kept = _held(host)

    def widen(v: Any) -> Any:
        return torch.float32 if half and v == torch.float16 else v

    wide = {k: widen(v) for k, v in kept[2].items()}
    mode, calls = _calls()
    try:
        with mode:
            expected = op.op(kept[0], *[widen(a) for a in kept[1]], **wide)
    except (RuntimeError, ValueError, TypeError, IndexError):  # what aten raises for arguments it has no kernel for
        return "skip", "the host refuses the sample", []
    if any(v in _without_format() for v in (*sample.args, *sample.kwargs.values()) if isinstance(v, torch.dtype)):
        return "skip", "a dtype without a device format", []
    try:
        placed = _map(host, lambda t: t.to("spyre"))
        keywords = {k: torch.device("spyre") if k == "device" else v for k, v in placed[2].items()}
        fn = lambda x, a, k: op.op(x, *a, **k)  # noqa: E731
        if not eager:
            fn = torch.compile(fn, dynamic=False, fullgraph=True)
        with torch.no_grad():
            out = fn(placed[0], placed[1], keywords)
        out = _map(out, lambda t: t.cpu())
    except Exception as e:  # every failure is a row of the table
        text = str(e)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        known = next((line for line in lines if "pyre backend does not support" in line), None)
        known = known or next((line for line in lines if "TORCH_LOOM_FALLBACK" in line), None)
        if known:
            return "refused", known.split("Unsupported: ")[-1], []
        if isinstance(e, torch._dynamo.exc.Unsupported):
            return "refused", f"PyTorch does not trace it: {lines[0]}", []
        return "crash", f"{type(e).__name__}: {''.join(lines[:1])[:300]}", []
    if any(isinstance(t, torch.Tensor) and t.dtype in _without_format() for t in _leaves(expected)):
        return "skip", "a result has a dtype without a device format", []
    a, b = _leaves(out), _leaves(expected)
    contents = not CONTENTS_OPEN.search(op.name)
    if len(a) != len(b):
        return "wrong", f"{len(a)} results instead of {len(b)}", []
    for x, y in zip(a, b, strict=True):
        why = _same(x if contents or x.shape != y.shape else y.to(x.dtype), y, half)
        if why:
            shapes = [tuple(t.shape) for t in _leaves(arguments) if isinstance(t, torch.Tensor)]
            return "wrong", f"{why}; inputs {shapes} {sample.args} {sample.kwargs}"[:300].replace("\n", " "), []
    return "pass", "", sorted(calls)


def run_op(name: str, variant: str, dtype_name: str, count: int, eager: bool = False) -> Result:
    """Status and reason of the worst sample of an operator; the aten operators of all when all pass."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = getattr(torch, dtype_name)
    op = next(o for o in op_db if o.name == name and o.variant_test_name == variant)
    torch.manual_seed(0)
    samples = [s for s, _ in zip(op.sample_inputs("cpu", dtype, requires_grad=False), range(60), strict=False)]
    if len(samples) > count:
        samples = [samples[i * (len(samples) - 1) // max(count - 1, 1)] for i in range(count)]
    results = [run_sample(op, s, dtype, eager) for s in samples]
    results = [r for r in results if r[0] != "skip"]
    order = ("crash", "wrong", "refused", "pass")
    status, reason, _ = min(results, key=lambda r: order.index(r[0]), default=("skip", "no samples", []))
    return status, reason, sorted({c for r in results for c in r[2]}) if status == "pass" else []


def _worker(pipe: Any) -> None:
    os.environ["TORCH_LOOM_FALLBACK"] = "error"
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    warnings.simplefilter("ignore")
    import torch
    import torch._inductor.config
    from torch.testing._internal import common_methods_invocations as invocations

    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # seeding cannot be traced
    torch.set_num_threads(1)
    torch._inductor.config.fx_graph_cache = False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        job = pipe.recv()
        if job is None:
            return
        try:
            pipe.send(run_op(*job))
        except Exception as e:  # a sample that cannot be made
            pipe.send(("skip", f"{type(e).__name__}: {e}"[:200], []))


class Worker:
    """A process that runs operators; replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.pipe, other = mp.get_context("spawn").Pipe()
        self.process = mp.get_context("spawn").Process(target=_worker, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()

    def _spent(self) -> float:
        """Processor time of the worker in seconds (user and system, proc(5))."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _answers(self) -> bool:
        """Does an answer come within SECONDS of processor time?"""
        limit, latest = self._spent() + SECONDS, time.monotonic() + WAITS * SECONDS
        while not self.pipe.poll(2):
            if self._spent() > limit or time.monotonic() > latest:
                return False
        return True

    def run(self, *job: Any) -> Result:
        self.pipe.send(job)
        try:
            if self._answers():
                return self.pipe.recv()
            result: Result = ("hang", f"no result within {SECONDS} s", [])
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            result = ("crash", f"process died with exit code {self.process.exitcode}", [])
        self.process.kill()
        self.process.join()
        self.start()
        return result


ROOT = Path(__file__).parent.parent.parent
RECORD = Path(__file__).parent / "operators.json"
PAGE = ROOT / "docs" / "ops.md"
KINDS = ("pass", "refused", "wrong", "crash", "hang", "skip", "untried")
# dtype -> {"samples": most samples tried per operator, "operators": {operator: [status, reason, aten operators]}}
Record = dict[str, dict[str, Any]]


def _cell(reason: str) -> str:
    """A reason as one short cell of a table, without paths and inputs."""
    short = re.sub(r"/\S*/", "", reason.split("; inputs")[0])[:140]
    return short.translate(str.maketrans("|<>", "/()"))


def page(record: Record) -> str:
    """The page of what compiles: counts by dtype, then every operator that does not pass, with its reason."""
    lines = [
        "# Operators under `torch.compile`",
        "",
        "PyTorch's own samples of every operator (OpInfo), compiled for `spyre` without any fallback and compared with",
        "the host. Written by `tests/inductor/sweep.py --record`; `tests/inductor/test_operators.py` holds it to every",
        "operator of PyTorch and to fresh runs of some of them. An operator has the result of the worst of its",
        "samples: *refused* is one clear error, *wrong* a different value, *crash* any other error, *hang* no result",
        f"within {SECONDS} s of processor time, *skip* no sample, or only samples with a dtype without a device",
        "format, *untried* not run yet. Random and uninitialized results are compared in shape and dtype only. *aten*",
        "counts the distinct aten operators, overloads taken together, that the host dispatches for the operators",
        "that pass.",
        "",
        "| dtype | samples per operator, at most | " + " | ".join(KINDS) + " | aten |",
        "|---" * (len(KINDS) + 3) + "|",
    ]
    for dtype, run in record.items():
        rows = run["operators"].values()
        counts = [sum(r[0] == k for r in rows) for k in KINDS]
        atens = {c for r in rows for c in r[2]}
        lines.append(f"| {dtype} | {run['samples']} | " + " | ".join(map(str, counts)) + f" | {len(atens)} |")
    for dtype, run in record.items():
        rows = sorted(run["operators"].items())
        lines += ["", f"## {dtype}: what does not pass", "", "| operator | result | reason |", "|---|---|---|"]
        lines += [f"| `{n}` | {r[0]} | {_cell(r[1])} |" for n, r in rows if r[0] not in ("pass", "untried")]
        lines += ["", f"## {dtype}: what passes", "", ", ".join(f"`{n}`" for n, r in rows if r[0] == "pass")]
        untried = [f"`{n}`" for n, r in rows if r[0] == "untried"]
        if untried:
            lines += ["", f"## {dtype}: what was not tried", "", ", ".join(untried)]
        atens = sorted({c for _, r in rows for c in r[2]})
        lines += ["", f"## {dtype}: aten operators", "", ", ".join(f"`{c}`" for c in atens)]
    return "\n".join(lines) + "\n"


def keep(dtype: str, samples: int, rows: dict[str, Any]) -> None:
    """Merge results of a dtype into the record and write the page."""
    record: Record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    run = record.setdefault(dtype, {"samples": samples, "operators": {}})
    if run["samples"] != samples:
        run = record[dtype] = {"samples": samples, "operators": {}}
    untried = {".".join(filter(None, job)): ["untried", "", []] for job in jobs(dtype, "")}
    run["operators"] = dict(sorted({**untried, **run["operators"], **rows}.items()))
    RECORD.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")
    PAGE.write_text(page(record))


def jobs(dtype: str, match: str) -> list[tuple[str, str]]:
    """(name, variant) of the operators that PyTorch defines for a dtype."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = getattr(torch, dtype)
    found = [(o.name, o.variant_test_name) for o in op_db if wanted in o.dtypes]
    return [j for j in found if re.search(match, ".".join(filter(None, j)))]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="float16")
    parser.add_argument("--eager", action="store_true", help="call operators instead of compiling them")
    parser.add_argument("--match", default="")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("-o", "--output")
    parser.add_argument("--record", nargs="+", metavar="FILE", help="outputs (-o) of runs with this dtype and samples")
    args = parser.parse_args()
    if args.record:
        keep(
            args.dtype,
            args.samples,
            {k: v for file in args.record for k, v in json.loads(Path(file).read_text()).items()},
        )
        return
    shard, shards = map(int, args.shard.split("/"))
    worker, rows, started = Worker(), {}, time.monotonic()
    for name, variant in jobs(args.dtype, args.match)[shard::shards]:
        key = f"{name}.{variant}" if variant else name
        rows[key] = status, reason, _ = worker.run(name, variant, args.dtype, args.samples, args.eager)
        print(f"{status:8}{args.dtype:9}{key:45}{reason}", flush=True)
        if args.output:
            with open(args.output, "w") as f:
                json.dump(rows, f, indent=1)
    counts = {s: sum(r[0] == s for r in rows.values()) for s in KINDS}
    print(counts, f"{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
