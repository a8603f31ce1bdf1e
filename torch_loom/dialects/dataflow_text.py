"""Mixed numbers in the text of the scheduler's dialects: an integer or an SSA value of type index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer

T = TypeVar("T")


def print_number(printer: Printer, number: int | SSAValue) -> None:
    """``%v`` or ``42``."""
    if isinstance(number, SSAValue):
        printer.print_ssa_value(number)
    else:
        printer.print_string(str(number))


def print_list(printer: Printer, items: Sequence[T], one: Callable[[Printer, T], None]) -> None:
    """``[a, b, ..]``"""
    printer.print_string("[")
    for k, item in enumerate(items):
        if k:
            printer.print_string(", ")
        one(printer, item)
    printer.print_string("]")


def print_numbers(printer: Printer, numbers: Sequence[int | SSAValue]) -> None:
    """``[%v, 42, ..]``"""
    print_list(printer, numbers, print_number)


def parse_number(parser: Parser) -> int | SSAValue:
    """``%v`` or ``42``."""
    operand = parser.parse_optional_unresolved_operand()
    if operand is not None:
        return parser.resolve_operand(operand, IndexType())
    return parser.parse_integer(allow_boolean=False)


def parse_numbers(parser: Parser) -> list[int | SSAValue]:
    """``[%v, 42, ..]``"""
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_number(parser))


def parse_int_list(parser: Parser) -> list[int]:
    """``[1, 2, ..]``"""
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_integer(allow_boolean=False))


def parse_word(parser: Parser) -> str:
    """A bare word."""
    return parser.parse_identifier()
