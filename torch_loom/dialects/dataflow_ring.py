"""Operations of the ``dataflow`` dialect that reach other cores: copies over the ring and their credits."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from torch_loom.dialects.dataflow_base import MixedOp, Number, lx_pair, parse_lx, print_lx, split_numbers
from torch_loom.dialects.dataflow_text import parse_number, parse_numbers, print_list, print_number, print_numbers


class _RingCreditOp(MixedOp):
    """Base of ring_acquire and ring_release. Number: the other core (negative: nobody, nothing happens)."""

    channel = prop_def(StringAttr)
    side = prop_def(StringAttr)

    def __init__(self, channel: str, side: str, core: Number) -> None:
        operands, static = split_numbers([core])
        super().__init__(
            operands=[operands],
            properties={"channel": StringAttr(channel), "side": StringAttr(side), "static": static},
        )

    def verify_(self) -> None:
        """The side exists."""
        if self.side.data not in ("empty", "full"):
            raise VerifyException(f"a channel has the sides empty and full, not '{self.side.data}'")

    @property
    def core(self) -> Number:
        """The other core."""
        return self.numbers()[0]

    def print(self, printer: Printer) -> None:
        """``"channel" side core N``"""
        printer.print_string(" ")
        printer.print_string_literal(self.channel.data)
        printer.print_string(" ")
        printer.print_string_literal(self.side.data)
        printer.print_string(" core ")
        print_number(printer, self.core)

    @classmethod
    def parse(cls, parser: Parser) -> _RingCreditOp:
        """Parse the printed form."""
        channel = parser.parse_str_literal()
        side = parser.parse_str_literal()
        parser.parse_keyword("core")
        return cls(channel, side, parse_number(parser))


@irdl_op_definition
class RingAcquireOp(_RingCreditOp):
    """Take this core's credit of a ring channel towards or from another core; waits at zero."""

    name = "dataflow.ring_acquire"


@irdl_op_definition
class RingReleaseOp(_RingCreditOp):
    """Give another core a credit of a ring channel after all earlier copies have arrived."""

    name = "dataflow.ring_release"


@irdl_op_definition
class RingCopyOp(MixedOp):
    """LX of this core -> LX of another core (``model.RingCopy``).

    Numbers: core (negative: nobody), source offset, target offset, then per dim extent, source stride, target
    stride."""

    name = "dataflow.ring_copy"

    source = prop_def(ArrayAttr[StringAttr])  # block, channel
    target = prop_def(ArrayAttr[StringAttr])  # block, ring channel
    leaf = prop_def(IntAttr)
    where = opt_prop_def(StringAttr)

    def __init__(
        self,
        source: tuple[str, str],
        target: tuple[str, str],
        leaf: int,
        numbers: Sequence[Number],
        where: str = "",
    ) -> None:
        operands, static = split_numbers(numbers)
        super().__init__(
            operands=[operands],
            properties={
                "source": lx_pair(source),
                "target": lx_pair(target),
                "leaf": IntAttr(leaf),
                "static": static,
                **({"where": StringAttr(where)} if where else {}),
            },
        )

    def print(self, printer: Printer) -> None:
        """``core N lx "a" via "c" at N to lx "b" via "r" at N leaf N dims [[..], ..]``"""
        n = self.numbers()
        printer.print_string(" core ")
        print_number(printer, n[0])
        print_lx(printer, self.source, n[1])
        printer.print_string(" to")
        print_lx(printer, self.target, n[2])
        printer.print_string(f" leaf {self.leaf.data} dims ")
        print_list(printer, [n[k : k + 3] for k in range(3, len(n), 3)], print_numbers)
        if self.where is not None:
            printer.print_string(" loc ")
            printer.print_string_literal(self.where.data)

    @classmethod
    def parse(cls, parser: Parser) -> RingCopyOp:
        """Parse the printed form."""
        parser.parse_keyword("core")
        core = parse_number(parser)
        source, start = parse_lx(parser)
        parser.parse_keyword("to")
        target, landing = parse_lx(parser)
        parser.parse_keyword("leaf")
        leaf = parser.parse_integer()
        parser.parse_keyword("dims")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_numbers(parser))
        where = parser.parse_str_literal() if parser.parse_optional_keyword("loc") else ""
        numbers = [core, start, landing, *(n for d in dims for n in d)]
        return cls(source, target, leaf, numbers, where)
