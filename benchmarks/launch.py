"""Host time of a launch, and what preparing plans once gives.

First table: ten tensors and four sizes, measured until the call returns. The kernel does nothing (its size argument is
0), so that what is left is the launch path: arguments, value table, queue. Rows: the call from Python, the same work
inside C++, torch CPU's dispatch of a one-element ``add`` in the same run, and a launch that prepares its plan anew.

Second table: a prefill and a decode step of a small Llama (random weights) under ``torch.compile``, with its plans
prepared once and, in a mode that exists only here, with each plan built anew at every launch: the package is read,
parsed, loaded and decoded, and jobs are checked and put together; places of buffers stay as they were chosen. Host time
ends when the step's call returns, with the device still at work; wall time ends when the simulated device is done, so
it is mostly the simulator's own time.
Run: ``python benchmarks/launch.py [--launches 200] [--rounds 10]``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import torch_loom  # noqa: F401  registers the device
from torch_loom import _device
from torch_loom.inductor.job import LoomJob
from torch_loom.inductor.runtime import LoomKernel
from torch_loom.integrations.huggingface import zoo
from torch_loom.integrations.huggingface.zoo_run import static_cache

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "device"))
import programs
from host_time import per_call

PROMPT, BATCH = 128, 1


@contextlib.contextmanager
def plans_built_anew() -> Iterator[None]:
    """Every launch of a compiled graph builds its plan first."""
    kernel_call, job_call = LoomKernel.__call__, LoomJob.__call__
    places: dict[Any, Any] = {}

    def build(kernel: LoomKernel) -> None:
        kernel.plan = _device.prepare(str(kernel.record.spyrecode_dir), kernel.name)

    def launch_kernel(kernel: LoomKernel, *args: Any) -> None:
        build(kernel)
        kernel_call(kernel, *args)

    def launch_job(
        job: LoomJob, tensors: Sequence[torch.Tensor], numbers: Sequence[Any], sizes: tuple[int, ...]
    ) -> None:
        if (job, sizes) not in places:
            places[job, sizes] = job._placed(numbers, sizes)[0]
        layout = places[job, sizes]
        for kernel, _ in job.steps:
            build(kernel)
        steps = [(kernel.plan, list(arguments)) for kernel, arguments in job.steps]
        job.known[sizes] = (_device.Job(steps, list(layout.places), layout.pool_bytes), layout.pool_bytes)
        job_call(job, tensors, numbers, sizes)

    with mock.patch.object(LoomKernel, "__call__", launch_kernel), mock.patch.object(LoomJob, "__call__", launch_job):
        yield


@dataclass
class Times:
    """Milliseconds of a step, one entry for each time it ran."""

    host: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def add(self, step: Callable[[], object]) -> None:
        torch.spyre.synchronize()
        start = time.perf_counter()
        step()
        back = time.perf_counter()
        torch.spyre.synchronize()
        self.host.append((back - start) * 1e3)
        self.wall.append((time.perf_counter() - start) * 1e3)


class Steps:
    """Prefill and decode of a small Llama with a static cache, on the device and compiled."""

    def __init__(self, decodes: int) -> None:
        self.model = copy.deepcopy(zoo.build(zoo.member("Llama 3"))).half().to("spyre")
        self.compiled = torch.compile(self.model)
        self.prompt = torch.randint(3, zoo.VOCABULARY, (BATCH, PROMPT)).to("spyre")
        self.token = self.prompt[:, :1].clone()
        self.capacity = PROMPT + decodes

    def run(self, prefill: Times, decode: Times) -> None:
        """One prefill, then decode steps until the cache is full."""
        cache = static_cache(self.model, BATCH, self.capacity)
        prefill.add(lambda: self.step(self.prompt, cache))
        for _ in range(self.capacity - PROMPT):
            decode.add(lambda: self.step(self.token, cache))

    def step(self, ids: torch.Tensor, cache: Any) -> object:
        """One step over ``ids`` [batch, tokens]."""
        return self.compiled(input_ids=ids, past_key_values=cache, use_cache=True)


def launches_of(step: Callable[[], object]) -> int:
    """Launches that a step makes."""
    torch.spyre.synchronize()
    _device.clear_launch_log()
    _device.enable_launch_log(True)
    try:
        step()
        torch.spyre.synchronize()
        return len(_device.launch_log())
    finally:
        _device.enable_launch_log(False)


def model_steps(rounds: int) -> None:
    """Print the table of a model's steps."""
    decodes = 8
    steps = Steps(decodes)
    with torch.no_grad():
        steps.run(Times(), Times())  # compiles
        cache = static_cache(steps.model, BATCH, steps.capacity)
        counts = [launches_of(lambda ids=ids: steps.step(ids, cache)) for ids in (steps.prompt, steps.token)]
        once, anew = (Times(), Times()), (Times(), Times())
        for _ in range(rounds):  # in turns, so that both meet the same load of the machine
            steps.run(*once)
            with plans_built_anew():
                steps.run(*anew)
    print(f"\nLlama of {zoo.LAYERS} layers, hidden size {zoo.HIDDEN}, random weights, torch.compile; medians, ms")
    print(f"{'step':30}{'launches':>10}{'prepared once':>16}{'at each launch':>16}{'ratio':>8}")
    for name, count, a, b in zip(
        (f"prefill of {PROMPT} tokens", "decode of one token"), counts, once, anew, strict=True
    ):
        for what in ("host", "wall"):
            first, second = statistics.median(getattr(a, what)), statistics.median(getattr(b, what))
            print(f"{name + ', ' + what:30}{count:>10}{first:>16.2f}{second:>16.2f}{second / first:>7.1f}x")
    print("host: until the call returns; wall: until the simulated device is done, on host threads of the same machine")
    print("(published for the card, end to end, for Granite 3.3 8B: 1.7x in prefill, 2.4x in decode)")


def one_launch(calls: int) -> None:
    """Print the table of one launch."""
    image = programs.scale(buffers=10, ints=4)
    plan = _device.prepare(image)
    tensors = [torch.zeros(64, 64, dtype=torch.float16, device="spyre") for _ in range(10)]
    args = [*tensors, 0, 1, 2, 3, 1.0]
    one, two = torch.ones(1), torch.ones(1)
    rows = [
        ("launch from Python, list of arguments", per_call(lambda: plan.launch(args), calls)),
        ("launch from Python, call", per_call(lambda: plan(*args), calls)),
        ("launch in C++", _device.measure_launch(plan, args, calls)),
        ("torch CPU add of one element", per_call(lambda: torch.add(one, two), calls)),
        ("prepare and launch", per_call(lambda: _device.prepare(image).launch(args), max(calls // 10, 1))),
    ]
    torch.spyre.synchronize()
    print(f"{'us until return':44}{'us':>10}")
    for name, us in rows:
        print(f"{name:44}{us:>10.2f}")
    print(f"preparing once: {rows[-1][1] / rows[0][1]:.1f}x at the launch of one kernel")
    _device.set_blocking(True)
    done = per_call(lambda: plan.launch(args), calls)
    _device.set_blocking(False)
    print(f"{'launch and execute an empty kernel':44}{done:>10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=200, help="launches in a row (fewer than fit in flight)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of model steps; 0 leaves them out")
    options = parser.parse_args()
    one_launch(options.launches)
    if options.rounds:
        model_steps(options.rounds)


if __name__ == "__main__":
    main()
