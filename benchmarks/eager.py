"""Eager operators: host time per call, and what a training step launches in strict and in fused mode.

First table: microseconds until a call returns, on ``spyre`` in strict mode and on torch CPU in the same run (best of
several rounds, the queue empty before each). Second table: a training step of an MLP and of a transformer block in both
modes: op programs and graphs compiled in the first two steps and in later ones; launches, kernels in them, fallbacks
and modelled device time of a later step; and the largest difference of a parameter from float32 on the host, relative
to the largest parameter. Below it the ratios, and how far apart the parameters of the two modes are.
Run: ``python benchmarks/eager.py [--calls 200]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from host_time import per_call
from torch import nn

import torch_loom  # noqa: F401  registers the device
from torch_loom import _device, arch
from torch_loom.eager import compiler


def operators(device: str) -> dict[str, Callable[[], object]]:
    """The calls of the first table."""
    x, y = (torch.randn(64, 64).half().to(device) for _ in range(2))
    return {
        "add": lambda: x + y,
        "mul by a number": lambda: x * 1.5,
        "matmul 64x64": lambda: x @ y,
        "softmax": lambda: x.softmax(-1),
        "layer_norm": lambda: F.layer_norm(x, (64,)),
        "add_": lambda: x.add_(y),
        "copy_": lambda: x.copy_(y),
        "view": lambda: x.view(-1),
    }


class Block(nn.Module):
    """A transformer block of width 64 with 4 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(2))
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, 4, 16).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * 0.25).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, n, 64))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Forward, backward and an SGD update."""
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(p.grad, alpha=0.05)
            p.grad = None


STEPS = 4


class Run:
    """A model trained for some steps on the device in one mode."""

    def __init__(self, make: Callable[[], nn.Module], shape: tuple[int, ...], out: int, mode: str, dtype: torch.dtype):
        torch.manual_seed(0)
        self.model = make().to(dtype).to("spyre")
        self.inputs = [t.to(dtype).to("spyre") for t in (torch.randn(*shape), torch.randn(*shape[:-1], out))]
        self.start = [p.detach().cpu().float() for p in self.model.parameters()]
        with torch.spyre.use_eager_mode(mode):
            before = self.counts()
            for _ in range(2):
                self.step()
            self.first = [b - a for a, b in zip(before, self.counts(), strict=True)]
            before = self.counts()
            for _ in range(STEPS - 3):
                self.step()
            _device.set_clock(arch.load("spyre").clock_params())
            begin, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
            begin.record()
            last = self.counts()
            self.step()
            end.record()
            torch.spyre.synchronize()
            _device.set_clock({})
            after = self.counts()
        self.later = [b - a for a, b in zip(before, after, strict=True)]
        self.last = [b - a for a, b in zip(last, after, strict=True)]
        self.modelled_us = begin.modelled_time(end) * 1000
        self.parameters = [p.detach().cpu().float() for p in self.model.parameters()]

    def step(self) -> None:
        step(self.model, *self.inputs)
        torch.spyre.synchronize()

    @staticmethod
    def counts() -> list[int]:
        native = _device.eager_counts()
        fallbacks = sum(torch.spyre.fallbacks().values())
        return [compiler.counts.compiled, compiler.counts.graphs, native["launches"], native["kernels"], fallbacks]

    def row(self, name: str, host: list[torch.Tensor]) -> list[str]:
        """Its row of the second table."""
        return [
            name,
            "{}+{}".format(*self.first[:2]),
            "{}+{}".format(*self.later[:2]),
            *(str(n) for n in self.last[2:]),
            f"{self.modelled_us:.1f}",
            f"{difference(self.parameters, host):.1e}",
        ]


def difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """Largest difference of two sets of parameters, relative to the largest value of each."""
    return max(((x - y).abs().max() / y.abs().max()).item() for x, y in zip(a, b, strict=True))


def on_host(make: Callable[[], nn.Module], run: Run) -> list[torch.Tensor]:
    """The parameters after the same steps on the host in float32."""
    model = make()
    with torch.no_grad():
        for p, value in zip(model.parameters(), run.start, strict=True):
            p.copy_(value)
    inputs = [t.cpu().float() for t in run.inputs]
    for _ in range(STEPS):
        step(model, *inputs)
    return [p.detach() for p in model.parameters()]


def training(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], out: int) -> tuple[list[list[str]], str]:
    """The rows of a model, and a line that compares the modes."""
    half = {mode: Run(make, shape, out, mode, torch.float16) for mode in ("strict", "fused")}
    whole = {mode: Run(make, shape, out, mode, torch.float32) for mode in ("strict", "fused")}
    rows = [run.row(f"{name}, {mode}", on_host(make, run)) for mode, run in half.items()]
    strict, fused = half["strict"], half["fused"]
    apart = difference(fused.parameters, strict.parameters)
    exact = difference(whole["fused"].parameters, whole["strict"].parameters)
    fewer = [a / b for a, b in zip(strict.last[2:4], fused.last[2:4], strict=True)]
    line = (
        f"{name}: {fewer[0]:.1f}x fewer launches, {fewer[1]:.1f}x fewer kernels, "
        f"modelled time {strict.modelled_us / fused.modelled_us:.2f}x better; "
        f"modes differ by {apart:.1e} in float16, {exact:.1e} in float32"
    )
    return rows, line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200, help="calls in a row (fewer than fit in flight)")
    calls = parser.parse_args().calls
    print(f"{'us until return':20}{'spyre':>10}{'cpu':>10}")
    host = operators("cpu")
    for name, work in operators("spyre").items():
        print(f"{name:20}{per_call(work, calls):>10.1f}{per_call(host[name], calls):>10.1f}")
    models: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], int]] = [
        ("MLP 32-64-8", lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), (16, 32), 8),
        ("block of width 64", Block, (2, 16, 64), 64),
    ]
    results = [training(*model) for model in models]
    titles = ["training step", "compiled", "later", "launches", "kernels", "fallbacks", "modelled us", "error"]
    print("\n" + f"{titles[0]:28}" + "".join(f"{t:>12}" for t in titles[1:]))
    for row in (row for rows, _ in results for row in rows):
        print(f"{row[0]:28}" + "".join(f"{t:>12}" for t in row[1:]))
    for _, line in results:
        print(line)


if __name__ == "__main__":
    main()
