"""The canonical printer: one spelling per construct, repeated affine attributes as aliases at the top."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from io import StringIO
from typing import IO, Any

from xdsl.dialects.builtin import (
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove

from torch_loom.dialects.affine_text import format_map, format_set

_SHORT_NAMES = {"builtin.module": "module", "func.return": "return"}

# Shown in the custom form as subscripts, not as attributes.
_HIDDEN = {"base_map", "per_dim_subscript_maps"}


class KtirPrinter(Printer):
    """xDSL's printer with aliases, grouped results and kept names."""

    def __init__(self, stream: IO[str], generic: bool, locations: bool, aliases: dict[Attribute, str]) -> None:
        super().__init__(stream, print_generic_format=generic)
        self.aliases = aliases
        self.locations = locations

    # ---- attributes ----

    def print_attribute(self, attribute: Attribute) -> None:
        """Print an attribute, by its alias if it has one."""
        if isinstance(attribute, AffineMapAttr | AffineSetAttr):
            self.print_string(self.aliases.get(attribute) or spell(attribute))
            return
        super().print_attribute(attribute)

    def print_float(self, value: float, type: Any) -> None:
        """Print a float so that reading it back gives the same bits; infinities and NaN as bit patterns."""
        if math.isfinite(value):
            super().print_float(value, type)
        else:
            self.print_string("0x" + bytes(reversed(type.pack((value,)))).hex().upper())

    # ---- names ----

    def print_ssa_value(self, value: SSAValue) -> str:
        """Print a value by its own name; a suffix keeps names apart."""
        name = self._ssa_values.get(value)
        if name is None:
            name = self._fresh(value)
            self._ssa_values[value] = name
        self.print_string(f"%{name}")
        return name

    def _fresh(self, value: SSAValue) -> str:
        hint, used = value.name_hint, self.ssa_names
        if hint is None:
            return self._get_new_valid_name_id()
        name, count = hint, used.get(hint, 0)
        while name in used:
            count += 1
            name = f"{hint}_{count}"
        used[hint] = count
        used.setdefault(name, 0)
        return name

    def _print_results(self, op: Operation) -> None:
        results = op.results
        if len(results) > 1:
            name = self._fresh(results[0])
            for position, value in enumerate(results):
                self._ssa_values[value] = f"{name}#{position}"
            self.print_string(f"%{name}:{len(results)} = ")
        elif results:
            self.print_ssa_value(results[0])
            self.print_string(" = ")

    # ---- operations ----

    def print_op(self, op: Operation) -> None:
        """Print an op and, on request, where it came from."""
        short = None if self.print_generic_format else _SHORT_NAMES.get(op.name)
        if short is None:
            super().print_op(op)
        else:
            self._print_short(op, short)
        if self.locations and not isinstance(op.location, UnknownLoc):
            self.print_string(" ")
            self.print_attribute(op.location)

    def _print_short(self, op: Operation, name: str) -> None:
        """Ops whose name upstream prints without the dialect."""
        scope = bool(op.get_traits_of_type(IsolatedFromAbove))
        if scope:
            self.enter_scope()
        self.print_string(name)
        op.print(self)
        if scope:
            self.exit_scope()

    def _print_attr_string(self, attr_tuple: tuple[str, Attribute]) -> None:
        """Print a dictionary entry; the integers of a grid carry no type."""
        name, value = attr_tuple
        if name == "grid" and isinstance(value, ArrayAttr) and all(isinstance(v, IntegerAttr) for v in value.data):
            self.print_string("grid = [" + ", ".join(str(v.value.data) for v in value.data) + "]")
            return
        super()._print_attr_string(attr_tuple)

    def print_op_with_default_format(self, op: Operation) -> None:
        """Print the generic form; named structured ops show the body that upstream expects."""
        body = getattr(op, "generic_body", None)
        region = body() if body is not None and not op.regions else None
        if region is None:
            super().print_op_with_default_format(op)
            return
        op.add_region(region)
        try:
            super().print_op_with_default_format(op)
        finally:
            op.detach_region(region)


def spell(attribute: Attribute) -> str:
    """The text of an affine attribute without an alias."""
    if isinstance(attribute, AffineMapAttr):
        return f"affine_map<{format_map(attribute.data)}>"
    assert isinstance(attribute, AffineSetAttr)
    return f"affine_set<{format_set(attribute.data)}>"


def _affine_parts(attribute: Attribute) -> Iterable[Attribute]:
    """Affine attributes inside an attribute or type."""
    if isinstance(attribute, AffineMapAttr | AffineSetAttr):
        yield attribute
    elif isinstance(attribute, ArrayAttr):
        for item in attribute.data:
            yield from _affine_parts(item)
    elif isinstance(attribute, DictionaryAttr):
        for item in attribute.data.values():
            yield from _affine_parts(item)
    elif isinstance(attribute, ParametrizedAttribute) and not isinstance(attribute, DenseIntOrFPElementsAttr):
        for item in attribute.parameters:
            yield from _affine_parts(item)


def find_aliases(module: Operation, everything: bool) -> dict[Attribute, str]:
    """Names for affine attributes: those used more than once, or all (the generic form must not contain ``>=``
    inside dialect types, which upstream reads as a closing bracket)."""
    counts: Counter[Attribute] = Counter()
    for op in module.walk():
        named = [v for k, v in op.properties.items() if everything or k not in _HIDDEN]
        for attribute in (*named, *op.attributes.values()):
            counts.update(_affine_parts(attribute))
        for value in (*op.operands, *op.results):
            if isinstance(value.type, ParametrizedAttribute) and value.type.name.startswith("ktdp."):
                counts.update(_affine_parts(value.type))
    names: dict[Attribute, str] = {}
    numbers: Counter[str] = Counter()
    for attribute, count in counts.items():
        if count < 2 and not everything:
            continue
        kind = "map" if isinstance(attribute, AffineMapAttr) else "set"
        number = numbers[kind]
        numbers[kind] += 1
        names[attribute] = f"#{kind}{number or ''}"
    return names


def print_module(module: Operation, *, generic: bool = False, locations: bool = False) -> str:
    """The canonical text of a module (or any op), ending in a newline."""
    aliases = find_aliases(module, everything=generic)
    stream = StringIO()
    for attribute, name in aliases.items():
        stream.write(f"{name} = {spell(attribute)}\n")
    KtirPrinter(stream, generic, locations, aliases).print_op(module)
    return stream.getvalue() + "\n"
