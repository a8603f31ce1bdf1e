"""``scf`` and ``func``: control flow. Handlers are coroutines because a body may wait for other compute tiles."""

from __future__ import annotations

from itertools import product
from typing import Any

from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.machine import Run, Tile, Values, handles_region


@handles_region("scf.for")
def for_loop(tile: Tile, op: Any, values: Values) -> Run:
    """Counted loop with carried values."""
    lower, upper, step, *carried = values
    if step <= 0:
        raise ExecutionError("KT-X07", f"the step of scf.for must be positive, got {step}")
    block = op.body.block
    for position in range(int(lower), int(upper), int(step)):
        carried = yield from tile.block(block, [position, *carried])
    return carried


@handles_region("scf.if")
def conditional(tile: Tile, op: Any, values: Values) -> Run:
    """One of two branches."""
    region = op.true_region if bool(values[0]) else op.false_region
    if not region.blocks:
        return []
    return (yield from tile.block(region.block, []))


@handles_region("scf.while")
def while_loop(tile: Tile, op: Any, values: Values) -> Run:
    """Loop on a condition."""
    carried = values
    while True:
        condition, *passed = yield from tile.block(op.before_region.block, carried)
        if not bool(condition):
            return passed
        carried = yield from tile.block(op.after_region.block, passed)


@handles_region("scf.parallel")
def parallel(tile: Tile, op: Any, values: Values) -> Run:
    """Any order; here ascending, the last dim fastest. Reductions fold into the initial values."""
    loops = len(op.lowerBound)
    lower, upper, step = values[:loops], values[loops : 2 * loops], values[2 * loops : 3 * loops]
    carried = values[3 * loops :]
    if any(s <= 0 for s in step):
        raise ExecutionError("KT-X07", "the steps of scf.parallel must be positive")
    block = op.body.block
    reduce = block.last_op
    ranges = [range(int(a), int(b), int(s)) for a, b, s in zip(lower, upper, step, strict=True)]
    for point in product(*ranges):
        yielded = yield from tile.block(block, list(point))
        folded: Values = []
        for region, old, new in zip(reduce.regions, carried, yielded, strict=True):
            folded += yield from tile.block(region.block, [old, new])
        carried = folded
    return carried


@handles_region("scf.forall")
def forall(tile: Tile, op: Any, values: Values) -> Run:
    """Any order; here ascending, the last dim fastest."""
    rest = iter(values)
    dynamic = [list(group) for group in (op.dynamic_lower, op.dynamic_upper, op.dynamic_step)]
    given = [[next(rest) for _ in group] for group in dynamic]
    ranges = []
    iterators = [iter(group) for group in given]
    for bounds in op.bounds:
        lower, upper, step = (
            int(v) if isinstance(v, int) else int(next(source)) for v, source in zip(bounds, iterators, strict=True)
        )
        if step <= 0:
            raise ExecutionError("KT-X07", "the steps of scf.forall must be positive")
        ranges.append(range(lower, upper, step))
    for point in product(*ranges):
        yield from tile.block(op.body.block, list(point))
    return []


@handles_region("func.call")
def call(tile: Tile, op: Any, values: Values) -> Run:
    """Run the callee in place."""
    name = op.callee.root_reference.data
    function = tile.machine.functions.get(name)
    if function is None or function.is_declaration:
        raise ExecutionError("KT-X10", f"function '{name}' has no body in this module")
    if tile.depth >= 64:
        raise ExecutionError("KT-X10", f"calls are nested more than 64 deep at '{name}'")
    tile.depth += 1
    results = yield from tile.call(function, values)
    tile.depth -= 1
    return results
