"""The one op of ``ktdf_arch`` that stands in KTIR files meant for a scheduler: the import of a device description.

Its content belongs to other tools; it is kept as written and has no meaning here.
"""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.mlir_lexer import MLIRTokenKind


@irdl_op_definition
class DeviceOp(IRDLOperation):
    """``ktdf_arch.device ... import(..)``."""

    name = "ktdf_arch.device"

    text = prop_def(StringAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Keep everything up to the end of ``import(..)``."""
        start = end = parser.pos
        depth, seen = 0, False
        while not (seen and depth == 0):
            token = parser._current_token
            if token.kind is MLIRTokenKind.EOF:
                parser.raise_error("ktdf_arch.device needs 'import(..)'")
            if token.text == "import":
                seen, depth = True, -1  # the next parenthesis makes it 0, its end -1
            elif token.text == "(":
                depth += 1 if depth >= 0 else 2
            elif token.text == ")":
                depth -= 1
            end = token.span.end
            parser._consume_token()
        text = parser.lexer.input.content[start:end]
        return cls.create(properties={"text": StringAttr(" ".join(text.split()))})

    def print(self, printer: Printer) -> None:
        """Print what was read."""
        printer.print_string(" " + self.text.data)


KtdfArch = Dialect("ktdf_arch", [DeviceOp])
