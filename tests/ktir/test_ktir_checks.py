"""What the verifier finds beyond single operations: one smallest program per rule, and the same program made right."""

from __future__ import annotations

import pytest
from ktir_snippets import ALL, body, box, exchange, tile, view

from torch_loom.ktir import load
from torch_loom.ktir.checks import CheckOptions, check
from torch_loom.ktir.diagnostics import ERROR, WARNING


def findings(text, **options):
    return check(text, "k.ktir", CheckOptions(**options))


def codes(text, **options):
    return [d.code for d in findings(text, **options) if d.severity in (ERROR, WARNING)]


ME = "%me = ktdp.get_compute_tile_id : index\n"

BAD = {
    "a tile wholly outside its view": (
        "KT-V09",
        body(
            view("v", "%x", [16, 64])
            + tile("a", "v", [16, 64], ["16", "0"], [4, 64])
            + "%b = ktdp.load %a : <4x64xindex> -> tensor<4x64xf16>"
        ),
    ),
    "a tile larger than its view": (
        "KT-V09",
        body(
            view("v", "%x", [16, 64])
            + tile("a", "v", [16, 64], ["0", "0"], [32, 64])
            + "%b = ktdp.load %a : <32x64xindex> -> tensor<32x64xf16>"
        ),
    ),
    "declared extents that are not those of the set": (
        "KT-V07",
        body(view("v", "%x", [16, 64]) + tile("a", "v", [16, 64], ["0", "0"], [4, 64], declared=[8, 64])),
    ),
    "an order that is not in the declared shape": (
        "KT-V07",
        body(view("v", "%x", [16, 64]) + tile("a", "v", [16, 64], ["0", "0"], [4, 64], order="(d1, d0)")),
    ),
    "a local set that starts at one": (
        "KT-V08",
        body(
            view("v", "%x", [16, 64])
            + tile("a", "v", [16, 64], ["0", "0"], [4, 64], points="affine_set<(r, c) : (1 <= r <= 4, 0 <= c <= 63)>")
        ),
    ),
    "element types that differ between view and tensor": (
        "KT-V12",
        body(
            view("v", "%x", [16, 64])
            + tile("a", "v", [16, 64], ["0", "0"], [4, 64])
            + "%b = ktdp.load %a : <4x64xindex> -> tensor<4x64xf32>"
        ),
    ),
    "partitions that overlap": (
        "KT-V10",
        body(
            view("p", "%x", [8, 64])
            + view("q", "%y", [8, 64])
            + (
                "%d = ktdp.construct_distributed_memory_view (%p, %q : memref<8x64xf16>, memref<8x64xf16>) "
                ": memref<8x64xf16>"
            )
        ),
    ),
    "partitions with a hole": (
        "KT-V11",
        body(
            view("p", "%x", [8, 64])
            + view("q", "%y", [8, 64], points="affine_set<(r, c) : (10 <= r <= 17, 0 <= c <= 63)>")
            + (
                "%d = ktdp.construct_distributed_memory_view (%p, %q : memref<8x64xf16>, memref<8x64xf16>) "
                ": memref<18x64xf16>"
            )
        ),
    ),
    "a union of other extents than declared": (
        "KT-V01",
        body(
            view("p", "%x", [8, 64])
            + view("q", "%y", [8, 64], points="affine_set<(r, c) : (8 <= r <= 15, 0 <= c <= 63)>")
            + (
                "%d = ktdp.construct_distributed_memory_view (%p, %q : memref<8x64xf16>, memref<8x64xf16>) "
                ": memref<17x64xf16>"
            )
        ),
    ),
    "another tile's LX that does not exist": ("KT-V04", body(view("v", "%x", [16], space="ct_local, ct_id = 9"))),
    "one id on a two-dim grid": ("KT-V05", body(ME, grid="[4, 2]")),
    "two ids on a three-dim grid": (
        "KT-V05",
        body("%a, %b = ktdp.get_compute_tile_id : index, index", grid="[2, 2, 2]"),
    ),
    "a grid of zero": ("KT-V05", body("", grid="[0]")),
    "an id in an address without a grid": (
        "KT-L01",
        body(ME + view("v", "%x", [16, 64]) + tile("a", "v", [16, 64], ["%me", "0"], [1, 64]), grid=None),
    ),
    "more compute tiles than cores": ("KT-L07", body("", grid="[33]")),
    "a plain view that does not start at zero": (
        "KT-L02",
        body(
            view("v", "%x", [16], points="affine_set<(r) : (4 <= r <= 19)>")
            + (
                "%a = ktdp.construct_access_tile %v[4] {access_tile_order = affine_map<(d0) "
                "-> (d0)>, access_tile_set = affine_set<(r) : (r == 0)>} : memref<16xf16> -> "
                "!ktdp.access_tile<1xindex>"
            )
        ),
    ),
    "baked buffers that overlap": (
        "KT-L03",
        body(
            "%p = arith.constant 0 : index\n%q = arith.constant 1000 : index\n"
            + view("v", "%p", [16, 64])
            + view("w", "%q", [16, 64])
        ),
    ),
    "an LX view beyond the scratchpad": (
        "KT-V17",
        body("%p = arith.constant 1048000 : index\n" + view("v", "%p", [16, 64], space="ct_local")),
    ),
    "element sizes that differ on one argument": (
        "KT-V15",
        body(view("v", "%x", [16, 64]) + view("w", "%x", [16, 64], kind="f32")),
    ),
    "a reduction from an empty tensor without identity": (
        "KT-V14",
        body(
            "%c = arith.constant 0.0 : f32\n%t = tensor.splat %c : tensor<4x8xf32>\n"
            "%e = tensor.empty() : tensor<4xf32>\n"
            "%r = linalg.reduce ins(%t : tensor<4x8xf32>) outs(%e : tensor<4xf32>) dimensions "
            "= [1] (%in: f32, %init: f32) {\n"
            "%s = arith.subf %in, %init : f32\n%q = arith.mulf %s, %s : f32\nlinalg.yield %q : f32\n}"
        ),
    ),
    "live tensors that exceed LX": (
        "KT-V17",
        body(
            "".join(
                view(f"v{k}", "%x", [1024, 512])
                + tile(f"a{k}", f"v{k}", [1024, 512], ["0", "0"], [1024, 512])
                + f"%b{k} = ktdp.load %a{k} : <1024x512xindex> -> tensor<1024x512xf16>\n"
                for k in range(3)
            )
            + "%s = arith.addf %b0, %b1 : tensor<1024x512xf16>\n%u = arith.addf %s, %b2 : tensor<1024x512xf16>"
        ),
    ),
    "data passed between tiles through DDR": (
        "KT-L05",
        body(
            ME
            + (
                "%c = arith.constant 0.0 : f16\n%t = tensor.splat %c : tensor<1x64xf16>\n"
                "%z = arith.addf %t, %t : tensor<1x64xf16>\n"
            )
            + view("v", "%x", [4, 64])
            + tile("a", "v", [4, 64], ["%me", "0"], [1, 64])
            + "ktdp.store %z, %a : tensor<1x64xf16>, <1x64xindex>\n"
            + tile("b", "v", [4, 64], ["-%me + 3", "0"], [1, 64])
            + "%r = ktdp.load %b : <1x64xindex> -> tensor<1x64xf16>"
        ),
    ),
    "a future used twice": (
        "KT-V21",
        exchange(
            deliver=(
                f"%d = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dimensions "
                f"= [0] : FUTURE -> tensor<16x64xf16>\n%e = ktdp.inter_tile_gather(%f) consumer_tiles_per_group "
                f"= {ALL}, gather_dimensions = [0] : FUTURE -> tensor<16x64xf16>"
            )
        ),
    ),
    "a future never used": ("KT-V21", exchange(deliver="")),
    "a future used in another block": (
        "KT-V21",
        exchange(
            deliver=(
                f"%t1 = arith.constant true\nscf.if %t1 {{\n"
                f"%d = ktdp.inter_tile_gather(%f) consumer_tiles_per_group = {ALL}, gather_dimensions "
                f"= [0] : FUTURE -> tensor<16x64xf16>\n}}"
            )
        ),
    ),
    "producers of two groups": (
        "KT-V20",
        exchange(
            producers="affine_set<(t)[g] : (0 <= t <= 3)>",
            groups="affine_set<(g) : (0 <= g <= 1)>",
            consumers="affine_set<(t)[g] : (t - g == 0)>",
            shape=[16, 64],
        ),
    ),
    "a dependency on a tile that produces nothing": (
        "KT-V22",
        exchange(
            producers="affine_set<(t)[g] : (0 <= t <= 1, g == 0)>",
            clause=", producer_dependency_per_consumer = affine_set<(p)[c] : (p - c == 0)>",
            kind="consume",
            dims="",
            shape=[4, 64],
        ),
    ),
    "a producer that nobody needs": (
        "KT-V23",
        exchange(
            clause=", producer_dependency_per_consumer = affine_set<(p)[c] : (p == 0)>",
            kind="consume",
            dims="",
            shape=[4, 64],
        ),
    ),
    "consume from several producers": ("KT-V25", exchange(kind="consume", dims="", shape=[4, 64])),
    "scatter from several producers": (
        "KT-V25",
        exchange(kind="scatter", dims=", scatter_dimensions = [0]", shape=[1, 64]),
    ),
    "scatter into a number of shares other than consumers": (
        "KT-V26",
        exchange(
            producers="affine_set<(t)[g] : (t == 0, g == 0)>",
            kind="scatter",
            dims=", scatter_dimensions = [0]",
            shape=[2, 64],
        ),
    ),
    "gather of a number of places other than producers": ("KT-V27", exchange(shape=[8, 64])),
    "gather along a dim that is not listed": ("KT-V27", exchange(shape=[4, 256])),
    "reduce for consumers that do not produce": (
        "KT-V29",
        exchange(
            producers="affine_set<(t)[g] : (0 <= t <= 1, g == 0)>",
            kind="reduce",
            dims="",
            consumers="affine_set<(t)[g] : (2 <= t <= 3, g == 0)>",
            shape=[4, 64],
        ),
    ),
    "a combiner with effects": (
        "KT-V28",
        exchange(kind="reduce", dims="", shape=[4, 64], effect="%w = ktdp.load %at : <4x64xindex> -> tensor<4x64xf16>"),
    ),
    "groups without producers": ("KT-L06", exchange(groups="affine_set<(g) : (0 <= g <= 3)>")),
    "computation in a produce region": (
        "KT-L04",
        exchange(
            region=(
                "%q = linalg.add ins(%t, %t : tensor<4x64xf16>, tensor<4x64xf16>) outs(%t : "
                "tensor<4x64xf16>) -> tensor<4x64xf16>"
            )
        ),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_the_rule_finds(name):
    code, text = BAD[name]
    assert code in codes(text), [d.format() for d in findings(text)]


GOOD = {
    "a tail that only some tiles have": body(
        ME + view("v", "%x", [10, 64]) + tile("a", "v", [10, 64], ["%me * 3", "0"], [3, 64]), grid="[4]"
    ),
    "a window that starts before the view for the first tile": body(
        ME + view("v", "%x", [4, 64]) + tile("a", "v", [4, 64], ["%me - 1", "0"], [3, 64])
    ),
    "the same baked buffer seen twice": body(
        "%p = arith.constant 0 : index\n" + view("v", "%p", [16, 64]) + view("w", "%p", [16, 64])
    ),
    "buffers side by side": body(
        "%p = arith.constant 0 : index\n%q = arith.constant 1024 : index\n"
        + view("v", "%p", [16, 64])
        + view("w", "%q", [16, 64])
    ),
    "a gather over one group": exchange(),
    "a reduction from an empty tensor with identity": body(
        "%c = arith.constant 0.0 : f32\n%t = tensor.splat %c : tensor<4x8xf32>\n%e = tensor.empty() : tensor<4xf32>\n"
        "%r = linalg.reduce { arith.maximumf } ins(%t : tensor<4x8xf32>) outs(%e : tensor<4xf32>) dimensions = [1]"
    ),
    "thirty-two compute tiles": body("", grid="[32]"),
    "a loop that stores what it loaded from the same place": body(
        ME
        + view("v", "%x", [4, 64])
        + tile("a", "v", [4, 64], ["%me", "0"], [1, 64])
        + "%r = ktdp.load %a : <1x64xindex> -> tensor<1x64xf16>\nktdp.store %r, %a : tensor<1x64xf16>, <1x64xindex>"
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_verifier_is_quiet_about(name):
    assert codes(GOOD[name]) == [], [d.format() for d in findings(GOOD[name])]


def test_facts_of_the_target_are_options():
    text = body("", grid="[8]")
    assert codes(text, cores=4) == ["KT-L07"] and codes(text, cores=8) == []
    lx = body("%p = arith.constant 0 : index\n" + view("v", "%p", [16, 64], space="ct_local"))
    assert codes(lx, lx_bytes=2048) == [] and codes(lx, lx_bytes=2047) == ["KT-V17"]
    sizes = body(view("v", "%x", [16, 64]) + view("w", "%x", [16, 64], kind="f32"))
    assert codes(sizes, address_unit="bytes") == []


def test_compat_takes_the_first_coordinate():
    assert codes(BAD["one id on a two-dim grid"][1], compat=True) == []


def test_a_dynamic_tensor_without_a_bound_is_noted_until_a_bound_is_given():
    text = body(
        "%t = tensor.empty(%n) : tensor<?x64xf16>\n"
        "%c = arith.constant 0.0 : f16\n%u = linalg.fill ins(%c : f16) outs(%t : tensor<?x64xf16>) "
        "-> tensor<?x64xf16>"
    )
    assert [d.code for d in findings(text)] == ["KT-V16"]
    assert findings(text, bounds={"n": 64}) == []
    assert [d.code for d in findings(text, bounds={"n": 1 << 20})] == ["KT-V17"]


def test_strict_reports_old_spellings_with_the_new_one():
    text = body(
        "%v = ktdp.construct_memory_view %x, sizes: [4], strides: [1] {memory_space "
        "= #ktdp.spyre_memory_space<HBM>} : memref<4xf16>"
    )
    (found,) = findings(text, strict=True)
    assert found.code == "KT-S01" and "#ktdp.memory_space<global>" in found.message
    assert findings(text) == []


def test_findings_point_at_the_line_and_name_op_and_function():
    _, text = BAD["a tile wholly outside its view"]
    (found,) = [d for d in findings(text) if d.code == "KT-V09"]
    line = text.split("\n")[found.position.line - 1]
    assert line[found.position.col - 1 :].startswith("ktdp.construct_access_tile")
    assert found.op == "ktdp.construct_access_tile" and found.function == "f" and found.position.file == "k.ktir"
    assert "16" in found.message and "0..15" in found.message
    assert found.format().startswith("k.ktir:")


def test_all_errors_of_a_program_are_reported_not_only_the_first():
    text = "func.func @f(%a: f32) {\n%b = arith.extf %a : f32 to f16\n%c = arith.truncf %a : f32 to f64\nreturn\n}"
    assert codes(text) == ["KT-V19", "KT-V19"]


def test_uses_before_definitions_are_found():
    text = (
        'func.func @f(%a: f32) {\n%b = "arith.addf"(%c, %a) : (f32, f32) -> f32\n'
        "%c = arith.addf %a, %a : f32\nreturn\n}"
    )
    (found,) = findings(text)
    assert found.code == "KT-V18" and "%c" in found.message


def test_values_of_a_region_are_not_visible_outside():
    text = (
        "func.func @f(%x: index, %p: i1) {\nscf.if %p {\n"
        "%k = arith.addi %x, %x : index\n}\n%m = arith.addi %k, %x : index\n"
        "return\n}"
    )
    with pytest.raises(Exception, match="never defined"):
        load(text)


def test_boxes_of_snippets_are_what_they_say():
    assert box([2, 3]) == "affine_set<(d0, d1) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 2 >= 0)>"
