"""Exchanges between cores: every delivery equals the KTIR reference on every engine; broken ones are found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch  # noqa: F401  (the native module finds its libraries through it)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler_checks import broken
from test_scheduler_values import build, run_all

from torch_loom import _chip, ktir
from torch_loom.scheduler.check import check
from torch_loom.scheduler.core_table import partner, table
from torch_loom.scheduler.interpret import DataflowError
from torch_loom.spyrecode.model import ExprOp

GLOBAL = "memory_space = #ktdp.memory_space<global>"


def box(*extents: int | str) -> str:
    names = [f"d{k}" for k in range(len(extents))]
    rules = [f"{n} >= 0, -{n} + {e} - 1 >= 0" for n, e in zip(names, extents, strict=True)]
    return f"affine_set<({', '.join(names)}) : ({', '.join(rules)})>"


def order(rank: int) -> str:
    dims = ", ".join(f"d{k}" for k in range(rank))
    return f"affine_map<({dims}) -> ({dims})>"


@dataclass(frozen=True)
class Exchange:
    """z[core] = delivery over groups of ``size`` cores of x[core], [rows, columns] per core, ``trips`` times."""

    delivery: str
    cores: int
    size: int
    rows: int
    columns: int
    trips: int = 1
    producers: str = ""  # sets over (t)[g]; default: the whole group
    consumers: str = ""
    dependency: str = ""
    combiner: str = "arith.addf"
    values: int = 1

    @property
    def kind(self) -> str:
        return self.delivery.split("[")[0]

    def result(self) -> tuple[int, int]:
        r, c = self.rows, self.columns
        return {
            "consume": (r, c),
            "reduce": (r, c),
            "gather": (r * self.size, c),
            "scatter": (r // self.size, c),
            "reduce_scatter": (r // self.size, c),
            "all_to_all": (r * self.size, c // self.size),
        }[self.kind]

    def text(self) -> str:
        r, c = self.rows, self.columns
        zr, zc = self.result()
        whole = f"affine_set<(t)[g] : (t - g * {self.size} >= 0, -t + g * {self.size} + {self.size - 1} >= 0)>"
        part, out = f"tensor<{r}x{c}xf32>", f"tensor<{zr}x{zc}xf32>"
        n = self.values
        groups = f"affine_set<(g) : (g >= 0, -g + {self.cores // self.size - 1} >= 0)>"
        future = f"<({', '.join([part] * n)}), groups = {groups}>"
        dims = {
            "gather": ", gather_dimensions = [0]",
            "scatter": ", scatter_dimensions = [0]",
            "reduce_scatter": ", scatter_dimensions = [0]",
            "all_to_all": ", split_dimensions = [1], concat_dimensions = [0]",
        }.get(self.kind, "")
        identity = combiner = ""
        if self.kind.startswith("reduce"):
            identity = f", identity({', '.join(['%id'] * n)} : {', '.join([part] * n)})"
            args = ", ".join(f"%{s}{k}: {part}" for s in "lr" for k in range(n))
            body = "\n".join(f"        %s{k} = {self.combiner} %l{k}, %r{k} : {part}" for k in range(n))
            sums = ", ".join(f"%s{k}" for k in range(n))
            combiner = f" {{\n      ^bb0({args}):\n{body}\n        ktdp.yield_reduced {sums} : "
            combiner += f"{', '.join([part] * n)}\n      }}"
        depends = f", producer_dependency_per_consumer = {self.dependency}" if self.dependency else ""
        parts = ["%a", "%b"][:n]
        results = ", ".join(f"%t{k}" for k in range(n))
        t = self.trips
        lines = [
            "module {",
            f"  func.func @exchange(%x: index, %z: index) attributes {{grid = [{self.cores}]}} {{",
            "    %me = ktdp.get_compute_tile_id : index",
            "    %c0 = arith.constant 0 : index",
            "    %c1 = arith.constant 1 : index",
            f"    %trips = arith.constant {t} : index",
            "    %zero = arith.constant 0.0 : f32",
            f"    %id = tensor.splat %zero : {part}",
            view("vx", "x", (t, self.cores, r, c)),
            view("vz", "z", (t, self.cores, zr, zc)),
            "    scf.for %i = %c0 to %trips step %c1 {",
            tile("x_at", "vx", (t, self.cores, r, c), (1, 1, r, c)),
            f"      %x4 = ktdp.load %x_at : <1x1x{r}x{c}xindex> -> tensor<1x1x{r}x{c}xf32>",
            f"      %a = tensor.collapse_shape %x4 [[0, 1, 2], [3]] : tensor<1x1x{r}x{c}xf32> into {part}",
            f"      %b = arith.mulf %a, %a : {part}",
            f"      %f = ktdp.inter_tile_produce producer_tiles_per_group = {self.producers or whole} -> {future} {{",
            "      ^bb0(%gid: index):",
            f"        ktdp.yield_partial {', '.join(parts)} : {', '.join([part] * n)}",
            "      }",
            f"      {results} = ktdp.inter_tile_{self.kind}(%f) consumer_tiles_per_group = {self.consumers or whole}"
            f"{depends}{dims}{identity} : {future} -> {', '.join([out] * n)}{combiner}",
            self.store(zr, zc),
            "    }",
            "    return",
            "  }",
            "}",
        ]
        return "\n".join(lines)

    def store(self, zr: int, zc: int) -> str:
        out = f"tensor<{zr}x{zc}xf32>"
        lines = [
            f"%y = arith.subf %t0, {'%t1' if self.values > 1 else '%t0'} : {out}",
            f"%w = arith.addf %y, %t0 : {out}",
            f"%z4 = tensor.expand_shape %w [[0, 1, 2], [3]] output_shape [1, 1, {zr}, {zc}] : {out} into "
            f"tensor<1x1x{zr}x{zc}xf32>",
            tile("z_at", "vz", (self.trips, self.cores, zr, zc), (1, 1, zr, zc)).strip(),
            f"ktdp.store %z4, %z_at : tensor<1x1x{zr}x{zc}xf32>, <1x1x{zr}x{zc}xindex>",
        ]
        if self.consumers:  # only the first core of a group may look at the result
            test = [
                f"%m = arith.constant {self.size} : index",
                "%l = arith.remui %me, %m : index",
                "%is = arith.cmpi eq, %l, %c0 : index",
            ]
            lines = [*test, "scf.if %is {", *lines, "}"]
        return "\n".join(f"      {line}" for line in lines)


def view(name: str, base: str, sizes: tuple[int, ...]) -> str:
    strides = [int(np.prod(sizes[k + 1 :])) for k in range(len(sizes))]
    shape = "x".join(map(str, sizes))
    return (
        f"    %{name} = ktdp.construct_memory_view %{base}, sizes: {list(sizes)}, strides: {strides} "
        f"{{coordinate_set = {box(*sizes)}, {GLOBAL}}} : memref<{shape}xf32>"
    )


def tile(name: str, of: str, sizes: tuple[int, ...], extents: tuple[int, ...]) -> str:
    memref, tensor = "x".join(map(str, sizes)), "x".join(map(str, extents))
    return (
        f"      %{name} = ktdp.construct_access_tile %{of}[%i, %me, 0, 0] {{access_tile_order = {order(4)}, "
        f"access_tile_set = {box(*extents)}}} : memref<{memref}xf32> -> !ktdp.access_tile<{tensor}xindex>"
    )


def arguments(e: Exchange) -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(e.trips, e.cores, e.rows, e.columns)).astype(np.float32)
    return {"x": x, "z": np.zeros((e.trips, e.cores, *e.result()), np.float32)}


def compare(e: Exchange) -> None:
    """All engines give exactly what the reference interpreter gives."""
    text, args = e.text(), arguments(e)
    compiled = build(text)
    assert check(compiled.module) == []
    expected = ktir.load(text).run("exchange", engine="reference", **args)["z"]
    np.testing.assert_array_equal(run_all(compiled, **args)["z"], expected)


KINDS = ["consume", "reduce", "gather", "scatter", "reduce_scatter", "all_to_all"]


@settings(max_examples=24, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.sampled_from([(4, 4), (4, 2), (6, 3), (8, 4), (5, 5)]),
    rows=st.integers(1, 3),
    columns=st.integers(1, 40),
    trips=st.integers(1, 3),
    values=st.integers(1, 2),
    shift=st.integers(0, 4),
)
def test_every_delivery(
    kind: str, shape: tuple[int, int], rows: int, columns: int, trips: int, values: int, shift: int
) -> None:
    cores, size = shape
    rows *= size if "scatter" in kind else 1
    columns *= size if kind == "all_to_all" else 1
    e = Exchange(kind, cores, size, rows, columns, trips, values=values)
    if kind == "scatter":
        e = Exchange(
            kind, cores, size, rows, columns, trips, f"affine_set<(t)[g] : (t - g * {size} == 0)>", values=values
        )
    if kind == "consume":
        pairs = f"affine_set<(p)[c, g] : (p - g * {size} - (c - g * {size} + {shift}) mod {size} == 0)>"
        e = Exchange(kind, cores, size, rows, columns, trips, dependency=pairs, values=values)
    compare(e)


@pytest.mark.parametrize("combiner", ["arith.addf", "arith.maximumf", "arith.mulf"])
def test_one_consumer_per_group_receives_the_fold(combiner: str) -> None:
    first = "affine_set<(t)[g] : (t - g * 4 == 0)>"
    compare(Exchange("reduce", 8, 4, 3, 70, 2, consumers=first, combiner=combiner))


def test_cores_outside_every_group_take_no_part() -> None:
    text = Exchange("reduce", 8, 4, 2, 64).text().replace("-g + 1 >= 0", "-g + 0 >= 0")
    args = {"x": np.ones((1, 8, 2, 64), np.float32), "z": np.zeros((1, 8, 2, 64), np.float32)}
    out = run_all(build(text), **args)["z"]
    assert (out[0, :4] == 4).all()


def test_an_exchange_has_no_races() -> None:
    e = Exchange("all_to_all", 4, 4, 2, 64, 3)
    for seed in range(3):
        assert build(e.text()).check_races(seed=seed, **arguments(e)) == []


LINE = r"[^\n]*\n"
REDUCE = Exchange("reduce", 4, 4, 2, 64, 2)
BREAKS = {
    "a message nobody waits for": ("L1LU", r" *dataflow\.ring_acquire " + LINE, "", "S1", "without an acquire"),
    "a receiver that never gives back": ("L1LU", r" *dataflow\.ring_release " + LINE, "", "S1", "never gives back"),
    "a copy before its credit": (
        "MNISU",
        r"( *dataflow\.ring_acquire[^\n]*\n)( *dataflow\.ring_copy[^\n]*\n)",
        r"\2\1",
        "S7",
        "without holding",
    ),
    "a local credit between cores": (
        "L1LU",
        r'ring_acquire "(\w+)" "full" core %\d+',
        r'acquire "\1" "full"',
        "S5",
        "a channel between cores",
    ),
    "a partner that depends on data": (
        "",
        r'(slot "core" ")(core)(")',
        r"\1core + s0 * 0\3",
        "S4",
        "does not follow from the core number",
    ),
    "everybody sends to one": ("MNISU", r"ring_acquire ([^\n]*) core %\d+", r"ring_acquire \1 core 0", "S1", "acquire"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_kind_of_break_between_cores_is_found(name: str) -> None:
    unit, pattern, new, code, message = BREAKS[name]
    found = check(broken(REDUCE.text(), (pattern, new), unit=unit).module)
    assert any(v.check == code and message in v.message for v in found), found


def lonely() -> tuple[object, dict[str, np.ndarray]]:
    """A program in which core 0 waits for a message that its neighbour sends elsewhere."""
    e = Exchange("consume", 4, 4, 1, 64, dependency="affine_set<(p)[c, g] : (p - (c + 1) mod 4 == 0)>")
    c = broken(e.text(), (r'slot "core" "\(\(core \+ 3\) mod 4\)"', 'slot "core" "((core + 2) mod 4)"'))
    return c, arguments(e)


def test_a_wrong_partner_is_a_deadlock_that_names_both_cores() -> None:
    c, args = lonely()
    assert any(v.check == "S4" and "deadlock on core 0" in v.message for v in check(c.module))
    with pytest.raises(DataflowError, match=r"deadlock on core 0: .*L1LU waits for full of r_cell\d with core 1"):
        c.run(engine="dataflow", **args)
    with pytest.raises(_chip.ChipError, match=r"deadlock: core 0: .*L1LU waits for r_cell\d\.full of core 1") as error:
        c.run(engine="chip", **args)
    assert error.value.code == "DEV-04"


def test_the_text_of_an_exchange_is_the_artifact() -> None:
    from torch_loom import scheduler

    c = build(Exchange("gather", 8, 4, 2, 30).text())
    module = scheduler.parse_module(c.dataflow_ir)
    assert scheduler.print_module(module) == c.dataflow_ir
    assert scheduler.lower(module) == c.program


def evaluate(e: object, core: int) -> int:
    from torch_loom.scheduler.interpret import evaluate as text_value
    from torch_loom.scheduler.postfix import infix

    return text_value(infix(e, lambda x: "core" if str(x) == "1*core" or x.key == "core" else None), {"core": core})


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.none() | st.integers(-5, 40), min_size=1, max_size=12))
def test_any_short_table_becomes_an_expression(values: list[int | None]) -> None:
    e = table(tuple(values))
    for core, v in enumerate(values):
        assert v is None or evaluate(e, core) == v


def test_regular_partners_are_short_expressions() -> None:
    neighbour = partner([(c + 1) % 4 + 4 * (c // 4) for c in range(8)])
    assert [evaluate(neighbour, c) for c in range(8)] == [1, 2, 3, 0, 5, 6, 7, 4]
    some = partner([c if c % 2 == 0 else None for c in range(8)])
    assert [evaluate(some, c) for c in range(8)] == [0, -1, 2, -1, 4, -1, 6, -1]
    assert len(ExprOp) == 13


def symbolic(kind: str, cores: int) -> str:
    """z[core] = all rows (gather), or the sum of all (reduce), of x[core], [n, 64] with n known at launch."""
    rows, out = "?", "?"
    extent = "%n" if kind == "reduce" else "%all"
    dims = ", gather_dimensions = [0]" if kind == "gather" else ""
    identity = ", identity(%id : tensor<?x64xf32>)" if kind == "reduce" else ""
    combiner = (
        """ {
    ^bb0(%l: tensor<?x64xf32>, %r: tensor<?x64xf32>):
      %s = arith.addf %l, %r : tensor<?x64xf32>
      ktdp.yield_reduced %s : tensor<?x64xf32>
    }"""
        if kind == "reduce"
        else ""
    )
    every = f"affine_set<(t)[g] : (t >= 0, -t + {cores - 1} >= 0, g == 0)>"
    future = "<(tensor<?x64xf32>), groups = affine_set<(g) : (g == 0)>>"

    def parts(name: str, view: str, base: str, size: str) -> str:
        rest = "d1 >= 0, -d1 + s0 - 1 >= 0, d2 >= 0, -d2 + 63 >= 0"
        whole, one = (f"affine_set<(d0, d1, d2)[s0] : (d0 >= 0, -d0 + {k} >= 0, {rest})>" for k in (cores - 1, 0))
        memref = f"memref<{cores}x?x64xf32>"
        lines = [
            "",
            f"%{view}_row = arith.muli {size}, %c64 : index",
            f"%{view} = ktdp.construct_memory_view %{base}, sizes: [{cores}, {size}, 64], strides: [%{view}_row, 64, 1]"
            f" {{coordinate_set = {whole}, {GLOBAL}}} : {memref}",
            f"%{name} = ktdp.construct_access_tile %{view}[%me, 0, 0] symbols({size}) {{access_tile_order = {order(3)},"
            f" access_tile_set = {one}}} : {memref} -> !ktdp.access_tile<1x?x64xindex>",
        ]
        return "\n    ".join(lines)

    return f"""module {{
  func.func @exchange(%x: index, %z: index, %n: index) attributes {{grid = [{cores}]}} {{
    %me = ktdp.get_compute_tile_id : index
    %c64 = arith.constant 64 : index
    %many = arith.constant {cores} : index
    %all = arith.muli %n, %many : index
    %zero = arith.constant 0.0 : f32
    %id = tensor.splat %zero[%n] : tensor<?x64xf32>{parts("xt", "vx", "x", "%n")}
    %x3 = ktdp.load %xt : <1x{rows}x64xindex> -> tensor<1x?x64xf32>
    %a = tensor.collapse_shape %x3 [[0, 1], [2]] : tensor<1x?x64xf32> into tensor<?x64xf32>
    %f = ktdp.inter_tile_produce producer_tiles_per_group = {every} -> {future} {{
    ^bb0(%g: index):
      ktdp.yield_partial %a : tensor<?x64xf32>
    }}
    %t = ktdp.inter_tile_{kind}(%f) consumer_tiles_per_group = {every}{dims}{identity} : {future} -> tensor<{out}x64xf32>{combiner}
    %z3 = tensor.expand_shape %t [[0, 1], [2]] output_shape [1, {extent}, 64] : tensor<?x64xf32> into tensor<1x?x64xf32>{parts("zt", "vz", "z", extent)}
    ktdp.store %z3, %zt : tensor<1x?x64xf32>, <1x?x64xindex>
    return
  }}
}}"""  # noqa: E501


@pytest.mark.parametrize("kind", ["gather", "reduce"])
def test_one_program_exchanges_tiles_of_every_size(kind: str) -> None:
    c = build(symbolic(kind, 4), bounds={"n": 100})
    for n in (1, 3, 65, 100):
        x = np.random.default_rng(n).normal(size=(4, n, 64)).astype(np.float32)
        rows = 4 * n if kind == "gather" else n
        z = run_all(c, x=x, z=np.zeros((4, rows, 64), np.float32), n=n)["z"]
        total = np.zeros((n, 64), np.float32)
        for part in x:
            total = total + part
        expected = x.reshape(4 * n, 64) if kind == "gather" else total
        np.testing.assert_array_equal(z, np.broadcast_to(expected, z.shape))


def test_groups_of_different_sizes_reduce_apart() -> None:
    """Cores 0..1 and 2..5 form two groups."""
    e = Exchange("reduce", 6, 3, 2, 50)
    uneven = "affine_set<(t)[g] : (t - g * 2 >= 0, -t + g * 4 + 1 >= 0)>"
    text = Exchange("reduce", 6, 3, 2, 50, producers=uneven).text()
    whole = "consumer_tiles_per_group = affine_set<(t)[g] : (t - g * 3 >= 0, -t + g * 3 + 2 >= 0)>"
    assert whole in text
    text = text.replace(whole, f"consumer_tiles_per_group = {uneven}")
    args = arguments(e)
    expected = ktir.load(text).run("exchange", engine="reference", **args)["z"]
    np.testing.assert_array_equal(run_all(build(text), **args)["z"], expected)
    np.testing.assert_allclose(expected[0, 0], args["x"][0, :2].sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(expected[0, 5], args["x"][0, 2:].sum(0), rtol=1e-5, atol=1e-5)
