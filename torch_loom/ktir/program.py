"""Programs: loaded KTIR text with its functions, arguments, checks and ways to run."""

from __future__ import annotations

import gc
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.utils.exceptions import ParseError, VerifyException

from torch_loom.dialects.elements import is_integer
from torch_loom.dialects.errors import CodedParseError, CodedVerifyError
from torch_loom.dialects.ktdp import ConstructMemoryViewOp, RuntimeArgExtractOp, RuntimeArgType
from torch_loom.ktir.diagnostics import ERROR, Diagnostic, KtirError, Position, errors, position_in
from torch_loom.ktir.legacy import canonicalise_module
from torch_loom.ktir.parser import KtirParser, ParseOptions, SourceMap
from torch_loom.ktir.printer import print_module

if TYPE_CHECKING:
    from torch_loom.ktir.checks import CheckOptions

# What xDSL's parsing code raises on malformed text besides its own errors; each becomes a diagnostic at the token
# that was being read.
_MALFORMED = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    TypeError,
    UnicodeError,
    ValueError,
    struct.error,
)

ADDRESS = "address"
SCALAR = "scalar"


@dataclass(frozen=True)
class Argument:
    """A function argument. ``kind`` is ``address`` (base of views) or ``scalar``.

    For addresses ``element`` and ``shape`` describe the first view that stands on the argument (None where unknown;
    an extent is None when it is an SSA value).
    """

    name: str
    kind: str
    type: Attribute
    value: BlockArgument
    element: Attribute | None = None
    shape: tuple[int | None, ...] | None = None

    @property
    def promises(self) -> dict[str, int]:
        """Promises of a ``runtime_arg`` (granularity, upperbound)."""
        return self.type.promises if isinstance(self.type, RuntimeArgType) else {}


@dataclass
class Program:
    """A loaded module. Build it with :func:`load`."""

    module: ModuleOp
    source: SourceMap
    options: ParseOptions = field(default_factory=ParseOptions)

    @property
    def text(self) -> str:
        """The text that was loaded."""
        return self.source.text

    @cached_property
    def _functions(self) -> dict[str, FuncOp]:
        return {op.sym_name.data: op for op in self.module.walk() if isinstance(op, FuncOp)}

    @property
    def functions(self) -> list[str]:
        """Names of the functions, in order."""
        return list(self._functions)

    def function(self, fn: str | None = None) -> FuncOp:
        """The function of that name; None means the only one."""
        if fn is None:
            if len(self._functions) != 1:
                raise ValueError(f"the program has functions {self.functions}; name one")
            return next(iter(self._functions.values()))
        if fn not in self._functions:
            raise ValueError(f"no function '{fn}'; the program has {self.functions}")
        return self._functions[fn]

    def grid(self, fn: str | None = None) -> tuple[int, ...]:
        """The grid of a function, (1,) when it has none."""
        return grid_of(self.function(fn))

    def arguments(self, fn: str | None = None) -> list[Argument]:
        """Arguments with their classification: an index that reaches a view's offset is an address."""
        function = self.function(fn)
        if function.is_declaration:
            return []
        return [self._argument(position, value) for position, value in enumerate(function.args)]

    def _argument(self, position: int, value: BlockArgument) -> Argument:
        name = self.source.names.get(value) or value.name_hint or f"arg{position}"
        view = first_view(value)
        if view is None:
            return Argument(name, SCALAR, value.type, value)
        shape = tuple(v if isinstance(v, int) else None for v in view.mixed_sizes)
        return Argument(name, ADDRESS, value.type, value, view.view.type.element_type, shape)

    def location(self, op: Operation) -> Position | None:
        """Where an op stands in the text."""
        span = self.source.ops.get(op)
        return None if span is None else position_in(self.source.text, self.source.file, *span)

    def check(self, options: CheckOptions | None = None) -> list[Diagnostic]:
        """Errors, warnings and notes about the program; never raises."""
        from torch_loom.ktir.checks import check_program

        return check_program(self, options)

    def run(
        self,
        fn: str | None = None,
        *,
        engine: str = "reference",
        chip: str = "spyre",
        address_unit: str | None = None,
        memory: Mapping[int, Any] | None = None,
        **arguments: Any,
    ) -> dict[Any, Any]:
        """Run a function and return every array as it is afterwards.

        NumPy arrays or torch tensors for address arguments are placed in DDR, integers and floats are scalars.
        ``memory`` seeds programs with fixed addresses: ``{address: array}`` in the address unit (``elements``,
        ``bytes`` or ``sticks``; by default what the module records, else elements). Engine options
        (``torch_loom.ktir.reference.machine.Options``) are given by name: ``numerics``, ``accumulate``, ``fold``,
        ``strict_bounds``, ``check_collisions``, ``compat``, ``lx_bytes``.
        """
        from torch_loom.ktir.engines import run

        return run(self, fn, engine, chip, address_unit, memory or {}, arguments)

    def print(self, *, generic: bool = False, locations: bool = False) -> str:
        """Canonical text; ``generic`` is upstream's generic form."""
        return print_module(self.module, generic=generic, locations=locations)

    def __str__(self) -> str:
        return self.print()


def grid_of(function: FuncOp) -> tuple[int, ...]:
    """The grid attribute of a function, (1,) when absent."""
    found = function.attributes.get("grid")
    if not isinstance(found, ArrayAttr):
        return (1,)
    return tuple(v.value.data for v in found.data if isinstance(v, IntegerAttr)) or (1,)


def first_view(value: SSAValue) -> ConstructMemoryViewOp | None:
    """The first view whose offset is computed from the value; None when there is none."""
    seen: set[Operation] = set()
    work = [use.operation for use in value.uses]
    found: list[ConstructMemoryViewOp] = []
    while work:
        op = work.pop(0)
        if op in seen:
            continue
        seen.add(op)
        if isinstance(op, ConstructMemoryViewOp):
            if op.offset is value or _reaches(op.offset, value):
                found.append(op)
            continue
        moves = op.name.startswith("arith.") or isinstance(op, RuntimeArgExtractOp)
        if moves and all(isinstance(r.type, IndexType) or is_integer(r.type) for r in op.results):
            work += [use.operation for result in op.results for use in result.uses]
    return found[0] if found else None


def _reaches(offset: SSAValue, value: SSAValue) -> bool:
    """The offset is the value plus something: the value enters by additions (or the left side of a subtraction)."""
    owner = offset.owner
    if not isinstance(owner, Operation):
        return False
    if owner.name in ("arith.addi", "arith.index_cast"):
        operands = list(owner.operands)
    elif owner.name in ("arith.subi",):
        operands = [owner.operands[0]]
    elif isinstance(owner, RuntimeArgExtractOp):
        operands = list(owner.operands)
    else:
        return False
    return any(o is value or _reaches(o, value) for o in operands)


def load(
    path_or_text: str | os.PathLike[str],
    *,
    file: str | None = None,
    verify: bool = True,
    assume_memory_space: str | None = None,
    allow_l0: bool = False,
) -> Program:
    """Load KTIR from a path or from text.

    ``verify=False`` skips all checks beyond syntax (for text that our own compiler just printed).
    Raises :class:`KtirError` with diagnostics when the text cannot be used, ``FileNotFoundError`` for a missing path.
    """
    text, name = _read(path_or_text, file)
    program = parse(text, name, ParseOptions(assume_memory_space, allow_l0))
    if verify:
        found = errors(structural_check(program))
        if found:
            raise KtirError(found)
    return program


_SUFFIXES = (".ktir", ".mlir")


def _is_path(value: str | os.PathLike[str]) -> bool:
    """A string is a path when it has the suffix of one or names a file; any other string is text."""
    if not isinstance(value, str):
        return True
    if "\n" in value or "\0" in value or len(value) > 1024:
        return False
    return value.endswith(_SUFFIXES) or os.path.isfile(value)


def _read(path_or_text: str | os.PathLike[str], file: str | None) -> tuple[str, str]:
    if isinstance(path_or_text, str) and not _is_path(path_or_text):
        return path_or_text, file or "<text>"
    path = Path(path_or_text)
    data = path.read_bytes()
    try:
        return data.decode("utf-8"), file or str(path_or_text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        col = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        place = Position(file or str(path_or_text), line, col, 1, "")
        message = f"not UTF-8 text (byte 0x{data[error.start]:02x})"
        raise KtirError([Diagnostic(ERROR, "KT-P00", message, place)]) from None


def parse(text: str, file: str, options: ParseOptions) -> Program:
    """Read text into a program, syntax only. Raises :class:`KtirError`."""
    parser = None
    try:
        with _paused_gc():
            parser = KtirParser(text, file, options)
            module = parser.parse_module()
            canonicalise_module(module)
        return Program(module, parser.source, options)
    except ParseError as error:
        code = error.code if isinstance(error, CodedParseError) else "KT-P00"
        span, message = error.span, error.msg
        start, end = span.start, span.end
    except VerifyException as error:
        code = error.code if isinstance(error, CodedVerifyError) else "KT-P00"
        message = str(error)
        start, end = _here(parser)
    except _MALFORMED as error:
        code = "KT-P00"
        deep = isinstance(error, RecursionError)
        message = "nesting is too deep" if deep else f"malformed text: {error or type(error).__name__}"
        start, end = _here(parser)
    place = position_in(text, file, start, end)
    message = message.strip().split("\n")[0]
    raise KtirError([Diagnostic(ERROR, code, message[:1].lower() + message[1:], place)])


@contextmanager
def _paused_gc() -> Iterator[None]:
    """No garbage collection while a module is built: it makes many objects and no garbage cycles, and beside a
    large heap (torch, models) each full collection costs more than the parsing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _here(parser: KtirParser | None) -> tuple[int, int]:
    if parser is None:
        return 0, 1
    token: Any = parser._current_token
    return token.start, token.end


def structural_check(program: Program) -> list[Diagnostic]:
    """Checks of single operations, of dominance and of terminators."""
    from torch_loom.ktir.structure import check_structure

    return check_structure(program)
