"""Types and attributes of ``ktdp``: access tiles, launch arguments, tile futures, memory spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeVar

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineSetAttr,
    ArrayAttr,
    IntAttr,
    NoneAttr,
    StringAttr,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from torch_loom.dialects.assembly import nearest, parse_elided_shape
from torch_loom.dialects.errors import note_drift, parse_error

GLOBAL = "global"
LOCAL = "ct_local"
REGISTER = "l0"
UNSPECIFIED = "unspecified"

_SPACES = {"global": GLOBAL, "HBM": GLOBAL, "ct_local": LOCAL, "LX": LOCAL, "L0": REGISTER}


def _dims_text(shape: Sequence[int]) -> str:
    return "".join("?x" if d == DYNAMIC_INDEX else f"{d}x" for d in shape)


@irdl_attr_definition
class AccessTileType(ParametrizedAttribute, TypeAttribute):
    """``!ktdp.access_tile<4x64xindex>``: an ordered, shaped collection of coordinates of one view."""

    name = "ktdp.access_tile"

    shape: ArrayAttr[IntAttr]

    @classmethod
    def of(cls, shape: Sequence[int]) -> AccessTileType:
        """The type with these extents; ``DYNAMIC_INDEX`` for ``?``."""
        return cls(ArrayAttr([IntAttr(d) for d in shape]))

    def get_shape(self) -> tuple[int, ...]:
        """Extents, ``DYNAMIC_INDEX`` for ``?``."""
        return tuple(d.data for d in self.shape.data)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse ``<4x64xindex>``."""
        return [ArrayAttr([IntAttr(d) for d in parse_elided_shape(parser)])]

    def print_parameters(self, printer: Printer) -> None:
        """Print ``<4x64xindex>``, also the elided spelling."""
        printer.print_string(f"<{_dims_text(self.get_shape())}index>")


@irdl_attr_definition
class RuntimeArgType(ParametrizedAttribute, TypeAttribute):
    """``!ktdp.runtime_arg<index, granularity=64, upperbound=4096>``: a launch-time scalar with promises."""

    name = "ktdp.runtime_arg"

    value_type: Attribute
    granularity: Attribute
    upperbound: Attribute

    @classmethod
    def of(cls, value_type: Attribute, granularity: int | None = None, upperbound: int | None = None) -> RuntimeArgType:
        """The type; None leaves a promise out."""
        params = (NoneAttr() if v is None else IntAttr(v) for v in (granularity, upperbound))
        return cls(value_type, *params)

    @property
    def promises(self) -> dict[str, int]:
        """The promises that are present, by name."""
        pairs = {"granularity": self.granularity, "upperbound": self.upperbound}
        return {k: v.data for k, v in pairs.items() if isinstance(v, IntAttr)}

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse ``<T, granularity=N, upperbound=N>``, the promises in either order."""
        parser.parse_punctuation("<")
        value_type = parser.parse_type()
        promises: dict[str, int] = {}
        while parser.parse_optional_punctuation(","):
            span = parser._current_token.span
            name = parser.parse_identifier()
            if name not in ("granularity", "upperbound"):
                hint = nearest(name, ("granularity", "upperbound"))
                parse_error(parser, "KT-P01", f"unknown parameter '{name}' of runtime_arg{hint}", span)
            if name in promises:
                parse_error(parser, "KT-P00", f"parameter '{name}' given twice", span)
            parser.parse_punctuation("=")
            at = parser._current_token.span
            promises[name] = parser.parse_integer(allow_boolean=False)
            if promises[name] <= 0:
                parse_error(parser, "KT-P00", f"{name} must be positive, got {promises[name]}", at)
        parser.parse_punctuation(">")
        present = (promises.get(n) for n in ("granularity", "upperbound"))
        return [value_type, *(NoneAttr() if v is None else IntAttr(v) for v in present)]

    def print_parameters(self, printer: Printer) -> None:
        """Print ``<T, granularity=N, upperbound=N>``."""
        printer.print_string("<")
        printer.print_attribute(self.value_type)
        for name, value in self.promises.items():
            printer.print_string(f", {name}={value}")
        printer.print_string(">")


@irdl_attr_definition
class TileFutureType(ParametrizedAttribute, TypeAttribute):
    """``!ktdp.tile_future<(T, ...), groups = SET>``: values that every producer of every group contributes."""

    name = "ktdp.tile_future"

    value_types: ArrayAttr[Attribute]
    groups: AffineSetAttr

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse ``<(T, ...), groups = SET>``; the old spelling without parentheses holds one type."""
        parser.parse_punctuation("<")
        span = parser._current_token.span
        types = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if types is None:
            types = [parser.parse_type()]
            note_drift(parser, span, "future type without parentheses", "<(T), groups = SET>")
        parser.parse_punctuation(",")
        parser.parse_keyword("groups")
        parser.parse_punctuation("=")
        groups = parser.parse_attribute()
        if not isinstance(groups, AffineSetAttr):
            parse_error(parser, "KT-P00", "groups of a tile future must be an affine set")
        parser.parse_punctuation(">")
        return [ArrayAttr(types), groups]

    def print_parameters(self, printer: Printer) -> None:
        """Print ``<(T, ...), groups = SET>``."""
        printer.print_string("<(")
        printer.print_list(self.value_types.data, printer.print_attribute)
        printer.print_string("), groups = ")
        printer.print_attribute(self.groups)
        printer.print_string(">")


def _parse_space(parser: AttrParser, legacy: bool) -> list[Attribute]:
    start = parser._current_token.span
    parser.parse_punctuation("<")
    at = parser._current_token.span
    name = parser.parse_identifier()
    space = UNSPECIFIED if name == UNSPECIFIED and legacy else _SPACES.get(name)
    if space is None:
        accepted = "global, ct_local (older: HBM, LX)"
        parse_error(parser, "KT-V03", f"unknown memory space '{name}'; accepted: {accepted}", at)
    if space == REGISTER and not getattr(parser, "allow_l0", False):
        parse_error(parser, "KT-P03", "register space L0 is not addressable in KTIR (option --allow-l0)", at)
    ct_id: Attribute = NoneAttr()
    if parser.parse_optional_punctuation(","):
        key_span = parser._current_token.span
        key = parser.parse_identifier()
        if key not in ("ct_id", "core"):
            parse_error(parser, "KT-P01", f"unknown parameter '{key}' of a memory space; expected 'ct_id'", key_span)
        parser.parse_punctuation("=")
        value_span = parser._current_token.span
        number = parser.parse_integer(allow_boolean=False)
        if number < 0:
            parse_error(parser, "KT-V04", f"ct_id must not be negative, got {number}", value_span)
        ct_id = IntAttr(number)
    parser.parse_punctuation(">")
    if legacy or name in ("HBM", "LX"):
        note_drift(parser, start, f"memory space '{name}'", f"#ktdp.memory_space<{space}>")
    return [StringAttr(space), ct_id]


@irdl_attr_definition
class MemorySpaceAttr(ParametrizedAttribute):
    """``#ktdp.memory_space<global>`` or ``<ct_local>`` or ``<ct_local, ct_id = N>``."""

    name = "ktdp.memory_space"

    space: StringAttr
    core: Attribute

    @classmethod
    def of(cls, space: str, ct_id: int | None = None) -> MemorySpaceAttr:
        """The attribute; ``ct_id`` names the compute tile whose LX is meant."""
        return cls(StringAttr(space), NoneAttr() if ct_id is None else IntAttr(ct_id))

    @property
    def ct_id(self) -> int | None:
        """Linear id of the compute tile whose LX is meant; None is the executing one (or not LX)."""
        return self.core.data if isinstance(self.core, IntAttr) else None

    @property
    def is_global(self) -> bool:
        """DDR, shared by all compute tiles."""
        return self.space.data == GLOBAL

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse ``<space>`` or ``<space, ct_id = N>``."""
        return _parse_space(parser, legacy=False)

    def print_parameters(self, printer: Printer) -> None:
        """Print the canonical spelling."""
        name = "L0" if self.space.data == REGISTER else self.space.data
        suffix = "" if self.ct_id is None else f", ct_id = {self.ct_id}"
        printer.print_string(f"<{name}{suffix}>")


@irdl_attr_definition
class LegacyMemorySpaceAttr(ParametrizedAttribute):
    """The older spelling ``#ktdp.spyre_memory_space<HBM>``; reading it yields a :class:`MemorySpaceAttr`."""

    name = "ktdp.spyre_memory_space"

    space: StringAttr
    core: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse the older spelling."""
        return _parse_space(parser, legacy=True)

    @classmethod
    def new(cls, params: Sequence[Attribute]) -> Self:
        """Build the canonical attribute instead of an instance of this class."""
        return MemorySpaceAttr.new(params)  # type: ignore[return-value]


KtdpType = TypeVar("KtdpType", AccessTileType, RuntimeArgType, TileFutureType)


def parse_elidable(parser: AttrParser, kind: type[KtdpType]) -> KtdpType:
    """Parse a ktdp type where its kind is known: ``<...>`` alone or the full ``!ktdp.name<...>``."""
    span = parser._current_token.span
    if span.text == "<":
        return kind.new(kind.parse_parameters(parser))
    found = parser.parse_type()
    if not isinstance(found, kind):
        parse_error(parser, "KT-P00", f"expected !{kind.name}, got {found}", span)
    return found
