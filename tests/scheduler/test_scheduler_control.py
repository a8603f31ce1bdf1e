"""Loop-carried tensors, branches, tensors put together from parts: what KTIR control flow computes."""

from __future__ import annotations

import numpy as np
import pytest
from scheduler_kernels import pitch
from test_scheduler_values import CHIP, build, close, data, run_all

from torch_loom import ktir, scheduler
from torch_loom.scheduler.compiled import pad_rows

SETS = "#ktdp.memory_space<global>"


def box(*extents: object) -> str:
    """The affine set of a box; a string extent is a symbol."""
    names = [f"d{i}" for i in range(len(extents))]
    symbols = [e for e in extents if isinstance(e, str)]
    rows = []
    for n, e in zip(names, extents, strict=True):
        rows.append(f"{n} >= 0")
        rows.append(f"-{n} + {e} - 1 >= 0" if isinstance(e, str) else f"-{n} + {e - 1} >= 0")
    tail = f"[{', '.join(symbols)}]" if symbols else ""
    return f"affine_set<({', '.join(names)}){tail} : ({', '.join(rows)})>"


def view(name: str, base: str, sizes: list[object], strides: list[int], dtype: str) -> str:
    """A construct_memory_view line; string sizes are SSA values without the %."""
    shown = ", ".join(f"%{s}" if isinstance(s, str) else str(s) for s in sizes)
    shape = "x".join("?" if isinstance(s, str) else str(s) for s in sizes)
    return (
        f"%{name} = ktdp.construct_memory_view %{base}, sizes: [{shown}], strides: {strides} "
        f"{{coordinate_set = {box(*sizes)}, memory_space = {SETS}}} : memref<{shape}x{dtype}>"
    )


def tile(name: str, source: str, at: str, shape: list[int], memref: str) -> str:
    """A construct_access_tile line over a static box."""
    dims = ", ".join(f"d{i}" for i in range(len(shape)))
    extents = "x".join(map(str, shape))
    order = f"access_tile_order = affine_map<({dims}) -> ({dims})>"
    return (
        f"%{name} = ktdp.construct_access_tile %{source}[{at}] {{{order}, access_tile_set = {box(*shape)}}} "
        f": {memref} -> !ktdp.access_tile<{extents}xindex>"
    )


def row_peak() -> str:
    """The running maximum of column pieces (the example of the KTIR page)."""
    t2, t1, size = "tensor<3x32xf32>", "tensor<3xf32>", "<index, upperbound=64>"
    return f"""
module {{
  func.func @row_peak(%x: index, %out: index, %rows: !ktdp.runtime_arg{size}) attributes {{grid = [8]}} {{
    %n = ktdp.runtime_arg_extract value from %rows : {size} -> index
    %c0 = arith.constant 0 : index
    %c32 = arith.constant 32 : index
    %c160 = arith.constant 160 : index
    %lo = arith.constant 0xFF800000 : f32
    %me = ktdp.get_compute_tile_id : index
    {view("vx", "x", ["n", 160], [160, 1], "f32")}
    {view("vo", "out", ["n"], [1], "f32")}
    %acc0 = tensor.splat %lo : {t1}
    %peak = scf.for %j = %c0 to %c160 step %c32 iter_args(%acc = %acc0) -> ({t1}) {{
      {tile("t", "vx", "%me * 3, %j", [3, 32], "memref<?x160xf32>")}
      %v = ktdp.load %t : <3x32xindex> -> {t2}
      %m = linalg.reduce {{ arith.maximumf }} ins(%v : {t2}) outs(%acc : {t1}) dimensions = [1]
      scf.yield %m : {t1}
    }}
    {tile("to", "vo", "%me * 3", [3], "memref<?xf32>")}
    ktdp.store %peak, %to : {t1}, <3xindex>
    return
  }}
}}
"""


@pytest.mark.parametrize("rows", [1, 22, 24])
def test_running_maximum(rows: int) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, 160)).astype(np.float32)
    out = run_all(build(row_peak()), x=x, out=np.zeros(rows, np.float32), rows=rows)["out"]
    np.testing.assert_array_equal(out, x.max(1))


def split_k(m: int, k: int, n: int, step: int) -> str:
    """acc += a[:, k0 : k0 + step] @ b[k0 : k0 + step, :]"""
    ta, tb, tc = f"tensor<{m}x{step}xf16>", f"tensor<{step}x{n}xf16>", f"tensor<{m}x{n}xf32>"
    return f"""
module {{
  func.func @split_k(%a: index, %b: index, %c: index) attributes {{grid = [1]}} {{
    %c0 = arith.constant 0 : index
    %cs = arith.constant {step} : index
    %ck = arith.constant {k} : index
    %zero = arith.constant 0.0 : f32
    {view("va", "a", [m, k], [pitch(k), 1], "f16")}
    {view("vb", "b", [k, n], [pitch(n), 1], "f16")}
    {view("vc", "c", [m, n], [pitch(n), 1], "f32")}
    %acc0 = tensor.splat %zero : {tc}
    %r = scf.for %j = %c0 to %ck step %cs iter_args(%acc = %acc0) -> ({tc}) {{
      {tile("ta", "va", "0, %j", [m, step], f"memref<{m}x{k}xf16>")}
      {tile("tb", "vb", "%j, 0", [step, n], f"memref<{k}x{n}xf16>")}
      %x = ktdp.load %ta : <{m}x{step}xindex> -> {ta}
      %y = ktdp.load %tb : <{step}x{n}xindex> -> {tb}
      %s = linalg.matmul ins(%x, %y : {ta}, {tb}) outs(%acc : {tc}) -> {tc}
      scf.yield %s : {tc}
    }}
    {tile("tc", "vc", "0, 0", [m, n], f"memref<{m}x{n}xf32>")}
    ktdp.store %r, %tc : {tc}, <{m}x{n}xindex>
    return
  }}
}}
"""


@pytest.mark.parametrize(("m", "k", "n", "step"), [(8, 128, 64, 64), (5, 96, 70, 32), (1, 64, 1, 16)])
def test_accumulation_over_k(m: int, k: int, n: int, step: int) -> None:
    a, b = data((m, k)), data((k, n), 1)
    c = build(split_k(m, k, n, step))
    out = run_all(c, atol=1e-4, a=pad_rows(a, 64), b=pad_rows(b, 64), c=np.zeros((m, pitch(n)), np.float32))
    np.testing.assert_allclose(out["c"][:, :n], a @ b, rtol=1e-4, atol=1e-4)


def test_an_accumulator_is_updated_in_place() -> None:
    blocks = {b.name for b in build(split_k(8, 128, 64, 64)).program.blocks}
    assert sum(name.startswith(("cell", "t")) for name in blocks) == 1


def online_softmax(m: int, n: int, step: int) -> str:
    """Two carried tensors that need each other: running maximum and running sum of exp(x - maximum)."""
    t2, t1 = f"tensor<{m}x{step}xf32>", f"tensor<{m}xf32>"
    return f"""
module {{
  func.func @online(%x: index, %y: index) attributes {{grid = [1]}} {{
    %c0 = arith.constant 0 : index
    %cs = arith.constant {step} : index
    %cn = arith.constant {n} : index
    %zero = arith.constant 0.0 : f32
    %low = arith.constant 0xFF800000 : f32
    {view("vx", "x", [m, n], [pitch(n), 1], "f16")}
    {view("vy", "y", [m], [1], "f32")}
    %m0 = tensor.splat %low : {t1}
    %s0 = tensor.splat %zero : {t1}
    %r:2 = scf.for %j = %c0 to %cn step %cs iter_args(%mo = %m0, %so = %s0) -> ({t1}, {t1}) {{
      {tile("t", "vx", "0, %j", [m, step], f"memref<{m}x{n}xf16>")}
      %h = ktdp.load %t : <{m}x{step}xindex> -> tensor<{m}x{step}xf16>
      %v = arith.extf %h : tensor<{m}x{step}xf16> to {t2}
      %mn = linalg.reduce {{ arith.maximumf }} ins(%v : {t2}) outs(%mo : {t1}) dimensions = [1]
      %e0 = tensor.empty() : {t2}
      %mb = linalg.broadcast ins(%mn : {t1}) outs(%e0 : {t2}) dimensions = [1]
      %d = arith.subf %v, %mb : {t2}
      %p = math.exp %d : {t2}
      %gap = arith.subf %mo, %mn : {t1}
      %scale = math.exp %gap : {t1}
      %kept = arith.mulf %so, %scale : {t1}
      %sn = linalg.reduce {{ arith.addf }} ins(%p : {t2}) outs(%kept : {t1}) dimensions = [1]
      scf.yield %mn, %sn : {t1}, {t1}
    }}
    %l = math.log %r#1 : {t1}
    %o = arith.addf %r#0, %l : {t1}
    {tile("ty", "vy", "0", [m], f"memref<{m}xf32>")}
    ktdp.store %o, %ty : {t1}, <{m}xindex>
    return
  }}
}}
"""


@pytest.mark.parametrize(("m", "n", "step"), [(4, 96, 32), (3, 128, 64)])
def test_carried_tensors_that_need_each_other(m: int, n: int, step: int) -> None:
    x = data((m, n))
    out = run_all(build(online_softmax(m, n, step)), x=pad_rows(x, 64), y=np.zeros(m, np.float32))["y"]
    peak = x.max(1)
    np.testing.assert_allclose(out, peak + np.log(np.exp(x - peak[:, None]).sum(1)), rtol=1e-5)


def concat(rows: int, left: int, right: int) -> str:
    """y = [a | b] through insert_slice."""
    total = left + right
    kinds = [f"tensor<{rows}x{c}xf16>" for c in (left, right, total)]
    return f"""
module {{
  func.func @concat(%a: index, %b: index, %y: index) attributes {{grid = [1]}} {{
    {view("va", "a", [rows, left], [pitch(left), 1], "f16")}
    {view("vb", "b", [rows, right], [pitch(right), 1], "f16")}
    {view("vy", "y", [rows, total], [pitch(total), 1], "f16")}
    {tile("ta", "va", "0, 0", [rows, left], f"memref<{rows}x{left}xf16>")}
    {tile("tb", "vb", "0, 0", [rows, right], f"memref<{rows}x{right}xf16>")}
    {tile("ty", "vy", "0, 0", [rows, total], f"memref<{rows}x{total}xf16>")}
    %p = ktdp.load %ta : <{rows}x{left}xindex> -> {kinds[0]}
    %q = ktdp.load %tb : <{rows}x{right}xindex> -> {kinds[1]}
    %e = tensor.empty() : {kinds[2]}
    %s = tensor.insert_slice %p into %e[0, 0] [{rows}, {left}] [1, 1] : {kinds[0]} into {kinds[2]}
    %t = tensor.insert_slice %q into %s[0, {left}] [{rows}, {right}] [1, 1] : {kinds[1]} into {kinds[2]}
    ktdp.store %t, %ty : {kinds[2]}, <{rows}x{total}xindex>
    return
  }}
}}
"""


@pytest.mark.parametrize(("rows", "left", "right"), [(3, 32, 32), (5, 64, 10), (1, 1, 100)])
def test_concatenation(rows: int, left: int, right: int) -> None:
    a, b = data((rows, left)), data((rows, right), 1)
    y = np.zeros((rows, pitch(left + right)), np.float32)
    out = run_all(build(concat(rows, left, right)), a=pad_rows(a, 64), b=pad_rows(b, 64), y=y)["y"]
    np.testing.assert_array_equal(out[:, : left + right], np.concatenate([a, b], 1))


def branch() -> str:
    """y = x + 1 on the first core, x * 2 on the others; the last core also adds 5 through a branch result."""
    t = "tensor<4x64xf32>"
    return f"""
module {{
  func.func @branch(%x: index, %y: index) attributes {{grid = [3]}} {{
    %c0 = arith.constant 0 : index
    %c2 = arith.constant 2 : index
    %me = ktdp.get_compute_tile_id : index
    {view("vx", "x", [12, 64], [64, 1], "f32")}
    {view("vy", "y", [12, 64], [64, 1], "f32")}
    {tile("tx", "vx", "%me * 4, 0", [4, 64], "memref<12x64xf32>")}
    {tile("ty", "vy", "%me * 4, 0", [4, 64], "memref<12x64xf32>")}
    %v = ktdp.load %tx : <4x64xindex> -> {t}
    %first = arith.cmpi eq, %me, %c0 : index
    %r = scf.if %first -> ({t}) {{
      %one = arith.constant dense<1.0> : {t}
      %a = arith.addf %v, %one : {t}
      scf.yield %a : {t}
    }} else {{
      %two = arith.constant dense<2.0> : {t}
      %b = arith.mulf %v, %two : {t}
      scf.yield %b : {t}
    }}
    ktdp.store %r, %ty : {t}, <4x64xindex>
    %last = arith.cmpi eq, %me, %c2 : index
    scf.if %last {{
      %five = arith.constant dense<5.0> : {t}
      %w = arith.addf %r, %five : {t}
      ktdp.store %w, %ty : {t}, <4x64xindex>
    }}
    return
  }}
}}
"""


def test_branches() -> None:
    x = np.random.default_rng(0).normal(size=(12, 64)).astype(np.float32)
    out = run_all(build(branch()), x=x, y=np.zeros((12, 64), np.float32))["y"]
    expected = np.concatenate([x[:4] + 1, x[4:8] * 2, x[8:] * 2 + np.float32(5)])
    np.testing.assert_array_equal(out, expected)


def carried_index() -> str:
    """A row number that grows by three per iteration, carried through the loop."""
    t = "tensor<1x64xf32>"
    return f"""
module {{
  func.func @walk(%x: index, %y: index) attributes {{grid = [1]}} {{
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %c4 = arith.constant 4 : index
    {view("vx", "x", [12, 64], [64, 1], "f32")}
    {view("vy", "y", [4, 64], [64, 1], "f32")}
    %end = scf.for %i = %c0 to %c4 step %c1 iter_args(%row = %c1) -> (index) {{
      {tile("tx", "vx", "%row, 0", [1, 64], "memref<12x64xf32>")}
      {tile("ty", "vy", "%i, 0", [1, 64], "memref<4x64xf32>")}
      %v = ktdp.load %tx : <1x64xindex> -> {t}
      ktdp.store %v, %ty : {t}, <1x64xindex>
      %next = arith.addi %row, %c3 : index
      scf.yield %next : index
    }}
    return
  }}
}}
"""


def test_carried_index() -> None:
    x = np.random.default_rng(0).normal(size=(12, 64)).astype(np.float32)
    out = run_all(build(carried_index()), x=x, y=np.zeros((4, 64), np.float32))["y"]
    np.testing.assert_array_equal(out, x[[1, 4, 7, 10]])


def test_every_rejection_names_place_operation_and_reason() -> None:
    text = row_peak().replace("attributes {grid = [8]}", "attributes {grid = [64]}")
    program = ktir.load(text)
    with pytest.raises(scheduler.ScheduleError, match="64 compute tiles, the chip 32 cores"):
        scheduler.compile(program, "row_peak", CHIP)


def test_a_size_without_bound_is_named() -> None:
    text = (
        row_peak()
        .replace("!ktdp.runtime_arg<index, upperbound=64>", "index")
        .replace(
            "%n = ktdp.runtime_arg_extract value from %rows : <index, upperbound=64> -> index",
            "%z = arith.constant 0 : index\n    %n = arith.addi %rows, %z : index",
        )
    )
    text = text.replace("[3, 32]", "[3, 32]").replace("tensor<3xf32>", "tensor<3xf32>")
    compiled = build(text)  # the size bounds views only: no LX depends on it
    x = np.random.default_rng(1).normal(size=(5, 160)).astype(np.float32)
    close(run_all(compiled, x=x, out=np.zeros(5, np.float32), rows=5)["out"], x.max(1))
