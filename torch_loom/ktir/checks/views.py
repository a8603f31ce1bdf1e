"""Rules about views and access tiles: element types, bounds, partitions, buffers that overlap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType

from torch_loom.dialects.affine_sets import PointSet, UnboundedSet, bound, permutation
from torch_loom.dialects.elements import element_bytes
from torch_loom.dialects.ktdp import (
    ConstructAccessTileOp,
    ConstructDistributedMemoryViewOp,
    ConstructIndirectAccessTileOp,
    ConstructMemoryViewOp,
    LoadOp,
    StoreOp,
)
from torch_loom.ktir.checks.context import (
    Context,
    Finding,
    base_of,
    domain_box,
    element_type,
    error,
    partitions,
    view_points,
    warning,
)
from torch_loom.ktir.checks.ranges import expr_range
from torch_loom.ktir.program import ADDRESS

STICK_BYTES = 128


def memory_spaces(context: Context) -> Iterator[Finding]:
    """KT-V04: ct_id names an existing compute tile. KT-L05: another tile's LX is not ordered with this one."""
    for view in context.of_type(ConstructMemoryViewOp):
        space = view.memory_space
        if space is None or space.ct_id is None:
            continue
        if space.ct_id >= context.tiles:
            yield error("KT-V04", view, f"ct_id = {space.ct_id}, but the grid has {context.tiles} compute tiles")


def access_tiles(context: Context) -> Iterator[Finding]:
    """KT-V07 declared extents, KT-V08 local sets at 0, KT-V09 tiles outside their view."""
    for op in context.of_type(ConstructAccessTileOp, ConstructIndirectAccessTileOp):
        direct = isinstance(op, ConstructAccessTileOp)
        value = op.access_tile_set.data if direct else op.variables_space_set.data
        order = op.access_tile_order.data if direct else op.variables_space_order.data
        if value.num_symbols:
            continue
        name = "access_tile_set" if direct else "variables_space_set"
        try:
            points = bound(value)
        except UnboundedSet as problem:
            yield error("KT-V07", op, f"{name}: {problem}")
            continue
        if points.empty:
            yield warning("KT-V07", op, f"{name} is empty, the tile holds nothing")
            continue
        expected = tuple(points.extents[d] for d in permutation(order))
        declared = op.tile.type.get_shape()
        if any(d not in (DYNAMIC_INDEX, e) for d, e in zip(declared, expected, strict=True)):
            yield error("KT-V07", op, f"the set has extents {list(expected)} in tile order, the type is {op.tile.type}")
        if direct and any(lo != 0 for lo in points.bounds.lower[: points.rank]):
            yield error("KT-V08", op, f"the local set starts at {list(points.bounds.lower)}, it must start at 0")
        elif direct:
            yield from _bounds(context, op, points)


def _bounds(context: Context, op: ConstructAccessTileOp, points: PointSet) -> Iterator[Finding]:
    """KT-V09 when every execution reaches outside the view."""
    domain = domain_box(op.base)
    if domain is None:
        return
    ids = [context.ranges[v] for v in op.subscripts]
    for dim, (expr, extent) in enumerate(zip(op.base_map.data.results, points.extents, strict=True)):
        base = expr_range(expr, ids)
        low, high = domain.lower[dim], domain.upper[dim]
        first = "always" if base.exact is None else f"at {base.exact}"
        if base.lower is not None and base.lower > high or base.upper is not None and base.upper + extent - 1 < low:
            yield error(
                "KT-V09",
                op,
                f"dim {dim} of the access tile starts {first} outside the view's coordinates {low}..{high}",
            )
        elif base.lower is not None and base.lower + extent - 1 > high and extent > high - low + 1:
            yield warning(
                "KT-V09",
                op,
                f"dim {dim} of the access tile has {extent} coordinates, the view holds {high - low + 1}; "
                "the rest reads 0 and is not written",
            )
        elif base.upper is not None and base.upper < low or base.lower is not None and base.lower + extent - 1 > high:
            yield warning(
                "KT-V09",
                op,
                f"dim {dim} of the access tile always reaches outside the view's coordinates {low}..{high}",
            )


def element_types(context: Context) -> Iterator[Finding]:
    """KT-V12: no conversion happens between memory and tensors."""
    for op in context.of_type(LoadOp, StoreOp):
        base = base_of(op.tile)
        tensor = op.value.type
        if base is None or not isinstance(tensor, TensorType):
            continue
        held = element_type(base)
        if held is not None and held != tensor.element_type:
            what = "load yields" if isinstance(op, LoadOp) else "store takes"
            yield error(
                "KT-V12", op, f"the {what} {tensor.element_type}, the view holds {held}; convert with arith ops"
            )


def distributed_views(context: Context) -> Iterator[Finding]:
    """KT-V10 overlapping partitions, KT-V11 holes, KT-V01 extents of the union."""
    for op in context.of_type(ConstructDistributedMemoryViewOp):
        parts = partitions(op.view)
        if parts is None:
            continue
        sets = [view_points(p) for p in parts]
        if any(s is None for s in sets):
            continue
        known = [s for s in sets if s is not None]
        overlapping = False
        for (i, a), (j, b) in combinations(enumerate(known), 2):
            if not a.disjoint(b):
                overlapping = True
                yield error("KT-V10", op, f"partitions {i} and {j} share coordinates")
        domain = domain_box(op.view)
        if domain is None or overlapping:
            continue
        extents = tuple(hi + 1 for hi in domain.upper)
        declared = op.view.type.get_shape()
        if any(d not in (DYNAMIC_INDEX, e) for d, e in zip(declared, extents, strict=True)):
            yield error(
                "KT-V01", op, f"the union of the partitions has extents {list(extents)}, the type {op.view.type}"
            )
        total = 1
        for extent in extents:
            total *= extent
        held = sum(s.size for s in known)
        if held != total:
            yield error("KT-V11", op, f"the partitions hold {held} of {total} coordinates; the union has holes")


def plain_sets(context: Context) -> Iterator[Finding]:
    """KT-L02: a view used on its own whose coordinates do not start at 0."""
    for view in context.of_type(ConstructMemoryViewOp):
        users = [use.operation for use in view.view.uses]
        if not users or all(isinstance(u, ConstructDistributedMemoryViewOp) for u in users):
            continue
        points = view_points(view)
        if points is None or points.rank == 0 or points.bounds.empty:
            continue
        if any(lo != 0 for lo in points.bounds.lower):
            yield warning(
                "KT-L02",
                view,
                f"the coordinates start at {list(points.bounds.lower)}; the first of them lies at the offset itself",
            )


def element_sizes(context: Context) -> Iterator[Finding]:
    """KT-V15: views of different element sizes on one element-addressed argument."""
    if context.unit != "elements":
        return
    for argument in context.program.arguments(context.function.sym_name.data):
        if argument.kind != ADDRESS:
            continue
        sizes: dict[int, str] = {}
        for use in argument.value.uses:
            view = use.operation
            if isinstance(view, ConstructMemoryViewOp):
                size = element_bytes(element_type(view.view))
                if size is not None:
                    sizes.setdefault(size, str(element_type(view.view)))
                if len(sizes) > 1:
                    yield error(
                        "KT-V15",
                        view,
                        f"views on %{argument.name} hold {' and '.join(sizes.values())}; addresses count elements, "
                        "so they mean different bytes (option --address-unit=byte)",
                    )
                    break


def _span(context: Context, view: ConstructMemoryViewOp) -> tuple[int, int] | None:
    """Bytes of a view at a constant offset."""
    offset = context.ranges[view.offset].exact
    sizes, strides = view.mixed_sizes, view.mixed_strides
    size = element_bytes(element_type(view.view))
    if offset is None or size is None or not all(isinstance(v, int) for v in (*sizes, *strides)) or 0 in sizes:
        return None
    unit = {"elements": size, "bytes": 1, "sticks": STICK_BYTES}[context.unit]
    reach = [(int(s) - 1) * int(t) for s, t in zip(sizes, strides, strict=True)]  # type: ignore[arg-type]
    low = offset * unit + sum(r for r in reach if r < 0) * size
    high = offset * unit + (sum(r for r in reach if r > 0) + 1) * size
    return low, high


def baked_buffers(context: Context) -> Iterator[Finding]:
    """KT-L03: in-file buffers that overlap in part. Equal ranges are one buffer seen twice."""
    spans = []
    for view in context.of_type(ConstructMemoryViewOp):
        span = _span(context, view)
        if span is not None and view.memory_space is not None:
            spans.append((view, view.memory_space, span))
    for (first, space_a, a), (second, space_b, b) in combinations(spans, 2):
        if space_a != space_b or a == b or a[1] <= b[0] or b[1] <= a[0]:
            continue
        inside = a[0] <= b[0] and b[1] <= a[1] or b[0] <= a[0] and a[1] <= b[1]
        same_element = element_type(first.view) == element_type(second.view)
        if inside and same_element and first.offset is second.offset:
            continue
        yield warning(
            "KT-L03",
            second,
            f"bytes {b[0]}..{b[1] - 1} overlap bytes {a[0]}..{a[1] - 1} of {context.name(first.view)}; "
            f"addresses are counted in {context.unit}",
        )


def lx_views(context: Context) -> Iterator[Finding]:
    """KT-V17: an LX view that reaches beyond the scratchpad."""
    for view in context.of_type(ConstructMemoryViewOp):
        if view.memory_space is None or view.memory_space.is_global:
            continue
        span = _span(context, view)
        if span is not None and (span[1] > context.options.lx_bytes or span[0] < 0):
            yield error(
                "KT-V17",
                view,
                f"the view covers bytes {span[0]}..{span[1] - 1} of LX, which has {context.options.lx_bytes}",
            )


RULES = (
    memory_spaces,
    access_tiles,
    element_types,
    distributed_views,
    plain_sets,
    element_sizes,
    baked_buffers,
    lx_views,
)
