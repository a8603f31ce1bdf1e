"""Structural checks: every op by its own rules, definitions before uses, terminators, names of functions.

xDSL stops at the first error and does not check the order of definitions inside a block; here all errors are
collected and each points at its op. A check of an op depends only on its class, types and properties unless it holds
regions, so equal ops of a kernel are checked once.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr, UnregisteredAttr, UnregisteredOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import HasParent, IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException

from torch_loom.dialects.assembly import nearest
from torch_loom.dialects.errors import CodedVerifyError
from torch_loom.ktir.diagnostics import ERROR, Diagnostic, position_in

if TYPE_CHECKING:
    from torch_loom.ktir.program import Program

# What a verifier written for well-formed ops raises when the generic form gave it a wrong number of things.
_BROKEN = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)


_MAY_BE_EMPTY = ("builtin.module", "scf.forall.in_parallel")


class _Checker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: list[Diagnostic] = []
        self.function = ""
        self.visible: set[SSAValue] = set()
        self.seen: dict[object, None] = {}

    def report(self, op: Operation, code: str, message: str) -> None:
        source = self.program.source
        span = source.ops.get(op)
        place = position_in(source.text, source.file, *span) if span else None
        self.found.append(Diagnostic(ERROR, code, message, place, self.function, op_name(op)))

    def block(self, block: Block, isolated: bool) -> None:
        added: list[SSAValue] = list(block.args)
        outer = self.visible
        if isolated:
            self.visible = set()
        self.visible.update(added)
        last = block.last_op
        for op in block.ops:
            self.operation(op, op is last)
            self.visible.update(op.results)
            added += op.results
        self.visible = outer
        self.visible.difference_update(added)

    def operation(self, op: Operation, is_last: bool) -> None:
        for position, operand in enumerate(op.operands):
            if operand not in self.visible:
                self.report(op, "KT-V18", f"operand {position} ({self.name(operand)}) is not defined before this use")
        if isinstance(op, UnregisteredOp):
            known = _known_ops()
            self.report(op, "KT-P01", f"unknown operation '{op.op_name.data}'{nearest(op.op_name.data, known)}")
        else:
            self.verify(op)
        terminator = op.has_trait(IsTerminator, value_if_unregistered=is_last)
        if terminator != is_last and not self.free(op):
            what = "a terminator must be the last op of its block" if terminator else "the block needs a terminator"
            self.report(op, "KT-V18", f"{what}, '{op_name(op)}' {'is not' if terminator else 'is none'}")
        if isinstance(op, FuncOp):
            self.function = _function_name(op)
        for region in op.regions:
            if len(region.blocks) > 1:
                self.report(op, "KT-V18", "regions have one block; use scf for control flow")
            for block in region.blocks:
                if block.first_op is None and op.name not in _MAY_BE_EMPTY and len(op.regions) == 1:
                    self.report(op, "KT-V18", "the region is empty, it needs a terminator")
                self.block(block, isolated=isinstance(op, FuncOp | ModuleOp))

    def free(self, op: Operation) -> bool:
        parent = op.parent_op()
        return parent is None or parent.has_trait(NoTerminator) or op.name in ("scf.reduce",)

    def verify(self, op: Operation) -> None:
        parents = _parents(type(op))
        if parents and not isinstance(op.parent_op(), parents):
            wanted = "' or '".join(kind.name for kind in parents)
            self.report(op, "KT-V18", f"'{op.name}' must be directly inside '{wanted}'")
        key: object = None
        if not op.regions and op.name != "linalg.index":
            key = (
                type(op),
                tuple(v.type for v in op.operands),
                tuple(r.type for r in op.results),
                tuple(op.properties.items()),
            )
            if key in self.seen:
                return
        try:
            op.verify_()
        except CodedVerifyError as error:
            self.report(op, error.code, str(error))
        except VerifyException as error:
            self.report(op, "KT-V19", str(error).strip().split("\n")[0])
        except _BROKEN as error:
            self.report(op, "KT-V19", f"malformed operation: {error or type(error).__name__}")
        else:
            self.unknown_attributes(op)
            if key is not None:
                self.seen[key] = None

    def unknown_attributes(self, op: Operation) -> None:
        attributes: list[Attribute] = [*op.attributes.values(), *op.properties.values()]
        for attribute in (*attributes, *(r.type for r in op.results)):
            if isinstance(attribute, UnregisteredAttr):
                self.report(op, "KT-P01", f"unknown attribute or type {attribute}")

    def name(self, value: SSAValue) -> str:
        name = self.program.source.names.get(value)
        if name is not None:
            return f"%{name}"
        if isinstance(value, OpResult):
            return f"result {value.index} of {value.op.name}"
        if isinstance(value, BlockArgument):
            return f"block argument {value.index}"
        return f"%{value.name_hint}" if value.name_hint else "a value"  # defined inside the regions of this op


@cache
def _parents(kind: type[Operation]) -> tuple[type[Operation], ...]:
    """The ops that may hold an op of this class; empty when any may."""
    return tuple(parent for trait in kind.get_traits_of_type(HasParent) for parent in trait.op_types)


def op_name(op: Operation) -> str:
    """The name of an op, also of an unregistered one."""
    return op.op_name.data if isinstance(op, UnregisteredOp) else op.name


def _known_ops() -> list[str]:
    from torch_loom.dialects import context

    return [n for n, op in context()._loaded_ops.items() if not issubclass(op, UnregisteredOp)]


def check_structure(program: Program) -> list[Diagnostic]:
    """All structural errors of a program."""
    checker = _Checker(program)
    checker.operation(program.module, is_last=False)
    names: dict[str, FuncOp] = {}
    for op in (op for block in program.module.body.blocks for op in block.ops):
        name = _function_name(op) if isinstance(op, FuncOp) else ""
        if not isinstance(op, FuncOp) or not name:
            continue
        if name in names:
            checker.function = name
            checker.report(op, "KT-V18", f"function '{name}' is defined twice")
        names[name] = op
        _check_return(checker, op)
    return checker.found


def _function_name(function: FuncOp) -> str:
    """The name; empty when the generic form gave none (the op's own check reports that)."""
    name = function.properties.get("sym_name")
    return name.data if isinstance(name, StringAttr) else ""


def _check_return(checker: _Checker, function: FuncOp) -> None:
    kind = function.properties.get("function_type")
    if function.is_declaration or not isinstance(kind, FunctionType):
        return
    last = function.body.blocks.first.last_op if function.body.blocks.first else None
    if not isinstance(last, ReturnOp):
        return
    found, expected = [v.type for v in last.operands], list(kind.outputs.data)
    if found != expected:
        checker.function = _function_name(function)
        shown = ", ".join(map(str, found)) or "nothing"
        checker.report(
            last, "KT-V18", f"returns {shown}, the function declares {', '.join(map(str, expected)) or 'nothing'}"
        )
