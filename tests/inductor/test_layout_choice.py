"""Layouts of buffers between kernels: what is proposed, how it is solved and judged, and that values stay right."""

import itertools
import math
import random

import pytest
import sympy
import torch
from helpers import close, half

from torch_loom import arch
from torch_loom.inductor import config, layout_cost
from torch_loom.inductor.access import rows_of
from torch_loom.inductor.layouts import Factor, _improve, candidates, judged, solve
from torch_loom.profiler import launch_rows, recorded_launches


def test_a_short_innermost_dim_gets_runs_that_waste_less():
    # 12 heads of 32 lanes: alone they fill half a stick, together six.
    assert candidates([8, 128, 12, 32], [True] * 4, 64)[0] == (3, 4)
    assert (2, 4) in candidates([8, 128, 12, 32], [True] * 4, 64)
    assert (2, 4) not in candidates([8, 128, 12, 32], [True, True, False, True], 64)


@pytest.mark.parametrize("run", [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)])
def test_every_element_has_its_own_place_in_rows_along_the_run(run):
    sizes, strides = (3, 5, 70), (350, 70, 1)
    dims = [(sympy.Integer(s), sympy.Integer(t)) for s, t in zip(sizes, strides, strict=True)]
    found = rows_of(dims, run, 64)
    lanes = math.prod(sizes[run[0] : run[1]])
    pitch = -(-lanes // 64) * 64
    places = set()
    for i, j, k in itertools.product(*map(range, sizes)):
        rest, at = 350 * i + 70 * j + k, 0
        for h in sorted(found, key=lambda h: -int(h.host_stride)):
            at += rest // int(h.host_stride) * int(h.device_stride)
            rest %= int(h.host_stride)
        index = (i, j, k)
        lane = row = 0
        for d in range(3):
            if run[0] <= d < run[1]:
                lane = lane * sizes[d] + index[d]
            else:
                row = row * sizes[d] + index[d]
        assert at == row * pitch + lane
        places.add(at)
    assert len(places) == math.prod(sizes)


def problem(seed, chain):
    """Random costs of kernels in a chain of buffers, or over any three of them."""
    draw = random.Random(seed)
    names = [f"b{i}" for i in range(6)]
    options = {n: [(i, i + 1) for i in range(draw.randint(2, 4))] for n in names}
    groups = [names[i : i + 2] for i in range(5)] if chain else [draw.sample(names, 3) for _ in range(6)]
    factors = []
    for group in groups:
        table = {k: draw.random() for k in itertools.product(*(options[n] for n in group))}
        factors.append(Factor(tuple(group), lambda c, g=group, t=table: t[tuple(c[n] for n in g)]))
    return options, factors


def total(choice, factors):
    return sum(f.cost(choice) for f in factors)


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_the_cheapest_of_all(seed, chain):
    options, factors = problem(seed, chain)
    every = (dict(zip(options, runs, strict=True)) for runs in itertools.product(*options.values()))
    least = min(total(choice, factors) for choice in every)
    assert total(solve(options, factors), factors) == pytest.approx(least)
    default = {n: runs[0] for n, runs in options.items()}
    assert total(_improve(options, factors), factors) <= total(default, factors)


def test_the_clock_keeps_only_what_is_faster():
    def time(steps, choice):
        return 100.0 * len(steps) - 30 * ("a" in choice) + 50 * ("b" in choice) - 40 * ("c" in choice and 9 in steps)

    users = {"a": [0, 1], "b": [1, 2], "c": [8, 9]}
    assert judged(dict.fromkeys(users, (0, 1)), users, 10, time) == {"a": (0, 1), "c": (0, 1)}
    assert judged({"b": (0, 1)}, users, 10, time) == {}


def transposed(x, w):
    return torch.softmax((x @ w).t() * 4, -1)


def modelled_us(run, *args):
    with recorded_launches() as records:
        out = run(*args)
    torch.spyre.synchronize()
    return out.cpu(), sum(r.modelled_us for r in launch_rows(records, arch.load("spyre")))


def test_a_product_lies_as_its_reader_goes_over_it():
    x, w = (half(512, 512, seed=seed, scale=0.1) for seed in (1, 2))
    args = x.to("spyre"), w.to("spyre")
    times = []
    with torch.no_grad():
        for choice in (True, False):
            with config.patch(layout_choice=choice):
                torch._dynamo.reset()
                run = torch.compile(transposed, dynamic=False)
                run(*args)
                out, us = modelled_us(run, *args)
            close(out, transposed(args[0].cpu().float(), args[1].cpu().float()), 6, 2e-4)
            times.append(us)
    assert times[0] < times[1]


def windows(x, w):
    y = torch.relu(torch.nn.functional.conv2d(x, w, padding=1))
    return torch.softmax(y, 1).permute(0, 2, 3, 1) * 2


def permuted(x, w):
    return torch.softmax((torch.softmax(x, -1).permute(0, 2, 1).cumsum(1) @ w) * 0.1, 1)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [(windows, [(2, 5, 9, 11), (6, 5, 3, 3)]), (permuted, [(3, 40, 24), (40, 48)]), (transposed, [(70, 33), (33, 90)])],
)
def test_values_do_not_depend_on_layouts(fn, shapes, monkeypatch):
    """Every buffer takes the last of its candidates, whatever it costs."""
    taken = {}

    def everything(wanted, users, kernels, time):
        taken.update(wanted)
        return dict(wanted)

    monkeypatch.setattr(layout_cost, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(layout_cost, "solve", lambda options, factors: {b: runs[-1] for b, runs in options.items()})
    monkeypatch.setattr(layout_cost, "with_gain", lambda choice, options, factors: choice)
    monkeypatch.setattr(layout_cost, "judged", everything)
    args = [half(*s, seed=i, scale=0.3).to("spyre") for i, s in enumerate(shapes)]
    torch._dynamo.reset()
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
        out = torch.compile(fn, dynamic=False)(*args).cpu()
    assert taken
    close(out, fn(*(a.cpu().float() for a in args)), 8, 4e-3)
