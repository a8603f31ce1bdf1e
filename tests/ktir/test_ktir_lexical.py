"""The lexical layer: everything public files contain survives reading and printing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torch_loom.ktir import KtirError, load


def same(a, b):
    return load(a).module.is_structurally_equivalent(load(b).module)


def f(body, args="%x: index, %a: f16, %t: tensor<4xf16>"):
    return f"func.func @f({args}) {{\n{body}\nreturn\n}}"


LOCATIONS = [
    "loc(unknown)",
    'loc("a.py":12:3)',
    'loc("name")',
    'loc("name"("a.py":1:2))',
    'loc(callsite("f" at "b.py":3:4))',
    'loc(fused["a.py":1:2, unknown])',
    'loc(fused<"why">["a.py":1:2])',
    'loc("f":3:4 to :8)',
    'loc("f":3:4 to 5:8)',
    "loc(#somewhere)",
]


@pytest.mark.parametrize("location", LOCATIONS)
def test_locations_are_read_everywhere_and_not_printed(location):
    text = f"""
func.func @f(%x: index {location}) {{
  %a = arith.addi %x, %x : index {location}
  "scf.for"(%x, %x, %x) ({{
  ^bb0(%i: index {location}):
    "scf.yield"() : () -> () {location}
  }}) : (index, index, index) -> () {location}
  return {location}
}} {location}
#somewhere = loc("z.py":9:9)
"""
    loaded = load(text)
    assert "loc(" not in str(loaded)
    kept = loaded.print(locations=True)
    assert load(kept).module.is_structurally_equivalent(loaded.module)
    if location != "loc(unknown)":
        assert kept.count("loc(") >= 3


@pytest.mark.parametrize("generic", [False, True])
def test_a_location_is_kept_on_the_op(generic):
    loaded = load(f('%b = arith.addf %a, %a : f16 loc("model.py":7:3)'))
    again = load(loaded.print(locations=True, generic=generic))
    assert 'loc("model.py":7:3)' in again.print(locations=True)


def test_aliases_may_stand_anywhere_and_be_used_first():
    plain = f("%b = tensor.splat %a : tensor<4xf16>\n%c = arith.addf %b, %t : tensor<4xf16>")
    used = f("%b = tensor.splat %a : !row\n%c = arith.addf %b, %t : !row")
    for text in (
        "!row = tensor<4xf16>\n" + used,
        used + "\n!row = tensor<4xf16>",
        "module {\n!row = tensor<4xf16>\n" + used + "\n}",
        "module {\n" + used + "\n!row = !other\n}\n!other = tensor<4xf16>",
    ):
        assert load(text).module.is_structurally_equivalent(load(plain).module)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f("%b = tensor.splat %a : !none"), "'!none' is not defined"),
        ("!a = !b\n!b = !a\n" + f("%b = tensor.splat %a : !a"), "defined by itself"),
        ("!a = f16\n!a = f32\n" + f(""), "defined twice"),
    ],
)
def test_wrong_aliases_are_diagnosed(text, message):
    with pytest.raises(KtirError, match=message) as caught:
        load(text)
    assert caught.value.diagnostics[0].code == "KT-P02"


def test_names_of_all_kinds_are_read():
    text = f(
        "%0 = arith.addf %a, %a : f16\n%1x.y$z-w_1 = arith.addf %0, %a : f16\n".replace("%1x", "%_1x")
        + "%p:2 = scf.while (%i = %x, %v = %0) : (index, f16) -> (index, f16) {\n"
        "%go = arith.cmpi slt, %i, %x : index\nscf.condition(%go) %i, %v : index, f16\n} do {\n"
        "^bb0(%i: index, %v: f16):\nscf.yield %i, %v : index, f16\n}\n"
        "%q = arith.addf %p#1, %p#1 : f16\n%r, %s = arith.mulsi_extended %n, %n : i32",
        "%x: index, %a: f16, %t: tensor<4xf16>, %n: i32",
    )
    loaded = load(text)
    printed = str(loaded)
    assert "%p:2 = scf.while" in printed and "%p#1" in printed and "%r:2 = arith.mulsi_extended" in printed
    assert load(printed).module.is_structurally_equivalent(loaded.module)


def test_argument_names_with_suffixes_are_kept():
    loaded = load("func.func @f(%x_1: index, %x_2: index, %x: index) {\nreturn\n}")
    assert [a.name for a in load(str(loaded)).arguments()] == ["x_1", "x_2", "x"]


def test_keywords_may_be_names():
    text = f("%to = arith.addf %a, %a : f16\n%step = arith.addf %to, %to : f16\n%into = arith.addf %step, %to : f16")
    assert load(str(load(text))).module.is_structurally_equivalent(load(text).module)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("0xFC00 : f16", -math.inf),
        ("0xFF800000 : f32", -math.inf),
        ("0xFF80 : bf16", -math.inf),
        ("0x3C00 : f16", 1.0),
        ("1.5 : f16", 1.5),
        ("-2.5e-1 : f32", -0.25),
    ],
)
def test_float_literals_have_the_value_of_their_bits(literal, value):
    loaded = load(f(f"%k = arith.constant {literal}"))
    for program in (loaded, load(str(loaded))):
        constant = next(op for op in program.module.walk() if op.name == "arith.constant")
        assert constant.properties["value"].value.data == value


@pytest.mark.parametrize(
    ("literal", "values"),
    [
        ("dense<0xFC00> : tensor<4xf16>", [-math.inf] * 4),
        ("dense<[0x3C00, 1.5, -2.0, 0xBC00]> : tensor<4xf16>", [1.0, 1.5, -2.0, -1.0]),
        ("dense<[[0x7F800000, 1.0], [2.0, 0xFF800000]]> : tensor<2x2xf32>", [math.inf, 1.0, 2.0, -math.inf]),
        ("dense<1.0> : tensor<2xf16>", [1.0, 1.0]),
        ("dense<0xFF80> : tensor<2xbf16>", [-math.inf] * 2),
    ],
)
def test_hex_numbers_in_dense_are_bit_patterns(literal, values):
    loaded = load(f(f"%k = arith.constant {literal}"))
    for program in (loaded, load(str(loaded)), load(loaded.print(generic=True))):
        constant = next(op for op in program.module.walk() if op.name == "arith.constant")
        assert list(constant.properties["value"].get_values()) == values


def test_dense_integers_keep_their_values_in_hex_too():
    loaded = load(f("%k = arith.constant dense<[0x10, -3]> : tensor<2xi32>"))
    constant = next(op for op in load(str(loaded)).module.walk() if op.name == "arith.constant")
    np.testing.assert_array_equal(list(constant.properties["value"].get_values()), [16, -3])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("%k = arith.constant 1 : f16", "KT-P06"),
        ("%k = arith.constant 1.0 : i32", "KT-P06"),
        ("%k = arith.constant 0x1FFFF : f16", "KT-P06"),
        ("%k = arith.constant 99999999999 : i32", "KT-P00"),
        ("%k = arith.constant dense<1.0> : tensor<100000x100000xf32>", "KT-P00"),
    ],
)
def test_literals_of_the_wrong_kind_are_refused(body, code):
    with pytest.raises(KtirError) as caught:
        load(f(body))
    assert caught.value.diagnostics[0].code == code


def test_a_literal_that_rounds_away_is_a_warning():
    found = load(f("%k = arith.constant 65520.0 : f16\n%l = arith.constant 1.0e-20 : f16")).check()
    assert [d.code for d in found] == ["KT-P06", "KT-P06"]
    assert "inf" in found[0].message and "rounds to 0" in found[1].message


def test_generic_form_of_every_region_op_is_read():
    text = (
        '"builtin.module"() ({\n"func.func"() <{function_type = () -> (), sym_name '
        '= "f"}> ({\n"func.return"() : () -> ()\n}) {grid = [4]} : () -> ()\n'
        "}) : () -> ()"
    )
    assert same(text, "module {\nfunc.func @f() attributes {grid = [4]} {\nreturn\n}\n}")


def test_properties_may_stand_in_the_attribute_dictionary():
    old = f('%b = "arith.cmpf"(%a, %a) {predicate = 4 : i64} : (f16, f16) -> i1')
    assert same(old, f("%b = arith.cmpf olt, %a, %a : f16"))


def test_unknown_ops_in_generic_form_survive_but_are_reported():
    text = f(
        '%b = "my.op"(%a) <{k = 3 : i32}> ({\n^bb0(%q: index):\n'
        '  "my.end"() : () -> ()\n}) {note = "x"} : (f16) -> !my.type<"a>b", 3>'
    )
    loaded = load(text, verify=False)
    again = load(str(loaded), verify=False)
    assert again.module.is_structurally_equivalent(loaded.module)
    codes = {d.code for d in loaded.check()}
    assert "KT-P01" in codes


def test_several_functions_and_text_without_a_module():
    loaded = load("func.func private @a(%x: index) {\nreturn\n}\nfunc.func public @b() {\nreturn\n}")
    assert loaded.functions == ["a", "b"]
    assert load(str(loaded)).functions == ["a", "b"]
    assert "private @a" in str(loaded) and "public @b" in str(loaded)


def test_comments_strings_and_metadata_do_not_confuse_the_reader():
    text = (
        '// a } comment "\nmodule attributes {note = "// no comment } {", other = "q\\"uote"} {\n'
        + f("%b = arith.addf %a, %a : f16 // trailing")
        + '\n}\n{-# dialect_resources: { x: { y: "0x00" } } #-}\n'
    )
    assert 'note = "// no comment } {"' in str(load(text))


@pytest.mark.parametrize(
    "kind", ["tensor<2x16xsi32>", "tensor<?x?xf16>", "tensor<0x4xf16>", "tensor<f32>", "memref<?x8xi64>"]
)
def test_dimension_lists_glued_to_types(kind):
    assert kind in str(load(f"func.func @f(%a: {kind}) {{\nreturn\n}}"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("func.func @f() {\n%a = tt.load %b\nreturn\n}", "KT-P08"),
        ("func.func @f(%p: !tt.ptr<f16>) {\nreturn\n}", "KT-P08"),
        ("func.func @f() {\ncf.br ^bb1\n}", "KT-P09"),
        ("func.func @f(%m: memref<4xf16>, %i: index) {\n%a = memref.load %m[%i] : memref<4xf16>\nreturn\n}", "KT-P09"),
        ("func.func @f() {\n%a = linalg.conv_2d ins() outs()\nreturn\n}", "KT-P09"),
        ("func.func @f() {\n%a = aritth.addf %b, %c : f32\nreturn\n}", "KT-P01"),
        ("func.func @f(%b: f32) {\n%a = arith.adf %b, %b : f32\nreturn\n}", "KT-P01"),
        ("func.func @f(%b: f32) {\n%a = arith.addf %b, %c : f32\nreturn\n}", "KT-P00"),
        ("func.func @f(%b: f32) {\n%b = arith.addf %b, %b : f32\nreturn\n}", "KT-P00"),
        ("", None),
        ("func.func @f() {", "KT-P00"),
        ("func.func @f() { return } }", "KT-P00"),
        ("%%", "KT-P00"),
        ('func.func @f() attributes {a = "x', "KT-P00"),
        ("(" * 5000, "KT-P00"),
        ("func.func @f() attributes {a = " + "[" * 5000, "KT-P00"),
    ],
)
def test_unreadable_text_gives_one_diagnostic(text, code):
    if code is None:
        assert load(text).functions == []
        return
    with pytest.raises(KtirError) as caught:
        load(text, file="bad.ktir")
    (found,) = caught.value.diagnostics
    assert found.code == code and found.position is not None and found.position.file == "bad.ktir"


def test_a_diagnostic_shows_the_line_and_a_caret():
    with pytest.raises(KtirError) as caught:
        load("func.func @f(%b: f32) {\n  %a = arith.adf %b, %b : f32\n  return\n}", file="k.ktir")
    assert str(caught.value) == (
        "k.ktir:2:8: error: unknown operation 'arith.adf'; did you mean 'arith.addf'? [KT-P01]\n"
        "    %a = arith.adf %b, %b : f32\n"
        "         ^~~~~~~~~"
    )


def test_files_that_are_not_text_are_diagnosed(tmp_path):
    path = tmp_path / "x.ktir"
    path.write_bytes(b"module {\n \xff\xfe }")
    with pytest.raises(KtirError, match="not UTF-8"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.ktir")


@pytest.mark.parametrize("line", ['ktdf_arch.device @spyre import("arch.mlir")', "ktdf_arch.device import(@a::@b (x))"])
def test_device_imports_are_kept_as_they_are(line):
    loaded = load(f"module {{\n{line}\nfunc.func @f() {{\nreturn\n}}\n}}")
    assert line in str(loaded)
    assert load(loaded.print(generic=True)).module.is_structurally_equivalent(loaded.module)
    with pytest.raises(KtirError):
        load("module {\nktdf_arch.device @spyre\n}")
