"""Random programs of views and writes: the device ends in the same state as the host, element for element.

Values are float32 and operators round as IEEE does, so results must be equal. A step that the host refuses must be
refused by the device, and leave everything as it was. Longer runs: ``LOOM_PROGRAMS=20000 pytest tests/eager/...``.
"""

import os
import random

import pytest
import torch

PROGRAMS = int(os.environ.get("LOOM_PROGRAMS", "40"))
STEPS = 12


def view(rng, t):
    """A random view, as a function to apply on either side."""
    kinds = ["detach"]
    if t.dim():
        kinds += ["narrow", "step", "select", "unbind"] if max(t.shape) > 2 else ["select"]
    if t.dim() > 1:
        kinds += ["transpose", "transpose", "diagonal"]
    if t.is_contiguous() and t.dim() > 1:
        kinds.append("flat")
    kind, d = rng.choice(kinds), rng.randrange(max(t.dim(), 1))
    if kind == "narrow" and t.shape[d] > 2:
        start = rng.randrange(t.shape[d] - 1)
        length = rng.randrange(2, t.shape[d] - start + 1)
        return lambda x: x.narrow(d, start, length)
    if kind == "step" and t.shape[d] > 2:
        return lambda x: x[(slice(None),) * d + (slice(None, None, 2),)]
    if kind in ("select", "unbind"):
        at = rng.randrange(t.shape[d])
        return (lambda x: x.select(d, at)) if kind == "select" else (lambda x: x.unbind(d)[at])
    if kind == "transpose":
        e = rng.randrange(t.dim())
        return lambda x: x.transpose(d, e)
    if kind == "diagonal":
        return lambda x: x.diagonal()
    return (lambda x: x.view(-1)) if kind == "flat" else (lambda x: x.detach())


def write(rng, tensors):
    """A random write into one of ``tensors``, as a function of the list."""
    i, number = rng.randrange(len(tensors)), rng.choice([0.5, -2.0, 3.0])
    same = [j for j, t in enumerate(tensors) if t.shape == tensors[i].shape]
    j = rng.choice(same)
    return rng.choice(
        [
            lambda ts: ts[i].add_(number),
            lambda ts: ts[i].mul_(ts[j]),
            lambda ts: ts[i].sub_(ts[j]),
            lambda ts: ts[i].copy_(ts[j]),
            lambda ts: ts[i].neg_(),
            lambda ts: ts[i].fill_(number),
            lambda ts: ts[i].clamp_(-4, 4),
            lambda ts: torch.add(ts[i], ts[j], out=ts[i]),
            lambda ts: ts[i].expand(2, *ts[i].shape).add_(1),
            lambda ts: ts.append(ts[i] + ts[j]),
            lambda ts: ts.append(ts[i].relu()),
            lambda ts: ts.append(ts[i].clone()),
        ]
    )


def attempt(step, tensors):
    """The error's type, None when the step succeeds."""
    try:
        step(tensors)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def run_program(seed):
    rng = random.Random(seed)
    shape = [rng.choice([2, 3, 5]) for _ in range(rng.randint(1, 3))]
    base = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) % 7 - 3
    host, device = [base.clone()], [base.to("spyre")]
    for _ in range(STEPS):
        if rng.random() < 0.5:
            i = rng.randrange(len(host))
            step = view(rng, host[i])
            host.append(step(host[i])), device.append(step(device[i]))
            continue
        step = write(rng, host)
        assert (attempt(step, host) is None) == (attempt(step, device) is None), seed
        assert len(host) == len(device)
    for n, (a, b) in enumerate(zip(host, device, strict=True)):
        assert torch.equal(a, b.cpu()), (seed, n)
        assert (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset()), (seed, n)
        assert a._version == b._version, (seed, n)


@pytest.mark.parametrize("mode", ["strict", "debug", "host"])
def test_random_programs_end_as_on_the_host(mode):
    with torch.spyre.use_eager_mode(mode):
        for seed in range(PROGRAMS):
            run_program(seed)
