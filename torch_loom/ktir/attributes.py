"""Attribute syntax beyond xDSL's: numbers with exact meaning, hex floats in dense literals, all locations."""

from __future__ import annotations

import math
from typing import Any

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    CallSiteLoc,
    DenseIntOrFPElementsAttr,
    FileLineColLoc,
    FloatAttr,
    FusedLoc,
    IndexType,
    IntAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    NameLoc,
    NoneAttr,
    ShapedType,
    StringAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute, TypeAttribute
from xdsl.parser import AttrParser
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from torch_loom.dialects.errors import parse_error

_MAX_BITS = 64

#: Width of integer types that are read; wider ones would only make numbers of absurd size.
MAX_WIDTH = 256

#: Elements of a dense constant; more is data, not a constant.
MAX_DENSE = 1 << 22


class KtirAttributes(AttrParser):
    """Overrides of xDSL's attribute parser."""

    # ---- numbers ----

    def parse_optional_builtin_int_or_float_attr(self) -> IntegerAttr | FloatAttr | None:
        """A number with its type; ``1 : f16`` is refused, hex is the bit pattern of a float."""
        boolean = self.try_parse_builtin_boolean_attr()
        if boolean is not None:
            return boolean
        span = self._current_token.span
        negative = self._current_token.kind is MLIRTokenKind.MINUS
        hexadecimal = self._current_token.text.startswith("0x")
        value = self.parse_optional_number()
        if value is None:
            return None
        kind: Any = None
        if self._current_token.text == ":":
            self._consume_token()
            kind = self.parse_type()
        if kind is None:
            return _default_number(value)
        if isinstance(kind, AnyFloat):
            if isinstance(value, int):
                if not hexadecimal or negative:
                    parse_error(
                        self,
                        "KT-P06",
                        f"integer literal {value} for the float type {kind}; write {value}.0, or hex for bits",
                        span,
                    )
                return FloatAttr(self._from_bits(value, kind, span), kind)
            self._check_rounding(value, kind, span)
            return FloatAttr(value, kind)
        if isinstance(kind, IntegerType | IndexType):
            if isinstance(value, float):
                parse_error(self, "KT-P06", f"float literal {value} for the integer type {kind}", span)
            if isinstance(kind, IntegerType) and hexadecimal and not negative:
                value = _wrap(value, kind)
            return IntegerAttr(value, kind)
        parse_error(self, "KT-P06", f"a number cannot have type {kind}", span)

    def _from_bits(self, bits: int, kind: Any, span: Span[Any]) -> float:
        if bits.bit_length() > kind.bitwidth:
            parse_error(self, "KT-P06", f"hex literal has more than the {kind.bitwidth} bits of {kind}", span)
        return float(next(iter(kind.iter_unpack(bits.to_bytes(kind.compile_time_size, "little")))))

    def _check_rounding(self, value: float, kind: Any, span: Span[Any]) -> None:
        rounded = kind.round(value)
        if math.isinf(rounded) and not math.isinf(value) or rounded == 0 and value != 0:
            warnings = getattr(getattr(self, "source", None), "warnings", None)
            if warnings is not None:
                shown = "inf" if math.isinf(rounded) else "0"
                warnings.append((span, "KT-P06", f"literal {value} rounds to {shown} in {kind}"))

    # ---- types ----

    def _parse_optional_integer_or_float_type(self) -> TypeAttribute | None:
        token = self._current_token
        match = self._builtin_integer_type_regex.match(token.text)
        if match is not None and not 1 <= int(match[1]) <= MAX_WIDTH:
            parse_error(self, "KT-P00", f"integer types have 1 to {MAX_WIDTH} bits, got {token.text}", token.span)
        return super()._parse_optional_integer_or_float_type()

    # ---- dense ----

    def parse_dense_int_or_fp_elements_attr(self, type: Any) -> DenseIntOrFPElementsAttr:
        """``dense<...>`` where a hex number of a float type is its bit pattern, as in MLIR."""
        start = self._current_token.span.start
        self._check_dense_size(start)
        result = super().parse_dense_int_or_fp_elements_attr(type)
        text = self.lexer.input.content[start : self._current_token.span.start]
        kind = result.type.element_type
        if "0x" not in text or not isinstance(kind, AnyFloat) or '"' in text:
            return result
        end = self._current_token.span.start
        self._resume_from(start)
        values: list[float] = []
        while True:
            token = self._consume_token()
            if token.text == ">":
                break
            negative = token.kind is MLIRTokenKind.MINUS
            if negative:
                token = self._consume_token()
            if token.kind is MLIRTokenKind.INTEGER_LIT and token.text.startswith("0x"):
                value = self._from_bits(int(token.text, 16), kind, token.span)
                values.append(-value if negative else value)
            elif token.kind in (MLIRTokenKind.INTEGER_LIT, MLIRTokenKind.FLOAT_LIT):
                values.append(-float(token.text) if negative else float(token.text))
        if len(values) == 1:
            values *= math.prod(result.get_shape())
        self._resume_from(end)
        return DenseIntOrFPElementsAttr.from_list(result.type, values)  # type: ignore[type-var,arg-type,return-value]

    def _check_dense_size(self, start: int) -> None:
        """Refuse a splat of a huge type before it is expanded."""
        depth = 0
        while True:
            token = self._current_token
            if token.kind is MLIRTokenKind.EOF:
                return
            depth += {"<": 1, ">": -1}.get(token.text, 0)
            self._consume_token()
            if depth == 0:
                break
        if self._current_token.text == ":":
            self._consume_token()
            span = self._current_token.span
            kind = self.parse_type()
            shape = kind.get_shape() if isinstance(kind, ShapedType) else ()
            if math.prod(d for d in shape if d > 0) > MAX_DENSE:
                parse_error(self, "KT-P00", f"a dense constant of more than {MAX_DENSE} elements", span)
        self._resume_from(start)

    # ---- locations ----

    def _parse_location(self) -> LocationAttr:
        token = self._current_token
        if token.kind is MLIRTokenKind.STRING_LIT:
            name = StringAttr(self.parse_str_literal())
            if self.parse_optional_punctuation(":"):
                return self._parse_file_location(name)
            nested: Attribute = NoneAttr()
            if self.parse_optional_punctuation("("):
                nested = self._parse_location()
                self.parse_punctuation(")", " in location")
            return NameLoc(name, nested)
        if token.kind is MLIRTokenKind.HASH_IDENT:
            value = self.parse_attribute()
            if isinstance(value, LocationAttr):
                return value
            parse_error(self, "KT-P02", f"alias '{token.text}' is not a location", token.span)
        word = token.text
        if word == "loc":
            self._consume_token()
            self.parse_punctuation("(", " in location")
            inner = self._parse_location()
            self.parse_punctuation(")", " in location")
            return inner
        if word == "unknown":
            self._consume_token()
            return UnknownLoc()
        if word == "callsite":
            self._consume_token()
            self.parse_punctuation("(", " in location")
            callee = self._parse_location()
            self.parse_keyword("at")
            caller = self._parse_location()
            self.parse_punctuation(")", " in location")
            return CallSiteLoc(callee, caller)
        if word == "fused":
            self._consume_token()
            metadata: Attribute = NoneAttr()
            if self.parse_optional_punctuation("<"):
                metadata = self.parse_attribute()
                self.parse_punctuation(">", " in location")
            parts = self.parse_comma_separated_list(self.Delimiter.SQUARE, self._parse_location)
            return FusedLoc(ArrayAttr(parts), metadata)
        parse_error(self, "KT-P00", f"unknown form of location: '{word}'", token.span)

    def _parse_file_location(self, name: StringAttr) -> LocationAttr:
        """``:line:col`` and the range forms ``to :col`` and ``to line:col``."""
        line = self.parse_integer(False, False)
        column = self.parse_integer(False, False) if self.parse_optional_punctuation(":") else 0
        start = FileLineColLoc(name, IntAttr(line), IntAttr(column))
        if not self.parse_optional_keyword("to"):
            return start
        end_line = line
        if self._current_token.text != ":":
            end_line = self.parse_integer(False, False)
        self.parse_punctuation(":", " in location range")
        end_column = self.parse_integer(False, False)
        # xDSL has no ranges; a fused location with the end as metadata is valid MLIR and keeps it.
        return FusedLoc(ArrayAttr([start]), StringAttr(f"to {end_line}:{end_column}"))


def _wrap(value: int, kind: IntegerType) -> int:
    """Two's complement of a hex literal that fills the width of a signless type."""
    width = kind.width.data
    return value - (1 << width) if width <= _MAX_BITS and (1 << (width - 1)) <= value < (1 << width) else value


def _default_number(value: int | float) -> IntegerAttr | FloatAttr:
    return FloatAttr(value, 64) if isinstance(value, float) else IntegerAttr(value, 64)
