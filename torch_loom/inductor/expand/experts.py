"""Mixture of experts: counting the tokens of each expert, and products whose weights depend on the row.

A grouped product multiplies each row with the weights of its group; rows are sorted by group. Which rows those are is
known only on the device, so every group is multiplied with all rows and each row keeps its own: exact, without a
word to the host, at the price of (groups / groups of a token) times the products.
"""

from __future__ import annotations

from typing import Any

import torch

from . import expands

aten = torch.ops.aten


@expands(aten.histc.default)
def _histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Counts of values in ``bins`` equal parts of [min, max]; the last part includes its end."""
    if min == max:  # the range of the data is not known before it runs
        return NotImplemented  # type: ignore[no-any-return]
    flat = x.reshape(-1).float()
    place = ((flat - min) * (bins / (max - min))).floor().clamp(max=bins - 1).to(torch.int32)
    place = torch.where((flat >= min) & (flat <= max), place, -1)
    at = torch.arange(bins, device=x.device, dtype=torch.int32)
    return (place.unsqueeze(0) == at.unsqueeze(1)).sum(1).to(x.dtype)


@expands("transformers::grouped_mm_fallback", aten._grouped_mm.default)
def _grouped_mm(
    rows: torch.Tensor,
    weights: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: Any = None,
) -> torch.Tensor:
    """rows[s] @ weights[g] for offs[g - 1] <= s < offs[g]; rows behind the last group are zero.

    ``rows`` is [rows, k], ``weights`` [groups, k, n], ``offs`` [groups] where each group ends."""
    if offs is None or bias is not None or rows.dim() != 2 or weights.dim() != 3:
        return NotImplemented  # type: ignore[no-any-return]
    groups, count = weights.shape[0], rows.shape[0]
    products = torch.bmm(rows.unsqueeze(0).expand(groups, count, rows.shape[1]), weights)
    at = torch.arange(count, device=rows.device, dtype=torch.int32)
    owner = (offs.unsqueeze(1) <= at.unsqueeze(0)).sum(0)
    mine = owner.unsqueeze(0) == torch.arange(groups, device=rows.device).unsqueeze(1)
    out = torch.where(mine.unsqueeze(-1), products, 0).sum(0)
    return out.to(out_dtype or rows.dtype)
