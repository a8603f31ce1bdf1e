"""Passes keep what a program computes, and do what their names say."""

from __future__ import annotations

import numpy as np
import pytest
from ktir_library import CASES, PROGRAMS
from ktir_snippets import body

from torch_loom.ktir import load
from torch_loom.ktir.passes import PASSES, run_passes


def names(program):
    return [op.name for op in program.module.walk()]


@pytest.mark.parametrize(
    "chosen", [[name] for name in PASSES] + [["inline", "generalize", "fold", "cse", "dce"], ["generalize", "name"]]
)
@pytest.mark.parametrize(
    "name", ["calls", "matmul", "named_ops", "attention", "transpose_load", "matmul_loop", "argmax", "branch"]
)
def test_passes_keep_the_values(name, chosen):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(0))
    before = load(PROGRAMS / f"{name}.ktir")
    after = load(PROGRAMS / f"{name}.ktir")
    run_passes(after.module, chosen)
    again = load(str(after))
    expected = before.run(name, **arguments)
    for key, value in again.run(name, **arguments).items():
        np.testing.assert_allclose(value, expected[key], rtol=2**-10, atol=2**-10)


def test_dce_removes_what_nobody_uses():
    program = load(
        body("%a = arith.constant 1 : index\n%b = arith.addi %a, %a : index\n%c = tensor.empty() : tensor<4xf32>")
    )
    run_passes(program.module, ["dce"])
    assert names(program) == ["builtin.module", "func.func", "func.return"]


def test_cse_merges_equal_values_but_not_loads():
    program = load(PROGRAMS / "lx_scratch.ktir")
    loads = names(program).count("ktdp.load")
    run_passes(program.module, ["cse"])
    assert names(program).count("ktdp.load") == loads
    other = load(body("%a = arith.addi %n, %n : index\n%b = arith.addi %n, %n : index\n%c = arith.muli %a, %b : index"))
    run_passes(other.module, ["cse"])
    assert names(other).count("arith.addi") == 1


def test_fold_computes_constants():
    text = (
        "%a = arith.constant 7 : index\n%b = arith.constant -2 : index\n"
        "%c = arith.divsi %a, %b : index\n%d = arith.floordivsi %a, %b : index\n"
        "%e = arith.addi %c, %d : index\n%f = arith.addi %e, %n : index\n"
        "%t = tensor.empty(%f) : tensor<?xf32>\n%r = tensor.dim %t, %n : tensor<?xf32>"
    )
    program = load(body(text))
    run_passes(program.module, ["fold"])
    assert "arith.divsi" not in names(program)


def test_fold_leaves_division_by_zero_alone():
    program = load(
        body(
            "%a = arith.constant 7 : index\n%b = arith.constant 0 : index\n"
            "%c = arith.divsi %a, %b : index\n%d = arith.addi %c, %n : index"
        )
    )
    run_passes(program.module, ["fold"])


def test_generalize_and_name_are_inverse_for_named_ops():
    program = load(PROGRAMS / "matmul.ktir")
    run_passes(program.module, ["generalize"])
    assert "linalg.matmul" not in names(program) and "linalg.generic" in names(program)
    run_passes(program.module, ["name"])
    assert program.module.is_structurally_equivalent(load(PROGRAMS / "matmul.ktir").module)


def test_inlining_recursion_is_an_error():
    text = (
        "func.func @f() {\nfunc.call @g() : () -> ()\nreturn\n}\nfunc.func @g() {\nfunc.call @f() : () -> ()\nreturn\n}"
    )
    with pytest.raises(ValueError, match="circle"):
        run_passes(load(text).module, ["inline"])


def test_unknown_passes_are_refused():
    with pytest.raises(ValueError, match="no pass 'x'"):
        run_passes(load(body("")).module, ["x"])
