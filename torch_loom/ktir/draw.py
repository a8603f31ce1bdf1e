"""A picture of a program: which compute tile touches which part of a view, as SVG.

The program itself says where tiles lie: access tiles are evaluated for every compute tile, loops at every iteration
up to a limit. Views of rank 2 and more are drawn by their last two dims, leading dims as rows of panels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation, SSAValue

from torch_loom.dialects.affine_sets import Box, UnboundedSet, bound
from torch_loom.dialects.ktdp import ConstructAccessTileOp, ConstructMemoryViewOp, LoadOp, StoreOp
from torch_loom.ktir.checks.context import CheckOptions, Context, partitions
from torch_loom.ktir.checks.ranges import Range, Ranges, expr_range, tile_ids
from torch_loom.ktir.program import Program

WIDTH, MARGIN, TITLE = 640, 40, 46
MAX_POINTS = 256


@dataclass(frozen=True)
class Part:
    """Coordinates of a view that one compute tile loads or stores."""

    tile: int
    box: Box
    stored: bool


def tile_parts(program: Program, fn: str | None, view: ConstructMemoryViewOp, sizes: Mapping[str, int]) -> list[Part]:
    """Every box of the view that some compute tile touches."""
    function = program.function(fn)
    context = Context(program, function, CheckOptions(bounds=sizes))
    parts: list[Part] = []
    for number, ids in enumerate(tile_ids(context.grid)):
        ranges = context.ranges_of(ids)
        for name, size in sizes.items():
            for argument in program.arguments(function.sym_name.data):
                if argument.name == name:
                    ranges.known[argument.value] = Range(size, size)
        for op in context.of_type(LoadOp, StoreOp):
            tile = op.tile.owner
            if isinstance(tile, ConstructAccessTileOp) and view in (partitions(tile.base) or []):
                parts += [Part(number, box, isinstance(op, StoreOp)) for box in _boxes(tile, ranges)]
    return parts


def _boxes(tile: ConstructAccessTileOp, ranges: Ranges) -> list[Box]:
    """Boxes of an access tile over the values its ids take."""
    points = tile.access_tile_set.data
    symbols = [ranges[s].upper for s in tile.symbols]
    try:
        extents = bound(points, tuple(s for s in symbols if s is not None)).extents
    except (UnboundedSet, ValueError):
        return []
    choices = [_values(v, ranges) for v in tile.subscripts]
    if any(not c for c in choices) or prod(len(c) for c in choices) > MAX_POINTS:
        return []
    boxes = []
    for chosen in product(*choices):
        dims = [Range(c, c) for c in chosen]
        base = [expr_range(e, dims).exact for e in tile.base_map.data.results]
        lower = tuple(b for b in base if b is not None)
        if len(lower) == len(base):
            boxes.append(Box(lower, tuple(b + e - 1 for b, e in zip(lower, extents, strict=True))))
    return boxes


def _values(value: SSAValue, ranges: Ranges) -> list[int]:
    found = ranges[value]
    if found.exact is not None:
        return [found.exact]
    owner = value.owner
    loop = owner.parent_op() if not isinstance(owner, Operation) else None
    if loop is None or loop.name != "scf.for" or found.lower is None or found.upper is None:
        return []
    step = ranges[loop.operands[2]].exact
    return [] if not step or step < 0 else list(range(found.lower, found.upper + 1, step))


def _colour(tile: int, tiles: int) -> str:
    return f"hsl({tile * 360 // max(1, tiles)}, 62%, 68%)"


def draw_tiles(
    program: Program, fn: str | None = None, view: str | None = None, sizes: Mapping[str, int] | None = None
) -> str:
    """SVG of the tiles of a view over the compute tiles. Raises ``ValueError`` when there is nothing to draw."""
    function = program.function(fn)
    sizes = sizes or {}
    views = [op for op in function.walk() if isinstance(op, ConstructMemoryViewOp)]
    names = [program.source.names.get(v.view, "") for v in views]
    if not views:
        raise ValueError(f"function '{function.sym_name.data}' has no views")
    wanted = names[0] if view is None else view.removeprefix("%")
    if wanted not in names:
        raise ValueError(f"no view '%{wanted}'; there are {', '.join('%' + n for n in names)}")
    chosen = views[names.index(wanted)]
    shape = _shape(program, chosen, sizes)
    parts = tile_parts(program, function.sym_name.data, chosen, sizes)
    if not parts:
        raise ValueError(f"no access tile of '%{wanted}' can be evaluated; give sizes with --size NAME=N")
    name = function.sym_name.data
    count = prod(program.grid(name))
    return _svg(f"@{name}: %{wanted} {chosen.view.type} over {count} compute tiles", shape, parts, count)


def _shape(program: Program, view: ConstructMemoryViewOp, sizes: Mapping[str, int]) -> tuple[int, ...]:
    found = []
    dynamic = iter(view.sizes)
    for size in view.static_sizes.get_values():
        if size != DYNAMIC_INDEX:
            found.append(int(size))
            continue
        name = program.source.names.get(next(dynamic), "")
        if name not in sizes:
            raise ValueError(f"the view has size %{name}; give it with --size {name}=N")
        found.append(sizes[name])
    return tuple(found)


def _svg(title: str, shape: tuple[int, ...], parts: list[Part], tiles: int) -> str:
    planes = shape[:-2]
    rows, columns = (1, *shape)[-2:] if len(shape) > 1 else (1, shape[0] if shape else 1)
    panels = prod(planes) or 1
    across = min(panels, 4)
    width = (WIDTH - 2 * MARGIN) // across
    scale_x = (width - 12) / columns
    height = max(24, min(260, round(rows * max(scale_x, 6 / max(1, rows / 24)))))
    scale_y = height / rows
    lines: list[str] = []
    for panel in range(panels):
        x0 = MARGIN + panel % across * width
        y0 = TITLE + panel // across * (height + 26)
        lines.append(f'<rect x="{x0}" y="{y0}" width="{columns * scale_x:.1f}" height="{height}" class="view"/>')
        if planes:
            index = _unravel(panel, planes)
            lines.append(f'<text x="{x0}" y="{y0 + height + 14}">[{", ".join(map(str, index))}, ...]</text>')
        drawn: set[tuple[int, Box]] = set()
        for part in parts:
            lower, upper = (0,) * (2 - len(shape)) + part.box.lower, (0,) * (2 - len(shape)) + part.box.upper
            inside = planes and not all(
                lo <= i <= hi for lo, i, hi in zip(lower, _unravel(panel, planes), upper, strict=False)
            )
            if inside or (part.tile, part.box) in drawn:
                continue
            drawn.add((part.tile, part.box))
            top, bottom = max(0, lower[-2]), min(rows - 1, upper[-2])
            left, right = max(0, lower[-1]), min(columns - 1, upper[-1])
            if top > bottom or left > right:
                continue
            x, y = x0 + left * scale_x, y0 + top * scale_y
            w, h = (right - left + 1) * scale_x, (bottom - top + 1) * scale_y
            kind = "store" if part.stored else "load"
            lines.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" class="{kind}" '
                f'fill="{_colour(part.tile, tiles)}"><title>compute tile {part.tile}: '
                f"{list(part.box.lower)}..{list(part.box.upper)}</title></rect>"
            )
            if h >= 9 and w >= 14:
                lines.append(f'<text x="{x + w / 2:.1f}" y="{y + h / 2 + 3:.1f}" class="id">{part.tile}</text>')
    total = TITLE + -(-panels // across) * (height + 26) + 14
    style = (
        ".view{fill:#fff;stroke:#333}.load,.store{stroke:#333;stroke-width:.6;fill-opacity:.85}"
        ".store{stroke-width:1.4}text{font:11px sans-serif;fill:#222}.id{text-anchor:middle;font-size:9px}"
    )
    label = f"{rows} x {columns}" if len(shape) > 1 else f"{columns}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" viewBox="0 0 {WIDTH} {total}">',
        f"<style>{style}</style>",
        f'<text x="{MARGIN}" y="18" style="font-weight:bold">{_escaped(title)}</text>',
        f'<text x="{MARGIN}" y="34">one colour per compute tile; panels are {label} coordinates</text>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _unravel(number: int, extents: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for extent in reversed(extents):
        found.append(number % extent)
        number //= extent
    return tuple(reversed(found))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
