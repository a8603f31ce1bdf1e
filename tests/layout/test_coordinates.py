"""Coordinates of accesses: the worked vectors, carry inside a stick, alignment, and the properties."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import layouts

from torch_loom.layout import (
    Index,
    Loop,
    SpyreTensorLayout,
    align,
    bounds,
    const,
    coordinates,
    evaluate,
    floordiv,
    mod,
    stick_compatible,
    var,
)

i, j, p, s = map(var, "ijps")


def texts(layout, index, ranges):
    return [str(c) for c in coordinates(layout, index, ranges)]


@pytest.mark.parametrize(
    ("size", "index", "ranges", "expected"),
    [
        (
            (50, 10, 200),
            200 * p + s,
            {"p": 500, "s": 200},
            ["p mod 10", "floor(s/64)", "floor(p/10)", "s mod 64"],
        ),
        ((500, 200), 200 * p + s, {"p": 500, "s": 200}, ["floor(s/64)", "p", "s mod 64"]),
        ((64, 128), i + 128 * j, {"i": 128, "j": 64}, ["floor(i/64)", "j", "i mod 64"]),
        ((8, 128), 128 * i + j + 32, {"i": 8, "j": 64}, ["floor((j + 32)/64)", "i", "(j + 32) mod 64"]),
        ((8, 64), 64 * (i + 2) + j, {"i": 4, "j": 64}, ["0", "i + 2", "j"]),
    ],
)
def test_worked_vectors(size, index, ranges, expected):
    assert texts(SpyreTensorLayout(size, "float16"), index, ranges) == expected


def test_a_column_offset_carries_into_the_next_stick():
    access = coordinates(SpyreTensorLayout((8, 128), "float16"), 128 * i + j + 32, {"i": 8, "j": 64})
    at = [[evaluate(c, {"i": 3, "j": column}) for c in access] for column in (0, 31, 32, 63)]
    assert at == [[0, 3, 32], [0, 3, 63], [1, 3, 0], [1, 3, 31]]


def test_reversed_and_strided_columns():
    layout = SpyreTensorLayout((2, 130), "float16")
    reverse = coordinates(layout, 130 * i + 129 - j, {"i": 2, "j": 130})
    assert [evaluate(c, {"i": 1, "j": 0}) for c in reverse] == [2, 1, 1]
    every_third = coordinates(layout, 130 * i + 3 * j, {"i": 2, "j": 43})
    assert [evaluate(c, {"i": 0, "j": 42}) for c in every_third] == [1, 0, 62]


def test_alignment_gives_all_operands_one_iteration_space():
    operands = [
        (SpyreTensorLayout((50, 10, 200), "float16"), 200 * p + s),
        (SpyreTensorLayout((500, 200), "float16"), 200 * p + s),
    ]
    aligned = align(operands, {"p": Loop(500, 25), "s": Loop(200)})
    assert aligned.loops == {"p": Loop(10), "z0": Loop(50, 25), "s": Loop(200)}
    assert [[str(c) for c in access] for access in aligned.coordinates] == [
        ["p", "floor(s/64)", "z0", "s mod 64"],
        ["floor(s/64)", "z0", "p", "s mod 64"],
    ]
    assert aligned.sizes == [[10, 4, 50, 64], [4, 50, 10, 64]]


def test_a_boundary_that_does_not_divide_stays():
    operands = [(SpyreTensorLayout((3, 7, 64), "float16"), 64 * p + s)]
    aligned = align(operands, {"p": Loop(20), "s": Loop(64)})
    assert aligned.loops == {"p": Loop(20), "s": Loop(64)}
    assert str(aligned.coordinates[0][0]) == "p mod 7"


def test_stick_compatibility_is_the_public_rule():
    layout = SpyreTensorLayout((64, 128), "float16")
    ranges = {"i": 64, "j": 128}
    row = coordinates(layout, 128 * i + j, ranges)
    square = SpyreTensorLayout((128, 64), "float16")
    column = coordinates(square, 64 * j + i, ranges)
    assert stick_compatible([row, row])
    assert not stick_compatible([row, column])
    assert not stick_compatible([coordinates(SpyreTensorLayout((64, 64), "float16"), 65 * i, {"i": 64})])


def test_leaving_the_tensor_is_refused():
    with pytest.raises(ValueError, match="leaves the tensor"):
        coordinates(SpyreTensorLayout((8, 64), "float16"), 64 * i + j, {"i": 9, "j": 64})


@given(layouts(), st.data())
def test_coordinates_give_back_the_host_offset_at_every_point(drawn, data):
    layout, size, strides = drawn
    names = [f"v{d}" for d in range(len(size))]
    starts = [data.draw(st.integers(0, extent - 1)) for extent in size]
    steps = [data.draw(st.sampled_from([1, 1, 2, -1])) for _ in size]
    extents = [
        start + 1 if step < 0 else (extent - start + step - 1) // step
        for extent, start, step in zip(size, starts, steps, strict=True)
    ]
    index = const(0)
    for name, start, step, stride in zip(names, starts, steps, strides, strict=True):
        index = index + (var(name) * step + start) * stride
    access = coordinates(layout, index, dict(zip(names, extents, strict=True)))
    seen = {}
    for point in itertools.product(*map(range, extents)):
        values = dict(zip(names, point, strict=True))
        at = tuple(evaluate(c, values) for c in access)
        host = sum(
            (start + x * step) * stride for x, start, step, stride in zip(point, starts, steps, strides, strict=True)
        )
        assert all(0 <= c < extent for c, extent in zip(at, layout.device_size, strict=True))
        assert sum(c * step for c, step in zip(at, layout.stride_map, strict=True) if step > 0) == host
        assert seen.setdefault(at, host) == host


@st.composite
def affine(draw):
    terms = draw(st.dictionaries(st.sampled_from("abc"), st.integers(-80, 80).filter(bool), max_size=3))
    return Index(tuple(terms.items()), draw(st.integers(-100, 100)))


@given(affine(), st.integers(1, 90), st.integers(1, 12))
def test_division_and_remainder_are_exact(index, first, second):
    ranges = {"a": 5, "b": 7, "c": 3}
    quotient = floordiv(index, first, ranges)
    remainder = mod(index, first, ranges)
    nested = mod(floordiv(quotient, second, ranges), second, ranges)
    for a, b, c in itertools.product(range(5), range(7), range(3)):
        values = {"a": a, "b": b, "c": c}
        x = evaluate(index, values)
        assert evaluate(quotient, values) == x // first
        assert evaluate(remainder, values) == x % first
        assert evaluate(nested, values) == x // first // second % second
        for expression in (quotient, remainder, nested):
            low, high = bounds(expression, ranges)
            assert low <= evaluate(expression, values) <= high


def test_expressions_print_as_written():
    assert str(const(0)) == "0"
    assert str(const(-3)) == "-3"
    assert str(2 * i - 3 * j - 1) == "2 i - 3 j - 1"
    assert str(-1 * i + 5) == "-i + 5"
    with pytest.raises(ValueError, match="positive"):
        mod(i, 0, {"i": 3})
