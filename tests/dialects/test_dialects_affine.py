"""Affine sets and maps: text, normal form, and exact answers compared with brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_loom.dialects.affine_sets import Box, UnboundedSet, bound, evaluate_map, is_permutation, permutation
from torch_loom.dialects.affine_text import box_set, format_map, format_set
from torch_loom.ktir import KtirError
from torch_loom.ktir.parser import KtirParser
from torch_loom.ktir.program import ParseOptions, parse


def read_set(text):
    return KtirParser(f"affine_set<{text}>", "t").parse_attribute().data


def read_map(text):
    return KtirParser(f"affine_map<{text}>", "t").parse_attribute().data


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(r, c) : (r >= 0, -r + 95 >= 0, c >= 0)", "(d0, d1) : (d0 >= 0, -d0 + 95 >= 0, d1 >= 0)"),
        ("(i) : (i <= 63)", "(d0) : (-d0 + 63 >= 0)"),
        ("(i) : (0 <= i <= 63)", "(d0) : (d0 >= 0, -d0 + 63 >= 0)"),
        ("(t)[g] : (t - g * 4 == 0)", "(d0)[s0] : (d0 - s0 * 4 == 0)"),
        ("(t)[g] : (4 * g == t)", "(d0)[s0] : (-d0 + s0 * 4 == 0)"),
        ("(i)[n] : (n - i - 1 >= 0)", "(d0)[s0] : (-d0 + s0 - 1 >= 0)"),
        ("() : ()", "() : (0 == 0)"),
        ("() : (0 == 0)", "() : (0 == 0)"),
        ("(i)[g] : ((i - g) mod 2 == 0)", "(d0)[s0] : ((d0 - s0) mod 2 == 0)"),
        ("(i) : (i floordiv 4 - 2 >= 0)", "(d0) : (d0 floordiv 4 - 2 >= 0)"),
        ("(i) : (1 + i + 2 >= i)", "(d0) : (0 == 0)"),
        ("(i) : (-(i - 3) * 2 >= 0)", "(d0) : (d0 * -2 + 6 >= 0)"),
    ],
)
def test_sets_are_brought_to_one_spelling(text, canonical):
    found = format_set(read_set(text))
    assert found == canonical
    assert format_set(read_set(found)) == found


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(r, c) -> (c, r)", "(d0, d1) -> (d1, d0)"),
        ("(i)[s] -> (s + i * 2, 0)", "(d0)[s0] -> (d0 * 2 + s0, 0)"),
        ("(i) -> (i / 64, i % 64)", "(d0) -> (d0 floordiv 64, d0 mod 64)"),
        ("(i) -> ((i ceildiv 4) * 4)", "(d0) -> ((d0 ceildiv 4) * 4)"),
        ("(i) -> (7 floordiv 2, i mod 1, i floordiv 1)", "(d0) -> (3, 0, d0)"),
        ("(i, j) -> ((i * 8 + j + 4) floordiv 4)", "(d0, d1) -> (d0 * 2 + d1 floordiv 4 + 1)"),
        ("(i, j) -> ((i * 8 + j + 5) mod 4)", "(d0, d1) -> ((d1 + 5) mod 4)"),
        ("() -> ()", "() -> ()"),
    ],
)
def test_maps_are_brought_to_one_spelling(text, canonical):
    assert format_map(read_map(text)) == canonical


@st.composite
def expressions(draw, depth=3):
    """An expression over d0, d1 as MLIR text and as Python text."""
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.sampled_from(["d0", "d1", "3", "-2", "8"]))
        return leaf, leaf
    (a, pa), kind = draw(expressions(depth - 1)), draw(st.sampled_from(["+", "-", "*", "floordiv", "ceildiv", "mod"]))
    if kind in "+-":
        b, pb = draw(expressions(depth - 1))
        return f"(({a}) {kind} ({b}))", f"(({pa}) {kind} ({pb}))"
    k = draw(st.integers(-4, 4)) if kind == "*" else draw(st.integers(1, 6))
    python = {"*": f"(({pa}) * {k})", "floordiv": f"(({pa}) // {k})", "mod": f"(({pa}) % {k})"}
    return f"(({a}) {kind} {k})", python.get(kind, f"(-(-({pa}) // {k}))")


@given(expressions(), st.integers(-30, 30), st.integers(-30, 30))
def test_normal_form_keeps_the_value(expression, a, b):
    text, python = expression
    value = read_map(f"(d0, d1) -> ({text})")
    assert evaluate_map(value, (a, b)) == (eval(python, {"d0": a, "d1": b}),)
    assert format_map(read_map(format_map(value))) == format_map(value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("(d0)[s0] : (d0 ceildiv s0 >= 0)", "KT-P07"),
        ("(d0, d1) : (d0 * d1 >= 0)", "KT-P07"),
        ("(d0) : (d0 mod 0 == 0)", "KT-P07"),
        ("(d0) : (d0 mod -4 == 0)", "KT-P07"),
        ("(d0) : (d1 >= 0)", "KT-P00"),
        ("(d0, d0) : (d0 >= 0)", "KT-P00"),
        ("(d0) : (d0)", "KT-P00"),
    ],
)
def test_expressions_that_are_not_affine_are_refused(text, code):
    with pytest.raises(KtirError) as caught:
        parse(f"#s = affine_set<{text}>\nmodule {{}}", "t", ParseOptions())
    assert caught.value.diagnostics[0].code == code


def brute_force(text, symbols, limit=24):
    """Points of a set of the form produced by ``sets`` by evaluating the written constraints."""
    dims, constraints = text
    found = []
    for point in product(range(-limit, limit + 1), repeat=dims):
        values = {f"d{i}": p for i, p in enumerate(point)} | {f"s{i}": s for i, s in enumerate(symbols)}
        if all(check(values) for _, check in constraints):
            found.append(point)
    return found


@st.composite
def sets(draw):
    """A set over one or two dims with one symbol, as text and as Python predicates."""
    dims = draw(st.integers(1, 2))
    constraints = []
    for d in range(dims):
        lo, hi = sorted((draw(st.integers(-6, 6)), draw(st.integers(-6, 6))))
        constraints.append(
            (f"d{d} - {lo} >= 0" if lo >= 0 else f"d{d} + {-lo} >= 0", lambda v, d=d, lo=lo: v[f"d{d}"] >= lo)
        )
        constraints.append((f"d{d} <= {hi}", lambda v, d=d, hi=hi: v[f"d{d}"] <= hi))
    for _ in range(draw(st.integers(0, 2))):
        d, k, m = draw(st.integers(0, dims - 1)), draw(st.integers(1, 4)), draw(st.integers(-3, 3))
        kind = draw(st.sampled_from(["mod", "floordiv", "sum", "equal"]))
        if kind == "mod":
            constraints.append((f"(d{d} + s0) mod {k} == 0", lambda v, d=d, k=k: (v[f"d{d}"] + v["s0"]) % k == 0))
        elif kind == "floordiv":
            constraints.append((f"d{d} floordiv {k} >= {m}", lambda v, d=d, k=k, m=m: v[f"d{d}"] // k >= m))
        elif kind == "sum":
            constraints.append(
                (f"d0 * {k} - d{dims - 1} + {m} >= 0", lambda v, k=k, m=m: v["d0"] * k - v[f"d{dims - 1}"] + m >= 0)
            )
        else:
            constraints.append((f"{k} * d{d} == s0 + {m}", lambda v, d=d, k=k, m=m: k * v[f"d{d}"] == v["s0"] + m))
    return dims, constraints


def build(described):
    dims, constraints = described
    names = ", ".join(f"d{i}" for i in range(dims))
    return read_set(f"({names})[s0] : ({', '.join(text for text, _ in constraints)})")


@settings(max_examples=200, deadline=None)
@given(sets(), st.integers(-4, 4))
def test_points_extents_and_emptiness_are_those_of_brute_force(described, symbol):
    expected = brute_force(described, (symbol,), limit=8)
    points = bound(build(described), (symbol,))
    assert [tuple(p) for p in points.points().tolist()] == expected
    assert points.empty == (not expected)
    assert points.size == len(expected)
    for point in product(range(-7, 8), repeat=described[0]):
        assert (point in points) == (point in expected)


@settings(max_examples=150, deadline=None)
@given(sets(), sets(), st.integers(-4, 4))
def test_containment_and_disjointness_are_those_of_brute_force(a, b, symbol):
    if a[0] != b[0]:
        return
    left, right = (set(brute_force(x, (symbol,), limit=8)) for x in (a, b))
    p, q = bound(build(a), (symbol,)), bound(build(b), (symbol,))
    assert p.disjoint(q) == left.isdisjoint(right)
    assert p.contains_set(q) == (right <= left)


def test_a_set_without_bounds_is_refused_and_says_which_dim():
    with pytest.raises(UnboundedSet, match="dim 1"):
        bound(read_set("(d0, d1) : (d0 >= 0, d0 <= 3, d1 >= 0)"))


def test_routing_sets_with_floordiv_are_finite():
    points = bound(read_set("(t)[g] : (t floordiv 4 - g == 0)"), (2,))
    np.testing.assert_array_equal(points.points().ravel(), [8, 9, 10, 11])


def test_boxes_know_their_size_and_relations():
    box = bound(box_set((4, 64))).bounds
    assert box == Box((0, 0), (3, 63)) and box.size == 256 and box.extents == (4, 64)
    assert box.contains(Box((1, 1), (2, 2))) and not box.contains(Box((0, 0), (4, 0)))
    assert not box.intersects(Box((4, 0), (5, 0)))


def test_permutations_are_recognised():
    assert is_permutation(read_map("(a, b, c) -> (c, a, b)"))
    assert permutation(read_map("(a, b, c) -> (c, a, b)")) == (2, 0, 1)
    assert not is_permutation(read_map("(a, b) -> (a, a)"))
    assert not is_permutation(read_map("(a, b) -> (a)"))
