"""The hardware intrinsics: read, printed, refused."""

from __future__ import annotations

import pytest

from torch_loom.dialects.spyreop import OPS
from torch_loom.ktir import KtirError, load

LINES = [
    *(
        f"%r = spyreop.{n} %a : f16"
        for n in ("exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "silu", "gelu", "exx2_fused")
    ),
    "%r = spyreop.softplus %a beta 1.0 threshold 20.0 : f16",
    "%r:2 = spyreop.exx2 %a : f16",
    "%r = spyreop.layernormscale %a : f16",
    "%r = spyreop.layernormscale %a, %b : f16",
    "%r = spyreop.layernormnorm %a squares %b scale %a weight %b bias %a : f16",
    "%r = spyreop.compare <greaterequal> %a, %b : f16",
    "%r = spyreop.select %a, %b, %a : f16",
    "%r = spyreop.realdiv %a, %b : f16",
    "%r = spyreop.addi32toi32 %i, %i",
    "%r = spyreop.muli32toi32 %i, %i",
    "%r = spyreop.addi64toi64 %l, %l",
    "%r = spyreop.idx32toaddr %i base 128 stride 64 : i32 -> i64",
    "%r = spyreop.idx32toaddr %i base %l stride 64 : i32, i64 -> i64",
    "%r = spyreop.idx32toaddr %i base %l stride %l : i32, i64, i64 -> i64",
    '%r = spyreop.slice_reduction %t {reduction_kind = "abs_max", reduction_scope = "in_slice"} : tensor<64xf16>',
]


def body(line):
    return (
        f"func.func @f(%a: f16, %b: f16, %i: i32, %l: i64, %t: tensor<64xf16>, %d: !spyreop.df16) "
        f"{{\n{line}\nreturn\n}}"
    )


@pytest.mark.parametrize("line", LINES)
def test_intrinsics_are_printed_as_they_are_read(line):
    loaded = load(body(line))
    assert line in str(loaded)
    assert load(loaded.print(generic=True)).module.is_structurally_equivalent(loaded.module)


def test_every_intrinsic_of_the_table_is_covered():
    seen = {line.split("spyreop.")[1].split()[0] for line in LINES}
    assert set(OPS) <= seen | {"layernormscale_fused"}


def test_df16_is_a_type_of_its_own():
    loaded = load(body("%r = spyreop.exp %d : !spyreop.df16"))
    assert "spyreop.exp %d : !spyreop.df16" in str(loaded)
    tensor = load("func.func @f(%t: tensor<2x64x!spyreop.df16>) {\nreturn\n}")
    assert "tensor<2x64x!spyreop.df16>" in str(tensor)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("%r = spyreop.exp %i : i32", "KT-V19"),
        ("%r = spyreop.softplus %a beta 0.0 threshold 20.0 : f16", "KT-V19"),
        ("%r = spyreop.compare <bigger> %a, %b : f16", "KT-P01"),
        ("%r = spyreop.topk %a : f16", "KT-P09"),
        ("%r = spyreop.dl16tofp32 %a : f16", "KT-P09"),
        ("%r = spyreop.sigmoidd %a : f16", "KT-P01"),
        (
            '%r = spyreop.slice_reduction %t {reduction_kind = "mean", reduction_scope = "in_slice"} : tensor<64xf16>',
            "KT-V19",
        ),
    ],
)
def test_wrong_intrinsics_are_refused(line, code):
    with pytest.raises(KtirError) as caught:
        load(body(line))
    assert caught.value.diagnostics[0].code == code
