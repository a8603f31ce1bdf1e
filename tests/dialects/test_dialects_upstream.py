"""Upstream ops as KTIR uses them: forms xDSL lacks, one printed form, checks of types."""

from __future__ import annotations

import pytest
from xdsl.dialects import arith as xdsl_arith

from torch_loom.dialects import upstream_arith as arith
from torch_loom.dialects.upstream_linalg import ReduceOp
from torch_loom.ktir import KtirError, load

ARGS = (
    "%x: index, %y: index, %i: i32, %j: i32, %b: i1, %a: f32, %h: f16, %m: tensor<4xi1>, %t: tensor<4xf32>, "
    "%u: tensor<4xf16>, %n: tensor<4xi32>, %w: tensor<4x8xf32>, %p: tensor<8x16xf32>, "
    "%q: tensor<4x16xf32>, %d: tensor<?x8xf32>"
)


def f(body):
    return f"func.func @f({ARGS}) {{\n{body}\nreturn\n}}"


LINES = [
    "%r = arith.remf %a, %a : f32",
    "%r = arith.addf %t, %t fastmath<nnan,contract> : tensor<4xf32>",
    "%r = arith.addi %i, %j overflow<nsw,nuw> : i32",
    "%r = arith.cmpf ult, %t, %t : tensor<4xf32>",
    "%r = arith.cmpi uge, %n, %n : tensor<4xi32>",
    "%r = arith.select %m, %t, %t : tensor<4xi1>, tensor<4xf32>",
    "%r = arith.select %b, %t, %t : tensor<4xf32>",
    "%r = arith.sitofp %n : tensor<4xi32> to tensor<4xf16>",
    "%r = arith.fptoui %t : tensor<4xf32> to tensor<4xi8>",
    "%r = arith.extsi %n : tensor<4xi32> to tensor<4xi64>",
    "%r = arith.index_castui %i : i32 to index",
    "%r = arith.bitcast %t : tensor<4xf32> to tensor<4xi32>",
    "%r:2 = arith.mului_extended %i, %j : i32",
    "%r:2 = arith.addui_extended %i, %j : i32, i1",
    "%r = math.erf %t : tensor<4xf32>",
    "%r = math.fma %t, %t, %t : tensor<4xf32>",
    "%r = math.powf %a, %a : f32",
    "%r = math.roundeven %u : tensor<4xf16>",
    "%r = linalg.div ins(%t, %t : tensor<4xf32>, tensor<4xf32>) outs(%t : tensor<4xf32>) -> tensor<4xf32>",
    "%r = linalg.reciprocal ins(%t : tensor<4xf32>) outs(%t : tensor<4xf32>) -> tensor<4xf32>",
    (
        "%r = linalg.select ins(%m, %t, %t : tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) "
        "outs(%t : tensor<4xf32>) -> tensor<4xf32>"
    ),
    "%r = linalg.fill ins(%a : f32) outs(%t : tensor<4xf32>) -> tensor<4xf32>",
    (
        "%r = linalg.matmul ins(%w, %p : tensor<4x8xf32>, tensor<8x16xf32>) outs(%q "
        ": tensor<4x16xf32>) -> tensor<4x16xf32>"
    ),
    "%r = linalg.transpose ins(%w : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]",
    "%r = linalg.broadcast ins(%t : tensor<4xf32>) outs(%w : tensor<4x8xf32>) dimensions = [1]",
    "%r = linalg.reduce { arith.maximumf } ins(%w : tensor<4x8xf32>) outs(%t : tensor<4xf32>) dimensions = [1]",
    "%r = linalg.map { arith.mulf } ins(%t, %t : tensor<4xf32>, tensor<4xf32>) outs(%t : tensor<4xf32>)",
    "%r = tensor.empty(%x) : tensor<?x8xf32>",
    "%r = tensor.splat %a[%x] : tensor<?x8xf32>",
    "%r = tensor.dim %d, %x : tensor<?x8xf32>",
    "%r = tensor.cast %d : tensor<?x8xf32> to tensor<4x8xf32>",
    "%r = tensor.extract %w[%x, %y] : tensor<4x8xf32>",
    "%r = tensor.insert %a into %w[%x, %y] : tensor<4x8xf32>",
    "%r = tensor.from_elements %a, %a : tensor<2xf32>",
    "%r = tensor.extract_slice %w[%x, 0] [2, 4] [1, 2] : tensor<4x8xf32> to tensor<2x4xf32>",
    "%r = tensor.concat dim(0) %w, %w : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>",
    "%r = tensor.expand_shape %t [[0, 1]] output_shape [2, 2] : tensor<4xf32> into tensor<2x2xf32>",
    "%r = affine.apply affine_map<(d0)[s0] -> (d0 * 4 + s0)>(%x)[%y]",
    "%r = affine.min affine_map<(d0) -> (d0 + 8, 64)>(%x)",
    "%r = affine.max affine_map<(d0, d1) -> (d0, d1)>(%x, %y)",
]


@pytest.mark.parametrize("line", LINES)
def test_upstream_ops_are_printed_as_they_are_read(line):
    loaded = load(f("%e = tensor.empty() : tensor<8x4xf32>\n" + line))
    assert line in str(loaded).replace(" : i64]", "]").replace("0 : i64", "0").replace("1 : i64", "1")
    for text in (str(loaded), loaded.print(generic=True)):
        assert load(text).module.is_structurally_equivalent(loaded.module)


def test_refined_classes_are_instances_of_xdsl_classes():
    op = next(op for op in load(f("%r = arith.addf %a, %a : f32")).module.walk() if op.name == "arith.addf")
    assert isinstance(op, xdsl_arith.AddfOp) and isinstance(op, arith.AddfOp)


def test_long_and_short_reduce_are_one_op():
    short = load(
        f("%r = linalg.reduce { arith.addf } ins(%w : tensor<4x8xf32>) outs(%t : tensor<4xf32>) dimensions = [1]")
    )
    long = load(
        f(
            "%r = linalg.reduce ins(%w : tensor<4x8xf32>) outs(%t : tensor<4xf32>) dimensions "
            "= [1] (%in: f32, %init: f32) {\n"
            "%s = arith.addf %init, %in : f32\nlinalg.yield %s : f32\n}"
        )
    )
    assert long.module.is_structurally_equivalent(short.module)
    assert "linalg.reduce { arith.addf }" in str(long)
    assert next(op for op in long.module.walk() if isinstance(op, ReduceOp)).combiner == "arith.addf"


def test_a_reduce_in_the_other_operand_order_keeps_its_region():
    text = f(
        "%r = linalg.reduce ins(%w : tensor<4x8xf32>) outs(%t : tensor<4xf32>) dimensions "
        "= [1] (%in: f32, %init: f32) {\n"
        "%s = arith.subf %in, %init : f32\nlinalg.yield %s : f32\n}"
    )
    assert "(%in: f32, %init: f32) {" in str(load(text))


def test_result_types_after_transpose_broadcast_and_reduce_are_accepted():
    plain = f(
        "%e = tensor.empty() : tensor<8x4xf32>\n%r = linalg.transpose ins(%w : tensor<4x8xf32>) "
        "outs(%e : tensor<8x4xf32>) permutation = [1, 0]\n"
        "%s = linalg.broadcast ins(%t : tensor<4xf32>) outs(%w : tensor<4x8xf32>) dimensions = [1]\n"
        "%v = linalg.reduce { arith.addf } ins(%w : tensor<4x8xf32>) outs(%t : tensor<4xf32>) dimensions = [1]"
    )
    typed = plain.replace("[1, 0]", "[1, 0] -> tensor<8x4xf32>").replace(
        "%w : tensor<4x8xf32>) dimensions = [1]\n", "%w : tensor<4x8xf32>) dimensions = [1] -> tensor<4x8xf32>\n"
    )
    typed = typed.replace("dimensions = [1]\nreturn", "dimensions = [1] -> tensor<4xf32>\nreturn")
    assert load(typed).module.is_structurally_equivalent(load(plain).module)


def test_matmul_mixes_half_inputs_and_single_outputs():
    text = (
        "func.func @f(%a: tensor<?x8xf16>, %b: tensor<8x16xf16>, %c: tensor<?x16xf32>) "
        "{\n%r = linalg.matmul ins(%a, %b : tensor<?x8xf16>, tensor<8x16xf16>) outs(%c "
        ": tensor<?x16xf32>) -> tensor<?x16xf32>\n"
        "return\n}"
    )
    loaded = load(text)
    assert "arith.extf" in loaded.print(generic=True)


@pytest.mark.parametrize(
    "line",
    [
        "scf.for %k = %x to %y step %x {\n}",
        "%r = scf.for %k = %x to %y step %x iter_args(%v = %t) -> (tensor<4xf32>) {\nscf.yield %v : tensor<4xf32>\n}",
        "scf.for %k = %i to %j step %i : i32 {\n}",
        "scf.if %b {\n} else {\n}",
        (
            "%r = scf.while (%v = %i) : (i32) -> i32 {\n"
            "scf.condition(%b) %v : i32\n} do {\n^bb0(%k: i32):\n"
            "scf.yield %k : i32\n}"
        ),
        "scf.while : () -> () {\nscf.condition(%b)\n} do {\nscf.yield\n}",
        "scf.parallel (%k, %l) = (%x, %x) to (%y, %y) step (%x, %x) {\nscf.reduce\n}",
        "scf.forall (%k) = (0) to (%y) step (2) {\n}",
    ],
)
def test_control_flow_is_read_printed_and_read_again(line):
    loaded = load(f(line))
    for text in (str(loaded), loaded.print(generic=True)):
        assert load(text).module.is_structurally_equivalent(loaded.module)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%r = arith.addf %i, %j : i32", "does not take i32"),
        ("%r = arith.addi %a, %a : f32", "does not take f32"),
        ("%r = arith.extf %a : f32 to f16", "cannot turn f32 into f16"),
        ("%r = arith.truncf %t : tensor<4xf32> to tensor<8xf16>", "keeps the shape"),
        ("%r = arith.select %m, %a, %a : tensor<4xi1>, f32", "takes i1 or a mask"),
        ("%r = arith.cmpi flt, %i, %j : i32", "unknown predicate"),
        (
            "%r = linalg.add ins(%t, %w : tensor<4xf32>, tensor<4x8xf32>) outs(%t : tensor<4xf32>) -> tensor<4xf32>",
            "does not fit its indexing map",
        ),
        (
            (
                "%r = linalg.matmul ins(%w, %w : tensor<4x8xf32>, tensor<4x8xf32>) outs(%q "
                ": tensor<4x16xf32>) -> tensor<4x16xf32>"
            ),
            "has extent",
        ),
        (
            "%r = linalg.reduce { arith.addf } ins(%w : tensor<4x8xf32>) outs(%t : tensor<4xf32>) dimensions = [0]",
            "extent",
        ),
        (
            "%r = linalg.reduce { arith.foo } ins(%w : tensor<4x8xf32>) outs(%t : tensor<4xf32>) dimensions = [1]",
            "unknown op 'arith.foo'",
        ),
        (
            "%r = linalg.transpose ins(%w : tensor<4x8xf32>) outs(%w : tensor<4x8xf32>) permutation = [1, 0]",
            "transposed shape",
        ),
        ("%r = tensor.collapse_shape %w [[0, 1]] : tensor<4x8xf32> into tensor<31xf32>", "hold 32 elements"),
        ("%r = tensor.extract_slice %w[2, 0] [4, 8] [1, 1] : tensor<4x8xf32> to tensor<4x8xf32>", "covers 2..5"),
        ("%r = tensor.empty() : tensor<?xf32>", "needs 1 sizes"),
        (
            (
                "%r = scf.for %k = %x to %y step %x iter_args(%v = %t) -> (tensor<4xf32>) {\n"
                "scf.yield %u : tensor<4xf16>\n}"
            ),
            "yields",
        ),
        ("%r = scf.if %b -> (f32) {\nscf.yield %a : f32\n}", "needs an else branch"),
        ("%r = linalg.index 0 : index", "stands in the body"),
    ],
)
def test_wrong_types_and_shapes_are_refused(line, message):
    with pytest.raises(KtirError, match=message):
        load(f(line))


def test_a_named_op_with_a_foreign_body_is_refused():
    text = load(
        f("%r = linalg.add ins(%t, %t : tensor<4xf32>, tensor<4xf32>) outs(%t : tensor<4xf32>) -> tensor<4xf32>")
    ).print(generic=True)
    with pytest.raises(KtirError, match="is not the body of that op"):
        load(text.replace("arith.addf", "arith.mulf"))
