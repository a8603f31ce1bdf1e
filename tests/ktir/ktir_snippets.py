"""Pieces of KTIR text for tests."""

from __future__ import annotations

from collections.abc import Sequence

ALL = "affine_set<(t)[g] : (t >= 0, -t + 3 >= 0, g == 0)>"


def box(extents: Sequence[int]) -> str:
    """A box set at zero."""
    names = [f"d{i}" for i in range(len(extents))]
    parts = [f"{n} >= 0, -{n} + {e - 1} >= 0" for n, e in zip(names, extents, strict=True)]
    return f"affine_set<({', '.join(names)}) : ({', '.join(parts)})>"


def row_major(shape: Sequence[int]) -> list[int]:
    """Row-major strides."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return strides[::-1]


def view(
    name: str, offset: str, shape: Sequence[int], *, kind: str = "f16", space: str = "global", points: str | None = None
) -> str:
    """A row-major view."""
    sizes, strides = ", ".join(map(str, shape)), ", ".join(map(str, row_major(shape)))
    return (
        f"%{name} = ktdp.construct_memory_view {offset}, sizes: [{sizes}], strides: [{strides}] "
        f"{{coordinate_set = {points or box(shape)}, memory_space = #ktdp.memory_space<{space}>}} "
        f": memref<{'x'.join(map(str, shape))}x{kind}>\n"
    )


def tile(
    name: str,
    of: str,
    shape: Sequence[int],
    base: Sequence[str],
    extents: Sequence[int],
    *,
    kind: str = "f16",
    declared: Sequence[int] | None = None,
    order: str | None = None,
    points: str | None = None,
) -> str:
    """A direct access tile."""
    dims = ", ".join(f"d{i}" for i in range(len(extents)))
    return (
        f"%{name} = ktdp.construct_access_tile %{of}[{', '.join(base)}] "
        f"{{access_tile_order = affine_map<({dims}) -> {order or f'({dims})'}>, access_tile_set "
        f"= {points or box(extents)}}} "
        f": memref<{'x'.join(map(str, shape))}x{kind}> -> "
        f"!ktdp.access_tile<{'x'.join(map(str, declared or extents))}xindex>\n"
    )


def body(text: str, *, grid: str | None = "[4]", arguments: str = "%x: index, %y: index, %n: index") -> str:
    """A function around statements."""
    attributes = "" if grid is None else f" attributes {{grid = {grid}}}"
    return f"func.func @f({arguments}){attributes} {{\n{text}\nreturn\n}}\n"


def exchange(
    *,
    producers: str = ALL,
    groups: str = "affine_set<(g) : (g == 0)>",
    consumers: str = ALL,
    kind: str = "gather",
    dims: str = ", gather_dimensions = [0]",
    clause: str = "",
    shape: Sequence[int] = (16, 64),
    region: str = "",
    effect: str = "",
    deliver: str | None = None,
    grid: str = "[4]",
    before: str = "",
    after: str = "",
) -> str:
    """A program whose compute tiles exchange 4 x 64 tensors."""
    future = f"<(tensor<4x64xf16>), groups = {groups}>"
    result = "tensor<" + "x".join(map(str, shape)) + "xf16>"
    if deliver is None:
        folds = kind.startswith("reduce")
        identity = ", identity(%t : tensor<4x64xf16>)" if folds else ""
        combiner = (
            " {\n^bb0(%l: tensor<4x64xf16>, %r: tensor<4x64xf16>):\n"
            f"{effect}\n%s = arith.addf %l, %r : tensor<4x64xf16>\nktdp.yield_reduced %s : tensor<4x64xf16>\n}}"
            if folds
            else ""
        )
        deliver = (
            f"%d = ktdp.inter_tile_{kind}(%f) consumer_tiles_per_group = {consumers}{clause}{dims}{identity} "
            f": FUTURE -> {result}{combiner}"
        )
    text = (
        view("v", "%x", [16, 64])
        + "%me = ktdp.get_compute_tile_id : index\n"
        + tile("at", "v", [16, 64], ["%me * 4", "0"], [4, 64])
        + "%t = ktdp.load %at : <4x64xindex> -> tensor<4x64xf16>\n"
        + before
        + f"%f = ktdp.inter_tile_produce producer_tiles_per_group = {producers} -> FUTURE {{\n"
        + f"^bb0(%gid: index):\n{region}\nktdp.yield_partial %t : tensor<4x64xf16>\n}}\n"
        + deliver
        + "\n"
        + after
    )
    return body(text.replace("FUTURE", future), grid=grid)
