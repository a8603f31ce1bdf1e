"""PyTorch's own samples of an operator (OpInfo) on ``spyre``, compiled or eager, against the host.

The expected value is computed on the host in float32 from the values that the device holds, so differences are the
arithmetic of the device. Half results may differ by ``ROUNDINGS`` df16 roundings of the largest magnitude involved.
In eager mode a sample also goes through the operator's in-place and ``out=`` forms, and gradients of its differentiable
results are compared for random cotangents.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

ROUNDINGS = 8  # df16 roundings on the way to a result: intermediates that leave a kernel round once each
HALF_STEP = 2.0**-10
# The contents of these results are not defined, or random: only shape and dtype are compared.
CONTENTS_OPEN = re.compile(
    r"^(new_)?empty(_like|_strided|_permuted)?$|^(bernoulli|multinomial|normal|rand|randn|randint|uniform|cauchy|exponential|"
    r"geometric|log_normal)(_like)?$|dropout|rrelu|fractional_max_pool"
)
# Functions whose float32 kernels on the host are less exact than these on the device: the reference is in float64.
WIDER = re.compile(r"polygamma|digamma|i[01]e?$")
# Arguments that PyTorch wants on the host.
HOST_ARGUMENTS = {"tensor_split": (0,)}
WITHOUT_FORMAT = {torch.float64, torch.complex32, torch.complex64, torch.complex128}
HOST_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)  # what aten raises for arguments it has no kernel for
ORDER = ("crash", "hang", "wrong", "refused", "pass", "skip")  # the worst first


def stable(op: str, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A sort that keeps the order of equal elements, as the device does; the host's default one may not."""
    named = dict(zip(("dim", "descending"), args, strict=False)) | kwargs | {"stable": True}
    if op == "argsort":
        return torch.argsort(x, **named)
    values, places = torch.sort(x, **({"dim": 0, **named} if op == "msort" else named))
    return values if op == "msort" else (values, places)


REFERENCES = {name: partial(stable, name) for name in ("sort", "argsort", "msort")}


@dataclass(frozen=True)
class Outcome:
    """What became of an operator: a status of ORDER, why, and the aten operators that ran on the device."""

    status: str
    reason: str = ""
    atens: frozenset[str] = field(default=frozenset())


def worst(outcomes: list[Outcome]) -> Outcome:
    """The worst outcome; skips do not count beside others. A pass has called the operators of all."""
    found = min(outcomes, key=lambda o: ORDER.index(o.status), default=Outcome("skip", "no samples"))
    called = frozenset[str]().union(*(o.atens for o in outcomes)) if found.status == "pass" else frozenset[str]()
    return Outcome(found.status, found.reason, called)


class Calls(TorchDispatchMode):
    """Notes the aten operators, overloads taken together, that run under it on tensors of a device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        touched = (t.device.type for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
        if func.namespace == "aten" and self.device in touched:
            self.seen.add(func.overloadpacket.__name__)
        return out


def held(value: Any, wide: torch.dtype = torch.float32) -> Any:
    """What the device holds of a host value, in which floats are widened."""

    def leaf(t: torch.Tensor) -> torch.Tensor:
        kept = t.detach().to("spyre").cpu().to(wide) if t.dtype == torch.float16 else t.detach().clone()
        kept = kept.to(wide) if t.dtype == torch.float32 else kept
        return kept.requires_grad_(t.requires_grad)

    return tree_map_only(torch.Tensor, leaf, value)


def placed(value: Any) -> Any:
    """A host value on the device."""
    return tree_map_only(torch.Tensor, lambda t: t.detach().to("spyre").requires_grad_(t.requires_grad), value)


def difference(out: Any, expected: Any, half: bool) -> str | None:
    """Why ``out`` is not ``expected``; None when it is, within the arithmetic of the dtype."""
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


def failure(error: Exception) -> Outcome:
    """An error of the device: one clear refusal, or a crash."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The last is PyTorch's own, for a dtype that its formula of a gradient does not know.
    kinds = ("pyre backend does not support", "TORCH_LOOM_FALLBACK", " not implemented for '")
    known = next((line for kind in kinds for line in lines if kind in line), None)
    if known:
        return Outcome("refused", known.split("Unsupported: ")[-1] + _why(known))
    if isinstance(error, torch._dynamo.exc.Unsupported):
        return Outcome("refused", f"PyTorch does not trace it: {lines[0]}")
    return Outcome("crash", f"{type(error).__name__}: {''.join(lines[:1])[:300]}")


def _why(text: str) -> str:
    """Why the eager compiler refused the operator that a fallback error names."""
    from torch_loom.eager.compiler import refusals

    name = re.search(r"(aten::[\w.]+) in eager mode", text)
    reasons = {k: v for k, v in refusals.items() if name and k.split(".")[0] == name[1].split(".")[0].removesuffix("_")}
    return "".join(f" ({' '.join(v.split())[:200]})" for v in list(reasons.values())[:1])


@dataclass
class Trial:
    """One sample of an operator: the host's results, to which those of the device are held."""

    op: Any
    sample: Any
    half: bool

    def __post_init__(self) -> None:
        self.arguments = (self.sample.input, self.sample.args, self.sample.kwargs)
        self.expected: Any = None

    def call(self, fn: Callable[..., Any], arguments: Any) -> Any:
        """``fn`` on the arguments of the sample."""
        first, rest, keywords = arguments
        return fn(first, *rest, **keywords)

    def reference(self) -> tuple[Any, Any]:
        """The sample and its results as float32 on the host."""

        def widen(v: Any) -> Any:
            return torch.float32 if self.half and isinstance(v, torch.dtype) and v == torch.float16 else v

        wide = torch.float64 if WIDER.search(self.op.name) else torch.float32
        arguments = tree_map(widen, held(self.arguments, wide))
        results = self.call(REFERENCES.get(self.op.name, self.op.op), arguments)
        kinds = {t.dtype for t in tree_leaves(results) if isinstance(t, torch.Tensor)}
        self.half |= bool(kinds & {torch.float16, torch.bfloat16})  # a conversion: the device holds 9 fraction bits
        return arguments, results

    def on_device(self) -> Any:
        """The arguments of the sample on the device."""
        first, rest, keywords = placed(self.arguments)
        here = HOST_ARGUMENTS.get(self.op.name, ())
        rest = tuple(self.sample.args[i] if i in here else a for i, a in enumerate(rest))
        return first, rest, {k: torch.device("spyre") if k == "device" else v for k, v in keywords.items()}

    def skipped(self, expected: Any) -> Outcome | None:
        """Why the sample has no meaning on the device."""
        kinds = [v for v in (*self.sample.args, *self.sample.kwargs.values()) if isinstance(v, torch.dtype)]
        if any(v in WITHOUT_FORMAT for v in kinds):
            return Outcome("skip", "a dtype without a device format")
        wider = {torch.float64} if WIDER.search(self.op.name) else set()
        if any(isinstance(t, torch.Tensor) and t.dtype in WITHOUT_FORMAT - wider for t in tree_leaves(expected)):
            return Outcome("skip", "a result has a dtype without a device format")
        return None

    def compare(self, out: Any, expected: Any, what: str = "") -> Outcome | None:
        """A wrong result."""
        a, b = tree_leaves(out), tree_leaves(expected)
        if len(a) != len(b):
            return Outcome("wrong", f"{what}{len(a)} results instead of {len(b)}")
        for x, y in zip(a, b, strict=True):
            contents = not CONTENTS_OPEN.search(self.op.name)
            why = difference(x if contents or x.shape != y.shape else y.to(x.dtype), y, self.half)
            if why:
                shapes = [tuple(t.shape) for t in tree_leaves(self.arguments) if isinstance(t, torch.Tensor)]
                text = f"{what}{why}; inputs {shapes} {self.sample.args} {self.sample.kwargs}"
                return Outcome("wrong", " ".join(text[:300].split()))
        return None


def compiled(op: Any, sample: Any, dtype: torch.dtype) -> Outcome:
    """One sample through ``torch.compile``."""
    torch._dynamo.reset()
    trial = Trial(op, sample, dtype == torch.float16)
    calls = Calls("cpu")
    try:
        with calls, torch.no_grad():
            expected = trial.reference()[1]
    except HOST_ERRORS:
        return Outcome("skip", "the host refuses the sample")
    skip = trial.skipped(expected)
    if skip:
        return skip
    fn = torch.compile(lambda x, a, k: op.op(x, *a, **k), dynamic=False, fullgraph=True)
    try:
        with torch.no_grad():
            out = tree_map_only(torch.Tensor, lambda t: t.cpu(), fn(*trial.on_device()))
    except Exception as e:  # every failure is a row of the table
        return failure(e)
    return trial.compare(out, expected) or Outcome("pass", "", frozenset(calls.seen))


def eager(op: Any, sample: Any, dtype: torch.dtype, forms: bool) -> tuple[Outcome, Outcome]:
    """One sample in eager mode, forward and backward; with ``forms`` also in place and with ``out=``."""
    trial = Trial(op, sample, dtype == torch.float16)
    try:
        host, expected = trial.reference()
    except HOST_ERRORS:
        return (Outcome("skip", "the host refuses the sample"),) * 2
    skip = trial.skipped(expected)
    if skip:
        return skip, skip
    calls = Calls("spyre")
    try:
        with calls:
            device = trial.on_device()
            out = trial.call(op.op, device)
            wrong = trial.compare(out, expected) or (_forms(trial, out, expected) if forms else None)
    except Exception as e:  # every failure is a row of the table
        return failure(e), Outcome("skip", "the forward pass fails")
    forward = wrong or Outcome("pass", "", frozenset(calls.seen | _named(op)))
    return forward, _backward(trial, (device, out), (host, expected))


def _named(op: Any) -> set[str]:
    """The aten operator that an OpInfo is about, which may be a composition that no dispatch mode sees."""
    return {op.aten_name} if hasattr(torch.ops.aten, op.aten_name or "-") else set()


def _forms(trial: Trial, out: Any, expected: Any) -> Outcome | None:
    """The in-place and the ``out=`` form of a sample, where the operator has them."""
    op, sample = trial.op, trial.sample
    alone = isinstance(expected, torch.Tensor) and isinstance(sample.input, torch.Tensor)
    in_place = op.inplace_variant
    with torch.no_grad():
        if in_place and alone and not sample.broadcasts_input and expected.shape == sample.input.shape:
            first, rest, keywords = trial.on_device()
            if first.dtype == out.dtype:
                result = in_place(first.detach().clone(), *rest, **keywords)
                wrong = trial.compare(result, expected, "in place: ")
                if wrong:
                    return wrong
        if op.supports_out and alone and isinstance(out, torch.Tensor):
            into = torch.empty_like(out)
            first, rest, keywords = trial.on_device()
            op.op(first, *rest, **keywords, out=into)
            return trial.compare(into, expected, "out=: ")
    return None


def _backward(trial: Trial, device: tuple[Any, Any], host: tuple[Any, Any]) -> Outcome:
    """Gradients of the device held to those of the host, for random cotangents."""
    process = trial.sample.output_process_fn_grad
    sides: list[Any] = []
    for arguments, result in (device, host):
        leaves = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
        results = [t for t in tree_leaves(process(result)) if isinstance(t, torch.Tensor)]
        sides.append((leaves, results))
    wanted = [i for i, t in enumerate(sides[1][1]) if t.requires_grad and t.grad_fn is not None]
    if not wanted or not sides[1][0]:
        return Outcome("skip", "nothing to differentiate")
    if not all(sides[0][1][i].requires_grad for i in wanted):
        return Outcome("wrong", "a result without a gradient function")
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(sides[1][1][i].shape, generator=generator).half() for i in wanted]
    grads: list[Any] = []
    calls = Calls("spyre")
    try:
        for (leaves, results), place in zip(sides, (placed, held), strict=True):
            chosen = [results[i] for i in wanted]
            seeds = [c.to(r.dtype) for c, r in zip(place(cotangents), chosen, strict=True)]
            with calls if place is placed else torch.enable_grad():
                grads.append(torch.autograd.grad(chosen, leaves, seeds, allow_unused=True))
    except Exception as e:  # every failure is a row of the table
        return failure(e)
    if [g is None for g in grads[0]] != [g is None for g in grads[1]]:
        return Outcome("wrong", "other arguments have gradients than on the host")
    return trial.compare(*([g for g in side if g is not None] for side in grads), "gradient: ") or Outcome(
        "pass", "", frozenset(calls.seen)
    )


def samples(op: Any, dtype: torch.dtype, count: int, differentiable: bool) -> list[Any]:
    """At most ``count`` samples of an operator, spread over those that PyTorch has."""
    torch.manual_seed(0)
    differentiable = differentiable and op.supports_autograd and dtype.is_floating_point
    found = [s for s, _ in zip(op.sample_inputs("cpu", dtype, requires_grad=differentiable), range(60), strict=False)]
    return found if len(found) <= count else [found[i * (len(found) - 1) // max(count - 1, 1)] for i in range(count)]


def run_op(name: str, variant: str, dtype_name: str, count: int, mode: str) -> list[Outcome]:
    """Outcomes of an operator: of its forward pass, and in eager mode of its backward pass."""
    dtype = getattr(torch, dtype_name)
    op = next(o for o in op_db if o.name == name and o.variant_test_name == variant)
    chosen = samples(op, dtype, count, mode == "eager")
    if mode == "compile":
        return [worst([compiled(op, s, dtype) for s in chosen])]
    pairs = [eager(op, s, dtype, forms=i == 0) for i, s in enumerate(chosen)]
    return [worst([p[i] for p in pairs]) for i in (0, 1)]
