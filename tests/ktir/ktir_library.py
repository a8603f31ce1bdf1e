"""The library of KTIR programs: for each file of ``programs/`` its inputs and what NumPy says the outputs are.

Expected values are computed here in float64 or with integers, never with the code under test. ``ulps`` is the number
of roundings of the output format that may lie between the two (the format's unit roundoff times the largest magnitude
that was rounded), derived per program from its roundings; 0 means bit-exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PROGRAMS = Path(__file__).parent / "programs"

Arrays = dict[Any, Any]
Make = Callable[[np.random.Generator], Arrays]
Expect = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Case:
    """One program: arguments, expected outputs, allowed rounding, seeded memory."""

    make: Make
    expect: Expect
    ulps: float = 0.0
    baked: bool = False
    fn: str | None = None
    #: Extra rounding of intermediates that are held in f16, relative to the largest value.
    relative: float = 0.0


CASES: dict[str, Case] = {}

F16, F32 = np.float16, np.float32


def case(name: str, *, ulps: float = 0.0, baked: bool = False, relative: float = 0.0) -> Callable[[Any], Any]:
    """Register a program: the function returns (arguments, expected outputs)."""

    def register(function: Callable[[np.random.Generator], tuple[Arrays, Arrays]]) -> Any:
        def make(rng: np.random.Generator) -> Arrays:
            return function(rng)[0]

        def expect(_: Arrays, seed: int = 0) -> Arrays:
            return function(np.random.default_rng(seed))[1]

        CASES[name] = Case(make, expect, ulps, baked, name, relative)
        return function

    return register


def half(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float16."""
    return rng.standard_normal(shape).astype(F16)


def single(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32."""
    return rng.standard_normal(shape).astype(F32)


def wide(array: np.ndarray) -> np.ndarray:
    """As float64."""
    return np.asarray(array, np.float64)


def soft(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last dim."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function, through the error function of the standard library."""
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def zeros_like(*arrays: np.ndarray) -> Any:
    """Output buffers."""
    found = [np.zeros_like(a) for a in arrays]
    return found[0] if len(found) == 1 else found


@case("vector_add")
def _(rng):
    x, y = half(rng, 4096), half(rng, 4096)
    return dict(x=x, y=y, z=zeros_like(x)), dict(z=(x.astype(F32) + y.astype(F32)).astype(F16))


@case("vector_add_dynamic")
def _(rng):
    x, y = half(rng, 1000), half(rng, 1000)
    return dict(x=x, y=y, z=zeros_like(x), n=1000), dict(z=(x.astype(F32) + y.astype(F32)).astype(F16))


@case("scale_shift")
def _(rng):
    x = half(rng, 96, 192)
    once = (x.astype(F32) * F32(2.5)).astype(F16)
    return dict(x=x, z=zeros_like(x)), dict(z=(once.astype(F32) + F32(2.5)).astype(F16))


@case("row_peak")
def _(rng):
    x = single(rng, 22, 160)
    return dict(x=x, out=np.zeros(22, F32), rows=22), dict(out=x.max(1))


def _softmax(name: str, rows: int, columns: int) -> None:
    @case(name, ulps=1.0)
    def _(rng):
        x = half(rng, rows, columns)
        return dict(x=x, z=zeros_like(x)), dict(z=soft(wide(x)))


_softmax("softmax_narrow", 128, 64)
_softmax("softmax_wide", 64, 512)
_softmax("softmax_online", 64, 512)


@case("layernorm", ulps=1.0)
def _(rng):
    x, w, b = half(rng, 64, 256), half(rng, 256), half(rng, 256)
    centred = wide(x) - wide(x).mean(1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return dict(x=x, w=w, b=b, z=zeros_like(x)), dict(z=centred * scale * wide(w) + wide(b))


@case("rmsnorm", ulps=1.0)
def _(rng):
    x, w = half(rng, 64, 256), half(rng, 256)
    scale = 1 / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-5)
    return dict(x=x, w=w, z=zeros_like(x)), dict(z=wide(x) * scale * wide(w))


@case("rope", ulps=1.0)
def _(rng):
    x, angle = half(rng, 64, 64), rng.standard_normal((64, 32))
    c, s = np.cos(angle).astype(F16), np.sin(angle).astype(F16)
    lo, hi = wide(x[:, :32]), wide(x[:, 32:])
    out = np.concatenate([lo * wide(c) - hi * wide(s), hi * wide(c) + lo * wide(s)], 1)
    return dict(x=x, cos=c, sin=s, z=zeros_like(x)), dict(z=out)


@case("matmul", ulps=1.0)
def _(rng):
    a, b = half(rng, 128, 192), half(rng, 192, 64)
    return dict(a=a, b=b, c=np.zeros((128, 64), F16)), dict(c=wide(a) @ wide(b))


@case("matmul_loop", ulps=1.0)
def _(rng):
    a, b = half(rng, 64, 256), half(rng, 256, 256)
    return dict(a=a, b=b, c=np.zeros((64, 256), F16)), dict(c=wide(a) @ wide(b))


@case("matmul_ksplit", ulps=1.0)
def _(rng):
    a, b = half(rng, 32, 512), half(rng, 512, 64)
    return dict(a=a, b=b, c=np.zeros((32, 64), F16)), dict(c=wide(a) @ wide(b))


@case("matmul_transposed", ulps=1.0)
def _(rng):
    a, b = half(rng, 64, 128), half(rng, 64, 128)
    return dict(a=a, b=b, c=np.zeros((64, 64), F16)), dict(c=wide(a) @ wide(b).T)


@case("batch_matmul", ulps=64.0)
def _(rng):
    a, b = half(rng, 8, 16, 64), half(rng, 8, 64, 32)
    return dict(a=a, b=b, c=np.zeros((8, 16, 32), F32)), dict(c=wide(a) @ wide(b))


@case("generic_contraction", ulps=64.0)
def _(rng):
    a, b = half(rng, 32, 64), half(rng, 64, 48)
    return dict(a=a, b=b, c=np.zeros((32, 48), F32)), dict(c=wide(a) @ wide(b))


@case("fused_mlp", ulps=1.0, relative=2**-10)
def _(rng):
    x, w1, w2 = half(rng, 64, 64), (half(rng, 64, 128) / 8).astype(F16), (half(rng, 128, 64) / 8).astype(F16)
    hidden = gelu(wide(x) @ wide(w1)).astype(F16)
    return dict(x=x, w1=w1, w2=w2, z=np.zeros((64, 64), F16)), dict(z=wide(hidden) @ wide(w2))


@case("attention", ulps=1.0, relative=2**-10)
def _(rng):
    q, k, v = half(rng, 64, 64), half(rng, 64, 64), half(rng, 64, 64)
    weights = soft(wide(q) @ wide(k).T / 8)
    return dict(q=q, k=k, v=v, z=zeros_like(q)), dict(z=weights @ wide(v))


@case("paged_attention", ulps=1.0, relative=2**-10)
def _(rng):
    q, k, v = half(rng, 8, 64), half(rng, 40, 16, 64), half(rng, 40, 16, 64)
    table = rng.permutation(40)[:32].reshape(8, 4).astype(np.int32)
    keys, values = wide(k)[table].reshape(8, 64, 64), wide(v)[table].reshape(8, 64, 64)
    weights = soft(np.einsum("bd,btd->bt", wide(q), keys) / 8)
    return dict(q=q, kpages=k, vpages=v, table=table, z=zeros_like(q)), dict(z=np.einsum("bt,btd->bd", weights, values))


@case("gather_rows")
def _(rng):
    t, i = half(rng, 50, 64), rng.integers(0, 50, 16).astype(np.int32)
    return dict(t=t, i=i, z=np.zeros((16, 64), F16)), dict(z=t[i])


@case("scatter_rows")
def _(rng):
    x, i, z = half(rng, 16, 64), rng.permutation(50)[:16].astype(np.int64), half(rng, 50, 64)
    out = z.copy()
    out[i] = x
    return dict(x=x, i=i, z=z), dict(z=out, x=x)


@case("indexed_add")
def _(rng):
    x, i, z = single(rng, 16, 64), rng.permutation(50)[:16].astype(np.int32), single(rng, 50, 64)
    out = z.copy()
    out[i] += x
    return dict(x=x, i=i, z=z), dict(z=out)


@case("computed_gather")
def _(rng):
    t = half(rng, 64, 64)
    return dict(t=t, z=np.zeros((16, 64), F16)), dict(z=t[np.arange(16) * 3])


@case("gather_columns")
def _(rng):
    x, i = single(rng, 32, 64), rng.integers(0, 64, 8).astype(np.int32)
    return dict(t=x, i=i, z=np.zeros((8, 32), F32)), dict(z=x[:, i].T)


@case("distributed_two_lx")
def _(rng):
    x = half(rng, 4, 64)
    both = np.concatenate([x, x])
    return dict(x=x, z=np.zeros((2, 8, 64), F16)), dict(z=np.stack([both, both]))


@case("row_merge")
def _(rng):
    x, y = half(rng, 6, 64), half(rng, 10, 128)
    return dict(x=x, y=y, z=np.zeros((16, 64), F16)), dict(z=np.concatenate([x, y[:, :64]]))


@case("ring_reduce_loop", ulps=4.0)
def _(rng):
    x = single(rng, 3, 4, 64)
    return dict(x=x, z=np.zeros((4, 3, 64), F32)), dict(z=np.broadcast_to(wide(x).sum(1), (4, 3, 64)))


@case("multi_group_reduce")
def _(rng):
    x = single(rng, 8, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=np.repeat(x.reshape(2, 4, 64).max(1), 4, 0))


@case("exchange_gather")
def _(rng):
    x = half(rng, 8, 64)
    return dict(x=x, z=np.zeros((4, 8, 64), F16)), dict(z=np.broadcast_to(x, (4, 8, 64)))


@case("exchange_scatter")
def _(rng):
    x = half(rng, 8, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=x)


@case("exchange_all_to_all")
def _(rng):
    x = single(rng, 16, 64)
    return dict(x=x, z=np.zeros((64, 16), F32)), dict(z=np.concatenate(np.split(x, 4, axis=1)))


@case("exchange_reduce_scatter", ulps=4.0)
def _(rng):
    x = single(rng, 4, 8, 64)
    return dict(x=x, z=np.zeros((8, 64), F32)), dict(z=wide(x).sum(0))


@case("exchange_permute")
def _(rng):
    x = half(rng, 8, 64)
    source = [1, 2, 3, 0, 5, 6, 7, 4]
    return dict(x=x, z=zeros_like(x)), dict(z=x[source])


@case("generic_form")
def _(rng):
    x = half(rng, 8, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=x[[1, 2, 3, 0, 5, 6, 7, 4]])


@case("branch")
def _(rng):
    x = single(rng, 8, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=np.where(np.arange(8)[:, None] % 2 == 1, -x, x * x))


@case("newton_sqrt", ulps=4.0)
def _(rng):
    x = np.abs(single(rng, 4, 64)) + F32(0.5)
    return dict(x=x, z=zeros_like(x), n=8), dict(z=np.sqrt(wide(x)))


@case("loop_two_carried", ulps=8.0)
def _(rng):
    x = single(rng, 5, 4, 64)
    return dict(x=x, z=np.zeros((4, 64), F32), s=np.zeros((4, 64), F32)), dict(z=wide(x).sum(0), s=wide(x).prod(0))


@case("parallel_sum", ulps=4.0)
def _(rng):
    x = single(rng, 4, 2, 64)
    return dict(x=x, z=np.zeros((2, 64), F32)), dict(z=wide(x).sum(0))


@case("forall_copy")
def _(rng):
    x = half(rng, 8, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=x)


@case("transpose_load")
def _(rng):
    x = half(rng, 64, 32)
    return dict(x=x, z=np.zeros((32, 64), F16)), dict(z=x.T)


@case("transpose_store")
def _(rng):
    x = half(rng, 32, 64)
    return dict(x=x, z=np.zeros((64, 32), F16)), dict(z=x.T)


@case("restickify")
def _(rng):
    x = half(rng, 2, 16, 64)
    return dict(x=x, z=np.zeros((16, 128), F16)), dict(z=x.transpose(1, 0, 2).reshape(16, 128))


@case("slices")
def _(rng):
    x = half(rng, 4, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=np.concatenate([x[:, 32:], x[:, :32]], 1))


@case("reverse_rows")
def _(rng):
    x = half(rng, 16, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=x[::-1])


@case("even_columns")
def _(rng):
    x = single(rng, 4, 16)
    r, c = np.indices(x.shape)
    return dict(x=x, z=np.full_like(x, 7)), dict(z=np.where((c + r) % 2, 7, np.where(c % 2, 0, x)))


@case("masked_tail")
def _(rng):
    x = half(rng, 22, 64)
    return dict(x=x, z=zeros_like(x), rows=22), dict(z=x + x)


@case("padded_window", ulps=4.0)
def _(rng):
    x = single(rng, 4, 64)
    padded = np.concatenate([np.zeros((1, 64)), wide(x), np.zeros((1, 64))])
    return dict(x=x, z=zeros_like(x)), dict(z=padded[:-2] + padded[1:-1] + padded[2:])


@case("dynamic_tile")
def _(rng):
    x = half(rng, 13, 64)
    return dict(x=x, z=zeros_like(x), n=13), dict(z=x * F16(2))


@case("casts")
def _(rng):
    x = single(rng, 16, 64)
    whole = np.trunc(x * F32(100)).astype(np.int32)
    outs = dict(h=x.astype(F16), i=whole, b=whole.astype(np.int8))
    return dict(x=x, h=np.zeros((16, 64), F16), i=np.zeros((16, 64), np.int32), b=np.zeros((16, 64), np.int8)), outs


@case("int_ops")
def _(rng):
    x, y = (rng.integers(-(2**31), 2**31, (4, 32)).astype(np.int32) for _ in range(2))
    a, b = x.astype(object), y.astype(object)
    wrap = np.vectorize(lambda v: (v + 2**31) % 2**32 - 2**31, otypes=[object])
    quotient = a // 7
    remainder = np.vectorize(lambda v: abs(v) % 7 * (1 if v >= 0 else -1), otypes=[object])(a)
    unsigned = wrap((a % 2**32) // 7)
    product = wrap(a * b)
    largest = np.maximum(quotient, remainder)
    out = wrap(np.vectorize(lambda p, q: p ^ q, otypes=[object])(largest, unsigned) + (product >> 2))
    return dict(x=x, y=y, z=np.zeros((4, 32), np.int32)), dict(z=out.astype(np.int32))


@case("checked_sum")
def _(rng):
    x, y = (rng.integers(-(2**30), 2**30, (4, 32)).astype(np.int32) for _ in range(2))
    return dict(x=x, y=y, z=np.zeros((4, 32), np.int32)), dict(z=x + y)


@case("select_mask")
def _(rng):
    x = half(rng, 16, 64)
    small = (x.astype(F32) * F32(F16(0.01))).astype(F16)
    return dict(x=x, z=zeros_like(x)), dict(z=np.where(x < 0, small, x))


@case("argmax")
def _(rng):
    x = single(rng, 16, 64)
    return dict(x=x, v=np.zeros(16, F32), i=np.zeros(16, np.int32)), dict(v=x.max(1), i=x.argmax(1))


@case("stick_sum", ulps=1.0)
def _(rng):
    x = half(rng, 2, 16, 64)
    return dict(x=x, z=np.zeros((16, 64), F16)), dict(z=np.broadcast_to(wide(x).sum((0, 2))[:, None], (16, 64)))


@case("intrinsics", ulps=2.0)
def _(rng):
    x, y = half(rng, 16, 64), half(rng, 16, 64)
    silu = (wide(x) / (1 + np.exp(-wide(x)))).astype(F16)
    sigmoid = (1 / (1 + np.exp(-wide(y)))).astype(F16)
    chosen = np.where(x > y, silu, sigmoid)
    return dict(x=x, y=y, z=zeros_like(x)), dict(z=np.log1p(np.exp(wide(chosen))))


@case("stick_tiled")
def _(rng):
    x = half(rng, 4, 32, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=(x.astype(F32) * x.astype(F32)).astype(F16))


@case("baked_addresses", baked=True)
def _(rng):
    x = half(rng, 16, 64)
    return {0: x}, {4096: np.abs(x)}


@case("calls")
def _(rng):
    x = single(rng, 8, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=x * 4)


@case("lx_scratch")
def _(rng):
    x = half(rng, 16, 64)
    groups = x.reshape(4, 2, 2, 64)
    difference = (groups[:, 0].astype(F32) - groups[:, 1].astype(F32)).astype(F16)
    return dict(x=x, z=zeros_like(x)), dict(z=np.stack([difference, groups[:, 0]], 1).reshape(16, 64))


@case("causal_mask")
def _(rng):
    x = half(rng, 64, 64)
    r, c = np.indices(x.shape)
    return dict(x=x, z=zeros_like(x)), dict(z=np.where(c <= r, x, F16(-np.inf)))


@case("named_ops", ulps=8.0)
def _(rng):
    x, y = single(rng, 8, 64), single(rng, 8, 64)
    a, b = wide(x), wide(y)
    root = np.sqrt(np.maximum(np.abs(a), b) ** 2)
    out = (-np.minimum(a * root, b) - a) * np.tanh(3.0)
    return dict(x=x, y=y, z=zeros_like(x)), dict(z=2 * out)


@case("bf16_scale")
def _(rng):
    bits = single(rng, 8, 64).view(np.uint32) & np.uint32(0xFFFF0000)
    x = bits.view(F32)
    product = (x * F32(1.25)).view(np.uint32)
    rounded = (product + np.uint32(0x7FFF) + ((product >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return dict(x=x, z=np.zeros((8, 64), F32), k=1.25), dict(z=rounded.view(F32))


@case("uneven_rows")
def _(rng):
    x = half(rng, 10, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=-x)


@case("old_spelling")
def _(rng):
    x = half(rng, 48, 64)
    return dict(x=x, z=zeros_like(x)), dict(z=x * F16(2))
