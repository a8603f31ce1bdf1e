"""What the operations of the ``dataflow`` dialect share: numbers that are integers or SSA values, and LX places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, DenseArrayBase, IndexType, StringAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, prop_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from torch_loom.dialects.dataflow_text import parse_number, print_number

Number: TypeAlias = int | SSAValue
INDEX = IndexType()


def dense(values: Sequence[int]) -> DenseArrayBase[Any]:
    """A list of 64-bit integers as an attribute."""
    return DenseArrayBase.from_list(i64, list(values))


def split_numbers(numbers: Sequence[Number]) -> tuple[list[SSAValue], DenseArrayBase[Any]]:
    """(operands, static list with markers) of mixed numbers."""
    static = [DYNAMIC_INDEX if isinstance(n, SSAValue) else n for n in numbers]
    return [n for n in numbers if isinstance(n, SSAValue)], dense(static)


class MixedOp(IRDLOperation):
    """Base of operations whose numbers are integers or SSA values."""

    values = var_operand_def(IndexType)
    static = prop_def(DenseArrayBase)

    def numbers(self) -> list[Number]:
        """All numbers in order."""
        rest = iter(self.operands)
        return [next(rest) if v == DYNAMIC_INDEX else int(v) for v in self.static.get_values()]


def lx_pair(lx: tuple[str, str]) -> ArrayAttr[StringAttr]:
    """Block and channel as an attribute."""
    return ArrayAttr([StringAttr(lx[0]), StringAttr(lx[1])])


def print_lx(printer: Printer, lx: ArrayAttr[StringAttr], offset: Number) -> None:
    """`` lx "block" via "channel" at N``"""
    block, channel = lx.data
    printer.print_string(" lx ")
    printer.print_string_literal(block.data)
    if channel.data:
        printer.print_string(" via ")
        printer.print_string_literal(channel.data)
    printer.print_string(" at ")
    print_number(printer, offset)


def parse_lx(parser: Parser) -> tuple[tuple[str, str], Number]:
    """((block, channel), offset) of the printed form."""
    parser.parse_keyword("lx")
    block = parser.parse_str_literal()
    channel = parser.parse_str_literal() if parser.parse_optional_keyword("via") else ""
    parser.parse_keyword("at")
    return (block, channel), parse_number(parser)
