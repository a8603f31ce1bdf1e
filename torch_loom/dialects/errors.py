"""Errors of the IR that carry a code.

Every rejection has a code of the table in docs/ktir.md, so that tools and tests do not depend on the wording.
The classes refine xDSL's own exceptions, hence code written against xDSL keeps working.
"""

from __future__ import annotations

from typing import Any, NoReturn

from xdsl.parser import AttrParser
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Span


class CodedParseError(ParseError):
    """A text that cannot be read: ``code``, a span of the text and the message."""

    def __init__(self, span: Span[Any], msg: str, code: str = "KT-P00") -> None:
        super().__init__(span, msg)
        self.code = code


class CodedVerifyError(VerifyException):
    """An operation that breaks a rule: ``code`` and the message."""

    def __init__(self, code: str, msg: str) -> None:
        super().__init__(msg)
        self.code = code


def parse_error(parser: AttrParser, code: str, msg: str, at: Span[Any] | None = None) -> NoReturn:
    """Raise a coded error at ``at``, by default at the current token."""
    raise CodedParseError(at if at is not None else parser._current_token.span, msg, code)


def note_drift(parser: AttrParser, span: Span[Any], old: str, canonical: str) -> None:
    """Tell the parser that an old spelling was read; parsers that keep notes report it under ``--strict``."""
    notes = getattr(parser, "drift", None)
    if notes is not None:
        notes.append((span, old, canonical))


def require(condition: bool, code: str, message: str) -> None:
    """Raise a coded verification error unless the condition holds."""
    if not condition:
        raise CodedVerifyError(code, message)
