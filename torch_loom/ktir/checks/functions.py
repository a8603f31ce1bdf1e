"""Rules about functions: grid and ids, accumulators, LX liveness, symbols, data passed through memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, IntegerAttr, TensorType
from xdsl.ir import Block, Operation, OpResult, SSAValue

from torch_loom.dialects.affine_sets import Box, UnboundedSet, bound
from torch_loom.dialects.elements import element_bytes
from torch_loom.dialects.ktdp import (
    ConstructAccessTileOp,
    ConstructMemoryViewOp,
    GetComputeTileIdOp,
    LoadOp,
    StoreOp,
)
from torch_loom.dialects.upstream_affine import AffineOp
from torch_loom.dialects.upstream_linalg import GenericOp, ReduceOp
from torch_loom.ktir.checks.context import Context, Finding, error, note, partitions, warning
from torch_loom.ktir.checks.ranges import Range, Ranges, expr_range, tile_ids
from torch_loom.ktir.reference.machine import plan_block
from torch_loom.ktir.reference.ops_linalg import fold_of

#: A larger grid is a mistake; no chip or simulation comes near it.
MAX_TILES = 1 << 12
MAX_TILES_COMPARED = 64


def grids(context: Context) -> Iterator[Finding]:
    """A well-formed grid; KT-V05 the number of ids; KT-L01 ids without a grid; KT-L07 more tiles than cores."""
    attribute = context.function.attributes.get("grid")
    ids = list(context.of_type(GetComputeTileIdOp))
    if attribute is None:
        if ids and _reaches_address(ids[0]):
            yield warning("KT-L01", ids[0], "the function has no grid attribute, so the id is always 0")
    elif not isinstance(attribute, ArrayAttr) or not all(isinstance(v, IntegerAttr) for v in attribute.data):
        yield error("KT-V05", context.function, f"grid is a list of integers, got {attribute}")
        return
    elif not 1 <= len(attribute.data) <= 3 or any(v.value.data < 1 for v in attribute.data):
        yield error("KT-V05", context.function, "grid has one to three extents of at least 1")
        return
    elif context.tiles > MAX_TILES:
        yield error("KT-V05", context.function, f"{context.tiles} compute tiles are more than {MAX_TILES}")
        return
    if context.tiles > context.options.cores:
        yield warning(
            "KT-L07", context.function, f"{context.tiles} compute tiles, but the chip has {context.options.cores} cores"
        )
    wide = sum(extent > 1 for extent in context.grid)
    for op in ids:
        count = len(op.results)
        if count == 1 and wide > 1 and not context.options.compat:
            yield error("KT-V05", op, f"one id on the grid {list(context.grid)} is ambiguous; take one per dim")
        elif 1 < count < len(context.grid):
            yield error("KT-V05", op, f"{count} ids on a grid of {len(context.grid)} dims; take one or one per dim")


def _reaches_address(op: Operation) -> bool:
    seen: set[Operation] = set()
    work: list[Operation] = [op]
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current, ConstructAccessTileOp | ConstructMemoryViewOp):
            return True
        if current is op or current.name.startswith("arith.") or isinstance(current, AffineOp):
            work += [use.operation for result in current.results for use in result.uses]
    return False


def accumulators(context: Context) -> Iterator[Finding]:
    """KT-V14: a reduction that starts from tensor.empty with a combiner that has no identity."""
    for op in context.of_type(GenericOp, ReduceOp):
        if not any(op.iterators()) or len(op.body.blocks) != 1:
            continue
        block = op.body.block
        last = block.last_op
        if last is None:
            continue
        count = op.input_count()
        for position, output in enumerate(op.outputs):
            owner = output.owner
            if not isinstance(owner, Operation) or owner.name != "tensor.empty" or position >= len(last.operands):
                continue
            argument, yielded = block.args[count + position], last.operands[position]
            intrinsic = isinstance(yielded, OpResult) and yielded.op.name == "spyreop.exx2"
            if argument.uses.get_length() and fold_of(block, argument, yielded) is None and not intrinsic:
                yield error(
                    "KT-V14",
                    op,
                    f"output {position} starts from tensor.empty and its combiner has no known identity; "
                    "fill it first (linalg.fill)",
                )


# ---- LX ----------------------------------------------------------------------------------------


def _bytes(context: Context, value: SSAValue, extents: dict[SSAValue, list[Range]]) -> int | None:
    """Upper bound of the bytes of a tensor value; None when an extent has none."""
    kind = value.type
    assert isinstance(kind, TensorType)
    size = element_bytes(kind.element_type) or 0
    total = size
    for position, extent in enumerate(kind.get_shape()):
        if extent == DYNAMIC_INDEX:
            known = extents.get(value)
            upper = known[position].upper if known is not None and position < len(known) else None
            if upper is None:
                return None
            extent = upper
        total *= extent
    return total


def _extents(context: Context) -> dict[SSAValue, list[Range]]:
    """Ranges of the extents of dynamic tensors, from the sets and sizes they were made with."""
    found: dict[SSAValue, list[Range]] = {}
    for op in context.ops:
        if isinstance(op, LoadOp):
            tile = op.tile.owner
            if isinstance(tile, ConstructAccessTileOp) and tile.access_tile_set.data.num_symbols == len(tile.symbols):
                tops = [context.ranges[s].upper for s in tile.symbols]
                if all(t is not None for t in tops):
                    try:
                        points = bound(tile.access_tile_set.data, tuple(t for t in tops if t is not None))
                    except (UnboundedSet, ValueError):
                        continue
                    order = [getattr(e, "position", 0) for e in tile.access_tile_order.data.results]
                    found[op.value] = [Range(0, points.extents[d]) for d in order]
        elif op.name in ("tensor.empty", "tensor.splat"):
            kind = op.results[0].type
            assert isinstance(kind, TensorType)
            sizes = iter(op.operands[1:] if op.name == "tensor.splat" else op.operands)
            found[op.results[0]] = [
                context.ranges[next(sizes)] if d == DYNAMIC_INDEX else Range(d, d) for d in kind.get_shape()
            ]
        else:
            for result in op.results:
                if isinstance(result.type, TensorType) and DYNAMIC_INDEX in result.type.get_shape():
                    same = next((found[o] for o in op.operands if o.type == result.type and o in found), None)
                    if same is not None:
                        found[result] = same
    return found


def liveness(context: Context) -> Iterator[Finding]:
    """KT-V17: live tensors exceed LX. KT-V16: a tensor whose size has no bound."""
    extents = _extents(context)
    unbounded: list[SSAValue] = []
    worst: tuple[int, Operation | None, list[tuple[SSAValue, int]]] = (0, None, [])

    def size_of(value: SSAValue) -> int:
        found = _bytes(context, value, extents)
        if found is None:
            unbounded.append(value)
            return 0
        return found

    def walk(block: Block, outer: dict[SSAValue, int]) -> None:
        nonlocal worst
        live = dict(outer)
        for argument in block.args:
            if isinstance(argument.type, TensorType):
                live[argument] = size_of(argument)
        for step in plan_block(block):
            if step.op.name.startswith(("scf.", "ktdp.inter_tile")):
                for name in step.dying:
                    live.pop(name, None)
                for region in step.op.regions:
                    for inner in region.blocks:
                        walk(inner, live)
            for result in step.results:
                if step.counted and isinstance(result.type, TensorType):
                    live[result] = size_of(result)
            total = sum(live.values())
            if total > worst[0]:
                worst = (total, step.op, sorted(live.items(), key=lambda item: -item[1]))
            for name in step.dying:
                live.pop(name, None)

    for block in context.function.body.blocks:
        walk(block, {})
    total, op, live = worst
    if op is not None and total > context.options.lx_bytes:
        shown = ", ".join(f"{context.name(v)} {v.type} {size}" for v, size in live[:5] if size)
        yield error(
            "KT-V17", op, f"live tensors take {total} bytes here, LX has {context.options.lx_bytes} (largest: {shown})"
        )
    if unbounded:
        value = unbounded[0]
        place = value.owner if isinstance(value.owner, Operation) else context.function
        yield note(
            "KT-V16",
            place,
            f"{context.name(value)} has a dynamic extent without an upper bound, so its LX use is unknown; "
            "use !ktdp.runtime_arg with upperbound, or --assume-bound NAME=N",
        )


# ---- data between compute tiles ----------------------------------------------------------------


def unordered(context: Context) -> Iterator[Finding]:
    """KT-L05: a tile reads what another tile wrote, through memory that nothing orders."""
    yield from _foreign_lx(context)
    if context.tiles < 2 or context.tiles > MAX_TILES_COMPARED:
        return
    stores = _footprints(context, StoreOp)
    if not stores:
        return
    loads = _footprints(context, LoadOp)
    order = {op: position for position, op in enumerate(context.ops)}
    for load, (root, boxes) in loads.items():
        for store, (other, written) in stores.items():
            if root is not other or order[store] > order[load]:
                continue
            clash = _clash(boxes, written)
            if clash is not None:
                yield warning(
                    "KT-L05",
                    load,
                    f"compute tile {clash[0]} reads what compute tile {clash[1]} stores to the same buffer; "
                    "nothing orders the two, exchange the data with inter_tile ops",
                )
                return


def _clash(read: list[Box], written: list[Box]) -> tuple[int, int] | None:
    """Two different tiles of which the first reads what the second writes."""
    rank = len(read[0].lower)
    if rank == 0:
        return (0, 1)
    lower, upper = (np.asarray([getattr(b, side) for b in read]) for side in ("lower", "upper"))
    low, high = (np.asarray([getattr(b, side) for b in written]) for side in ("lower", "upper"))
    overlap = (lower[:, None] <= high[None]).all(-1) & (low[None] <= upper[:, None]).all(-1)
    overlap &= ~np.eye(len(read), dtype=bool)
    found = np.argwhere(overlap)
    return (int(found[0][0]), int(found[0][1])) if len(found) else None


def _foreign_lx(context: Context) -> Iterator[Finding]:
    for view in context.of_type(ConstructMemoryViewOp):
        space = view.memory_space
        if space is not None and space.ct_id is not None and context.tiles > 1:
            yield note(
                "KT-L05", view, f"the LX of compute tile {space.ct_id} is not ordered with the other compute tiles"
            )


def _footprints(context: Context, kind: type[Operation]) -> dict[Operation, tuple[object, list[Box]]]:
    """Exact view coordinates per compute tile of loads or stores whose place depends on the ids alone."""
    found: dict[Operation, tuple[object, list[Box]]] = {}
    ranges: list[Ranges] | None = None
    for op in context.of_type(kind):
        tile = op.tile.owner
        if not isinstance(tile, ConstructAccessTileOp) or tile.access_tile_set.data.num_symbols:
            continue
        views = partitions(tile.base)
        if views is None or len(views) != 1 or views[0].memory_space is None or not views[0].memory_space.is_global:
            continue
        try:
            points = bound(tile.access_tile_set.data)
        except (UnboundedSet, ValueError):
            continue
        if ranges is None:
            ranges = [context.ranges_of(ids) for ids in tile_ids(context.grid)]
        boxes = []
        for known in ranges:
            numbers = [known[v].exact for v in tile.subscripts]
            if any(n is None for n in numbers):
                break
            dims = [Range(n, n) for n in numbers]
            base = [expr_range(e, dims).exact for e in tile.base_map.data.results]
            if None in base:
                break
            lower = tuple(b for b in base if b is not None)
            upper = tuple(b + e - 1 for b, e in zip(lower, points.extents, strict=True))
            boxes.append(Box(lower, upper))
        if len(boxes) == context.tiles:
            view = views[0]
            shape = view.view.type.get_shape()
            found[op] = (_Root(view.offset, shape, view.static_strides.get_values()), boxes)
    roots: list[_Root] = []
    for op, (root, boxes) in found.items():
        assert isinstance(root, _Root)
        same = next((r for r in roots if r.same(root)), None)
        if same is None:
            roots.append(root)
            same = root
        found[op] = (same.key, boxes)
    return found


class _Root:
    """A view of one buffer: comparable coordinates need the same offset value, shape and strides."""

    def __init__(self, offset: SSAValue, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.key = offset
        self.layout = (shape, tuple(strides))

    def same(self, other: _Root) -> bool:
        return self.key is other.key and self.layout == other.layout


RULES = (grids, accumulators, liveness, unordered)
