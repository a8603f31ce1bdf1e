"""Random programs of views and writes: the device ends in the same state as the host, element for element.

Values are float32 and operators round as IEEE does, so results must be equal. A step that the host refuses must be
refused by the device, and leave everything as it was; some programs end with a backward pass. Longer runs:
``LOOM_PROGRAMS=20000 pytest tests/eager/test_eager_mutation.py``, from the program number ``LOOM_FIRST`` on.
"""

import os
import random

import pytest
import torch
from reference_target import ReferenceTarget, installed, patience

FIRST = int(os.environ.get("LOOM_FIRST", "0"))
PROGRAMS = int(os.environ.get("LOOM_PROGRAMS", "15"))
STEPS = 12


def strided(rng, elements):
    """A view of single elements of a storage: dims interleave, but no element is seen twice."""
    dims, span = [], 0
    offset = rng.randrange(elements)
    for _ in range(rng.randint(1, 2)):
        stride = rng.randint(span + 1, span + 3)
        size = rng.randint(1, max(1, min(4, 1 + (elements - 1 - offset - span) // stride)))
        dims.append((size, stride))
        span += (size - 1) * stride
    rng.shuffle(dims)
    sizes, strides = zip(*dims, strict=True)
    return lambda x: x.as_strided(sizes, strides, offset)


def view(rng, t):
    """A random view, as a function to apply on either side."""
    kinds = ["detach", "as_strided"]
    if t.dim():
        kinds += ["narrow", "step", "select", "unbind"] if max(t.shape) > 2 else ["select"]
        kinds.append("expand")
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
    if kind == "expand":
        return lambda x: x.unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:])
    if kind == "as_strided":
        return strided(rng, t.untyped_storage().nbytes() // t.itemsize)
    return (lambda x: x.view(-1)) if kind == "flat" else (lambda x: x.detach())


def places(t):
    """Places of the storage that a tensor sees."""
    count = t.untyped_storage().nbytes() // t.itemsize
    return torch.arange(count).as_strided(t.shape, t.stride(), t.storage_offset()).flatten().tolist()


def dense(seen):
    """Does a tensor see each of its places once, without gaps?"""
    return len(seen) == len(set(seen)) == max(seen) - min(seen) + 1


def defined(target, source):
    """Does the host say what becomes of ``target`` when it is computed from ``source``?

    Where the two overlap but are not the same, the host refuses dense tensors only; for others the result depends on
    the order in which it goes through the elements."""
    if target.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
        return True
    a, b = places(target), places(source)
    return a == b or not set(a) & set(b) or (dense(a) and dense(b))


def write(rng, tensors):
    """A random write into one of ``tensors``, as a function of the list."""
    i, number = rng.randrange(len(tensors)), rng.choice([0.5, -2.0, 3.0])
    same = [j for j, t in enumerate(tensors) if t.shape == tensors[i].shape]
    source = rng.choice([j for j in same if defined(tensors[i], tensors[j])])
    every_other = rng.choice([j for j in same if not tensors[i].dim() or defined(tensors[i][::2], tensors[j][::2])])
    j = rng.choice(same)
    return rng.choice(
        [
            lambda ts: ts[i].add_(number),
            lambda ts: ts[i].mul_(ts[source]),
            lambda ts: ts[i].sub_(ts[source]),
            lambda ts: ts[i].copy_(ts[source]),
            lambda ts: ts[i].neg_(),
            lambda ts: ts[i].fill_(number),
            lambda ts: ts[i].clamp_(-4, 4),
            lambda ts: torch.add(ts[i], ts[source], out=ts[i]),
            lambda ts: ts[i].expand(2, *ts[i].shape).add_(1),
            lambda ts: ts.append(ts[i] + ts[j]),
            lambda ts: ts.append(ts[i].relu()),
            lambda ts: ts.append(ts[i].clone()),
            lambda ts: ts.append(ts[i].amax(-1) if ts[i].dim() else ts[i] * number),
            lambda ts: ts[i].masked_fill_(ts[i] > 0, number),
            lambda ts: ts[i].__setitem__(0, number) if ts[i].dim() else ts[i].zero_(),
            lambda ts: ts[i].__setitem__(slice(None, None, 2), ts[every_other][::2]) if ts[i].dim() else ts[i].neg_(),
            lambda ts: ts[i].set_(ts[j]),
            lambda ts: ts[i].set_(ts[j].untyped_storage(), 0, [1], [1]),
            lambda ts: ts.append(torch.empty_like(ts[i]).copy_(ts[j])),
        ]
    )


def attempt(step, tensors):
    """Did the step succeed?"""
    try:
        step(tensors)
    except RuntimeError:
        return False
    return True


def differentiate(rng, host, device):
    """Use two values in a product with a parameter, perhaps change one of them, and go back."""
    i, j = (rng.randrange(len(host)) for _ in range(2))
    spoil, view = rng.random() < 0.3, rng.random() < 0.5

    def run(tensors):
        parameter = (tensors[i].detach() * 0.5).requires_grad_()
        changed = parameter.clone()
        (changed.view_as(changed) if view else changed).mul_(2)
        product = changed * tensors[i].detach() + changed * changed
        if spoil:
            tensors[i].add_(1) if i == j else changed.detach().add_(1)
        product.sum().backward()
        tensors.append(parameter.grad)

    return run


def geometry(t):
    """Where a tensor's elements lie; the stride of a dim of size 1 says nothing about that."""
    return t.shape, [step for n, step in zip(t.shape, t.stride(), strict=True) if n > 1], t.storage_offset()


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
        assert attempt(step, host) == attempt(step, device), seed
        assert len(host) == len(device)
    if rng.random() < 0.2:
        step = differentiate(rng, host, device)
        assert attempt(step, host) == attempt(step, device), seed
    for n, (a, b) in enumerate(zip(host, device, strict=True)):
        assert torch.equal(a, b.cpu()), (seed, n)
        assert geometry(a) == geometry(b), (seed, n)
        assert a._version == b._version, (seed, n)


def run_programs():
    for seed in range(FIRST, FIRST + PROGRAMS):
        run_program(seed)


@pytest.mark.parametrize("mode", ["strict", "debug", "fused", "host"])
def test_random_programs_end_as_on_the_host(mode):
    with torch.spyre.use_eager_mode(mode):
        run_programs()


def test_random_programs_end_as_on_the_host_when_every_graph_is_one_program(tmp_path):
    with installed(ReferenceTarget(tmp_path)), patience(0), torch.spyre.use_eager_mode("fused"):
        run_programs()
