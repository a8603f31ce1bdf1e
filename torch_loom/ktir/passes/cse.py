"""``cse``: compute equal pure values once per scope. Loads are left alone, memory may change between them."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.traits import IsTerminator, Pure

_PURE_NAMES = ("arith.extsi",)


def eliminate_common(module: ModuleOp) -> None:
    """Replace later equal ops by earlier ones."""
    _block(module.body.block, {})


def _key(op: Operation) -> object:
    return (
        op.name,
        tuple(op.operands),
        tuple(r.type for r in op.results),
        tuple(sorted(op.properties.items(), key=lambda item: item[0])),
        tuple(sorted(op.attributes.items(), key=lambda item: item[0])),
    )


def _block(block: Block, known: dict[object, Operation]) -> None:
    seen = dict(known)
    for op in list(block.ops):
        for region in op.regions:
            isolated = op.name in ("func.func", "builtin.module")
            for inner in region.blocks:
                _block(inner, {} if isolated else seen)
        quiet = op.has_trait(Pure) or op.name in _PURE_NAMES
        if op.regions or not quiet or op.has_trait(IsTerminator) or not op.results:
            continue
        key = _key(op)
        earlier = seen.get(key)
        if earlier is None:
            seen[key] = op
            continue
        for old, new in zip(op.results, earlier.results, strict=True):
            old.replace_all_uses_with(new)
        block.erase_op(op)
