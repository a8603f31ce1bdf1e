"""Kernels of the public measurements, written with the builder in the device's default (stick) layout.

A 2-D tensor of 16-bit elements lies as [columns / 64][rows][64]: the sticks of one stick column follow one another,
and neighbouring columns of a row lie rows x 128 bytes apart.
"""

from __future__ import annotations

from torch_loom.ktir.builder import Dim, KernelBuilder, Tensor, View

STICK = 64  # 16-bit elements


def up(b: KernelBuilder, t: Tensor) -> Tensor:
    """f16 -> f32"""
    return b.op("arith.extf", t, result="f32")


def down(b: KernelBuilder, t: Tensor) -> Tensor:
    """f32 -> f16"""
    return b.op("arith.truncf", t, result="f16")


def elementwise(elements: int, inputs: int, cores: int = 32, tile: int = 16384) -> str:
    """Flat tensors of ``elements``: the sum of ``inputs`` inputs, or a copy; each core has one contiguous part."""
    b = KernelBuilder("elementwise", cores)
    views = [b.view(b.buffer(f"x{i}"), [elements], [1], "f16") for i in range(inputs)]
    out = b.view(b.buffer("y"), [elements], [1], "f16")
    part = -(-elements // (cores * STICK)) * STICK
    first = b.mul(b.tile_id(), part)
    tile = min(tile, part)
    with b.loop(0, part, tile) as i:
        at = b.add(first, i)
        values = [up(b, b.load(v, [at], [tile])) for v in views]
        total = values[0]
        for v in values[1:]:
            total = b.op("arith.addf", total, v)
        b.store(down(b, total), out, [at], [tile])
    return b.text()


def read_only(elements: int, cores: int = 32, tile: int = 16384) -> str:
    """Everything is read, one stick per core is written: the lane-wise sum of a flat tensor's sticks."""
    b = KernelBuilder("read_only", cores)
    rows, step = elements // STICK // cores, tile // STICK
    x = b.view(b.buffer("x"), [elements // STICK, STICK], [STICK, 1], "f16")
    y = b.view(b.buffer("y"), [cores, STICK], [STICK, 1], "f16")
    core = b.tile_id()
    zero = b.splat(b.constant(0.0, "f32"), [STICK])
    with b.accumulate(0, rows // step, [zero]) as sums:
        t = up(b, b.load(x, [b.add(b.mul(core, rows), b.mul(sums.index, step)), 0], [step, STICK]))
        sums.results = [b.op("arith.addf", sums.values[0], b.reduce("arith.addf", t, [0]))]
    b.store(b.expand(down(b, sums.results[0]), [[0, 1]], [1, STICK]), y, [core, 0], [1, STICK])
    return b.text()


def row_reduction(rows: int, columns: int, cores: int = 32, tile: int = 32) -> str:
    """y[r] = sum of x[r, :] in f32; cores take rows, multiples of 32 so that each has sticks of y of its own."""
    b = KernelBuilder("row_reduction", cores)
    sticks = columns // STICK
    x = b.view(b.buffer("x"), [sticks, rows, STICK], [rows * STICK, STICK, 1], "f16")
    y = b.view(b.buffer("y"), [rows], [1], "f32")
    part = -(-rows // cores)
    tile = min(tile, part)
    first = b.mul(b.tile_id(), part)
    with b.loop(0, part, tile) as i:
        at = b.add(first, i)
        t = up(b, b.load(x, [0, at, 0], [sticks, tile, STICK]))
        b.store(b.reduce("arith.addf", t, [0, 2]), y, [at], [tile])
    return b.text()


def column_reduction(rows: int, columns: int, cores: int = 32, tile: int = 32) -> str:
    """y[c] = sum of x[:, c]; cores take stick columns, and all of theirs for some rows at a time."""
    b = KernelBuilder("column_reduction", cores)
    sticks = columns // STICK
    x = b.view(b.buffer("x"), [sticks, rows, STICK], [rows * STICK, STICK, 1], "f16")
    y = b.view(b.buffer("y"), [sticks, STICK], [STICK, 1], "f16")
    own = sticks // cores
    first = b.mul(b.tile_id(), own)
    zero = b.splat(b.constant(0.0, "f32"), [own, STICK])
    with b.accumulate(0, rows // tile, [zero]) as sums:
        t = up(b, b.load(x, [first, b.mul(sums.index, tile), 0], [own, tile, STICK]))
        sums.results = [b.op("arith.addf", sums.values[0], b.reduce("arith.addf", t, [1]))]
    b.store(down(b, sums.results[0]), y, [first, 0], [own, STICK])
    return b.text()


def restickify(outer: int, rows: int, inner: int, run: int = 1, cores: int = 32) -> str:
    """y[c, b, a] = x[a, b, c] for sticks: what changes the order of stick columns. A step moves ``run`` sticks of each
    side times all of b, so that both sides are walked in runs of ``run`` sticks."""
    b = KernelBuilder("restickify", cores)
    x = b.view(b.buffer("x"), [outer, rows, inner, STICK], [rows * inner * STICK, inner * STICK, STICK, 1], "f16")
    y = b.view(b.buffer("y"), [inner, rows, outer, STICK], [rows * outer * STICK, outer * STICK, STICK, 1], "f16")
    part = outer // cores
    first = b.mul(b.tile_id(), part)
    with b.loop(0, part, run) as i, b.loop(0, inner, run) as j:
        at = b.add(first, i)
        t = b.load(x, [at, 0, j, 0], [run, rows, run, STICK])
        b.store(b.transpose(t, [2, 1, 0, 3]), y, [j, 0, at, 0], [run, rows, run, STICK])
    return b.text()


def products(rows: int, depth: int, columns: int, repeat: int, cores: int = 32) -> str:
    """``repeat`` times acc += a[rows, depth] @ w[depth, columns] out of LX: the array alone."""
    b = KernelBuilder("products", cores)
    a = b.view(b.buffer("a"), [cores * rows, depth], [depth, 1], "f16")
    w = b.view(b.buffer("w"), [depth, columns], [columns, 1], "f16")
    y = b.view(b.buffer("y"), [cores * rows, columns], [columns, 1], "f16")
    at = b.mul(b.tile_id(), rows)
    left, right = b.load(a, [at, 0], [rows, depth]), b.load(w, [0, 0], [depth, columns])
    zero = b.splat(b.constant(0.0, "f32"), [rows, columns])
    with b.accumulate(0, repeat, [zero]) as sums:
        sums.results = [b.matmul(left, right, init=sums.values[0])]
    b.store(down(b, sums.results[0]), y, [at, 0], [rows, columns])
    return b.text()


def softmax(rows: int, columns: int, in_ddr: bool, tile: int = 2, cores: int = 32) -> str:
    """Softmax along rows. ``in_ddr``: the row maxima and sums go through DDR, so that a first pass reads x for them and
    a second one reads x again for the result; otherwise all stays in LX and x is read once."""
    b = KernelBuilder("softmax", cores)
    sticks = columns // STICK
    x, y = (b.view(b.buffer(n), [sticks, rows, STICK], [rows * STICK, STICK, 1], "f16") for n in "xy")
    part = -(-rows // cores)
    tile = min(tile, part)
    first = b.mul(b.tile_id(), part)
    box = [sticks, tile, STICK]

    def load(at: Dim) -> Tensor:
        return up(b, b.load(x, [0, at, 0], box))

    def exponentials(values: Tensor, peak: Tensor) -> Tensor:
        return b.op("math.exp", b.op("arith.subf", values, b.broadcast(peak, box, [0, 2])))

    def store(at: Dim, e: Tensor, total: Tensor) -> None:
        b.store(down(b, b.op("arith.divf", e, b.broadcast(total, box, [0, 2]))), y, [0, at, 0], box)

    if not in_ddr:
        with b.loop(0, part, tile) as i:
            at = b.add(first, i)
            values = load(at)
            e = exponentials(values, b.reduce("arith.maximumf", values, [0, 2]))
            store(at, e, b.reduce("arith.addf", e, [0, 2]))
        return b.text()
    # A row's value fills a stick of its own.
    peaks, totals = (b.view(b.buffer(n), [rows, STICK], [STICK, 1], "f16") for n in ("peak", "total"))

    def keep(values: Tensor, view: View, at: Dim) -> None:
        b.store(down(b, b.broadcast(values, [tile, STICK], [1])), view, [at, 0], [tile, STICK])

    def kept(view: View, at: Dim) -> Tensor:
        t = up(b, b.load(view, [at, 0], [tile, STICK]))
        return b.collapse(b.slice(t, [0, 0], [tile, 1]), [[0, 1]], [tile])

    with b.loop(0, part, tile) as i:
        at = b.add(first, i)
        values = load(at)
        peak = b.reduce("arith.maximumf", values, [0, 2])
        keep(peak, peaks, at)
        keep(b.reduce("arith.addf", exponentials(values, peak), [0, 2]), totals, at)
    with b.loop(0, part, tile) as i:
        at = b.add(first, i)
        store(at, exponentials(load(at), kept(peaks, at)), kept(totals, at))
    return b.text()


def neighbour_shift(elements: int, shifts: int, cores: int = 32) -> str:
    """Every core reads its part of ``elements``, hands it to its neighbour over the ring ``shifts`` times and writes
    what it holds: a relayout between operators that never leaves the chip."""
    part = elements // cores

    def bounds(*extents: int) -> str:
        names = [f"d{k}" for k in range(len(extents))]
        rules = [f"{n} >= 0, -{n} + {e} - 1 >= 0" for n, e in zip(names, extents, strict=True)]
        return f"affine_set<({', '.join(names)}) : ({', '.join(rules)})>"

    kind, memref = f"tensor<1x{part}xf16>", f"memref<{cores}x{part}xf16>"

    def view(name: str) -> str:
        return (
            f"%v{name} = ktdp.construct_memory_view %{name}, sizes: [{cores}, {part}], strides: [{part}, 1] "
            f"{{coordinate_set = {bounds(cores, part)}, memory_space = #ktdp.memory_space<global>}} : {memref}"
        )

    def tile(name: str) -> str:
        return (
            f"%{name}_at = ktdp.construct_access_tile %v{name}[%me, 0] {{access_tile_order = "
            f"affine_map<(d0, d1) -> (d0, d1)>, access_tile_set = {bounds(1, part)}}} : "
            f"{memref} -> !ktdp.access_tile<1x{part}xindex>"
        )

    everyone = f"affine_set<(t)[g] : (t >= 0, -t + {cores - 1} >= 0)>"
    future = f"<({kind}), groups = affine_set<(g) : (g >= 0, -g + 0 >= 0)>>"
    next_core = f"affine_set<(p)[c, g] : (p - (c + 1) mod {cores} == 0)>"
    body = [
        "%me = ktdp.get_compute_tile_id : index",
        view("x"),
        view("y"),
        tile("x"),
        f"%t0 = ktdp.load %x_at : <1x{part}xindex> -> {kind}",
    ]
    for n in range(shifts):
        body += [
            f"%f{n} = ktdp.inter_tile_produce producer_tiles_per_group = {everyone} -> {future} {{",
            "^bb0(%gid: index):",
            f"  ktdp.yield_partial %t{n} : {kind}",
            "}",
            f"%t{n + 1} = ktdp.inter_tile_consume(%f{n}) consumer_tiles_per_group = {everyone}, "
            f"producer_dependency_per_consumer = {next_core} : {future} -> {kind}",
        ]
    body += [tile("y"), f"ktdp.store %t{shifts}, %y_at : {kind}, <1x{part}xindex>", "return"]
    lines = "\n    ".join(body)
    head = f"func.func @shift(%x: index, %y: index) attributes {{grid = [{cores}]}} {{"
    return f"module {{\n  {head}\n    {lines}\n  }}\n}}\n"
