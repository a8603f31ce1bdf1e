"""The picture of tiles over compute tiles says what the program does."""

from __future__ import annotations

import pytest
from ktir_library import PROGRAMS

from torch_loom.dialects.affine_sets import Box
from torch_loom.dialects.ktdp import ConstructMemoryViewOp
from torch_loom.ktir import load
from torch_loom.ktir.draw import draw_tiles, tile_parts


def parts(name, view, **sizes):
    program = load(PROGRAMS / f"{name}.ktir")
    chosen = next(
        op for op in program.module.walk() if isinstance(op, ConstructMemoryViewOp) and op.view.name_hint == view
    )
    return tile_parts(program, name, chosen, sizes)


def test_rows_of_a_matmul_are_dealt_over_the_tiles():
    found = parts("matmul", "va")
    assert [(p.tile, p.box) for p in found] == [(t, Box((4 * t, 0), (4 * t + 3, 191))) for t in range(32)]


def test_loops_are_followed():
    found = parts("matmul_loop", "vb")
    assert len(found) == 32 * 4
    assert {p.box for p in found if p.tile == 5} == {Box((k, 64), (k + 63, 127)) for k in (0, 64, 128, 192)}


def test_sizes_of_dynamic_views_are_given():
    program = load(PROGRAMS / "masked_tail.ktir")
    with pytest.raises(ValueError, match="rows"):
        draw_tiles(program)
    text = draw_tiles(program, sizes={"rows": 22})
    assert text.count("<title>compute tile") == 8 and "[0, 0]" in text


def test_views_of_higher_rank_are_drawn_in_panels():
    text = draw_tiles(load(PROGRAMS / "stick_tiled.ktir"))
    assert text.count('class="view"') == 4


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="has no views"):
        draw_tiles(load("func.func @f() {\nreturn\n}"))
