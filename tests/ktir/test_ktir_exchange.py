"""Inter-tile exchange at run time: deliveries of several values, groups, waiting, and what cannot go on."""

from __future__ import annotations

import numpy as np
import pytest
from ktir_snippets import ALL, body, exchange, tile, view

from torch_loom.ktir import KtirError, load


def error_of(text, **arguments):
    with pytest.raises(KtirError) as caught:
        load(text).run(**arguments)
    return caught.value.diagnostics[0]


X = {"x": np.arange(1024, dtype=np.float16).reshape(16, 64), "y": np.zeros((64, 64), np.float16), "n": 0}


def stored(rows, name="d"):
    """Store a [rows, 64] result of every tile below each other in y."""
    return (
        view("w", "%y", [4 * rows, 64])
        + tile("to", "w", [4 * rows, 64], [f"%me * {rows}", "0"], [rows, 64])
        + f"ktdp.store %{name}, %to : tensor<{rows}x64xf16>, <{rows}x64xindex>\n"
    )


def test_gather_places_producers_by_local_index():
    found = load(exchange(after=stored(16))).run(**X)["y"]
    assert (found.reshape(4, 16, 64) == X["x"]).all()


def test_local_index_is_the_position_in_the_set_not_the_id():
    text = exchange(
        producers="affine_set<(t)[g] : (t - 1 >= 0, -t + 3 >= 0, (t - 1) mod 2 == 0, g == 0)>",
        shape=[8, 64],
        after=stored(8),
    )
    found = load(text).run(x=X["x"], y=np.zeros((32, 64), np.float16), n=0)["y"]
    expected = np.concatenate([X["x"][4:8], X["x"][12:16]])
    assert (found.reshape(4, 8, 64) == expected).all()


def test_groups_do_not_wait_for_each_other():
    text = exchange(
        producers="affine_set<(t)[g] : (t - g * 2 >= 0, -t + g * 2 + 1 >= 0)>",
        consumers="affine_set<(t)[g] : (t - g * 2 >= 0, -t + g * 2 + 1 >= 0)>",
        groups="affine_set<(g) : (g >= 0, -g + 1 >= 0)>",
        shape=[8, 64],
        after=stored(8),
    )
    found = load(text).run(x=X["x"], y=np.zeros((32, 64), np.float16), n=0)["y"].reshape(4, 8, 64)
    assert (found[0] == X["x"][:8]).all() and (found[2] == X["x"][8:]).all()


def test_gather_over_two_axes_counts_the_first_axis_slowest():
    text = exchange(
        dims=", gather_dimensions = [0, 1]",
        shape=[8, 128],
        after=(
            view("w", "%y", [32, 128])
            + tile("to", "w", [32, 128], ["%me * 8", "0"], [8, 128])
            + "ktdp.store %d, %to : tensor<8x128xf16>, <8x128xindex>\n"
        ),
    )
    found = load(text).run(x=X["x"], y=np.zeros((32, 128), np.float16), n=0)["y"].reshape(4, 8, 128)
    parts = X["x"].reshape(4, 4, 64)
    expected = np.block([[parts[0], parts[1]], [parts[2], parts[3]]])
    assert (found == expected).all()


def test_several_values_travel_in_one_future():
    future = "<(tensor<4x64xf16>, tensor<1xi32>), groups = affine_set<(g) : (g == 0)>>"
    text = body(
        view("v", "%x", [16, 64])
        + view("k", "%y", [4, 4], kind="i32")
        + "%me = ktdp.get_compute_tile_id : index\n"
        + tile("at", "v", [16, 64], ["%me * 4", "0"], [4, 64])
        + "%t = ktdp.load %at : <4x64xindex> -> tensor<4x64xf16>\n"
        + "%i = arith.index_cast %me : index to i32\n%s = tensor.splat %i : tensor<1xi32>\n"
        + (
            f"%f = ktdp.inter_tile_produce producer_tiles_per_group = {ALL} -> {future} "
            f"{{\n^bb0(%g: index):\nktdp.yield_partial %t, %s : tensor<4x64xf16>, tensor<1xi32>\n"
            f"}}\n"
        )
        + (
            f"%a, %b = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dimensions "
            f"= [0] : {future} -> tensor<16x64xf16>, tensor<4xi32>\n"
        )
        + "%c = tensor.expand_shape %b [[0, 1]] output_shape [1, 4] : tensor<4xi32> into tensor<1x4xi32>\n"
        + tile("to", "k", [4, 4], ["%me", "0"], [1, 4], kind="i32")
        + "ktdp.store %c, %to : tensor<1x4xi32>, <1x4xindex>"
    )
    found = load(text).run(x=X["x"], y=np.zeros((4, 4), np.int32), n=0)["y"]
    assert (found == np.arange(4)).all()


def test_the_result_is_undefined_on_tiles_that_do_not_consume():
    text = exchange(
        consumers="affine_set<(t)[g] : (t - g == 0)>", kind="reduce", dims="", shape=[4, 64], after=stored(4)
    )
    found = error_of(text, x=X["x"], y=np.zeros((16, 64), np.float16), n=0)
    assert found.code == "KT-X05" and "compute tile 1" in found.message


def test_tiles_that_wait_for_each_other_are_named():
    text = exchange().replace(
        "%f = ktdp.inter_tile_produce",
        (
            "%c0 = arith.constant 0 : index\n%one = arith.cmpi eq, %me, %c0 : index\n"
            "scf.if %one {\n%f = ktdp.inter_tile_produce"
        ),
        1,
    )
    lines = text.split("\n")
    at = next(k for k, line in enumerate(lines) if "inter_tile_gather" in line)
    lines.insert(at + 1, "}")
    found = error_of("\n".join(lines), **X)
    assert found.code == "KT-X06" and "tile 0 waits for tiles [1, 2, 3]" in found.message


def test_loops_that_reach_an_exchange_unequally_often_are_an_error():
    inner = exchange(
        consumers="affine_set<(t)[g] : (t == g)>",
        kind="scatter",
        dims=", scatter_dimensions = [0]",
        shape=[4, 64],
        producers="affine_set<(t)[g] : (t - 1 == g)>",
    )
    lines = inner.split("\n")
    start = next(k for k, line in enumerate(lines) if "inter_tile_produce" in line)
    end = next(k for k, line in enumerate(lines) if "inter_tile_scatter" in line)
    lines[start:start] = [
        "%c0 = arith.constant 0 : index",
        "%c1 = arith.constant 1 : index",
        "%up = arith.addi %me, %c1 : index",
        "scf.for %it = %c0 to %up step %c1 {",
    ]
    lines.insert(end + 5, "}")
    found = error_of("\n".join(lines), **X)
    assert found.code == "KT-X06"


def test_permutation_by_dependency_sets():
    text = exchange(
        kind="consume",
        dims="",
        clause=", producer_dependency_per_consumer = affine_set<(p)[c] : (p - (c + 1) mod 4 == 0)>",
        shape=[4, 64],
        after=stored(4),
    )
    found = load(text).run(x=X["x"], y=np.zeros((16, 64), np.float16), n=0)["y"]
    assert (found == np.roll(X["x"], -4, axis=0)).all()


def test_reduce_folds_in_ascending_order_of_tiles():
    x = np.full((16, 64), 1e-4, np.float16)
    x[0:4] = 1000.0
    text = exchange(kind="reduce", dims="", shape=[4, 64], after=stored(4))
    found = load(text).run(x=x, y=np.zeros((16, 64), np.float16), n=0)["y"]
    expected = np.float16(1000.0) + np.float16(1000.0)  # the identity is tile 0's own value here
    assert found[4, 0] != 0 and np.isfinite(found).all() and found[0, 0] == expected


def test_more_tiles_than_the_grid_has_do_not_exist():
    text = exchange(
        producers="affine_set<(t)[g] : (t >= 0, -t + 31 >= 0, g == 0)>",
        consumers="affine_set<(t)[g] : (t >= 0, -t + 31 >= 0, g == 0)>",
        after=stored(16),
    )
    found = load(text).run(**X)["y"]
    assert (found.reshape(4, 16, 64) == X["x"]).all()
