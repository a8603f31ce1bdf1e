"""``inline``: put the bodies of called functions in place of the calls."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue


def inline_calls(module: ModuleOp) -> None:
    """Inline every call of a function of the module. Recursion is an error."""
    functions = {op.sym_name.data: op for op in module.walk() if isinstance(op, FuncOp)}
    for _ in range(len(functions) + 1):
        calls = [op for op in module.walk() if isinstance(op, CallOp) and op.callee.root_reference.data in functions]
        if not calls:
            return
        for call in calls:
            _inline(call, functions[call.callee.root_reference.data])
    raise ValueError("functions call each other in a circle; they cannot be inlined")


def _inline(call: CallOp, function: FuncOp) -> None:
    if function.is_declaration:
        raise ValueError(f"function '{function.sym_name.data}' has no body")
    clone = function.clone()
    block = clone.body.block
    for argument, value in zip(block.args, call.operands, strict=True):
        argument.replace_all_uses_with(value)
    last = block.last_op
    assert isinstance(last, ReturnOp)
    results: list[SSAValue] = list(last.operands)
    block.erase_op(last)
    target = call.parent_block()
    assert target is not None
    for op in list(block.ops):
        op.detach()
        target.insert_ops_before([op], call)
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    target.erase_op(call)
