"""The common iteration space: boundaries, variables, exact division."""

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from torch_loom.inductor.domain import Boundaries, Misaligned, exact_div, linear, suffix_products, variables

I = sympy.Integer


def space(*range_lists):
    total = 1
    for s in range_lists[0]:
        total *= s
    bounds = Boundaries(I(total))
    for sizes in range_lists:
        for b in suffix_products([I(s) for s in sizes], I(1)):
            bounds.add(b)
    return bounds.dims()


def test_two_factorisations_refine_each_other():
    dims = space([256, 384], [8, 32, 12, 32])
    assert [int(d.extent) for d in dims] == [8, 32, 12, 32]
    row, column = variables([I(256), I(384)], I(1), dims)
    d = [x.symbol for x in dims]
    assert sympy.expand(row - (32 * d[0] + d[1])) == 0
    assert sympy.expand(column - (32 * d[2] + d[3])) == 0


def test_sizes_that_do_not_divide_have_no_common_space():
    bounds = Boundaries(I(60))
    bounds.add(I(4))
    with pytest.raises(Misaligned):
        bounds.add(I(6))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_variables_enumerate_the_range_list_in_order(sizes):
    dims = space(sizes)
    names = variables([I(s) for s in sizes], I(1), dims)
    total = 1
    for s in sizes:
        total *= s
    for flat in range(total):
        values, rest = {}, flat
        for d in dims:
            values[d.symbol] = rest // int(d.suffix)
            rest %= int(d.suffix)
        expected, inside = [], flat
        for s in reversed(sizes):
            expected.append(inside % s)
            inside //= s
        assert [int(n.subs(values)) for n in names] == expected[::-1]


def test_exact_div_of_symbolic_sizes():
    s, t = sympy.symbols("s t", positive=True, integer=True)
    assert exact_div(12 * s * t, 4 * s) == 3 * t
    assert exact_div(6 * s, 4) is None
    assert exact_div(s * t + t, t) == s + 1
    assert exact_div(I(384), I(64)) == 6
    assert exact_div(I(150), I(64)) is None


def test_linear_refuses_products_of_dims():
    dims = space([4, 5])
    a, b = (d.symbol for d in dims)
    coefficients, constant = linear(5 * a + b + 7, dims)
    assert [coefficients[d] for d in dims] == [5, 1] and constant == 7
    assert linear(a * b, dims) is None
