"""Accesses that are not affine in the loops of a kernel, loaded and stored element by element."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, half

LOADS = {
    "every second lane": lambda a: a[..., ::2] + 1,
    "flipped lanes": lambda a: a.flip(-1) + 1,
    "flipped rows": lambda a: a.flip(0) + 1,
    "rolled lanes": lambda a: a.roll(3, -1) + 1,
    "rolled both": lambda a: a.roll((3, 1), (-1, 0)) + 1,
    "windows": lambda a: a.unfold(-1, 4, 3) + 1,
    "overlapping strides": lambda a: torch.as_strided(a, (4, 5), (7, 11), 3) + 1,
    "transposed and flipped": lambda a: a.t().flip(0) * 2,
    "diagonal": lambda a: a.diagonal() * 2,
    "reflected": lambda a: F.pad(a, (3, 2), mode="reflect") + 1,
    "replicated": lambda a: F.pad(a.unsqueeze(0), (3, 2), mode="replicate") + 1,
    "circular": lambda a: F.pad(a.unsqueeze(0), (3, 2), mode="circular") + 1,
}


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("shape", [(5, 150), (70, 33)])
def test_loads(name, shape):
    check(LOADS[name], half(*shape))


def test_gathers_along_any_dim():
    at = torch.randint(0, 33, (5, 33), generator=torch.Generator().manual_seed(1))
    check(lambda a, i: a.gather(1, i), half(5, 150), at)
    check(lambda a, i: a.gather(0, i), half(33, 40), at)  # the index varies along the sticks
    check(lambda a, i: a.index_select(-1, i), half(3, 5, 150), at[0])
    check(lambda a, i, j: a[i, j], half(33, 150), at[0], at[1])


def test_gathers_under_a_mask():
    # Where the mask is off the index may point anywhere.
    ids = torch.tensor([0, 3, 900, -1, 5])
    check(lambda a, i: torch.where((i >= 0) & (i < 7), a[i.clamp(0, 6)], 0.0), half(7), ids)
    check(lambda a: F.pad(a.flip(-1), (3, 70)), half(5, 66))


def test_images():
    check(lambda a: F.pixel_shuffle(a, 2), half(2, 8, 5, 7))
    check(lambda a: F.interpolate(a, scale_factor=1.7), half(2, 3, 5, 7))
    check(lambda a: F.interpolate(a, size=(9, 4), mode="bilinear"), half(2, 3, 5, 7), absolute=4e-3)
    check(lambda a: F.max_pool3d(a, 3), half(1, 2, 3, 6, 5))
    check(lambda a: F.adaptive_avg_pool2d(a, (3, 5)), half(2, 3, 8, 7))


def _write(a, b):
    out = a.clone()
    out[:, 1::2] = b
    return out


def test_stores():
    rows = torch.randperm(70, generator=torch.Generator().manual_seed(2))[:33]
    lanes = torch.stack([torch.randperm(150, generator=torch.Generator().manual_seed(i))[:33] for i in range(5)])
    check(lambda a, i, b: a.scatter(1, i, b), half(5, 150), lanes, half(5, 33))
    check(lambda a, i, b: a.index_copy(0, i, b), half(70, 9), rows, half(33, 9))
    check(lambda a, i, j, b: a.index_put((i, j), b), half(70, 150), rows[:5], lanes[0, :5], half(5))
    check(lambda a: F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2), half(1, 2, 6, 8))
    check(_write, half(5, 150), half(5, 75))
    check(lambda a, b: a.slice_scatter(b, -1, 0, 20, 4), half(20, 20, 20), half(20, 20, 5))


@pytest.mark.parametrize("length", [40, 150])
def test_parts_of_a_whole_start_at_their_own_place(length):
    # The second part is a kernel of its own; the last block of the first must not reach into it.
    x, y = half(length, 3), half(42, 3, seed=1)
    check(lambda a, b: torch.cat([a.t(), b.t()], 1) + 0 * (a.sum() + b.sum()), x, y)
    check(lambda a: F.pad(a.t(), (0, 42), value=7.0).relu(), x)
    both = torch.compile(lambda a: (F.pad(a.t(), (0, 42), value=7.0), a.t() + 1), dynamic=False)
    out, _ = both(x.to("spyre"))
    assert (out.cpu()[:, length:] == 7).all() and torch.equal(out.cpu()[:, :length], x.to("spyre").cpu().t())
