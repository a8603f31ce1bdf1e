"""``scf`` and ``affine`` as KTIR uses them: xDSL's loops with complete checks, and the forms xDSL lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from xdsl.dialects import scf as xs
from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerType, i1, i32
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure

from torch_loom.dialects import assembly as asm
from torch_loom.dialects.errors import require
from torch_loom.dialects.upstream_arith import derive


def _types(values: Sequence[SSAValue]) -> list[Attribute]:
    return [v.type for v in values]


def _shown(types: Sequence[Attribute]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _single_block(op: Operation, region: Region, what: str) -> Block:
    require(len(region.blocks) == 1, "KT-V18", f"{what} of {op.name} has one block, got {len(region.blocks)}")
    return region.block


def _check_yield(op: Operation, block: Block, kind: type[Operation], expected: Sequence[Attribute], what: str) -> None:
    last = block.last_op
    require(isinstance(last, kind), "KT-V18", f"{what} of {op.name} ends with {kind.name}")
    assert last is not None
    found = _types(last.operands)
    require(
        found == list(expected), "KT-V18", f"{what} of {op.name} yields {_shown(found)}, expected {_shown(expected)}"
    )


class _For:
    def check(self: Any) -> None:
        """Bounds of one integer type; carried values keep their types."""
        operands = list(self.operands)
        require(len(operands) >= 3 and len(self.regions) == 1, "KT-V18", "scf.for takes bounds and one region")
        block = _single_block(self, self.regions[0], "the body")
        require(len(block.args) >= 1, "KT-V18", "the body of scf.for takes the induction variable")
        kind = block.args[0].type
        require(
            isinstance(kind, IndexType | IntegerType) and all(v.type == kind for v in operands[:3]),
            "KT-V18",
            f"bounds {_shown(_types(operands[:3]))} differ from the induction variable {kind}",
        )
        carried = _types(operands[3:])
        for found, what in ((_types(block.args[1:]), "block arguments"), (_types(self.results), "results")):
            require(found == carried, "KT-V18", f"{what} {_shown(found)} differ from iter_args {_shown(carried)}")
        _check_yield(self, block, xs.YieldOp, carried, "the body")


class _If:
    def check(self: Any) -> None:
        """An i1 condition; both branches yield the results."""
        require(
            len(self.operands) == 1 and self.operands[0].type == i1 and len(self.regions) == 2,
            "KT-V18",
            "scf.if takes one i1 and two regions",
        )
        results = _types(self.results)
        for region, what in zip(self.regions, ("the then branch", "the else branch"), strict=True):
            if not region.blocks and what == "the else branch":
                require(not results, "KT-V18", "scf.if with results needs an else branch")
                continue
            block = _single_block(self, region, what)
            require(not block.args, "KT-V18", f"{what} of scf.if takes no arguments, got {_shown(_types(block.args))}")
            _check_yield(self, block, xs.YieldOp, results, what)


class _While:
    """``scf.while (%a = %b) : (T) -> U { ... } do { ... }``; without operands the list may be left out."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Parse carried values, the function type and both regions."""
        pairs: list[tuple[Any, Any]] = []

        def one() -> tuple[Any, Any]:
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            return argument, parser.parse_unresolved_operand()

        if parser._current_token.text == "(":
            pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, one)
        parser.parse_punctuation(":")
        at = parser.pos
        function = parser.parse_function_type()
        inputs = list(function.inputs.data)
        operands = parser.resolve_operands([operand for _, operand in pairs], inputs, at)
        arguments = [argument.resolve(kind) for (argument, _), kind in zip(pairs, inputs, strict=True)]
        before = parser.parse_region(arguments)
        parser.parse_keyword("do")
        after = parser.parse_region()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        return cls.create(  # type: ignore[attr-defined]
            operands=operands,
            result_types=list(function.outputs.data),
            regions=[before, after],
            attributes=dict(attributes.data) if attributes is not None else {},
        )

    def print(self: Any, printer: Printer) -> None:
        """Print the canonical form."""
        block = self.before_region.block
        if self.operands:
            printer.print_string(" (")

            def one(pair: tuple[SSAValue, SSAValue]) -> None:
                printer.print_ssa_value(pair[0])
                printer.print_string(" = ")
                printer.print_ssa_value(pair[1])

            printer.print_list(zip(block.args, self.operands, strict=True), one)
            printer.print_string(")")
        printer.print_string(" : ")
        printer.print_function_type(_types(self.operands), _types(self.results))
        printer.print_string(" ")
        printer.print_region(self.before_region, print_entry_block_args=False, print_empty_block=False)
        printer.print_string(" do ")
        printer.print_region(self.after_region)
        printer.print_op_attributes(self.attributes, print_keyword=True)

    def check(self: Any) -> None:
        """Both regions carry matching types."""
        require(len(self.regions) == 2, "KT-V18", "scf.while has two regions")
        before = _single_block(self, self.regions[0], "the before region")
        after = _single_block(self, self.regions[1], "the after region")
        operands, results = _types(self.operands), _types(self.results)
        require(_types(before.args) == operands, "KT-V18", f"the before region takes {_shown(operands)}")
        require(_types(after.args) == results, "KT-V18", f"the after region takes {_shown(results)}")
        last = before.last_op
        require(isinstance(last, xs.ConditionOp), "KT-V18", "the before region ends with scf.condition")
        assert last is not None
        require(
            len(last.operands) >= 1 and last.operands[0].type == i1 and _types(last.operands[1:]) == results,
            "KT-V18",
            f"scf.condition passes an i1 and {_shown(results)}",
        )
        _check_yield(self, after, xs.YieldOp, operands, "the after region")


ForOp = derive(xs.ForOp, _For)
IfOp = derive(xs.IfOp, _If)
WhileOp = derive(xs.WhileOp, _While)


class _Parallel:
    """``scf.parallel (%i) = (%a) to (%b) step (%c) init (%x) -> T { ... scf.reduce(...) }``."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Parse loops, initial values and the body."""
        arguments = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False)
        )
        parser.parse_punctuation("=")
        groups = [_parse_index_group(parser)]
        for word in ("to", "step"):
            parser.parse_keyword(word)
            groups.append(_parse_index_group(parser))
        names = []
        if parser.parse_optional_keyword("init"):
            names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        at = parser.pos
        types = asm.parse_result_types(parser)
        initial = parser.resolve_operands(names, types, at)
        region = parser.parse_region([argument.resolve(asm.INDEX) for argument in arguments])
        block = region.block
        if not isinstance(block.last_op, xs.ReduceOp):
            block.add_op(xs.ReduceOp.create())
        attributes = parser.parse_optional_attr_dict()
        sizes = [*(len(g) for g in groups), len(initial)]
        return cls.create(  # type: ignore[attr-defined]
            operands=[*groups[0], *groups[1], *groups[2], *initial],
            properties={"operandSegmentSizes": DenseArrayBase.from_list(i32, sizes)},
            result_types=types,
            regions=[region],
            attributes=attributes,
        )

    def print(self: Any, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" (")
        printer.print_list(self.body.block.args, printer.print_ssa_value)
        for word, group in ((") = (", self.lowerBound), (") to (", self.upperBound), (") step (", self.step)):
            printer.print_string(word)
            printer.print_list(group, printer.print_ssa_value)
        printer.print_string(")")
        if self.initVals:
            printer.print_string(" init (")
            printer.print_list(self.initVals, printer.print_ssa_value)
            printer.print_string(")")
            asm.print_result_types(printer, _types(self.results))
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)
        printer.print_op_attributes(self.attributes)

    def check(self: Any) -> None:
        """Loops of index type; one reduction per initial value."""
        loops = len(self.lowerBound)
        require(
            loops == len(self.upperBound) == len(self.step) >= 1,
            "KT-V18",
            "scf.parallel takes as many lower bounds as upper bounds and steps",
        )
        block = _single_block(self, self.regions[0], "the body")
        require(_types(block.args) == [asm.INDEX] * loops, "KT-V18", f"the body takes {loops} index arguments")
        initial = _types(self.initVals)
        require(_types(self.results) == initial, "KT-V18", "one result per initial value of scf.parallel")
        last = block.last_op
        require(isinstance(last, xs.ReduceOp), "KT-V18", "the body of scf.parallel ends with scf.reduce")
        assert last is not None
        require(
            _types(last.operands) == initial and len(last.regions) == len(initial),
            "KT-V18",
            f"scf.reduce folds {_shown(initial)}",
        )


def _parse_index_group(parser: Parser) -> list[SSAValue]:
    names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return asm.resolve_indices(parser, names)


ParallelOp = derive(xs.ParallelOp, _Parallel)


@irdl_op_definition
class InParallelOp(IRDLOperation):
    """Ends the body of ``scf.forall``; the form without shared outputs has nothing in it."""

    name = "scf.forall.in_parallel"

    body = var_region_def()

    traits = traits_def(IsTerminator(), Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse an optional region."""
        region = parser.parse_optional_region()
        return cls.create(regions=[region or Region(Block())], attributes=parser.parse_optional_attr_dict())

    def print(self, printer: Printer) -> None:
        """Print the region."""
        printer.print_string(" ")
        printer.print_region(self.regions[0], print_empty_block=False)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        """No shared outputs."""
        empty = all(not block.ops for region in self.regions for block in region.blocks)
        require(empty, "KT-X10", "scf.forall with shared outputs is not implemented; use scf.for or scf.parallel")


@irdl_op_definition
class ForallOp(IRDLOperation):
    """``scf.forall (%i) in (%n)`` or ``(%i) = (lo) to (hi) step (s)``: iterations in any order."""

    name = "scf.forall"

    dynamic_lower = var_operand_def(IndexType)
    dynamic_upper = var_operand_def(IndexType)
    dynamic_step = var_operand_def(IndexType)
    outputs = var_operand_def()
    static_lower = prop_def(DenseArrayBase, prop_name="staticLowerBound")
    static_upper = prop_def(DenseArrayBase, prop_name="staticUpperBound")
    static_step = prop_def(DenseArrayBase, prop_name="staticStep")
    body = region_def()
    res = var_result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def bounds(self) -> list[tuple[int | SSAValue, int | SSAValue, int | SSAValue]]:
        """(lower, upper, step) per loop."""
        return list(
            zip(
                asm.mixed_values(self.static_lower.get_values(), self.dynamic_lower),
                asm.mixed_values(self.static_upper.get_values(), self.dynamic_upper),
                asm.mixed_values(self.static_step.get_values(), self.dynamic_step),
                strict=True,
            )
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse loops and the body."""
        arguments = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False)
        )
        count = len(arguments)
        lists = []
        if parser.parse_optional_keyword("in"):
            upper = asm.parse_mixed_list(parser, parser.Delimiter.PAREN)
            lists = [([], asm.dense_i64([0] * count)), upper, ([], asm.dense_i64([1] * count))]
        else:
            parser.parse_punctuation("=")
            lists.append(asm.parse_mixed_list(parser, parser.Delimiter.PAREN))
            for word in ("to", "step"):
                parser.parse_keyword(word)
                lists.append(asm.parse_mixed_list(parser, parser.Delimiter.PAREN))
        if parser._current_token.text == "shared_outs":
            parser.raise_error("scf.forall with shared_outs is not implemented; use scf.for with iter_args")
        region = parser.parse_region([argument.resolve(asm.INDEX) for argument in arguments])
        if region.blocks and not isinstance(region.block.last_op, InParallelOp):
            region.block.add_op(InParallelOp.create(regions=[Region(Block())]))
        attributes = parser.parse_optional_attr_dict()
        operands = [v for names, _ in lists for v in asm.resolve_indices(parser, names)]
        properties: dict[str, Attribute] = {
            name: static
            for name, (_, static) in zip(("staticLowerBound", "staticUpperBound", "staticStep"), lists, strict=True)
        }
        sizes = [*(len(names) for names, _ in lists), 0]
        properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, sizes)
        return cls.create(operands=operands, properties=properties, regions=[region], attributes=attributes)

    def print(self, printer: Printer) -> None:
        """Print the canonical form."""
        printer.print_string(" (")
        printer.print_list(self.body.block.args, printer.print_ssa_value)
        parts = (
            (") = ", self.static_lower, self.dynamic_lower),
            (" to ", self.static_upper, self.dynamic_upper),
            (" step ", self.static_step, self.dynamic_step),
        )
        for word, static, dynamic in parts:
            printer.print_string(word + "(")
            values = asm.mixed_values(static.get_values(), dynamic)
            printer.print_list(
                values,
                lambda v: printer.print_string(str(v)) if isinstance(v, int) else printer.print_ssa_value(v) and None,
            )
            printer.print_string(")")
        printer.print_string(" ")
        last = self.body.block.last_op
        hidden = isinstance(last, InParallelOp) and not last.attributes
        printer.print_region(
            self.body, print_entry_block_args=False, print_empty_block=False, print_block_terminators=not hidden
        )
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        """Equal numbers of bounds, one index argument per loop."""
        loops = len(self.static_lower)
        require(
            loops == len(self.static_upper) == len(self.static_step) >= 1,
            "KT-V18",
            "scf.forall takes as many lower bounds as upper bounds and steps",
        )
        for static, dynamic in zip(
            (self.static_lower, self.static_upper, self.static_step),
            (self.dynamic_lower, self.dynamic_upper, self.dynamic_step),
            strict=True,
        ):
            asm.mixed_values(static.get_values(), dynamic)
        require(not self.results and not self.outputs, "KT-X10", "scf.forall with shared outputs is not implemented")
        block = _single_block(self, self.body, "the body")
        require(_types(block.args) == [asm.INDEX] * loops, "KT-V18", f"the body takes {loops} index arguments")
        require(isinstance(block.last_op, InParallelOp), "KT-V18", "the body ends with scf.forall.in_parallel")


Scf = Dialect(
    "scf",
    [
        *(ForOp, IfOp, WhileOp, ParallelOp, ForallOp, InParallelOp),
        *(xs.YieldOp, xs.ConditionOp, xs.ReduceOp, xs.ReduceReturnOp),
    ],
    [],
)
