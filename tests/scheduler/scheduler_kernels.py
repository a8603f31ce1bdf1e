"""Kernels of the scheduler's tests: KTIR text, and what they compute in NumPy."""

from __future__ import annotations

from torch_loom.ktir.builder import Indirect, KernelBuilder, Tensor


def rows_of(b: KernelBuilder, n, cores: int, tile: int):
    """The loop over the row tiles of the executing core."""
    per = b.ceildiv(b.ceildiv(n, tile), cores)
    first = b.tile_id() * (per * tile) if cores > 1 else 0
    return b.loop(first, b.min(b.add(first, b.mul(per, tile)), n), tile)


def pitch(columns: int) -> int:
    """Elements of a row in whole sticks."""
    return -(-columns // 64) * 64


def up(b: KernelBuilder, t: Tensor) -> Tensor:
    """f16 -> f32"""
    return b.op("arith.extf", t, result="f32")


def down(b: KernelBuilder, t: Tensor) -> Tensor:
    """f32 -> f16"""
    return b.op("arith.truncf", t, result="f16")


def full(b: KernelBuilder, value: float, shape) -> Tensor:
    """A constant tensor."""
    return b.splat(b.constant(value, "f32"), shape)


def add(columns: int, tile: int, cores: int = 4, n: int | None = None) -> str:
    """y = x * 0.5 + z over n rows (symbolic unless given)."""
    b = KernelBuilder("add", cores)
    x, z, y = (b.buffer(k) for k in "xzy")
    rows = b.size("n", 4096) if n is None else n
    p = pitch(columns)
    vx, vz, vy = (b.view(v, [rows, columns], [p, 1], "f16") for v in (x, z, y))
    with rows_of(b, rows, cores, tile) as r:
        shape = [tile, columns]
        a = b.op("arith.mulf", up(b, b.load(vx, [r, 0], shape)), full(b, 0.5, shape))
        s = b.op("arith.addf", a, up(b, b.load(vz, [r, 0], shape)))
        b.store(down(b, s), vy, [r, 0], shape)
    return b.text()


def softmax(columns: int, tile: int, cores: int = 4) -> str:
    """y = softmax(x) along rows."""
    b = KernelBuilder("softmax", cores)
    x, y = b.buffer("x"), b.buffer("y")
    n = b.size("n", 4096)
    p = pitch(columns)
    vx, vy = b.view(x, [n, columns], [p, 1], "f16"), b.view(y, [n, columns], [p, 1], "f16")
    with rows_of(b, n, cores, tile) as r:
        shape = [tile, columns]
        f = up(b, b.load(vx, [r, 0], shape))
        m = b.reduce("arith.maximumf", f, [1])
        e = b.op("math.exp", b.op("arith.subf", f, b.broadcast(m, shape, [1])))
        s = b.reduce("arith.addf", e, [1])
        b.store(down(b, b.op("arith.divf", e, b.broadcast(s, shape, [1]))), vy, [r, 0], shape)
    return b.text()


def layernorm(columns: int, tile: int, cores: int = 4) -> str:
    """y = (x - mean) / sqrt(var + eps) * g + c"""
    b = KernelBuilder("layernorm", cores)
    x, g, c, y = (b.buffer(k) for k in "xgcy")
    n = b.size("n", 4096)
    p = pitch(columns)
    vx, vy = b.view(x, [n, columns], [p, 1], "f16"), b.view(y, [n, columns], [p, 1], "f16")
    vg, vc = b.view(g, [columns], [1], "f16"), b.view(c, [columns], [1], "f16")
    shape = [tile, columns]
    scale = up(b, b.load(vg, [0], [columns]))
    shift = up(b, b.load(vc, [0], [columns]))
    with rows_of(b, n, cores, tile) as r:
        f = up(b, b.load(vx, [r, 0], shape))
        inv = full(b, 1.0 / columns, [tile])
        mean = b.op("arith.mulf", b.reduce("arith.addf", f, [1]), inv)
        d = b.op("arith.subf", f, b.broadcast(mean, shape, [1]))
        var = b.op("arith.mulf", b.reduce("arith.addf", b.op("arith.mulf", d, d), [1]), inv)
        r0 = b.op("math.rsqrt", b.op("arith.addf", var, full(b, 1e-5, [tile])))
        z = b.op("arith.mulf", d, b.broadcast(r0, shape, [1]))
        z = b.op("arith.mulf", z, b.broadcast(scale, shape, [0]))
        z = b.op("arith.addf", z, b.broadcast(shift, shape, [0]))
        b.store(down(b, z), vy, [r, 0], shape)
    return b.text()


def linear(k: int, n: int, tile: int, n_tile: int, cores: int = 4, out_default: bool = False) -> str:
    """y = gelu(x @ w.T + bias); w lies in the default layout [k / 64, n, 64]. ``out_default``: so does y."""
    b = KernelBuilder("linear", cores)
    x, w, bias, y = (b.buffer(s) for s in ("x", "w", "bias", "y"))
    m = b.size("m", 4096)
    ks = -(-k // 64)
    vx = b.view(x, [m, k], [pitch(k), 1], "f16")
    vw = b.view(w, [ks, n, 64], [n * 64, 64, 1], "f16")
    vb = b.view(bias, [n], [1], "f16")
    if out_default:
        vy = b.view(y, [n // 64, m, 64], [b.mul(m, 64), 64, 1], "f16")
    else:
        vy = b.view(y, [m, n], [pitch(n), 1], "f16")
    shape = [tile, n_tile]
    with b.loop(0, n, n_tile) as j:
        wt = b.load(vw, [0, j, 0], [ks, n_tile, 64], [1, 0, 2])
        wt = b.slice(b.collapse(wt, [[0], [1, 2]], [n_tile, ks * 64]), [0, 0], [n_tile, k])
        wt = b.transpose(wt, [1, 0])
        bt = up(b, b.load(vb, [j], [n_tile]))
        with rows_of(b, m, cores, tile) as r:
            c = b.matmul(b.load(vx, [r, 0], [tile, k]), wt)
            c = b.op("arith.addf", c, b.broadcast(bt, shape, [0]))
            g = b.op("math.erf", b.op("arith.mulf", c, full(b, 0.5**0.5, shape)))
            g = b.op("arith.addf", g, full(b, 1.0, shape))
            g = down(b, b.op("arith.mulf", b.op("arith.mulf", c, full(b, 0.5, shape)), g))
            if out_default:
                g = b.expand(g, [[0], [1, 2]], [tile, n_tile // 64, 64])
                g = b.transpose(g, [1, 0, 2])
                b.store(g, vy, [j // 64, r, 0], [n_tile // 64, tile, 64])
            else:
                b.store(g, vy, [r, j], shape)
    return b.text()


def embedding(vocabulary: int, columns: int, tile: int, cores: int = 4, computed: bool = False) -> str:
    """y[k] = table[index[k]]; ``computed``: index' = 2 * index + 1 is computed in LX first."""
    b = KernelBuilder("embedding", cores)
    i, t, y = b.buffer("i"), b.buffer("t"), b.buffer("y")
    n = b.size("n", 4096)
    p = pitch(columns)
    vi = b.view(i, [n], [1], "i32")
    vt = b.view(t, [vocabulary, columns], [p, 1], "f16")
    vy = b.view(y, [n, columns], [p, 1], "f16")
    with rows_of(b, n, cores, tile) as r:
        if computed:
            own = b.view(0, [tile], [1], "i32", space="ct_local")
            idx = b.load(vi, [r], [tile])
            two, one = (b.splat(b.constant(v, "i32"), [tile]) for v in (2, 1))
            idx = b.op("arith.addi", b.op("arith.muli", idx, two), one)
            b.store(idx, own, [0], [tile])
            e = b.gather(vt, [tile, columns], [Indirect(own, ("%v0",)), "%v1"])
        else:
            e = b.gather(vt, [tile, columns], [Indirect(vi, (f"{r.name} + %v0",)), "%v1"])
        b.store(down(b, up(b, e)), vy, [r, 0], [tile, columns])
    return b.text()


def columns_out(width: int, start: int, columns: int, target: int, target_columns: int, tile: int) -> str:
    """y[:, target : target + width] = -x[:, start : start + width]; the rest of y stays."""
    b = KernelBuilder("columns", 2)
    x, y = b.buffer("x"), b.buffer("y")
    n = b.size("n", 4096)
    vx = b.view(x, [n, columns], [pitch(columns), 1], "f16")
    vy = b.view(y, [n, target_columns], [pitch(target_columns), 1], "f16")
    with rows_of(b, n, 2, tile) as r:
        v = b.op("arith.negf", up(b, b.load(vx, [r, start], [tile, width])))
        b.store(down(b, v), vy, [r, target], [tile, width])
    return b.text()


def merge_heads(batch: int, heads: int, seq: int, width: int) -> str:
    """[B*H*S, width] -> [B*S, H*width]"""
    b = KernelBuilder("merge", heads)
    x, y = b.buffer("x"), b.buffer("y")
    vx = b.view(x, [batch, heads, seq, width], [heads * seq * width, seq * width, width, 1], "f16")
    c = heads * width
    vy = b.view(y, [batch, seq, c], [seq * pitch(c), pitch(c), 1], "f16")
    h = b.tile_id() if heads > 1 else 0
    with b.loop(0, batch) as k:
        t = b.collapse(b.load(vx, [k, h, 0, 0], [1, 1, seq, width]), [[0, 1], [2], [3]], [1, seq, width])
        b.store(t, vy, [k, 0, b.mul(h, width)], [1, seq, width])
    return b.text()


def attention(seq: int, width: int, heads: int) -> str:
    """softmax(q k^T / sqrt(width) + mask) v per head; q, k, v: [heads * seq, width] with padded rows."""
    b = KernelBuilder("attention", heads)
    q, k, v, m, y = (b.buffer(s) for s in "qkvmy")
    p, ps = pitch(width), pitch(seq)
    vq, vk, vv, vy = (b.view(s, [heads * seq, width], [p, 1], "f16") for s in (q, k, v, y))
    vm = b.view(m, [1, seq], [ps, 1], "f16")
    r = b.mul(b.tile_id() if heads > 1 else 0, seq)
    shape = [seq, seq]
    s = b.matmul(b.load(vq, [r, 0], [seq, width]), b.transpose(b.load(vk, [r, 0], [seq, width]), [1, 0]))
    mask = up(b, b.collapse(b.load(vm, [0, 0], [1, seq]), [[0, 1]], [seq]))
    s = b.op("arith.mulf", s, full(b, width**-0.5, shape))
    s = b.op("arith.addf", s, b.broadcast(mask, shape, [0]))
    peak = b.reduce("arith.maximumf", s, [1])
    e = b.op("math.exp", b.op("arith.subf", s, b.broadcast(peak, shape, [1])))
    total = b.reduce("arith.addf", e, [1])
    w = down(b, b.op("arith.divf", e, b.broadcast(total, shape, [1])))
    o = b.matmul(w, b.load(vv, [r, 0], [seq, width]))
    b.store(down(b, o), vy, [r, 0], [seq, width])
    return b.text()


def column_sum(columns: int, tile: int) -> str:
    """y[c] = sum over the tile's rows of x; rows and columns beyond the view read zero."""
    b = KernelBuilder("column_sum", 1)
    x, y = b.buffer("x"), b.buffer("y")
    n = b.size("n", 4096)
    wide = pitch(columns) + 64
    vx = b.view(x, [n, columns], [pitch(columns), 1], "f16")
    vy = b.view(y, [columns], [1], "f32")
    f = up(b, b.load(vx, [0, 0], [tile, wide]))
    b.store(b.reduce("arith.addf", f, [0]), vy, [0], [wide])
    return b.text()


def row_total(columns: int, tile: int) -> str:
    """y[r] = sum over columns of exp(x), where columns beyond the view count as exp(0) = 1."""
    b = KernelBuilder("row_total", 1)
    x, y = b.buffer("x"), b.buffer("y")
    n = b.size("n", 4096)
    wide = pitch(columns)
    vx = b.view(x, [n, columns], [pitch(columns), 1], "f16")
    vy = b.view(y, [n], [1], "f32")
    with b.loop(0, n, tile) as r:
        e = b.op("math.exp", up(b, b.load(vx, [r, 0], [tile, wide])))
        b.store(b.reduce("arith.addf", e, [1]), vy, [r], [tile])
    return b.text()


def transpose_out(rows: int, columns: int) -> str:
    """y = x.T through the order of the access tile."""
    b = KernelBuilder("flip", 1)
    x, y = b.buffer("x"), b.buffer("y")
    vx = b.view(x, [rows, columns], [pitch(columns), 1], "f16")
    vy = b.view(y, [columns, rows], [pitch(rows), 1], "f16")
    t = b.load(vx, [0, 0], [rows, columns], [1, 0])
    b.store(down(b, up(b, t)), vy, [0, 0], [columns, rows])
    return b.text()


def strided(columns: int, step: int, tile: int) -> str:
    """y = x[:, ::step] - a view without unit stride."""
    b = KernelBuilder("strided", 1)
    x, y = b.buffer("x"), b.buffer("y")
    n = b.size("n", 4096)
    out = -(-columns // step)
    vx = b.view(x, [n, out], [pitch(columns), step], "f16")
    vy = b.view(y, [n, out], [pitch(out), 1], "f16")
    with b.loop(0, n, tile) as r:
        b.store(b.load(vx, [r, 0], [tile, out]), vy, [r, 0], [tile, out])
    return b.text()


def causal(columns: int, tile: int) -> str:
    """y = x where column <= row else -1, with the row number from the loop."""
    b = KernelBuilder("causal", 2)
    x, y = b.buffer("x"), b.buffer("y")
    n = b.size("n", 4096)
    p = pitch(columns)
    vx, vy = b.view(x, [n, columns], [p, 1], "f16"), b.view(y, [n, columns], [p, 1], "f16")
    shape = [tile, columns]
    with rows_of(b, n, 2, tile) as r:
        f = up(b, b.load(vx, [r, 0], shape))
        row = b.broadcast(b.iota(tile), shape, [1])
        row = b.op("arith.addi", row, b.splat(b.from_index(r), shape))
        keep = b.op("arith.cmpi sle", b.broadcast(b.iota(columns), shape, [0]), row)
        b.store(down(b, b.op("arith.select", keep, f, full(b, -1.0, shape))), vy, [r, 0], shape)
    return b.text()


def dynamic_tiles(columns: int, tile: int) -> str:
    """y = x + 1 with tiles of extent min(tile, n - r): sizes that end exactly at the view."""
    b = KernelBuilder("dynamic", 2)
    x, y = b.buffer("x"), b.buffer("y")
    n = b.size("n", 4096)
    p = pitch(columns)
    vx, vy = b.view(x, [n, columns], [p, 1], "f16"), b.view(y, [n, columns], [p, 1], "f16")
    with rows_of(b, n, 2, tile) as r:
        shape = [b.min(tile, b.sub(n, r)), columns]
        f = up(b, b.load(vx, [r, 0], shape))
        b.store(down(b, b.op("arith.addf", f, full(b, 1.0, shape))), vy, [r, 0], shape)
    return b.text()


def default_gather(vocabulary: int, columns: int, start: int, width: int, tile: int) -> str:
    """y[k] = table[index[k], start : start + width] with the table in the default layout [c / 64, v, 64]."""
    b = KernelBuilder("default_gather", 1)
    i, t, y = b.buffer("i"), b.buffer("t"), b.buffer("y")
    n = b.size("n", 4096)
    ts = -(-columns // 64)
    vi = b.view(i, [n], [1], "i32")
    vt = b.view(t, [ts, vocabulary, 64], [vocabulary * 64, 64, 1], "f16")
    vy = b.view(y, [n, width], [pitch(width), 1], "f16")
    with b.loop(0, n, tile) as r:
        column = f"%v1 + {start}"
        at = [f"({column}) floordiv 64", Indirect(vi, (f"{r.name} + %v0",)), f"({column}) mod 64"]
        b.store(b.gather(vt, [tile, width], at), vy, [r, 0], [tile, width])
    return b.text()


def lane_gather(rows: int, columns: int) -> str:
    """y[r, c] = table[index[r, c], c]: the index varies along the sticks; table and index hold ``rows`` rows."""
    b = KernelBuilder("lane_gather", 1)
    i, t, y = b.buffer("i"), b.buffer("t"), b.buffer("y")
    vi = b.view(i, [rows, columns], [pitch(columns), 1], "i32")
    vt = b.view(t, [rows, columns], [pitch(columns), 1], "f16")
    vy = b.view(y, [rows, columns], [pitch(columns), 1], "f16")
    at = [Indirect(vi, ("%v0", "%v1")), "%v1"]
    b.store(b.gather(vt, [rows, columns], at), vy, [0, 0], [rows, columns])
    return b.text()


def in_place(columns: int, tile: int) -> str:
    """x = x + 1, then x = x * 2 in a second pass over the same buffer."""
    b = KernelBuilder("in_place", 1)
    x = b.buffer("x")
    n = b.size("n", 4096)
    vx = b.view(x, [n, columns], [pitch(columns), 1], "f16")
    shape = [tile, columns]
    with b.loop(0, n, tile) as r:
        f = up(b, b.load(vx, [r, 0], shape))
        b.store(down(b, b.op("arith.addf", f, full(b, 1.0, shape))), vx, [r, 0], shape)
    with b.loop(0, n, tile) as r:
        f = up(b, b.load(vx, [r, 0], shape))
        b.store(down(b, b.op("arith.mulf", f, full(b, 2.0, shape))), vx, [r, 0], shape)
    return b.text()


def chained_products(rows: int, heads: int, n: int) -> str:
    """z[r, h, :] = (2 q k^T) k for q stored as [heads, rows, n]: the rows of both products are (row, head) pairs."""
    b = KernelBuilder("chained", 1)
    q, k, z = (b.buffer(name) for name in "qkz")
    turned = b.transpose(
        b.load(b.view(q, [heads, rows, n], [rows * n, n, 1], "f16"), [0, 0, 0], [heads, rows, n]), [1, 0, 2]
    )
    flat = b.collapse(turned, [[0, 1], [2]], [rows * heads, n])
    keys = b.load(b.view(k, [n, n], [n, 1], "f16"), [0, 0], [n, n])
    split = b.expand(b.matmul(flat, b.transpose(keys, [1, 0])), [[0, 1], [2]], [rows, heads, n])
    twice = b.op("arith.mulf", split, full(b, 2.0, [rows, heads, n]))
    middle = down(b, b.collapse(twice, [[0, 1], [2]], [rows * heads, n]))
    out = b.expand(b.matmul(middle, keys), [[0, 1], [2]], [rows, heads, n])
    view = b.view(z, [rows, heads, n], [heads * n, n, 1], "f16")
    b.store(down(b, out), view, [0, 0, 0], [rows, heads, n])
    return b.text()
