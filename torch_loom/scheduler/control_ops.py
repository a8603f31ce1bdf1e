"""Handlers of pass 1 for control flow: loops with carried values, branches, calls.

Tensors that cross a loop or branch live in cells. Carried indices must grow by a fixed step, which makes them
expressions of the loop variable; a ``while`` whose condition is such an index is a counted loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Block, Operation

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler import lane_ops
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.index_ops import index_predicate
from torch_loom.scheduler.kernel import Cell, For, Value
from torch_loom.scheduler.normalise import Normaliser, dtype_of, handles


@handles(
    "func.return",
    "scf.yield",
    "scf.reduce",
    "scf.reduce.return",
    "scf.forall.in_parallel",
    "scf.condition",
    "linalg.yield",
    "tensor.yield",
    "ktdp.region_terminator",
)
def _terminator(n: Normaliser, op: Operation) -> None:
    return None


@handles("scf.for")
def _for(n: Normaliser, op: Operation) -> None:
    lower, upper, step = (n.number(v) for v in op.operands[:3])
    if step.static and step.value <= 0:
        n.fail(f"a loop step must be positive, got {step.value}")
    block = op.regions[0].blocks[0]
    count = ex.ceildiv(upper - lower, step)
    initial = [n.env[v] for v in op.operands[3:]]
    if (count.hi is not None and count.hi <= 0) or count == 1:
        if count == 1:
            _bind(n, block, [lower, *initial])
            n.block(block)
            initial = [n.env[v] for v in list(block.ops)[-1].operands]
        for result, value in zip(op.results, initial, strict=True):
            n.set(result, value)
        return
    scope = len(n.parents)
    var = ex.variable("var", f"i{scope}", count)
    loop = For(scope, var, count, where=n.graph.where)
    _carried_loop(n, op, loop, lower + var * step, initial)


def _bind(n: Normaliser, block: Block, values: Sequence[Any]) -> None:
    for arg, value in zip(block.args, values, strict=True):
        n.set(arg, value)


def _carried_loop(n: Normaliser, op: Operation, loop: For, index: Expr, initial: list[Any]) -> None:
    """A loop whose iter_args are tensors (cells) or indices that grow by a fixed step."""
    block = op.regions[0].blocks[0]
    steps = _index_steps(n, loop, block, [index], initial)
    types = [r.type for r in op.results]
    results = _run_carried(n, loop, block, [index], initial, steps, types)
    for result, value in zip(op.results, results, strict=True):
        n.set(result, value)


def _run_carried(
    n: Normaliser,
    loop: For,
    block: Block,
    leading: list[Expr],
    initial: list[Any],
    steps: dict[int, Expr],
    types: Sequence[Attribute],
) -> list[Any]:
    """Normalise the body of a loop once; returns what is carried out of it.

    Block arguments are ``leading``, then the carried values."""
    cells: dict[int, Cell] = {}
    inside: list[Any] = []
    n.parents[loop.id] = n.graph.scope
    for k, value in enumerate(initial):
        if isinstance(value, Expr):
            inside.append(value + loop.var * steps[k])
            continue
        if not isinstance(value, Value):
            n.fail("a loop carries a tensor.empty, which has no values")
        cells[k] = n.new_cell(dtype_of(types[k]), value.shape)
        n.assign(cells[k], value)
        inside.append(None)
    outer_body, n.body = n.body, loop.body
    outer = n.graph.enter(loop.id)
    for k, cell in cells.items():
        inside[k] = n.read(cell)
    _bind(n, block, [*leading, *inside])
    n.block(block)
    yielded = list(block.ops)[-1].operands
    for k, cell in cells.items():
        n.assign(cell, n.value(yielded[k]))
    n.graph.leave(outer)
    n.body = outer_body
    n.body.append(loop)
    trips = ex.maximum(loop.count, 0)
    return [n.read(cells[k]) if k in cells else v + steps[k] * trips for k, v in enumerate(initial)]


def _index_steps(n: Normaliser, loop: For, block: Block, leading: list[Expr], initial: list[Any]) -> dict[int, Expr]:
    """How much each carried index grows per iteration, found by a trial run of the body."""
    carried = [k for k, v in enumerate(initial) if isinstance(v, Expr)]
    if not carried:
        return {}
    names = {k: ex.of(ex.Atom("var", f"carry{loop.id}.{k}")) for k in carried}
    saved = (n.body, dict(n.env), dict(n.parents), dict(n.locals), dict(n.loaded), len(n.cells))
    n.body = []
    n.parents[loop.id] = n.graph.scope
    outer = n.graph.enter(loop.id)
    _bind(n, block, [*leading, *(names.get(k, v) for k, v in enumerate(initial))])
    n.block(block)
    yielded = list(block.ops)[-1].operands
    grown = {k: n.number(yielded[k]) - names[k] for k in carried}
    n.graph.leave(outer)
    n.body, n.env, n.parents, n.locals, n.loaded = saved[:5]
    del n.cells[saved[5] :]
    changing = (f"carry{loop.id}.", f"i{loop.id}")
    for e in grown.values():
        if any(a.name.startswith(changing) for a in e.atoms()):
            n.fail("a carried index must grow by the same amount in every iteration")
    return grown


@handles("scf.while")
def _while(n: Normaliser, op: Operation) -> None:
    """A loop on a condition is counted when the condition compares a carried index with a fixed one."""
    before, after = op.regions[0].blocks[0], op.regions[1].blocks[0]
    condition = list(before.ops)[-1]
    if list(condition.operands[1:]) != list(before.args):
        n.fail("the condition's region must hand its arguments on unchanged")
    initial = [n.env[v] for v in op.operands]
    scope = len(n.parents)
    loop = For(scope, ex.of(ex.Atom("var", f"i{scope}", lo=0)), ex.ZERO, where=n.graph.where)
    steps = _index_steps(n, loop, after, [], initial)
    count = _while_count(n, before, condition, initial, steps)
    loop = For(scope, ex.variable("var", f"i{scope}", count), count, where=loop.where)
    types = [r.type for r in op.results]
    results = _run_carried(n, loop, after, [], initial, steps, types)
    for result, value in zip(op.results, results, strict=True):
        n.set(result, value)


def _while_count(
    n: Normaliser, before: Block, condition: Operation, initial: list[Any], steps: dict[int, Expr]
) -> Expr:
    """Iterations until the comparison fails."""
    test = condition.operands[0].owner
    if not isinstance(test, Operation) or test.name != "arith.cmpi":
        raise n.error("the condition must compare two indices", "use scf.for or a carried index")
    _bind(n, before, initial)
    for op in list(before.ops)[:-1]:
        n.one(op)
    a, b = (n.number(v) for v in test.operands)
    grows = [sum((steps[k] for k, arg in enumerate(before.args) if arg is v), ex.ZERO) for v in test.operands]
    predicate = lane_ops.CMPI[index_predicate(test)]
    gap, step = b - a, grows[0] - grows[1]  # goes on while gap > 0, >= 0 or != 0
    if predicate in ("sgt", "sge", "ugt", "uge"):
        gap, step = -gap, -step
    if not step.static or step.value <= 0:
        raise n.error("the condition's index must move toward its bound by a fixed step")
    if predicate in ("slt", "ult", "sgt", "ugt", "ne"):
        return ex.maximum(ex.ceildiv(gap, step), 0)
    if predicate in ("sle", "ule", "sge", "uge"):
        return ex.maximum(ex.floordiv(gap, step) + 1, 0)
    raise n.error(f"a loop while two indices are '{predicate}' cannot be counted")


@handles("scf.parallel")
def _parallel(n: Normaliser, op: Operation) -> None:
    """Iterations in ascending order; what they reduce is folded in that order."""
    lower, upper, step, initial = n.segments(op)
    block = op.regions[0].blocks[0]
    bounds = [tuple(n.number(v) for v in b) for b in zip(lower, upper, step, strict=True)]
    cells = []
    for v in initial:
        cells.append(n.new_cell(dtype_of(v.type), n.shape(v)))
        n.assign(cells[-1], n.value(v))
    _nest(n, block, bounds, cells)
    for result, cell in zip(op.results, cells, strict=True):
        n.set(result, n.read(cell))


@handles("scf.forall")
def _forall(n: Normaliser, op: Operation) -> None:
    groups = n.segments(op)
    if groups[3]:
        n.fail("shared outputs cannot be scheduled", hint="store inside the loop")
    bounds = list(
        zip(
            n.mixed(op, "staticLowerBound", groups[0]),
            n.mixed(op, "staticUpperBound", groups[1]),
            n.mixed(op, "staticStep", groups[2]),
            strict=True,
        )
    )
    _nest(n, op.regions[0].blocks[0], bounds, [])


def _nest(n: Normaliser, block: Block, bounds: Sequence[tuple[Expr, ...]], cells: list[Cell]) -> None:
    """Nested loops around one body; ``cells`` receive the folds of its ``scf.reduce``."""
    outer_bodies = []
    indices: list[Expr] = []
    for low, high, step in bounds:
        count = ex.ceildiv(high - low, step)
        scope = len(n.parents)
        var = ex.variable("var", f"i{scope}", count)
        loop = For(scope, var, count, where=n.graph.where)
        n.parents[scope] = n.graph.scope
        outer_bodies.append((n.body, n.graph.enter(scope), loop))
        n.body.append(loop)
        n.body = loop.body
        indices.append(low + var * step)
    _bind(n, block, indices)
    n.block(block)
    last = list(block.ops)[-1]
    for cell, v, region in zip(cells, last.operands, last.regions, strict=False):
        fold = region.blocks[0]
        _bind(n, fold, [n.read(cell), n.value(v)])
        n.block(fold)
        n.assign(cell, n.value(list(fold.ops)[-1].operands[0]))
    for body, outer, _ in reversed(outer_bodies):
        n.graph.leave(outer)
        n.body = body


@handles("func.call")
def _call(n: Normaliser, op: Operation) -> None:
    """Calls are inlined."""
    callee = op.properties["callee"].root_reference.data  # type: ignore[attr-defined]
    function = n.program.function(callee)
    if function.is_declaration or len(function.body.blocks) != 1:
        n.fail(f"@{callee} has no body that could be inlined")
    block = function.body.blocks[0]
    _bind(n, block, [n.env[v] for v in op.operands])
    n.block(block)
    for result, v in zip(op.results, list(block.ops)[-1].operands, strict=True):
        n.set(result, n.env[v])


@handles("scf.if")
def _if(n: Normaliser, op: Operation) -> None:
    if not n.is_number(op.operands[0]):
        n.fail("the condition must be known at launch", hint="use arith.select on the values")
    condition = n.number(op.operands[0])
    branches = [(condition, op.regions[0])]
    if len(op.regions) > 1 and op.regions[1].blocks:
        branches.append((ex.ONE - condition, op.regions[1]))
    if condition.static:
        taken = [r for c, r in branches if c == 1]
        for region in taken:
            n.block(region.blocks[0])
            for result, v in zip(op.results, list(region.blocks[0].ops)[-1].operands, strict=True):
                n.set(result, n.env[v])
        return
    cells: list[Cell] = []
    numbers: list[Expr] = [ex.ZERO] * len(op.results)
    for count, region in branches:
        _branch(n, op, count, region.blocks[0], cells, numbers)
    for k, result in enumerate(op.results):
        n.set(result, numbers[k] if isinstance(result.type, IndexType) else n.read(cells[k]))


def _branch(n: Normaliser, op: Operation, count: Expr, block: Block, cells: list[Cell], numbers: list[Expr]) -> None:
    """One side of an if: a loop of zero or one iterations that assigns the results."""
    scope = len(n.parents)
    n.parents[scope] = n.graph.scope
    branch = For(scope, ex.ZERO, count, where=n.graph.where)
    outer_body, n.body = n.body, branch.body
    outer = n.graph.enter(scope)
    n.block(block)
    for k, v in enumerate(list(block.ops)[-1].operands):
        if isinstance(op.results[k].type, IndexType):
            numbers[k] = numbers[k] + count * n.number(v)
            if len(cells) <= k:
                cells.append(Cell(-1, "index", ()))
            continue
        value = n.value(v)
        if len(cells) <= k:
            cells.append(n.new_cell(dtype_of(v.type), value.shape))
        n.assign(cells[k], value)
    n.graph.leave(outer)
    n.body = outer_body
    n.body.append(branch)
