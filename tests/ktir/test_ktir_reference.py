"""The reference interpreter: arithmetic, memory and launch rules against independent computations."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ktir_snippets import body, tile, view

from torch_loom.ktir import KtirError, load

WIDTHS = (1, 8, 16, 32, 64)


def kernel(op, operands, result, kinds, count):
    """One elementwise op over vectors: buffers a, b, ... in, z out."""
    names = "abcd"[:operands]
    text = ""
    for name, kind in zip(names, kinds, strict=True):
        text += view(f"v{name}", f"%{name}", [count], kind=kind) + tile(
            f"t{name}", f"v{name}", [count], ["0"], [count], kind=kind
        )
        text += f"%{name}0 = ktdp.load %t{name} : <{count}xindex> -> tensor<{count}x{kind}>\n"
    text += view("vz", "%z", [count], kind=result) + tile("tz", "vz", [count], ["0"], [count], kind=result)
    values = ", ".join(f"%{n}0" for n in names)
    if op.endswith(" to"):
        text += f"%r = {op.split()[0]} {values} : tensor<{count}x{kinds[0]}> to tensor<{count}x{result}>\n"
    else:
        text += f"%r = {op} {values} : tensor<{count}x{kinds[0]}>\n"
    text += f"ktdp.store %r, %tz : tensor<{count}x{result}>, <{count}xindex>"
    return load(body(text, arguments=", ".join(f"%{n}: index" for n in (*names, "z")), grid=None))


def run_ints(op, width, a, b):
    dtype = np.dtype(f"i{max(1, width // 8)}")
    program = kernel(op, 2, f"i{width}", [f"i{width}"] * 2, len(a))
    arrays = {"a": np.array(a, dtype), "b": np.array(b, dtype), "z": np.zeros(len(a), dtype)}
    return program.run(**arrays)["z"].tolist()


def wrap(value, width):
    return (value + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def unsigned(value, width):
    return value % (1 << width)


def trunc_div(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER = {
    "arith.addi": lambda a, b, w: a + b,
    "arith.subi": lambda a, b, w: a - b,
    "arith.muli": lambda a, b, w: a * b,
    "arith.divsi": lambda a, b, w: trunc_div(a, b),
    "arith.remsi": lambda a, b, w: a - trunc_div(a, b) * b,
    "arith.floordivsi": lambda a, b, w: a // b,
    "arith.ceildivsi": lambda a, b, w: -(-a // b),
    "arith.divui": lambda a, b, w: unsigned(a, w) // unsigned(b, w),
    "arith.remui": lambda a, b, w: unsigned(a, w) % unsigned(b, w),
    "arith.ceildivui": lambda a, b, w: -(-unsigned(a, w) // unsigned(b, w)),
    "arith.minsi": lambda a, b, w: min(a, b),
    "arith.maxsi": lambda a, b, w: max(a, b),
    "arith.minui": lambda a, b, w: min(unsigned(a, w), unsigned(b, w)),
    "arith.maxui": lambda a, b, w: max(unsigned(a, w), unsigned(b, w)),
    "arith.andi": lambda a, b, w: a & b,
    "arith.ori": lambda a, b, w: a | b,
    "arith.xori": lambda a, b, w: a ^ b,
    "arith.shli": lambda a, b, w: a << (unsigned(b, w) % w),
    "arith.shrsi": lambda a, b, w: a >> (unsigned(b, w) % w),
    "arith.shrui": lambda a, b, w: unsigned(a, w) >> (unsigned(b, w) % w),
}


@pytest.mark.parametrize("op", INTEGER)
@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_integers_wrap_at_their_width(op, width):
    rng = np.random.default_rng(width)
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    a = [low, high, 0, -1, 1, *(int(v) for v in rng.integers(low, high, 40, endpoint=True, dtype=np.int64))]
    b = [3, -7, 5, 2, -1, *(int(v) for v in rng.integers(low, high, 40, endpoint=True, dtype=np.int64))]
    if "sh" in op:
        b = [v % width for v in b]
    b = [v or 1 for v in b] if "div" in op or "rem" in op else b
    expected = [wrap(INTEGER[op](x, y, width), width) for x, y in zip(a, b, strict=True)]
    assert run_ints(op, width, a, b) == expected


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.sampled_from(sorted(INTEGER)))
def test_scalar_index_arithmetic_has_64_bits(a, b, op):
    if "sh" in op:
        b = b % 64
    if ("div" in op or "rem" in op) and b == 0:
        b = 1
    text = view("v", "%z", [1], kind="i64") + tile("t", "v", [1], ["0"], [1], kind="i64")
    text += (
        f"%r = {op} %a, %b : index\n%i = arith.index_cast %r : index to i64\n"
        f"%u = tensor.splat %i : tensor<1xi64>\nktdp.store %u, %t : tensor<1xi64>, <1xindex>"
    )
    program = load(body(text, arguments="%a: index, %b: index, %z: index", grid=None))
    assert program.run(a=a, b=b, z=np.zeros(1, np.int64))["z"][0] == wrap(INTEGER[op](a, b, 64), 64)


COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("name", ["eq", "ne", *(s + c for s in "su" for c in ("lt", "le", "gt", "ge"))])
def test_integer_comparison_signed_and_unsigned(name):
    a, b = [-1, 1, 5, -8, 0], [1, -1, 5, 7, -3]
    program = kernel(f"arith.cmpi {name},", 2, "i1", ["i8", "i8"], 5)
    found = program.run(a=np.array(a, np.int8), b=np.array(b, np.int8), z=np.zeros(5, bool))["z"]
    view_as = (lambda v: v % 256) if name[0] == "u" else (lambda v: v)
    expected = [COMPARE[name[-2:]](view_as(x), view_as(y)) for x, y in zip(a, b, strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("name", ["ord", "uno", "true", "false", *(s + c for s in "ou" for c in COMPARE)])
def test_float_comparison_with_nan(name):
    values = [1.0, -2.0, math.nan, math.inf, 0.0]
    a, b = np.repeat(values, 5).astype(np.float32), np.tile(values, 5).astype(np.float32)
    program = kernel(f"arith.cmpf {name},", 2, "i1", ["f32", "f32"], 25)
    found = program.run(a=a, b=b, z=np.zeros(25, bool))["z"].tolist()
    expected = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        nan = math.isnan(x) or math.isnan(y)
        plain = {"ord": not nan, "uno": nan, "true": True, "false": False}.get(name)
        expected.append(plain if plain is not None else (name[0] == "u" if nan else COMPARE[name[1:]](x, y)))
    assert found == expected


def to_half(value):
    """Round to the nearest float16 by the struct module."""
    return struct.unpack("<e", struct.pack("<e", value))[0]


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=4, max_size=4), st.sampled_from(["addf", "subf", "mulf"]))
def test_half_precision_ops_round_once(values, op):
    a, b = (np.array(values[k : k + 2], np.float16) for k in (0, 2))
    program = kernel(f"arith.{op}", 2, "f16", ["f16", "f16"], 2)
    found = program.run(a=a, b=b, z=np.zeros(2, np.float16))["z"]
    exact = {"addf": lambda x, y: x + y, "subf": lambda x, y: x - y, "mulf": lambda x, y: x * y}[op]
    for x, y, z in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        single = struct.unpack("<f", struct.pack("<f", exact(x, y)))[0]
        expected = to_half(single) if abs(single) < 65520 else math.copysign(math.inf, single)
        assert z == expected


def test_maximumf_keeps_nan_and_maxnumf_ignores_it():
    a, b = np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 3], np.float32)
    keeps = kernel("arith.maximumf", 2, "f32", ["f32", "f32"], 3).run(a=a, b=b, z=np.zeros(3, np.float32))["z"]
    ignores = kernel("arith.maxnumf", 2, "f32", ["f32", "f32"], 3).run(a=a, b=b, z=np.zeros(3, np.float32))["z"]
    assert np.isnan(keeps[:2]).all() and keeps[2] == 3
    assert ignores.tolist() == [1, 1, 3]


def test_remainder_has_the_sign_of_the_dividend():
    a, b = np.array([5.5, -5.5, 7.0], np.float32), np.array([2.0, 2.0, -4.0], np.float32)
    found = kernel("arith.remf", 2, "f32", ["f32", "f32"], 3).run(a=a, b=b, z=np.zeros(3, np.float32))["z"]
    assert found.tolist() == [math.fmod(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


FUNCTIONS = {
    "exp": math.exp,
    "exp2": lambda x: 2**x,
    "expm1": math.expm1,
    "log": math.log,
    "log2": math.log2,
    "log1p": math.log1p,
    "log10": math.log10,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "tanh": math.tanh,
    "erf": math.erf,
    "erfc": math.erfc,
    "absf": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "asinh": math.asinh,
    "cbrt": lambda x: x ** (1 / 3),
    "roundeven": round,
    "trunc": math.trunc,
    "round": lambda x: math.floor(x + 0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_math_functions_are_those_of_the_standard_library(name):
    x = np.array([0.1, 0.25, 0.39, 0.41, 0.5, 1.0, 1.5, 2.5, 3.75], np.float32)
    found = kernel(f"math.{name}", 1, "f32", ["f32"], len(x)).run(a=x, z=np.zeros_like(x))["z"]
    expected = np.array([FUNCTIONS[name](v) for v in x.tolist()])
    np.testing.assert_allclose(found, expected, rtol=2**-21, atol=2**-24)


def test_casts_between_types():
    x = np.array([1.9, -1.9, 300.25, -0.0], np.float32)
    assert kernel("arith.fptosi to", 1, "i16", ["f32"], 4).run(a=x, z=np.zeros(4, np.int16))["z"].tolist() == [
        1,
        -1,
        300,
        0,
    ]
    i = np.array([-1, 127, -128, 5], np.int8)
    wide = kernel("arith.extui to", 1, "i32", ["i8"], 4).run(a=i, z=np.zeros(4, np.int32))["z"]
    assert wide.tolist() == [255, 127, 128, 5]
    f = kernel("arith.uitofp to", 1, "f32", ["i8"], 4).run(a=i, z=np.zeros(4, np.float32))["z"]
    assert f.tolist() == [255.0, 127.0, 128.0, 5.0]
    bits = kernel("arith.bitcast to", 1, "i32", ["f32"], 4).run(a=x, z=np.zeros(4, np.int32))["z"]
    assert bits.tolist() == x.view(np.int32).tolist()


@pytest.mark.parametrize(
    ("op", "kinds", "result", "a", "b", "code"),
    [
        ("arith.divsi", ["i32"] * 2, "i32", [1], [0], "KT-X07"),
        ("arith.remui", ["i32"] * 2, "i32", [1], [0], "KT-X07"),
        ("arith.shli", ["i32"] * 2, "i32", [1], [32], "KT-X07"),
        ("arith.fptosi to", ["f32"], "i8", [200.0], None, "KT-X08"),
        ("arith.fptoui to", ["f32"], "i8", [-1.0], None, "KT-X08"),
        ("arith.fptosi to", ["f32"], "i32", [math.nan], None, "KT-X08"),
    ],
)
def test_arithmetic_without_a_value_is_an_error(op, kinds, result, a, b, code):
    program = kernel(op, len(kinds), result, kinds, 1)
    dtype = np.float32 if kinds[0] == "f32" else np.int32
    arrays = {"a": np.array(a, dtype), "z": np.zeros(1, np.dtype(f"i{int(result[1:]) // 8}"))}
    if b is not None:
        arrays["b"] = np.array(b, dtype)
    with pytest.raises(KtirError) as caught:
        program.run(**arrays)
    assert caught.value.diagnostics[0].code == code


def test_df16_numerics_round_to_nine_fraction_bits():
    x = np.array([1.0 + 2**-10, 1.0 + 3 * 2**-10, 100000.0, 2.0**-40], np.float32)
    program = kernel("arith.addf", 2, "f16", ["f16", "f16"], 4)
    found = program.run(a=x, b=np.zeros(4, np.float32), z=np.zeros(4, np.float32), numerics="df16")["z"]
    # Ties go away from zero; 100000 lies between 2^16 * (1 + 269/512) and 2^16 * (1 + 270/512); 2^-40 is nothing.
    assert found.tolist() == [1.0 + 2**-9, 1.0 + 2 * 2**-9, 2**16 * (1 + 269 / 512), 0.0]


def test_bf16_and_fp8_storage():
    x = np.array([1.0, 1.00390625, -3.140625, 1e30], np.float32)
    found = kernel("arith.negf", 1, "bf16", ["bf16"], 4).run(a=x, z=np.zeros(4, np.float32))["z"]
    assert found[:3].tolist() == [-1.0, -1.0, 3.140625]
    small = kernel("arith.negf", 1, "f8E4M3FN", ["f8E4M3FN"], 2).run(a=x[:2], z=np.zeros(2, np.float32))["z"]
    assert small.tolist() == [-1.0, -1.0]


def test_types_that_are_only_parsed_are_refused_by_name():
    program = load(body("%c = arith.constant 1.0 : f64\n%d = arith.addf %c, %c : f64", grid=None, arguments=""))
    with pytest.raises(KtirError, match="f64"):
        program.run()


# ---- memory ------------------------------------------------------------------------------------

COPY = (
    view("v", "%x", [4, 64])
    + tile("a", "v", [4, 64], ["0", "0"], [4, 64])
    + "%b = ktdp.load %a : <4x64xindex> -> tensor<4x64xf16>\n"
    + view("w", "%y", [4, 64])
    + tile("c", "w", [4, 64], ["0", "0"], [4, 64])
    + "ktdp.store %b, %c : tensor<4x64xf16>, <4x64xindex>"
)


def error_of(program, **arguments):
    with pytest.raises(KtirError) as caught:
        program.run(**arguments)
    return caught.value.diagnostics[0]


def test_arrays_are_returned_and_inputs_are_not_changed():
    x = np.arange(256, dtype=np.float16).reshape(4, 64)
    y = np.zeros_like(x)
    found = load(body(COPY, arguments="%x: index, %y: index", grid=None)).run(x=x, y=y)
    assert (found["y"] == x).all() and (found["x"] == x).all() and not y.any()
    assert found["y"].dtype == np.float16 and found["y"].shape == (4, 64)


def test_torch_tensors_come_back_as_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 64).bfloat16()
    text = COPY.replace("xf16", "xbf16")
    found = load(body(text, arguments="%x: index, %y: index", grid=None)).run(
        x=x, y=torch.zeros(4, 64, dtype=torch.bfloat16)
    )
    assert found["y"].dtype == torch.bfloat16 and torch.equal(found["y"], x)


def test_reading_beyond_a_buffer_is_an_error_with_place_and_tile():
    found = error_of(
        load(body(COPY, arguments="%x: index, %y: index", grid=None)),
        x=np.zeros((3, 64), np.float16),
        y=np.zeros((4, 64), np.float16),
    )
    assert found.code == "KT-X02" and "argument 'x'" in found.message and "compute tile 0" in found.message
    assert found.op == "ktdp.load" and found.position is not None


def test_points_outside_the_view_read_zero_and_are_not_written():
    text = (
        view("v", "%x", [3, 64])
        + tile("a", "v", [3, 64], ["-1", "0"], [4, 64])
        + "%b = ktdp.load %a : <4x64xindex> -> tensor<4x64xf16>\n"
        + view("w", "%y", [3, 64])
        + tile("c", "w", [3, 64], ["1", "0"], [4, 64])
        + "ktdp.store %b, %c : tensor<4x64xf16>, <4x64xindex>"
    )
    program = load(body(text, arguments="%x: index, %y: index", grid=None))
    x, y = np.ones((3, 64), np.float16), np.full((3, 64), 7, np.float16)
    found = program.run(x=x, y=y)["y"]
    assert found[:, 0].tolist() == [7.0, 0.0, 1.0]
    assert error_of(program, x=x, y=y, strict_bounds=True).code == "KT-X02"


@pytest.mark.parametrize(("unit", "factor"), [("elements", 2), ("bytes", 1), ("sticks", 128)])
def test_address_units(unit, factor):
    text = "%p = arith.constant 0 : index\n%q = arith.constant 1024 : index\n" + COPY.replace("%x", "%p").replace(
        "%y", "%q"
    )
    program = load(body(text, arguments="", grid=None))
    x = np.arange(256, dtype=np.float16).reshape(4, 64)
    found = program.run(memory={0: x}, address_unit=unit)
    assert (found[1024].reshape(4, 64) == x).all()


def test_addresses_may_be_computed_from_an_argument():
    text = "%k = arith.constant 64 : index\n%p = arith.addi %x, %k : index\n" + COPY.replace("_view %x", "_view %p")
    x = np.arange(320, dtype=np.float16)
    found = load(body(text, arguments="%x: index, %y: index", grid=None)).run(x=x, y=np.zeros((4, 64), np.float16))
    assert (found["y"].ravel() == x[64:]).all()


def test_an_unwritten_fixed_address_cannot_be_read():
    text = "%p = arith.constant 0 : index\n%q = arith.constant 1024 : index\n" + COPY.replace("%x", "%p").replace(
        "%y", "%q"
    )
    assert error_of(load(body(text, arguments="", grid=None))).code == "KT-X03"


def test_lx_is_private_uninitialised_and_has_a_size():
    text = (
        "%p = arith.constant OFFSET : index\n"
        + view("v", "%p", [4, 64], space="ct_local")
        + tile("a", "v", [4, 64], ["0", "0"], [4, 64])
    )
    text += "%b = ktdp.load %a : <4x64xindex> -> tensor<4x64xf16>"
    assert error_of(load(body(text.replace("OFFSET", "0"), grid=None, arguments=""))).code == "KT-X03"
    assert error_of(load(body(text.replace("OFFSET", "1048500"), grid=None, arguments=""))).code == "KT-X02"


def test_reading_an_empty_tensor_is_an_error():
    text = "%e = tensor.empty() : tensor<4xf32>\n%r = arith.addf %e, %e : tensor<4xf32>"
    assert error_of(load(body(text, grid=None, arguments=""))).code == "KT-X03"


def test_a_partly_inserted_tensor_can_be_sliced_where_it_has_values():
    text = (
        "%c = arith.constant 2.0 : f16\n%h = tensor.splat %c : tensor<2x64xf16>\n"
        "%e = tensor.empty() : tensor<4x64xf16>\n"
        "%p = tensor.insert_slice %h into %e[0, 0] [2, 64] [1, 1] : tensor<2x64xf16> into tensor<4x64xf16>\n"
        "%s = tensor.extract_slice %p[ROW, 0] [2, 64] [1, 1] : tensor<4x64xf16> to tensor<2x64xf16>\n"
        "%r = arith.addf %s, %s : tensor<2x64xf16>"
    )
    load(body(text.replace("ROW", "0"), grid=None, arguments="")).run()
    assert error_of(load(body(text.replace("ROW", "1"), grid=None, arguments=""))).code == "KT-X03"


REDUCE = (
    view("v", "%x", [4, 8], kind="KIND")
    + tile("a", "v", [4, 8], ["0", "0"], [4, 8], kind="KIND")
    + "%b = ktdp.load %a : <4x8xindex> -> tensor<4x8xKIND>\n"
    "%e = tensor.empty() : tensor<4xKIND>\n%r = linalg.reduce { OP } ins(%b : tensor<4x8xKIND>) "
    "outs(%e : tensor<4xKIND>) dimensions = [1]\n"
    + view("w", "%y", [4], kind="KIND")
    + tile("c", "w", [4], ["0"], [4], kind="KIND")
    + "ktdp.store %r, %c : tensor<4xKIND>, <4xindex>"
)


@pytest.mark.parametrize(
    ("op", "kind", "expected"),
    [
        ("arith.addf", "f32", lambda x: x.astype(np.float64).sum(1)),
        ("arith.mulf", "f32", lambda x: x.astype(np.float64).prod(1)),
        ("arith.maximumf", "f32", lambda x: x.max(1)),
        ("arith.minimumf", "f32", lambda x: x.min(1)),
        ("arith.addi", "i32", lambda x: x.sum(1)),
        ("arith.maxsi", "i32", lambda x: x.max(1)),
        ("arith.minsi", "i32", lambda x: x.min(1)),
        ("arith.andi", "i32", lambda x: np.bitwise_and.reduce(x, 1)),
        ("arith.ori", "i32", lambda x: np.bitwise_or.reduce(x, 1)),
        ("arith.xori", "i32", lambda x: np.bitwise_xor.reduce(x, 1)),
        ("arith.maxui", "i32", lambda x: x.view(np.uint32).max(1).view(np.int32)),
        ("arith.minui", "i32", lambda x: x.view(np.uint32).min(1).view(np.int32)),
    ],
)
def test_reductions_into_an_empty_tensor_start_from_the_identity(op, kind, expected):
    program = load(body(REDUCE.replace("KIND", kind).replace("OP", op), arguments="%x: index, %y: index", grid=None))
    rng = np.random.default_rng(3)
    x = (
        -np.abs(rng.standard_normal((4, 8)).astype(np.float32))
        if kind == "f32"
        else rng.integers(-99, 99, (4, 8)).astype(np.int32)
    )
    found = program.run(x=x, y=np.zeros(4, x.dtype))["y"]
    np.testing.assert_allclose(found, expected(x), rtol=2**-20)


def test_a_reduction_without_identity_needs_an_initialised_tensor():
    text = (
        REDUCE.replace("KIND", "f32")
        .replace("%r = linalg.reduce { OP }", "%r = linalg.reduce")
        .replace(
            "dimensions = [1]",
            "dimensions = [1] (%i: f32, %o: f32) {\n%q = arith.subf %i, %o : f32\nlinalg.yield %q : f32\n}",
        )
    )
    program = load(body(text, arguments="%x: index, %y: index", grid=None))
    assert error_of(program, x=np.zeros((4, 8), np.float32), y=np.zeros(4, np.float32)).code == "KT-V14"


def test_sums_accumulate_in_f32_or_in_the_storage_type():
    x = np.full((4, 8), 0.1, np.float16)
    x[:, 0] = 1000
    program = load(
        body(REDUCE.replace("KIND", "f16").replace("OP", "arith.addf"), arguments="%x: index, %y: index", grid=None)
    )
    wide = program.run(x=x, y=np.zeros(4, np.float16))["y"]
    narrow = program.run(x=x, y=np.zeros(4, np.float16), accumulate="storage")["y"]
    expected = np.float32(1000)
    stepwise = np.float16(1000)
    for _ in range(7):
        expected = expected + np.float32(np.float16(0.1))
        stepwise = np.float16(np.float32(stepwise) + np.float32(np.float16(0.1)))
    assert (wide == np.float16(expected)).all() and (narrow == stepwise).all() and expected != stepwise


def test_live_tensors_beyond_lx_stop_with_the_largest_of_them():
    text = (
        "".join(
            view(f"v{k}", "%x", [512, 1024])
            + tile(f"a{k}", f"v{k}", [512, 1024], ["0", "0"], [512, 1024])
            + f"%b{k} = ktdp.load %a{k} : <512x1024xindex> -> tensor<512x1024xf16>\n"
            for k in range(3)
        )
        + "%s = arith.addf %b0, %b1 : tensor<512x1024xf16>\n%u = arith.addf %s, %b2 : tensor<512x1024xf16>"
    )
    program = load(body(text, arguments="%x: index", grid=None))
    x = np.zeros((512, 1024), np.float16)
    found = error_of(program, x=x)
    assert found.code == "KT-X01" and "%b0" in found.message
    program.run(x=x, lx_bytes=None)
    program.run(x=x, lx_bytes=8 << 20)


# ---- launch ------------------------------------------------------------------------------------


def test_arguments_are_classified_by_what_they_reach():
    text = (
        view("v", "%x", [4, 64])
        + "%k = arith.constant 64 : index\n%p = arith.addi %y, %k : index\n"
        + view("w", "%p", [2], kind="f32")
    )
    program = load(body(text, grid=None))
    found = {a.name: (a.kind, a.shape, str(a.element)) for a in program.arguments()}
    assert found == {"x": ("address", (4, 64), "f16"), "y": ("address", (2,), "f32"), "n": ("scalar", None, "None")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'n' is missing"),
        ({"n": 4, "m": 1}, "unknown argument 'm'"),
        ({"n": 1.5}, "takes an integer"),
        ({"n": "4"}, "takes an integer"),
    ],
)
def test_wrong_arguments_are_refused_before_running(given, message):
    with pytest.raises(TypeError, match=message):
        load(body("", grid=None, arguments="%n: index")).run(**given)


@pytest.mark.parametrize(("value", "fine"), [(64, True), (128, True), (100, False), (4160, False)])
def test_promises_of_runtime_arguments_are_checked(value, fine):
    program = load(body("", grid=None, arguments="%n: !ktdp.runtime_arg<index, granularity=64, upperbound=4096>"))
    if fine:
        program.run(n=value)
    else:
        found = error_of(program, n=value)
        assert found.code == "KT-X09" and "'n'" in found.message


def test_one_parsed_module_runs_for_several_sizes():
    text = (
        "%v = ktdp.construct_memory_view %x, sizes: [%n], strides: [1] {memory_space "
        "= #ktdp.memory_space<global>} : memref<?xf32>\n"
        "%a = ktdp.construct_access_tile %v[0] symbols(%n) {access_tile_order = affine_map<(d0) "
        "-> (d0)>, access_tile_set = affine_set<(i)[s] : (0 <= i, i <= s - 1)>} : memref<?xf32> "
        "-> !ktdp.access_tile<?xindex>\n"
        "%b = ktdp.load %a : <?xindex> -> tensor<?xf32>\n"
        "%c = arith.addf %b, %b : tensor<?xf32>\nktdp.store %c, %a : tensor<?xf32>, "
        "<?xindex>"
    )
    program = load(body(text, grid=None, arguments="%x: index, %n: index"))
    for size in (1, 7, 130):
        x = np.arange(size, dtype=np.float32)
        assert (program.run(x=x, n=size)["x"] == 2 * x).all()


def test_the_first_grid_dim_is_the_fastest():
    text = (
        (
            "%i, %j = ktdp.get_compute_tile_id : index, index\n"
            "%c4 = arith.constant 4 : index\n%r = arith.muli %j, %c4 : index\n"
            "%l = arith.addi %r, %i : index\n"
        )
        + view("v", "%x", [8], kind="i32")
        + tile("t", "v", [8], ["%l"], [1], kind="i32")
        + (
            "%k = arith.index_cast %l : index to i32\n"
            "%s = tensor.splat %k : tensor<1xi32>\nktdp.store %s, %t : tensor<1xi32>, <1xindex>"
        )
    )
    program = load(body(text, grid="[4, 2]", arguments="%x: index"))
    assert program.run(x=np.zeros(8, np.int32))["x"].tolist() == list(range(8))


def test_unknown_engines_and_units_are_refused():
    program = load(body("", grid=None, arguments=""))
    with pytest.raises(ValueError, match="no engine 'gpu'"):
        program.run(engine="gpu")
    with pytest.raises(ValueError, match="address_unit"):
        program.run(address_unit="miles")
    with pytest.raises(ValueError, match="no function 'g'"):
        program.run("g")


def test_colliding_scatter_takes_the_last_point_and_can_be_reported():
    text = (
        (
            view("i", "%i", [4], kind="i32")
            + view("v", "%x", [8, 64], kind="f32")
            + view("z", "%z", [8, 64], kind="f32")
            + tile("a", "v", [8, 64], ["0", "0"], [4, 64], kind="f32")
            + "%b = ktdp.load %a : <4x64xindex> -> tensor<4x64xf32>\n"
            "%s = ktdp.construct_indirect_access_tile intermediate_variables(%k, %c) %z0[ind(%i[%k]), "
            "(%c)] {variables_space_order = affine_map<(d0, d1) -> (d0, d1)>, "
            "variables_space_set = affine_set<(k, c) : (0 <= k <= 3, 0 <= c <= 63)>} : "
            "memref<8x64xf32>, memref<4xi32> -> !ktdp.access_tile<4x64xindex>\n"
            "ktdp.store %b, %s : tensor<4x64xf32>, <4x64xindex>"
        )
        .replace("%i = ktdp", "%i0 = ktdp")
        .replace("ind(%i[", "ind(%i0[")
        .replace("%z = ktdp", "%z0 = ktdp")
    )
    program = load(body(text, grid=None, arguments="%x: index, %i: index, %z: index"))
    x = np.arange(512, dtype=np.float32).reshape(8, 64)
    arrays = {"x": x, "i": np.array([5, 2, 5, 2], np.int32), "z": np.zeros((8, 64), np.float32)}
    found = program.run(**arrays)["z"]
    assert (found[5] == x[2]).all() and (found[2] == x[3]).all()
    assert error_of(program, **arrays, check_collisions=True).code == "KT-X11"
    assert error_of(program, **{**arrays, "i": np.array([5, -1, 3, 2], np.int32)}).code == "KT-X04"
    assert error_of(program, **{**arrays, "i": np.array([5, 8, 3, 2], np.int32)}).code == "KT-X04"


def test_a_checked_value_stops_the_program_where_its_flag_is_set():
    x = np.full((4, 32), 2**30, np.int32)
    arrays = {"x": x, "y": x - 1, "z": np.zeros_like(x)}
    text = (Path(__file__).parent / "programs" / "checked_sum.ktir").read_text()
    assert (load(text).run(**arrays)["z"] == 2**31 - 1).all()
    found = error_of(load(text), **{**arrays, "y": x})
    assert found.code == "KT-X12" and "its low 32 bits are -2147483648" in found.message


def test_the_module_may_record_its_address_unit():
    text = "%p = arith.constant 0 : index\n%q = arith.constant 512 : index\n" + COPY.replace("%x", "%p").replace(
        "%y", "%q"
    )
    module = 'module attributes {torch_loom.address_unit = "bytes"} {\n' + body(text, arguments="", grid=None) + "}"
    x = np.arange(256, dtype=np.float16).reshape(4, 64)
    assert (load(module).run(memory={0: x})[512].reshape(4, 64) == x).all()
    assert "torch_loom.address_unit" in str(load(module))


def test_subviews_of_views_are_read_through():
    text = (
        view("v", "%x", [8, 64])
        + (
            "%s = memref.subview %v[2, 0] [3, 64] [2, 1] : memref<8x64xf16> to memref<3x64xf16, "
            "strided<[128, 1], offset: 128>>\n"
        )
        + "%c0 = arith.constant 0 : index\n%d = memref.dim %s, %c0 : memref<3x64xf16, strided<[128, 1], offset: 128>>\n"
        + tile("a", "s", [3, 64], ["0", "0"], [3, 64]).replace(
            "memref<3x64xf16>", "memref<3x64xf16, strided<[128, 1], offset: 128>>"
        )
        + "%b = ktdp.load %a : <3x64xindex> -> tensor<3x64xf16>\n"
        + view("w", "%y", [3, 64])
        + tile("c", "w", [3, 64], ["0", "0"], [3, 64])
        + "ktdp.store %b, %c : tensor<3x64xf16>, <3x64xindex>"
    )
    x = np.arange(512, dtype=np.float16).reshape(8, 64)
    found = load(body(text, arguments="%x: index, %y: index", grid=None)).run(x=x, y=np.zeros((3, 64), np.float16))["y"]
    assert (found == x[2:7:2]).all()


def test_sums_may_be_folded_pairwise():
    x = (np.random.default_rng(1).standard_normal((4, 8)) * 1e3).astype(np.float32)
    program = load(
        body(REDUCE.replace("KIND", "f32").replace("OP", "arith.addf"), arguments="%x: index, %y: index", grid=None)
    )
    ordered = program.run(x=x, y=np.zeros(4, np.float32))["y"]
    expected = x[:, 0].copy()
    for k in range(1, 8):
        expected = expected + x[:, k]
    assert (ordered == expected).all()
    pairs = x[:, 0::2] + x[:, 1::2]
    quads = pairs[:, 0::2] + pairs[:, 1::2]
    paired = program.run(x=x, y=np.zeros(4, np.float32), fold="pairwise")["y"]
    assert (paired == quads[:, 0] + quads[:, 1]).all()
    with pytest.raises(ValueError, match="fold is one of"):
        program.run(x=x, y=np.zeros(4, np.float32), fold="random")
