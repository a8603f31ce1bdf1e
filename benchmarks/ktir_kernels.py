"""Kernels of a size that counts, written with the builder, with their inputs and what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torch_loom.ktir.builder import Indirect, KernelBuilder, Tensor

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Kernel:
    """A kernel: text, inputs, and the expected value of the output buffer ``z``."""

    text: str
    arrays: Arrays
    expected: np.ndarray
    target_seconds: float


def _up(b: KernelBuilder, t: Tensor) -> Tensor:
    return b.op("arith.extf", t, result="f32")


def _down(b: KernelBuilder, t: Tensor) -> Tensor:
    return b.op("arith.truncf", t, result="f16")


def _full(b: KernelBuilder, value: float, shape: list[int]) -> Tensor:
    return b.splat(b.constant(value, "f32"), shape)


def _half(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32).astype(np.float16)


def softmax(rng: np.random.Generator) -> Kernel:
    """4096 x 1024 over 32 compute tiles."""
    rows, columns, tile = 4096, 1024, 16
    b = KernelBuilder("softmax", 32)
    vx, vz = (b.view(b.buffer(n), [rows, columns], [columns, 1], "f16") for n in "xz")
    first = b.mul(b.tile_id(), rows // 32)
    with b.loop(0, rows // 32, tile) as i:
        at, shape = [b.add(first, i), 0], [tile, columns]
        x = _up(b, b.load(vx, at, shape))
        peak = b.broadcast(b.reduce("arith.maximumf", x, [1]), shape, [1])
        e = b.op("math.exp", b.op("arith.subf", x, peak))
        total = b.broadcast(b.reduce("arith.addf", e, [1]), shape, [1])
        b.store(_down(b, b.op("arith.divf", e, total)), vz, at, shape)
    x = _half(rng, rows, columns)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return Kernel(b.text(), {"x": x, "z": np.zeros_like(x)}, e / e.sum(1, keepdims=True), 0.1)


def layernorm(rng: np.random.Generator) -> Kernel:
    """1151 x 8192 over 32 compute tiles; the last tile has fewer rows."""
    rows, columns, tile = 1151, 8192, 4
    b = KernelBuilder("layernorm", 32)
    vx, vz = (b.view(b.buffer(n), [rows, columns], [columns, 1], "f16") for n in "xz")
    vw, vb = (b.view(b.buffer(n), [columns], [1], "f16") for n in "wb")
    scale, shift = (_up(b, b.load(v, [0], [columns])) for v in (vw, vb))
    first = b.mul(b.tile_id(), 36)
    with b.loop(0, 36, tile) as i:
        at, shape = [b.add(first, i), 0], [tile, columns]
        x = _up(b, b.load(vx, at, shape))
        inverse = _full(b, 1.0 / columns, [tile])
        mean = b.op("arith.mulf", b.reduce("arith.addf", x, [1]), inverse)
        d = b.op("arith.subf", x, b.broadcast(mean, shape, [1]))
        var = b.op("arith.mulf", b.reduce("arith.addf", b.op("arith.mulf", d, d), [1]), inverse)
        r = b.op("math.rsqrt", b.op("arith.addf", var, _full(b, 1e-5, [tile])))
        y = b.op("arith.mulf", b.op("arith.mulf", d, b.broadcast(r, shape, [1])), b.broadcast(scale, shape, [0]))
        b.store(_down(b, b.op("arith.addf", y, b.broadcast(shift, shape, [0]))), vz, at, shape)
    x, w, c = _half(rng, rows, columns), _half(rng, columns), _half(rng, columns)
    d = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    y = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64) + c.astype(np.float64)
    return Kernel(b.text(), {"x": x, "z": np.zeros_like(x), "w": w, "b": c}, y, 0.3)


def matmul(rng: np.random.Generator) -> Kernel:
    """64 x 2048 times 2048 x 8192, columns over 32 compute tiles."""
    m, k, n, tile = 64, 2048, 8192, 64
    b = KernelBuilder("matmul", 32)
    va = b.view(b.buffer("a"), [m, k], [k, 1], "f16")
    vb = b.view(b.buffer("b"), [k, n], [n, 1], "f16")
    vz = b.view(b.buffer("z"), [m, n], [n, 1], "f16")
    first = b.mul(b.tile_id(), n // 32)
    a = b.load(va, [0, 0], [m, k])
    with b.loop(0, n // 32, tile) as j:
        column = b.add(first, j)
        c = b.matmul(a, b.load(vb, [0, column], [k, tile]))
        b.store(_down(b, c), vz, [0, column], [m, tile])
    x, w = _half(rng, m, k), _half(rng, k, n)
    return Kernel(
        b.text(), {"a": x, "b": w, "z": np.zeros((m, n), np.float16)}, x.astype(np.float32) @ w.astype(np.float32), 0.2
    )


def paged_attention(rng: np.random.Generator) -> Kernel:
    """32 sequences (one a compute tile), 4 heads, 16 pages of 16 tokens found through a table, width 64."""
    seqs, heads, pages, page, width = 32, 4, 16, 16, 64
    count, tokens = seqs * pages, pages * page
    b = KernelBuilder("paged_attention", seqs)
    vq = b.view(b.buffer("q"), [seqs, heads, width], [heads * width, width, 1], "f16")
    strides = [heads * page * width, page * width, width, 1]
    vk, vv = (b.view(b.buffer(s), [count, heads, page, width], strides, "f16") for s in "kv")
    vt = b.view(b.buffer("table"), [seqs, pages], [pages, 1], "i32")
    vz = b.view(b.buffer("z"), [seqs, heads, width], [heads * width, width, 1], "f16")
    s = b.tile_id()
    with b.loop(0, heads) as h:
        where = [Indirect(vt, (s.name, "%v0")), f"{h.name} + %v1", "%v2", "%v3"]
        k, v = (
            b.collapse(b.gather(x, [pages, 1, page, width], where), [[0, 1, 2], [3]], [tokens, width]) for x in (vk, vv)
        )
        q = b.collapse(b.load(vq, [s, h, 0], [1, 1, width]), [[0, 1], [2]], [1, width])
        shape = [1, tokens]
        scores = b.op("arith.mulf", b.matmul(q, b.transpose(k, [1, 0])), _full(b, width**-0.5, shape))
        peak = b.broadcast(b.reduce("arith.maximumf", scores, [1]), shape, [1])
        e = b.op("math.exp", b.op("arith.subf", scores, peak))
        weights = b.op("arith.divf", e, b.broadcast(b.reduce("arith.addf", e, [1]), shape, [1]))
        o = _down(b, b.matmul(_down(b, weights), v))
        b.store(b.expand(o, [[0, 1], [2]], [1, 1, width]), vz, [s, h, 0], [1, 1, width])
    q, k, v = (
        _half(rng, seqs, heads, width),
        _half(rng, count, heads, page, width),
        _half(rng, count, heads, page, width),
    )
    table = rng.permutation(count).reshape(seqs, pages).astype(np.int32)
    keys, values = (x.astype(np.float64)[table].swapaxes(1, 2).reshape(seqs, heads, tokens, width) for x in (k, v))
    scores = np.einsum("shd,shtd->sht", q.astype(np.float64), keys) * width**-0.5
    e = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("sht,shtd->shd", e / e.sum(-1, keepdims=True), values)
    return Kernel(b.text(), {"q": q, "k": k, "v": v, "table": table, "z": np.zeros_like(q)}, out, 0.1)


def rope(rng: np.random.Generator) -> Kernel:
    """40 heads x 4096 positions x 128, positions over 32 compute tiles."""
    heads, positions, width = 40, 4096, 128
    rows, half = positions // 32, width // 2
    b = KernelBuilder("rope", 32)
    vx, vz = (b.view(b.buffer(n), [heads, positions, width], [positions * width, width, 1], "f16") for n in "xz")
    vc, vs = (b.view(b.buffer(n), [positions, half], [half, 1], "f16") for n in ("cos", "sin"))
    first = b.mul(b.tile_id(), rows)
    c, s = (_up(b, b.load(v, [first, 0], [rows, half])) for v in (vc, vs))
    with b.loop(0, heads) as h:
        lo, hi = (
            _up(b, b.collapse(b.load(vx, [h, first, at], [1, rows, half]), [[0, 1], [2]], [rows, half]))
            for at in (0, half)
        )
        x = b.op("arith.subf", b.op("arith.mulf", lo, c), b.op("arith.mulf", hi, s))
        y = b.op("arith.addf", b.op("arith.mulf", hi, c), b.op("arith.mulf", lo, s))
        for value, at in ((x, 0), (y, half)):
            b.store(b.expand(_down(b, value), [[0, 1], [2]], [1, rows, half]), vz, [h, first, at], [1, rows, half])
    x = _half(rng, heads, positions, width)
    angle = rng.standard_normal((positions, half))
    c, s = np.cos(angle).astype(np.float16), np.sin(angle).astype(np.float16)
    lo, hi = x[..., :half].astype(np.float32), x[..., half:].astype(np.float32)
    out = np.concatenate([lo * c - hi * s, hi * c + lo * s], -1)
    return Kernel(b.text(), {"x": x, "z": np.zeros_like(x), "cos": c, "sin": s}, out, 0.3)


def rmsnorm(rng: np.random.Generator) -> Kernel:
    """64 x 1024 over 4 compute tiles."""
    rows, columns, tile = 64, 1024, 16
    b = KernelBuilder("rmsnorm", 4)
    vx, vz = (b.view(b.buffer(n), [rows, columns], [columns, 1], "f16") for n in "xz")
    scale = _up(b, b.load(b.view(b.buffer("w"), [columns], [1], "f16"), [0], [columns]))
    at, shape = [b.mul(b.tile_id(), tile), 0], [tile, columns]
    x = _up(b, b.load(vx, at, shape))
    square = b.reduce("arith.addf", b.op("arith.mulf", x, x), [1])
    mean = b.op("arith.mulf", square, _full(b, 1.0 / columns, [tile]))
    r = b.op("math.rsqrt", b.op("arith.addf", mean, _full(b, 1e-5, [tile])))
    y = b.op("arith.mulf", b.op("arith.mulf", x, b.broadcast(r, shape, [1])), b.broadcast(scale, shape, [0]))
    b.store(_down(b, y), vz, at, shape)
    x, w = _half(rng, rows, columns), _half(rng, columns)
    wide = x.astype(np.float64)
    out = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64)
    return Kernel(b.text(), {"x": x, "z": np.zeros_like(x), "w": w}, out, 0.03)


KERNELS: dict[str, Callable[[np.random.Generator], Kernel]] = {
    "softmax 4096x1024": softmax,
    "layernorm 1151x8192": layernorm,
    "matmul 64x2048x8192": matmul,
    "paged attention 32": paged_attention,
    "rope 40x4096x128": rope,
    "rmsnorm 4 tiles": rmsnorm,
}
