"""Common operators, run once so that their programs are in the cache.

A key leaves sizes open, so one small call per operator, rank and dtype is enough. Backward operators come from
differentiating the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from . import compiler

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BINARY: dict[str, Call] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "add number": lambda a, b: a + 0.5,
    "mul number": lambda a, b: a * 0.5,
    "div number": lambda a, b: a / 3.0,
    "sub from number": lambda a, b: 1.5 - a,
    "add_": lambda a, b: a.clone().add_(b),
    "add last dim": lambda a, b: a + b[(0,) * (b.dim() - 1)],
    "mul last dim": lambda a, b: a * b[(0,) * (b.dim() - 1)],
}
UNARY: dict[str, Call] = {
    name: lambda a, b, name=name: getattr(torch, name)(a)  # type: ignore[misc]
    for name in ("neg", "abs", "exp", "sigmoid", "tanh", "relu", "rsqrt", "sqrt", "sin", "cos")
} | {"gelu": lambda a, b: F.gelu(a), "silu": lambda a, b: F.silu(a)}
ROWS: dict[str, Call] = {
    "softmax": lambda a, b: a.softmax(-1),
    "sum": lambda a, b: a.sum(-1),
    "mean": lambda a, b: a.mean(-1),
    "amax": lambda a, b: a.amax(-1),
    "mean of squares": lambda a, b: a.pow(2).mean(-1, keepdim=True),
}
MATRIX: dict[str, Call] = {
    "matmul": lambda a, b: a @ b.transpose(-1, -2),
    "linear": lambda a, b: F.linear(a, b.reshape(-1, b.shape[-1])[:7]),
    "layer_norm": lambda a, b: F.layer_norm(a, a.shape[-1:], b[(0,) * (b.dim() - 1)], b[(1,) + (0,) * (b.dim() - 2)]),
}
SHAPES = ((6,), (5, 6), (2, 5, 6), (3, 2, 5, 6))


@dataclass(frozen=True)
class Warmed:
    """One call: how many programs were compiled for it, and what of it ran on the CPU."""

    name: str
    compiled: int
    fallbacks: tuple[str, ...]


def run(dtypes: tuple[torch.dtype, ...], backward: bool, match: str = "") -> Iterator[Warmed]:
    """Run the common operators in the given dtypes whose label contains ``match``; yields after each."""
    for dtype in dtypes:
        for shape in SHAPES:
            calls = BINARY | UNARY | ROWS | (MATRIX if len(shape) > 1 else {})
            for name, call in calls.items():
                label = f"{name} of rank {len(shape)}, {str(dtype).removeprefix('torch.')}"
                if match not in label:
                    continue
                before = compiler.counts.compiled
                torch.spyre.reset_fallbacks()  # type: ignore[attr-defined]
                a, b = (torch.rand(shape).add(0.5).to(dtype).to("spyre").requires_grad_(backward) for _ in range(2))
                result = call(a, b)
                if backward and result.requires_grad:
                    result.backward(torch.ones_like(result))
                fell = tuple(sorted(torch.spyre.fallbacks()))  # type: ignore[attr-defined]
                yield Warmed(label, compiler.counts.compiled - before, fell)
