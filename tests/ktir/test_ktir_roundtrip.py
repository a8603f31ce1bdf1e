"""Reading what was printed gives the same module, for random programs; broken texts give diagnostics, never more."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from ktir_library import PROGRAMS
from ktir_mutate import MUTATIONS, mutate, outcome
from ktir_random import programs

from torch_loom.ktir import load


@settings(max_examples=100)
@given(programs())
def test_random_programs_survive_printing(text):
    program = load(text)
    printed = str(program)
    again = load(printed)
    assert again.module.is_structurally_equivalent(program.module)
    assert str(again) == printed
    generic = load(program.print(generic=True))
    assert generic.module.is_structurally_equivalent(program.module)
    assert str(generic) == printed


def test_mutated_texts_load_or_are_diagnosed():
    pool = [p.read_text("utf-8") for p in sorted(PROGRAMS.glob("*.ktir"))]
    counts = Counter(outcome(mutate(random.Random(number), pool)) for number in range(1000))
    assert sum(counts.values()) == 1000 and set(counts) == {"loaded", "diagnosed"}


def test_every_mutation_is_survived_by_every_program():
    pool = [p.read_text("utf-8") for p in sorted(PROGRAMS.glob("*.ktir"))]
    rng = random.Random(7)
    for text in pool[::4]:
        for mutation in MUTATIONS:
            assert outcome(mutation(rng, text, pool)) in ("loaded", "diagnosed")


def test_hostile_texts_end_quickly():
    hostile = [
        "(" * 100_000,
        "module {" * 5_000,
        "module { func.func @f() attributes {a = " + "[" * 20_000 + "]" * 20_000 + "} { return } }",
        "#a = affine_map<(d0) -> (" + "(" * 3_000 + "d0" + ")" * 3_000 + ")>",
        "#a = affine_map<(d0) -> (" + "d0 + " * 20_000 + "d0)>",
        " " * 200_000 + "\x01",
        "// " * 100_000,
        '"' + "a" * 200_000,
        "func.func @f(%x: tensor<" + "1x" * 10_000 + "f32>) { return }",
        "func.func @f() attributes {grid = [4096, 4096, 4096]} { %a = ktdp.get_compute_tile_id : index\nreturn }",
        "func.func @f(%x: i99999999999) { return }",
        "func.func @f(%x: index) {\n" + "%a = arith.addi %x, %x : index\n" * 2 + "return }",
    ]
    for text in hostile:
        assert outcome(text) in ("loaded", "diagnosed")


IF_WITH_ARGUMENTS = """func.func @f(%c: i1) {
  scf.if %c {
  ^bb0(%a: f32):
    scf.yield
  }
  return
}"""
SHORT_FORALL = """"func.func"() <{function_type = () -> (), sym_name = "f"}> ({
  "scf.forall"() <{operandSegmentSizes = array<i32: 0, 0, 0, 0>, staticLowerBound = array<i64: 0>,
    staticStep = array<i64: 1>, staticUpperBound = array<i64: -9223372036854775808>}> ({
  ^bb0(%i: index):
    "scf.forall.in_parallel"() ({}) : () -> ()
  }) : () -> ()
  "func.return"() : () -> ()
}) : () -> ()"""
HUGE_DIVISOR = """func.func @f(%p: index) {
  %v = ktdp.construct_memory_view %p, sizes: [4], strides: [1] {
    coordinate_set = affine_set<(d0) : (d0 >= 0, 3 - d0 >= 0, d0 mod 0xFFFFFFFFFFFFFFFFFF == 0)>,
    memory_space = #ktdp.memory_space<global>} : memref<4xf16>
  return
}"""
INITIAL_FROM_INSIDE = """func.func @f(%n: index, %s: f32) {
  %r = scf.for %i = %n to %n step %n iter_args(%a = %b) -> (f32) {
    %b = arith.addf %a, %s : f32
    scf.yield %b : f32
  }
  return
}"""
FOUND_BY_FUZZING = {
    "a name that is no string": '"func.func"() <{function_type = () -> (), sym_name = tensor<1xf16>}> ({}) : () -> ()',
    "no name": '"func.func"() <{function_type = () -> ()}> ({}) : () -> ()',
    "no function type": '"func.func"() <{sym_name = "f"}> ({\n"func.return"() : () -> ()\n}) : () -> ()',
    "a return of the module": 'func.func @f() { return }\n"func.return"() : () -> ()',
    "a branch with arguments": IF_WITH_ARGUMENTS,
    "a bound without its operand": SHORT_FORALL,
    "a bound that is the marker": "func.func @f() { scf.forall (%i) in (9223372036854775808) { }\nreturn }",
    "a divisor of 72 bits": HUGE_DIVISOR,
    "an initial value defined in the body": INITIAL_FROM_INSIDE,
}


@pytest.mark.parametrize("name", FOUND_BY_FUZZING)
def test_what_fuzzing_found_stays_fixed(name):
    """Texts that once made the checks raise, or that printing changed."""
    assert outcome(FOUND_BY_FUZZING[name]) == "diagnosed"
