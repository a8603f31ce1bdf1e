"""Tiles fit into LX whatever the sizes: short rows of sticks, many column dims, reduced dims that do not merge."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, half

from torch_loom.inductor import config
from torch_loom.inductor.division import Contraction, Sticks, divide


def test_tiles_are_padded_along_their_last_axis():
    assert Sticks().factor({"m": 3}) == 1
    assert Sticks(28, "", False, 64).factor({}) == 64 / 28
    assert Sticks(28, "n", False, 64).factor({"n": 3}) == 128 / 84
    assert Sticks(1, "k", True, 64).factor({"k": 70}) == 192 / 70


def test_padding_counts_in_lx_and_in_ddr():
    plain = Contraction(1, 384, 1500, 1152)
    padded = Contraction(1, 384, 1500, 1152, a_sticks=Sticks(3, "", False, 64))
    one, other = (divide(c, 32, 1_600_000, "spyre")[0] for c in (plain, padded))
    assert other.lx_bytes <= 1_600_000 and other.m_block < one.m_block and other.read > one.read


# Filters along sticks of three elements; rows of 28 columns; windows that no tile can hold whole.
CONVOLUTIONS = {
    "short filters": ((1, 900, 16), (16, 900, 3), {}),
    "short rows": ((2, 64, 28, 28), (20, 64, 3, 3), {"padding": 1}),
    "large windows": ((1, 2, 90, 66), (5, 2, 81, 63), {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_fit(name):
    shape, filters, options = CONVOLUTIONS[name]
    conv = F.conv1d if len(shape) == 3 else F.conv2d
    depth = torch.Size(filters[1:]).numel()
    with config.patch(layout_choice=False):
        check(lambda a, w: conv(a, w, **options), half(*shape), half(*filters, scale=depth**-0.5), absolute=1e-4)


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("xaz,zxd->ad", (3, 20, 9001), (9001, 3, 70)),  # a block of one reduced dim inside of a loop over the other
        ("akbc,kd->abcd", (2, 900, 7, 28), (900, 45)),
        ("abck,dk->abcd", (3, 7, 5, 900), (33, 900)),
    ],
)
def test_products_over_many_dims_fit(equation, left, right):
    args = half(*left, scale=0.1), half(*right, scale=0.1)
    check(lambda a, b: torch.einsum(equation, a, b), *args, absolute=1e-4)
