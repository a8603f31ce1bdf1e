"""Counting the tokens of each expert and products grouped by expert, on the device against a loop on the host."""

import pytest
import torch
from helpers import check, half


@pytest.mark.parametrize("experts", [2, 4, 33])
def test_tokens_of_each_expert_are_counted(experts):
    ids = torch.randint(0, experts, (150,), generator=torch.Generator().manual_seed(experts))
    counted = check(lambda ids: torch.histc(ids.float(), bins=experts, min=0, max=experts - 1).to(torch.int32), ids)
    assert counted.tolist() == ids.bincount(minlength=experts).tolist()


def test_rows_are_multiplied_with_the_weights_of_their_group():
    transformers = pytest.importorskip("transformers.integrations.moe")
    rows, weights = half(50, 40), half(4, 40, 70, scale=0.2)
    ends = torch.tensor([7, 7, 30, 50], dtype=torch.int32)  # the second group has no rows
    assert transformers is not None
    check(
        lambda rows, weights, ends: torch.ops.transformers.grouped_mm_fallback(rows, weights, offs=ends),
        rows,
        weights,
        ends,
        absolute=1e-3,
    )
