"""Random operators: seeds come from the card's generator, numbers are made in the kernels that use them."""

from __future__ import annotations

from typing import Any

import torch

from .. import random  # noqa: F401  (registers spyre::seeds)
from . import expands

aten, prims = torch.ops.aten, torch.ops.prims


@expands(prims.inductor_seeds.default)
def seeds(count: int, device: torch.device) -> torch.Tensor:
    """Seeds of a graph."""
    return torch.ops.spyre.seeds(count, device)


def _uniform(shape: Any, device: torch.device) -> torch.Tensor:
    """Float32 in [0, 1)."""
    return prims.inductor_random(list(shape), torch.ops.spyre.seeds(1, device)[0], "rand")


@expands(aten.multinomial.default)
def multinomial(p: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> torch.Tensor:
    """Draws of the last dim with probabilities in proportion to p: the largest of p / exponential variables."""
    if replacement:
        edges = p.float().cumsum(-1)
        at = _uniform([*p.shape[:-1], num_samples], p.device) * edges[..., -1:]
        return torch.searchsorted(edges, at.contiguous(), right=True).clamp(max=p.shape[-1] - 1)
    waits = -torch.log(1.0 - _uniform(p.shape, p.device))
    return torch.topk(p.float() / waits.clamp(min=1e-30), num_samples, -1)[1]
