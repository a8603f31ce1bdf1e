"""Eager operators: host time per call, and what a training step launches.

First table: microseconds until a call returns, on ``spyre`` in strict mode and on torch CPU in the same run (best of
several rounds, the queue empty before each). Second table: a training step of an MLP and of a transformer block:
operators compiled in the first step, in later steps, launches, fallbacks and modelled device time of a step, and
the largest difference of a parameter from float32 on the host, relative to the largest parameter.
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


def training(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], out: int) -> list[str]:
    """A row of the second table."""
    torch.manual_seed(0)
    host = make()
    x, y = torch.randn(*shape), torch.randn(*shape[:-1], out)
    torch.manual_seed(0)
    device = make().half().to("spyre")
    host.load_state_dict({k: v.cpu().float() for k, v in device.state_dict().items()})
    inputs = [t.half().to("spyre") for t in (x, y)]
    references = [t.cpu().float() for t in inputs]

    def counts() -> tuple[int, int, int]:
        return compiler.counts.compiled, _device.eager_counts()["launches"], sum(torch.spyre.fallbacks().values())

    before = counts()
    step(device, *inputs)
    first = counts()
    _device.set_clock(arch.load("spyre").clock_params())
    start, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
    start.record()
    step(device, *inputs)
    end.record()
    torch.spyre.synchronize()
    _device.set_clock({})
    second = counts()
    for _ in range(2):
        step(host, *references)
    pairs = zip(device.parameters(), host.parameters(), strict=True)
    error = max(((a.detach().cpu().float() - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    modelled = start.modelled_time(end)
    return [
        name,
        str(first[0] - before[0]),
        str(second[0] - first[0]),
        str(second[1] - first[1]),
        str(second[2] - first[2]),
        f"{modelled * 1000:.1f}",
        f"{error:.1e}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200, help="calls in a row (fewer than fit in flight)")
    calls = parser.parse_args().calls
    print(f"{'us until return':20}{'spyre':>10}{'cpu':>10}")
    host = operators("cpu")
    for name, work in operators("spyre").items():
        print(f"{name:20}{per_call(work, calls):>10.1f}{per_call(host[name], calls):>10.1f}")
    rows = [
        training("MLP 32-64-8", lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), (16, 32), 8),
        training("transformer block", Block, (2, 16, 64), 64),
    ]
    titles = ["training step", "compiled", "later", "launches", "fallbacks", "modelled us", "error"]
    print("\n" + f"{titles[0]:20}" + "".join(f"{t:>12}" for t in titles[1:]))
    for row in rows:
        print(f"{row[0]:20}" + "".join(f"{t:>12}" for t in row[1:]))


if __name__ == "__main__":
    main()
