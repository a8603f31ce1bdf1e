"""The KTIR parser: xDSL's MLIR parser with everything public KTIR text needs.

Differences from the stock parser, each because real text contains it: aliases may stand anywhere and be used before
they are defined; every form of location; hex floats inside ``dense``; multi-results; generic and custom form for all
ops; trailing metadata. It records where each op stands, so that later findings can show the line. Types and affine
attributes are cached by their text: kernels repeat them a lot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import (
    AffineMapAttr,
    AffineSetAttr,
    LocationAttr,
    ModuleOp,
    UnregisteredOp,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue, TypeAttribute
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from torch_loom.dialects import context
from torch_loom.dialects.affine_text import parse_map, parse_set
from torch_loom.dialects.errors import parse_error
from torch_loom.ktir.attributes import KtirAttributes
from torch_loom.ktir.lexer import KtirLexer
from torch_loom.ktir.names import reject_name, unknown_op

_SHAPED = re.compile(r"(?:tensor|memref)<(?:(?:\d{1,18}|\?)x)*(?:f16|f32|bf16|index|i\d{1,3}|si\d{1,3})>")
_AFFINE = re.compile(r"affine_(?:map|set)<(?:->|[<>]=|[^<>\"-]|-(?!>))*+>")
_CACHE_LIMIT = 4096

_types: dict[str, TypeAttribute] = {}
_affine: dict[str, AffineMapAttr | AffineSetAttr] = {}


def _remember(cache: dict[str, Any], key: str, value: Any) -> None:
    """Bounded insert: a full cache starts over, which costs less than tracking ages."""
    if len(cache) >= _CACHE_LIMIT:
        cache.clear()
    cache[key] = value


@dataclass(frozen=True)
class ParseOptions:
    """How tolerant reading is. ``assume_memory_space`` fills in views without one (``global`` or ``ct_local``)."""

    assume_memory_space: str | None = None
    allow_l0: bool = False


@dataclass
class SourceMap:
    """Where things stand in the text, for diagnostics."""

    text: str
    file: str
    ops: dict[Operation, tuple[int, int]] = field(default_factory=dict)
    names: dict[SSAValue, str] = field(default_factory=dict)
    drift: list[tuple[Span[Any], str, str]] = field(default_factory=list)
    warnings: list[tuple[Span[Any], str, str]] = field(default_factory=list)


class KtirParser(KtirAttributes, Parser):
    """Reads KTIR text into an xDSL module."""

    def __init__(self, text: str, file: str, options: ParseOptions | None = None) -> None:
        options = options or ParseOptions()
        super().__init__(context(), "", file)
        self._parser_state.lexer = KtirLexer(Input(text, file))
        self.source = SourceMap(text, file)
        self.drift = self.source.drift
        self.assume_memory_space = options.assume_memory_space
        self.allow_l0 = options.allow_l0
        self._scanned_aliases: dict[str, int] | None = None
        self._resolving: set[str] = set()
        self._state = self._parser_state
        self._state.current_token = self._state.lexer.lex()

    # ---- tokens: the same behaviour as xDSL's with fewer calls ----

    def _consume_token(self, expected_kind: MLIRTokenKind | None = None) -> Any:
        state = self._state
        token = state.current_token
        state.current_token = state.lexer.lex()
        return token

    def _parse_optional_token(self, expected_kind: MLIRTokenKind) -> Any:
        state = self._state
        token = state.current_token
        if token.kind is not expected_kind:
            return None
        state.current_token = state.lexer.lex()
        return token

    def parse_optional_punctuation(self, punctuation: Any) -> Any:
        """Consume the punctuation if it is next."""
        state = self._state
        if state.current_token.text != punctuation:
            return None
        state.current_token = state.lexer.lex()
        return punctuation

    def parse_punctuation(self, punctuation: Any, context_msg: str = "") -> Any:
        """Consume the punctuation or fail."""
        state = self._state
        if state.current_token.text != punctuation:
            self.raise_error(f"expected '{punctuation}'{context_msg}, found {_shown(state.current_token)}")
        state.current_token = state.lexer.lex()
        return punctuation

    # ---- types and affine attributes by text ----

    def parse_optional_type(self) -> TypeAttribute | None:
        """A type; plain tensor and memref types come from a cache."""
        token = self._state.current_token
        if token.kind is MLIRTokenKind.BARE_IDENT and token.text in ("tensor", "memref"):
            start = token.start  # type: ignore[attr-defined]
            match = _SHAPED.match(self.source.text, start)
            if match is not None:
                key = match[0]
                found = _types.get(key)
                if found is None:
                    found = super().parse_optional_type()
                    if found is not None:
                        _remember(_types, key, found)
                    return found
                self._resume_from(match.end())
                return found
        if token.kind is MLIRTokenKind.EXCLAMATION_IDENT:
            reject_name(self, token.text[1:], token.span)
        return super().parse_optional_type()

    def _parse_builtin_affine(self) -> AffineMapAttr | AffineSetAttr | None:
        token = self._state.current_token
        word = token.text
        if word not in ("affine_map", "affine_set"):
            return None
        start = token.start  # type: ignore[attr-defined]
        match = _AFFINE.match(self.source.text, start)
        key = match[0] if match is not None else None
        if key is not None and key in _affine:
            assert match is not None
            self._resume_from(match.end())
            return _affine[key]
        self._consume_token()
        self.parse_punctuation("<", f" after {word}")
        result: AffineMapAttr | AffineSetAttr
        result = AffineMapAttr(parse_map(self)) if word == "affine_map" else AffineSetAttr(parse_set(self))
        self.parse_punctuation(">", f" at the end of {word}")
        if key is not None:
            _remember(_affine, key, result)
        return result

    def _parse_optional_builtin_parametrized_attr(self) -> Attribute | None:
        return self._parse_builtin_affine() or super()._parse_optional_builtin_parametrized_attr()

    def _parse_optional_builtin_attr(self) -> Attribute | None:
        return self._parse_builtin_affine() or super()._parse_optional_builtin_attr()

    # ---- aliases ----

    def _parse_alias_def(self) -> None:
        token = self._consume_token()
        name = token.text
        known = self._scanned_aliases is not None and self._scanned_aliases.get(name) == token.start
        if name in self.attribute_aliases and not known:
            parse_error(self, "KT-P02", f"alias '{name}' is defined twice", token.span)
        self.parse_punctuation("=", " after the alias name")
        if known and name in self.attribute_aliases:
            self.parse_attribute()
            return
        self.attribute_aliases[name] = self.parse_attribute()

    def _find_alias(self, name: str, span: Span[Any]) -> None:
        """Define an alias that is used before its definition."""
        if self._scanned_aliases is None:
            self._scanned_aliases = self._scan_aliases()
        start = self._scanned_aliases.get(name)
        if start is None:
            known = sorted({*self.attribute_aliases, *self._scanned_aliases})
            shown = f" (defined: {', '.join(known)})" if known else ""
            parse_error(self, "KT-P02", f"alias '{name}' is not defined{shown}", span)
        if name in self._resolving:
            parse_error(self, "KT-P02", f"alias '{name}' is defined by itself", span)
        self._resolving.add(name)
        here = self._state.current_token.start  # type: ignore[attr-defined]
        self._resume_from(start)
        self._consume_token()
        self.parse_punctuation("=", " after the alias name")
        self.attribute_aliases[name] = self.parse_attribute()
        self._resolving.discard(name)
        self._resume_from(here)

    def _scan_aliases(self) -> dict[str, int]:
        """Start of every alias definition in the text."""
        lexer = KtirLexer(Input(self.source.text, self.source.file))
        found: dict[str, int] = {}
        previous: Any = lexer.lex()
        while previous.kind is not MLIRTokenKind.EOF:
            token: Any = lexer.lex()
            alias = previous.kind in (MLIRTokenKind.HASH_IDENT, MLIRTokenKind.EXCLAMATION_IDENT)
            if alias and token.text == "=" and "." not in previous.text:
                found.setdefault(previous.text, previous.start)
            previous = token
        return found

    def _parse_extended_type_or_attribute(self, attr_or_dialect_name: str, is_type: bool) -> Any:
        if "." not in attr_or_dialect_name and self._state.current_token.text != "<":
            alias = ("!" if is_type else "#") + attr_or_dialect_name
            if alias not in self.attribute_aliases:
                self._find_alias(alias, self._state.current_token.span)
            return self.attribute_aliases[alias]
        return super()._parse_extended_type_or_attribute(attr_or_dialect_name, is_type)  # type: ignore[call-overload]

    def _parse_block_body(self, block: Block) -> None:
        while True:
            kind = self._state.current_token.kind
            if kind in (MLIRTokenKind.HASH_IDENT, MLIRTokenKind.EXCLAMATION_IDENT):
                self._parse_alias_def()
                continue
            if kind not in (MLIRTokenKind.PERCENT_IDENT, MLIRTokenKind.BARE_IDENT, MLIRTokenKind.STRING_LIT):
                return
            block.add_op(self.parse_operation())

    # ---- operations ----

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        """The whole text: aliases and ops, with or without ``module``."""
        ops: list[Operation] = []
        while self._state.current_token.kind is not MLIRTokenKind.EOF:
            token = self._state.current_token
            if token.kind in (MLIRTokenKind.HASH_IDENT, MLIRTokenKind.EXCLAMATION_IDENT):
                self._parse_alias_def()
            elif token.kind is MLIRTokenKind.FILE_METADATA_BEGIN:
                self._skip_metadata()
            elif token.kind in (MLIRTokenKind.PERCENT_IDENT, MLIRTokenKind.BARE_IDENT, MLIRTokenKind.STRING_LIT):
                ops.append(self.parse_operation())
            else:
                self.raise_error(f"expected an operation or an alias, found {_shown(token)}")
        if self.forward_ssa_references:
            names = ", ".join(f"%{name}" for name in self.forward_ssa_references)
            self.raise_error(f"values used but never defined: {names}")
        if len(ops) == 1 and isinstance(ops[0], ModuleOp):
            return ops[0]
        return ModuleOp(ops)

    def _skip_metadata(self) -> None:
        """Ignore ``{-# ... #-}``."""
        end = self.source.text.find("#-}", self._state.current_token.start)  # type: ignore[attr-defined]
        if end < 0:
            self.raise_error("'{-#' is never closed by '#-}'")
        self._resume_from(end + 3)

    def parse_operation(self) -> Operation:
        """One operation in custom or generic form, with its results and location."""
        results = self._parse_op_result_list()
        token = self._state.current_token
        if token.kind is MLIRTokenKind.BARE_IDENT:
            self._consume_token()
            op_type = self._op_type(token.text, token.span, custom=True)
            op = self._parse_body(op_type, op_type.parse)
            location = self.parse_optional_location()
            if location is not None:
                op.location = location
        elif token.kind is MLIRTokenKind.STRING_LIT:
            name = self.parse_str_literal()
            op_type = self._op_type(name, token.span, custom=False)
            op = self._parse_body(op_type, lambda parser: parser._parse_generic_operation(op_type))
        else:
            self.raise_error(f"expected an operation name, found {_shown(token)}")
        self.source.ops[op] = (token.start, token.end)  # type: ignore[attr-defined]
        bound = sum(size for _, size in results)
        if bound and len(op.results) != bound:
            self.raise_error(f"{op.name} has {len(op.results)} results, {bound} names are given", token.span)
        position = 0
        for span, size in results:
            self._register_ssa_definition(span.text[1:], op.results[position : position + size], span)
            position += size
        return op

    def _parse_body(self, op_type: type[Operation], parse: Any) -> Operation:
        stack = self._parser_state.dialect_stack
        stack.append(op_type.dialect_name())
        op: Operation = parse(self)
        stack.pop()
        return op

    def _op_type(self, name: str, span: Span[Any], custom: bool) -> type[Operation]:
        reject_name(self, name, span)
        known = self.ctx._loaded_ops.get(name)
        if known is None:
            for dialect in reversed(self._parser_state.dialect_stack):
                known = self.ctx._loaded_ops.get(f"{dialect}.{name}")
                if known is not None:
                    break
        if known is not None and not issubclass(known, UnregisteredOp):
            return known
        if custom or not name:
            unknown_op(self, name, span)
        return self.ctx.get_op(name)

    def _parse_generic_operation(self, op_type: type[Operation]) -> Operation:
        op = super()._parse_generic_operation(op_type)
        if issubclass(op_type, IRDLOperation):
            for name, definition in op_type.get_irdl_definition().properties.items():
                default = getattr(definition, "default_value", None)
                if default is not None and name not in op.properties:
                    op.properties[name] = default
        for name, default in getattr(op_type, "DEFAULTS", {}).items():
            op.properties.setdefault(name, op.attributes.pop(name, default))
        canonicalise = getattr(op, "canonicalise", None)
        if canonicalise is not None:
            canonicalise(self)
        return op

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span[Any]) -> None:
        super()._register_ssa_definition(name, values, span)
        names = self.source.names
        for value in values:
            names[value] = name
            if value._name is not None:
                value._name = name  # the full name: xDSL drops a trailing _N

    def parse_optional_location(self) -> LocationAttr | None:
        """``loc(...)`` if present."""
        if self._state.current_token.text != "loc":
            return None
        return super().parse_optional_location()


def _shown(token: Any) -> str:
    return "the end of the text" if token.kind is MLIRTokenKind.EOF else f"'{token.text}'"
