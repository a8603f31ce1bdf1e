"""A lexer for KTIR text: MLIR's tokens, one regular expression per token.

It stands in for xDSL's lexer because that one costs more than all parsing; spans are built only when asked for.
Beyond MLIR it reads a lone ``%`` (modulo in prose-like subscripts) as a token of its own.
"""

from __future__ import annotations

import re
from typing import Any

from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind, StringLiteral

from torch_loom.dialects.errors import CodedParseError

_PUNCTUATION: dict[str, MLIRTokenKind] = {k.value: k for k in MLIRTokenKind if isinstance(k.value, str)}
_PUNCTUATION["%"] = MLIRTokenKind.SLASH

_TOKEN = re.compile(
    r"""(?:[ \t\r\n]++|//[^\n]*+)*+
    (?:(?P<bare>[A-Za-z_][A-Za-z0-9_$.]*)
    |(?P<percent>%(?:[0-9]+|[A-Za-z$._-][A-Za-z0-9$._-]*))
    |(?P<hash>\#(?:[0-9]+|[A-Za-z$._](?:[A-Za-z0-9$._-]*[A-Za-z0-9$._])?))
    |(?P<bang>!(?:[0-9]+|[A-Za-z$._-][A-Za-z0-9$._-]*))
    |(?P<hex>0x[0-9a-fA-F]+)
    |(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?)
    |(?P<int>[0-9]+)
    |(?P<punct>\{-\#|\#-\}|->|\.\.\.|[:,=>{(\[<\-+?/})\]*|%])
    |(?P<string>"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+")
    |(?P<at>@(?:[A-Za-z_][A-Za-z0-9_$.]*|"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"))
    |(?P<caret>\^(?:[0-9]+|[A-Za-z$._-][A-Za-z0-9$._-]*))
    |(?P<eof>\Z))""",
    re.VERBOSE | re.ASCII,
)
_SKIP = re.compile(r"(?:[ \t\r\n]++|//[^\n]*+)*+", re.ASCII)

_KINDS = {
    "bare": MLIRTokenKind.BARE_IDENT,
    "percent": MLIRTokenKind.PERCENT_IDENT,
    "hash": MLIRTokenKind.HASH_IDENT,
    "bang": MLIRTokenKind.EXCLAMATION_IDENT,
    "hex": MLIRTokenKind.INTEGER_LIT,
    "float": MLIRTokenKind.FLOAT_LIT,
    "int": MLIRTokenKind.INTEGER_LIT,
    "at": MLIRTokenKind.AT_IDENT,
    "caret": MLIRTokenKind.CARET_IDENT,
    "eof": MLIRTokenKind.EOF,
}

#: More digits than any 64-bit number or bit pattern needs; longer literals are refused before conversion.
MAX_DIGITS = 40


class Tok:
    """A token: kind and text, the span on demand. Same interface as xDSL's token."""

    __slots__ = ("end", "input", "kind", "start", "text")

    def __init__(self, kind: MLIRTokenKind, text: str, start: int, end: int, source: Input[str]) -> None:
        self.kind = kind
        self.text = text
        self.start = start
        self.end = end
        self.input = source

    @property
    def span(self) -> Span[str]:
        """Where the token stands."""
        if self.kind is MLIRTokenKind.STRING_LIT or self.kind is MLIRTokenKind.BYTES_LIT:
            return StringLiteral(self.start, self.end, self.input)
        return Span(self.start, self.end, self.input)


class KtirLexer(MLIRLexer):
    """Tokens of KTIR text."""

    def lex(self) -> MLIRToken:
        """The next token."""
        content = self.input.content
        match = _TOKEN.match(content, self.pos)
        if match is None:
            start = _SKIP.match(content, self.pos).end()  # type: ignore[union-attr]
            raise CodedParseError(Span(start, min(start + 1, len(content)), self.input), _explain(content, start))
        group: Any = match.lastgroup
        text = match[group]
        end = self.pos = match.end()
        start = end - len(text)
        kind: MLIRTokenKind
        if group == "punct":
            kind = _PUNCTUATION[text]
        elif group == "string":
            kind = _string_kind(StringLiteral(start, end, self.input)) if "\\" in text else MLIRTokenKind.STRING_LIT
        else:
            kind = _KINDS[group]
            if len(text) > MAX_DIGITS and group in ("int", "hex", "float"):
                raise CodedParseError(Span(start, end, self.input), f"number literal of {len(text)} characters")
        return Tok(kind, text, start, end, self.input)  # type: ignore[return-value]


def _string_kind(literal: StringLiteral) -> MLIRTokenKind:
    return MLIRTokenKind.STRING_LIT if literal.bytes_contents.isascii() else MLIRTokenKind.BYTES_LIT


def _explain(content: str, start: int) -> str:
    char = content[start]
    if char == '"':
        return "unterminated string or unknown escape in a string"
    if char in "#!@^":
        return f"expected a name after '{char}'"
    return f"unexpected character {char!r}"
