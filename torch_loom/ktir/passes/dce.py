"""``dce``: remove ops whose results nobody uses and that do nothing else."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.traits import IsTerminator, Pure

from torch_loom.dialects.ktdp import ConstructIndirectAccessTileOp, LoadOp

# Reading memory has no effect that a later op could miss.
_READS = (LoadOp, ConstructIndirectAccessTileOp)
_PURE_NAMES = ("tensor.empty", "tensor.dim", "arith.extsi")


def removable(op: Operation) -> bool:
    """An unused op that may go."""
    if op.has_trait(IsTerminator) or not op.results:
        return False
    quiet = op.has_trait(Pure) or isinstance(op, _READS) or op.name in _PURE_NAMES
    return quiet and all(not result.uses.get_length() for result in op.results)


def eliminate_dead(module: ModuleOp) -> None:
    """Remove until nothing more can go."""
    _region(module.body.block)


def _region(block: Block) -> None:
    for op in reversed(list(block.ops)):
        for region in op.regions:
            for inner in region.blocks:
                _region(inner)
        if removable(op):
            block.erase_op(op)
