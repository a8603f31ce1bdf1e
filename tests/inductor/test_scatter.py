"""Writes through indices and into parts of an argument, in place: exact, because nothing is computed."""

import pytest
import torch
from helpers import half, moved


def index_copy(cache, at, rows):
    cache.index_copy_(2, at, rows)
    return cache * 2


def append(cache, position, rows):
    """The update of a static key-value cache: rows go to the positions that follow ``position``."""
    at = torch.arange(rows.shape[2], device=rows.device) + position
    cache.index_copy_(2, at, rows)
    return cache * 2


@pytest.mark.parametrize("lanes", [2, 32, 63, 64, 128])
@pytest.mark.parametrize("rows", [1, 5, 21, 70])
def test_rows_are_copied_to_their_places(lanes, rows):
    at = torch.randperm(100, generator=torch.Generator().manual_seed(rows))[:rows]
    moved(index_copy, half(2, 3, 100, lanes), at, half(2, 3, rows, lanes, seed=1))


@pytest.mark.parametrize("rows", [1, 21])
def test_a_cache_grows_in_place(rows):
    moved(append, half(2, 3, 100, 64), torch.tensor(7), half(2, 3, rows, 64, seed=1))
    moved(append, half(2, 3, 100, 64), torch.tensor(7), half(2, 3, rows, 64, seed=1), dynamic=True)


@pytest.mark.parametrize("shape", [(50, 70), (7, 50, 64), (3, 1, 50, 32)])
def test_indexed_assignment(shape):
    at = torch.tensor([4, 9, -1])

    def assign(x, at, rows):
        x[at] = rows
        return x * 2

    def assign_last(x, at, rows):
        x[..., at, :] = rows
        return x * 2

    moved(assign, half(50, *shape), at, half(3, *shape, seed=1))
    moved(assign_last, half(*shape), at, half(*shape[:-2], 3, shape[-1], seed=1))


def test_assignment_to_slices():
    def rows(x, y):
        x[:, 3:8] = y
        return x * 2

    def views(x):
        x[1:3].fill_(2.0)
        x[0].mul_(4)
        return x * 2

    def columns(x, y):
        x.transpose(0, 1)[2] = y
        return x * 2

    moved(rows, half(3, 50, 64), half(3, 5, 64, seed=1))
    moved(views, half(5, 50))
    moved(columns, half(5, 50), half(5, seed=1))


@pytest.mark.parametrize("shape", [(50, 64), (3, 50, 64), (2, 3, 5, 130)])
def test_assignment_inside_sticks(shape):
    def lanes(x, y):
        x[..., 3:8] = y
        return x * 2

    def places(x, y):
        x.index_copy_(-1, torch.tensor([3, 63, 9, 0, 40], device=x.device), y)
        return x * 2

    part = half(*shape[:-1], 5, seed=1)
    moved(lanes, half(*shape), part)
    moved(places, half(*shape), part)


def test_each_row_scatters_to_its_own_places():
    generator = torch.Generator().manual_seed(0)
    at = torch.stack([torch.randperm(70, generator=generator)[:7] for _ in range(5)])

    def scatter(x, at, y):
        x.scatter_(1, at, y)
        return x * 2

    moved(scatter, half(5, 70), at, half(5, 7, seed=1))
