"""Rewrites of older ops that need more than a spelling change."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from torch_loom.dialects.ktdp import CoreIdOp, GetComputeTileIdOp
from torch_loom.dialects.upstream_arith import NO_OVERFLOW, AddiOp, ConstantOp, MuliOp


def canonicalise_module(module: ModuleOp) -> None:
    """Replace ``ktdp.coreid`` by the compute-tile id and index arithmetic over the grid."""
    for op in [op for op in module.walk() if isinstance(op, CoreIdOp)]:
        _replace_core_id(op)


def _replace_core_id(op: CoreIdOp) -> None:
    from torch_loom.ktir.program import grid_of

    parent: Operation | None = op.parent_op()
    while parent is not None and not isinstance(parent, FuncOp):
        parent = parent.parent_op()
    grid = grid_of(parent) if isinstance(parent, FuncOp) else (1,)
    block = op.parent_block()
    assert block is not None
    ids = GetComputeTileIdOp(len(grid))
    ops: list[Operation] = [ids]
    linear: SSAValue = ids.results[-1]
    for position in reversed(range(len(grid) - 1)):
        factor = ConstantOp.create(
            result_types=[IndexType()], properties={"value": IntegerAttr(grid[position], IndexType())}
        )
        scaled = _binary(MuliOp, linear, factor.results[0])
        total = _binary(AddiOp, scaled.results[0], ids.results[position])
        ops += [factor, scaled, total]
        linear = total.results[0]
    block.insert_ops_before(ops, op)
    name = op.results[0].name_hint
    op.results[0].replace_all_uses_with(linear)
    if name is not None:
        linear.name_hint = name
    block.erase_op(op)


def _binary(kind: type[Operation], lhs: SSAValue, rhs: SSAValue) -> Operation:
    return kind.create(operands=[lhs, rhs], result_types=[IndexType()], properties={"overflowFlags": NO_OVERFLOW})
