"""``generalize`` and ``name``: named structured ops as ``linalg.generic``, and back where the body has a name."""

from __future__ import annotations

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, ModuleOp
from xdsl.ir import Operation

from torch_loom.dialects.upstream_linalg import (
    CONTRACTION_OPS,
    ELEMENTWISE_OPS,
    GenericOp,
    IteratorType,
    IteratorTypeAttr,
    NamedOp,
    ReduceOp,
    StructuredOp,
    TransposeOp,
)
from torch_loom.dialects.upstream_linalg_base import segments


def _iterators(op: StructuredOp) -> ArrayAttr[IteratorTypeAttr]:
    kinds = (IteratorType.REDUCTION if reduced else IteratorType.PARALLEL for reduced in op.iterators())
    return ArrayAttr([IteratorTypeAttr(kind) for kind in kinds])


def generalize_named(module: ModuleOp) -> None:
    """Turn named ops, transposes and reduces into generics."""
    for op in list(module.walk()):
        if not isinstance(op, NamedOp | ReduceOp | TransposeOp):
            continue
        body = op.generic_body()
        if body is None:
            body = op.detach_region(op.regions[0])
        generic = GenericOp.create(
            operands=list(op.operands),
            result_types=[r.type for r in op.results],
            properties={
                "indexing_maps": ArrayAttr([AffineMapAttr(m) for m in op.maps()]),
                "iterator_types": _iterators(op),
                "operandSegmentSizes": segments(op.inputs, op.outputs),
            },
            attributes=dict(op.attributes),
            regions=[body],
        )
        _replace(op, generic)


def _replace(old: Operation, new: Operation) -> None:
    block = old.parent_block()
    assert block is not None
    block.insert_ops_before([new], old)
    for a, b in zip(old.results, new.results, strict=True):
        b.name_hint = a.name_hint
        a.replace_all_uses_with(b)
    block.erase_op(old)


def name_generics(module: ModuleOp) -> None:
    """Turn generics whose maps, loops and body are those of a named op into that op."""
    for op in list(module.walk()):
        if isinstance(op, GenericOp):
            named = _name_of(op)
            if named is not None:
                _replace(op, named)


def _name_of(op: GenericOp) -> NamedOp | None:
    if len(op.outputs) != 1 or op.attributes or "library_call" in op.properties:
        return None
    properties = {"operandSegmentSizes": op.properties["operandSegmentSizes"]}
    for cls in (*ELEMENTWISE_OPS.values(), *CONTRACTION_OPS.values()):
        candidate = cls.create(
            operands=list(op.operands), result_types=[r.type for r in op.results], properties=dict(properties)
        )
        if _matches(candidate, op):
            return candidate
        candidate.erase()
    return None


def _matches(candidate: Operation, op: GenericOp) -> bool:
    from xdsl.utils.exceptions import VerifyException

    assert isinstance(candidate, NamedOp)
    try:
        candidate.verify_()
    except VerifyException:
        return False
    if candidate.maps() != op.maps() or candidate.iterators() != op.iterators():
        return False
    body = candidate.generic_body()
    return body is not None and body.is_structurally_equivalent(op.body)
