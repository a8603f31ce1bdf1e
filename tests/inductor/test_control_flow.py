"""Control flow that stays in the graph: branches, loops and scans are subgraphs with kernels of their own."""

import pytest
import torch
from helpers import check, half
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows


@pytest.fixture(autouse=True)
def scalars_in_graphs():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):  # PyTorch turns scan and map into loops that need it
        yield


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_is_chosen_by_a_value_on_the_device(sign):
    def fn(a, b):
        before = a * 2  # read by the branches: stays where they find it
        out = torch.cond(a.sum() > 0, lambda a, b: (a @ b).softmax(-1), lambda a, b: a @ b - 1, (before, b))
        return out + 1

    # The operand is exact, the branch rounds once (or twice around its product) values below 2 ** 3, the sum again.
    check(fn, half(5, 70).abs() * sign, half(70, 33, scale=0.1), roundings=1, absolute=3 * 2.0**-7)


def test_branches_may_share_kernels_and_be_nested():
    def inner(a):
        return torch.cond(a.amax() > 100, lambda a: a / 2, lambda a: a + 1, (a,))

    check(
        lambda a: torch.cond(a.sum() > 0, lambda a: inner(a) + 1, lambda a: a + 1, (a,)), half(7, 40).abs(), roundings=2
    )


def test_a_loop_runs_until_its_condition_on_the_device_fails():
    def fn(a):
        count = torch.zeros((), dtype=torch.int64, device=a.device)
        return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a.flip(-1) + 1), (count, a))

    count = check(lambda a: fn(a)[0], half(6, 50))
    assert count.item() == 5
    check(lambda a: fn(a)[1], half(6, 50), roundings=5, absolute=5 * 2.0**-9)  # of sums below 8


def test_a_loop_ends_by_data():
    def fn(a):
        return while_loop(lambda a: a.sum() < 4096, lambda a: (a * 2,), (a,))[0]

    check(fn, half(4, 64).abs() + 1)  # doubling is exact


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("result", [0, 1])
def test_scan_carries_a_state_over_the_rows(reverse, result):
    def fn(a):
        return scan(lambda c, row: (c * 0.5 + row, c + row), a[0], a, reverse=reverse)[result]

    # The state is below 8; half of each of its errors is handed on, so they add up to twice one.
    check(fn, half(9, 33), roundings=3, absolute=2 * 2.0**-8)


def test_associative_scan():
    # At most four sums of halves below 32 are rounded on the way to each result.
    check(
        lambda a: associative_scan(lambda p, q: p + q, a, 0, combine_mode="generic"), half(13, 21), absolute=4 * 2.0**-6
    )


def test_map_over_rows():
    check(lambda a, b: map_rows(lambda row, b: (row * b).tanh(), a, b), half(5, 40), half(40))
