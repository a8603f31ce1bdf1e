"""Every op, type and spelling of ktdp: read, printed in one form, the same in generic form."""

from __future__ import annotations

import pytest

from torch_loom.dialects import ktdp
from torch_loom.ktir import KtirError, load

SETUP = """
  %x = arith.constant 0 : index
  %n = arith.constant 16 : index
  %v = ktdp.construct_memory_view %x, sizes: [16, 64], strides: [64, 1]
    {memory_space = #ktdp.memory_space<global>} : memref<16x64xf16>
  %i = ktdp.construct_memory_view %x, sizes: [16], strides: [1]
    {memory_space = #ktdp.memory_space<global>} : memref<16xi32>
  %z = arith.constant 0.0 : f16
  %t = tensor.splat %z : tensor<4x64xf16>
"""
BOX = "affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 63 >= 0)>"
SAME = "affine_map<(d0, d1) -> (d0, d1)>"
VIEW = "memref<16x64xf16>"
TILE = f"{{access_tile_order = {SAME}, access_tile_set = {BOX}}} : {VIEW} -> !ktdp.access_tile<4x64xindex>"
ALL = "affine_set<(t)[g] : (t >= 0, -t + 3 >= 0, g == 0)>"
GROUP = "groups = affine_set<(g) : (g == 0)>"
FUTURE = f"<(tensor<4x64xf16>), {GROUP}>"
PRODUCE = (
    f"%f = ktdp.inter_tile_produce producer_tiles_per_group = {ALL} -> {FUTURE} "
    f"{{\n^bb0(%g: index):\n  ktdp.yield_partial %t : tensor<4x64xf16>\n"
    f"}}\n"
)
COMBINER = (
    "{\n^bb0(%l: tensor<4x64xf16>, %r: tensor<4x64xf16>):\n"
    "  %s = arith.addf %l, %r : tensor<4x64xf16>\n"
    "  ktdp.yield_reduced %s : tensor<4x64xf16>\n"
    "}"
)


def program(body, attributes="{grid = [4]}", arguments=""):
    return load(f"func.func @f({arguments}) attributes {attributes} {{{SETUP}{body}\nreturn\n}}")


def last(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)][-1]


def body_line(text, op):
    return [line.strip() for line in text.split("\n") if f"{op} " in line][-1]


CUSTOM = [
    ("ktdp.get_compute_tile_id", "%a:3 = ktdp.get_compute_tile_id : index, index, index"),
    (
        "ktdp.construct_memory_view",
        "%a = ktdp.construct_memory_view %x, sizes: [%n, 64], strides: [%n, 1] {coordinate_set = "
        "affine_set<(d0, d1)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0, d1 >= 0, -d1 + 63 >= 0)>, "
        "memory_space = #ktdp.memory_space<ct_local, ct_id = 2>} : memref<?x64xf16>",
    ),
    (
        "ktdp.construct_distributed_memory_view",
        f"%a = ktdp.construct_distributed_memory_view (%v, %v : {VIEW}, {VIEW}) : {VIEW}",
    ),
    ("ktdp.construct_access_tile", f"%a = ktdp.construct_access_tile %v[%n + %x * 4, 3] {TILE}"),
    (
        "ktdp.construct_access_tile",
        "%a = ktdp.construct_access_tile %v[0, 0] symbols(%n) {access_tile_order = affine_map<(d0, d1) -> (d1, d0)>, "
        "access_tile_set = affine_set<(d0, d1)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0, d1 >= 0, -d1 + 63 >= 0)>} "
        f": {VIEW} -> !ktdp.access_tile<64x?xindex>",
    ),
    (
        "ktdp.construct_indirect_access_tile",
        "%a = ktdp.construct_indirect_access_tile intermediate_variables(%k, %c) %v[ind(%i[%n + %k]), (%c mod 64)] "
        f"{{variables_space_order = {SAME}, variables_space_set = {BOX}}} : {VIEW}, memref<16xi32> "
        "-> !ktdp.access_tile<4x64xindex>",
    ),
    (
        "ktdp.construct_indirect_access_tile",
        "%a = ktdp.construct_indirect_access_tile intermediate_variables() %v[(0), (3)] "
        "{variables_space_order = affine_map<() -> ()>, variables_space_set = affine_set<() : (0 == 0)>} "
        f": {VIEW} -> !ktdp.access_tile<index>",
    ),
]


@pytest.mark.parametrize(("name", "line"), CUSTOM)
def test_custom_form_is_printed_as_it_is_read(name, line):
    loaded = program(line)
    assert body_line(str(loaded).replace("#map", SAME).replace("#set", BOX), name) == line


@pytest.mark.parametrize(("name", "line"), CUSTOM)
def test_generic_form_gives_the_same_op(name, line):
    loaded = program(line)
    assert load(loaded.print(generic=True)).module.is_structurally_equivalent(loaded.module)


@pytest.mark.parametrize(
    "line",
    [
        f"%d = ktdp.inter_tile_consume(%f) consumer_tiles_per_group = {ALL}, producer_dependency_per_consumer = "
        f"affine_set<(p)[c] : (p - c == 0)> : {FUTURE} -> tensor<4x64xf16>",
        (
            f"%d = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = {ALL}, identity(%t "
            f": tensor<4x64xf16>) : {FUTURE} -> tensor<4x64xf16> {COMBINER}"
        ),
        (
            f"%d = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dimensions "
            f"= [0] : {FUTURE} -> tensor<16x64xf16>"
        ),
        (
            f"%d = ktdp.inter_tile_scatter(%f) consumer_tiles_per_group = {ALL}, scatter_dimensions "
            f"= [0] : {FUTURE} -> tensor<1x64xf16>"
        ),
        (
            f"%d = ktdp.inter_tile_all_to_all(%f) consumer_tiles_per_group = {ALL}, split_dimensions "
            f"= [1], concat_dimensions = [0] : {FUTURE} -> tensor<16x16xf16>"
        ),
        (
            f"%d = ktdp.inter_tile_reduce_scatter(%f) consumer_tiles_per_group = {ALL}, "
            f"scatter_dimensions = [0], identity(%t : tensor<4x64xf16>) : {FUTURE} -> tensor<1x64xf16> "
            f"{COMBINER}"
        ),
    ],
)
def test_all_deliveries_are_read_and_printed(line):
    loaded = program(PRODUCE + line)
    printed = str(loaded)
    assert load(printed).module.is_structurally_equivalent(loaded.module)
    assert load(loaded.print(generic=True)).module.is_structurally_equivalent(loaded.module)
    clause = line.split("_dimensions = ")[0].split()[-1] if "_dimensions" in line else "consumer_tiles_per_group"
    assert clause in printed


def test_runtime_arguments_keep_their_promises_in_any_order_and_spelling():
    for text in ("granularity=64, upperbound=4096", "upperbound = 4096 , granularity = 64"):
        loaded = program("", arguments=f"%s: !ktdp.runtime_arg<index, {text}>")
        (argument,) = loaded.arguments("f")
        assert argument.promises == {"granularity": 64, "upperbound": 4096}
        assert "<index, granularity=64, upperbound=4096>" in str(loaded)


@pytest.mark.parametrize("kind", ["value", "granularity", "upperbound"])
def test_runtime_argument_extract_reads_elided_and_full_types(kind):
    elided = f"%r = ktdp.runtime_arg_extract {kind} from %s : <index, granularity=64, upperbound=4096> -> index"
    full = elided.replace(" : <", " : !ktdp.runtime_arg<")
    arguments = "%s: !ktdp.runtime_arg<index, granularity=64, upperbound=4096>"
    a, b = program(elided, arguments=arguments), program(full, arguments=arguments)
    assert a.module.is_structurally_equivalent(b.module)
    assert elided in str(b)


SPELLINGS = [
    ("#ktdp.spyre_memory_space<HBM>", "#ktdp.memory_space<global>"),
    ("#ktdp.spyre_memory_space<LX>", "#ktdp.memory_space<ct_local>"),
    ("#ktdp.spyre_memory_space<LX, core = 3>", "#ktdp.memory_space<ct_local, ct_id = 3>"),
    ("#ktdp.memory_space<ct_local, ct_id = 3>", "#ktdp.memory_space<ct_local, ct_id = 3>"),
    ("#ktdp.spyre_memory_space<global>", "#ktdp.memory_space<global>"),
]


@pytest.mark.parametrize(("old", "new"), SPELLINGS)
def test_memory_spaces_have_one_spelling(old, new):
    line = f"%a = ktdp.construct_memory_view %x, sizes : [16], strides : [1] {{memory_space = {old}}} : memref<16xf16>"
    assert f"memory_space = {new}" in str(program(line))


def test_a_missing_memory_space_can_be_assumed():
    text = (
        "func.func @f(%x: index) {\n%v = ktdp.construct_memory_view %x, sizes: [4], "
        "strides: [1] {} : memref<4xf16>\nreturn\n"
        "}"
    )
    with pytest.raises(KtirError, match="KT-V03"):
        load(text)
    assert "memory_space<global>" in str(load(text, assume_memory_space="global"))
    unspecified = text.replace("{} :", "{memory_space = #ktdp.spyre_memory_space<unspecified>} :")
    with pytest.raises(KtirError, match="KT-V03"):
        load(unspecified)
    assert "memory_space<ct_local>" in str(load(unspecified, assume_memory_space="ct_local"))


def test_the_register_space_needs_permission():
    line = (
        "func.func @f(%x: index) {\n%v = ktdp.construct_memory_view %x, sizes: [4], "
        "strides: [1] {memory_space = #ktdp.spyre_memory_space<L0>} : memref<4xf16>\n"
        "return\n}"
    )
    with pytest.raises(KtirError, match="KT-P03"):
        load(line)
    assert "memory_space<L0>" in str(load(line, allow_l0=True))


def test_load_and_store_take_full_and_elided_tile_types():
    tile = f"%a = ktdp.construct_access_tile %v[0, 0] {TILE}\n"
    elided = (
        tile
        + "%b = ktdp.load %a : <4x64xindex> -> tensor<4x64xf16>\nktdp.store %b, %a : tensor<4x64xf16>, <4x64xindex>"
    )
    full = elided.replace("<4x64xindex> -> tensor", "!ktdp.access_tile<4x64xindex> -> tensor").replace(
        ", <4x", ", !ktdp.access_tile<4x"
    )
    assert program(full).module.is_structurally_equivalent(program(elided).module)
    assert "ktdp.load %a : <4x64xindex> -> tensor<4x64xf16>" in str(program(full))


def test_a_base_map_in_the_dictionary_is_the_old_spelling_of_subscripts():
    new = program(f"%a = ktdp.construct_access_tile %v[%n * 2, 0] {TILE}")
    for ids in ("(%n)", ", %n"):
        old = f"%a = ktdp.construct_access_tile %v {ids} {TILE}".replace(
            "{access", "{base_map = affine_map<(i) -> (i * 2, 0)>, access"
        )
        assert program(old).module.is_structurally_equivalent(new.module)


def test_equal_ids_share_a_dim_of_the_base_map():
    op = last(program(f"%a = ktdp.construct_access_tile %v[%n + %x, %n * 2] {TILE}").module, ktdp.ConstructAccessTileOp)
    assert str(op.base_map.data) and op.base_map.data.num_dims == 2
    assert [v.name_hint for v in op.subscripts] == ["n", "x"]


def test_prose_like_subscripts_are_read():
    usual = "%a = ktdp.construct_indirect_access_tile intermediate_variables(%k, %c) %v[(%k floordiv 4), (%c mod 64)]"
    prose = "%a = ktdp.construct_indirect_access_tile intermediate_variables(%k, %c) %v[(k / 4), (c % 64)]"
    glued = "%a = ktdp.construct_indirect_access_tile intermediate_variables(%k, %c) %v[(k/4), (c %64)]"
    bare = "%a = ktdp.construct_indirect_access_tile intermediate_variables(%k, %c) %v[%k floordiv 4, %c mod 64]"
    rest = f" {{variables_space_order = {SAME}, variables_space_set = {BOX}}} : {VIEW} -> !ktdp.access_tile<4x64xindex>"
    expected = program(usual + rest).module
    for text in (prose, glued, bare):
        assert program(text + rest).module.is_structurally_equivalent(expected)


def test_old_future_spellings_are_read():
    new = program(
        PRODUCE
        + (
            f"%d = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dimensions "
            f"= [0] : {FUTURE} -> tensor<16x64xf16>"
        )
    )
    produce = PRODUCE.replace("-> <(", ": tensor<4x64xf16> -> !ktdp.tile_future<").replace(
        "xf16>), groups", "xf16>, groups"
    )
    old = program(
        produce
        + (
            f"%d = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dimensions "
            f"= [0] : !ktdp.tile_future<tensor<4x64xf16>, {GROUP}> -> tensor<16x64xf16>"
        )
    )
    assert old.module.is_structurally_equivalent(new.module)


def test_coreid_becomes_the_linear_id_of_the_grid():
    one = load(
        "func.func @f() attributes {grid = [4]} {\n%a = ktdp.coreid : index\n%b = arith.addi %a, %a : index\nreturn\n}"
    )
    assert "ktdp.get_compute_tile_id : index\n" in str(one) and "coreid" not in str(one)
    two = load(
        "func.func @f(%o: index) attributes {grid = [4, 2]} {\n"
        "%a = ktdp.coreid : index\n%b = arith.addi %a, %a : index\n"
        "return\n}"
    )
    text = str(two)
    assert "ktdp.get_compute_tile_id : index, index" in text and "arith.constant 4 : index" in text


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("%a = ktdp.construct_access_tile %v[0] " + TILE, "KT-V02"),
        (
            "%a = ktdp.construct_access_tile %v[0, 0] "
            + TILE.replace("{access", "{base_map = affine_map<() -> (0, 0)>, access"),
            "KT-P04",
        ),
        ("%a = ktdp.construct_access_tile %v[0, 0] " + TILE.replace("access_tile_order", "acces_tile_order"), "KT-P01"),
        ("%a = ktdp.construct_access_tile %v[%n * %n, 0] " + TILE, "KT-P07"),
        (
            "%a = ktdp.construct_access_tile %v[0, 0] " + TILE.replace("(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0, d0)"),
            "KT-V06",
        ),
        (
            (
                "%a = ktdp.construct_memory_view %x, sizes: [16, 4], strides: [1] {memory_space "
                "= #ktdp.memory_space<global>} : memref<16x4xf16>"
            ),
            "KT-V01",
        ),
        (
            (
                "%a = ktdp.construct_memory_view %x, sizes: [16], strides: [1] {memory_space "
                "= #ktdp.memory_space<global>} : memref<17xf16>"
            ),
            "KT-V01",
        ),
        (
            (
                "%a = ktdp.construct_memory_view %x, sizes: [%n], strides: [1] {memory_space "
                "= #ktdp.memory_space<global>} : memref<16xf16>"
            ),
            "KT-V01",
        ),
        (
            (
                "%a = ktdp.construct_memory_view %x, sizes: [16], strides: [1] {coordinate_set "
                "= affine_set<(a, b) : (a == 0, b == 0)>, memory_space = #ktdp.memory_space<global>} "
                ": memref<16xf16>"
            ),
            "KT-V02",
        ),
        (
            (
                "%a = ktdp.construct_memory_view %x, sizes: [16], strides: [1] {memory_space "
                "= #ktdp.memory_space<sram>} : memref<16xf16>"
            ),
            "KT-V03",
        ),
        (
            (
                "%a = ktdp.construct_memory_view %x, sizes: [16], strides: [1] {memory_space "
                "= #ktdp.memory_space<global, ct_id = 1>} : memref<16xf16>"
            ),
            "KT-V04",
        ),
        (
            (
                "%a = ktdp.construct_memory_view %x, sizes: [16], strides: [1] {memory_space "
                "= #ktdp.memory_space<ct_local, ct_id = -1>} : memref<16xf16>"
            ),
            "KT-V04",
        ),
        (f"%a = ktdp.construct_distributed_memory_view (%v, %i : {VIEW}, memref<16xi32>) : {VIEW}", "KT-V01"),
        (
            (
                f"%a = ktdp.construct_indirect_access_tile intermediate_variables(%k, %c) %v[ind(%v[%k, "
                f"%c]), (%c)] {{variables_space_order = {SAME}, variables_space_set = {BOX}}} "
                f": {VIEW}, {VIEW} -> !ktdp.access_tile<4x64xindex>"
            ),
            "KT-V13",
        ),
        (
            (
                f"%a = ktdp.construct_indirect_access_tile intermediate_variables(%k) %v[(%k), "
                f"(%k)] {{variables_space_order = {SAME}, variables_space_set = {BOX}}} : {VIEW} "
                f"-> !ktdp.access_tile<4x64xindex>"
            ),
            "KT-V02",
        ),
        (
            f"%a = ktdp.construct_access_tile %v[0, 0] {TILE}\n%b = ktdp.load %a : <4x64xindex> -> tensor<64x4xf16>",
            "KT-V12",
        ),
        ("%a = ktdp.transfer %v", "KT-P05"),
        ("%a = ktdp.reduce %v", "KT-P05"),
        ("%a = ktdp.lod %v", "KT-P01"),
        (
            PRODUCE
            + (
                f"%d = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = {ALL}, identity(%z "
                f": f16) : {FUTURE} -> tensor<4x64xf16> {COMBINER}"
            ),
            "KT-V28",
        ),
        (
            PRODUCE
            + (
                f"%d = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dimensions "
                f"= [1, 0] : {FUTURE} -> tensor<16x64xf16>"
            ),
            "KT-V26",
        ),
        (
            PRODUCE
            + (
                f"%d = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dims "
                f"= [0] : {FUTURE} -> tensor<16x64xf16>"
            ),
            "KT-P01",
        ),
    ],
)
def test_broken_ops_are_refused_with_their_code(line, code):
    with pytest.raises(KtirError) as caught:
        program(line)
    assert caught.value.diagnostics[0].code == code
