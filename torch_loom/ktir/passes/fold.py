"""``fold``: index and integer arithmetic on constants becomes constants."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue

from torch_loom.dialects.affine_sets import evaluate_map
from torch_loom.dialects.upstream_affine import AffineOp
from torch_loom.dialects.upstream_arith import ConstantOp
from torch_loom.ktir.passes.dce import eliminate_dead


def _truncdiv(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.divsi": _truncdiv,
    "arith.remsi": lambda a, b: a - _truncdiv(a, b) * b,
    "arith.floordivsi": lambda a, b: a // b,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
}
_UNSIGNED = ("arith.divui", "arith.remui")


def _constant(value: SSAValue) -> int | None:
    owner = value.owner
    if isinstance(owner, Operation) and owner.name == "arith.constant":
        found = owner.properties.get("value")
        if isinstance(found, IntegerAttr):
            return found.value.data
    return None


def _fits(value: int, kind: Attribute) -> bool:
    width = kind.width.data if isinstance(kind, IntegerType) else 64
    return -(1 << (width - 1)) <= value < (1 << (width - 1))


def _folded(op: Operation) -> int | None:
    numbers = [_constant(v) for v in op.operands]
    if not numbers or any(n is None for n in numbers):
        return None
    known = [n for n in numbers if n is not None]
    if isinstance(op, AffineOp):
        results = evaluate_map(op.map.data, known)
        return {"affine.min": min, "affine.max": max}.get(op.name, min)(results)
    function = _BINARY.get(op.name)
    if function is None or len(known) != 2:
        return None
    if ("div" in op.name or "rem" in op.name) and known[1] == 0:
        return None
    if op.name in _UNSIGNED and min(known) < 0:
        return None
    return function(*known)


def fold_constants(module: ModuleOp) -> None:
    """Fold in program order, then drop what became unused."""
    for op in list(module.walk()):
        if len(op.results) != 1 or not isinstance(op.results[0].type, IndexType | IntegerType):
            continue
        value = _folded(op)
        kind = op.results[0].type
        block = op.parent_block()
        if value is None or block is None or not _fits(value, kind):
            continue
        constant = ConstantOp.create(result_types=[kind], properties={"value": IntegerAttr(value, kind)})
        block.insert_ops_before([constant], op)
        constant.results[0].name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(constant.results[0])
        block.erase_op(op)
    eliminate_dead(module)
