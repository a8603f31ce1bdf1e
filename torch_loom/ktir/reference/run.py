"""Launching a function on the reference machine: arguments in, memory out.

Arrays given for address arguments are copied into DDR at aligned addresses and the argument becomes the address in
the program's unit. Views on constant addresses (baked buffers) are seeded from ``memory`` or start uninitialised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from xdsl.dialects.builtin import Float16Type, Float32Type, IndexType, IntegerAttr, IntegerType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from torch_loom.dialects.elements import is_float
from torch_loom.dialects.ktdp import ConstructMemoryViewOp, RuntimeArgType
from torch_loom.ktir.diagnostics import ERROR, Diagnostic, KtirError
from torch_loom.ktir.program import ADDRESS, Argument, Program
from torch_loom.ktir.reference import (
    exchange,
    ops_arith,
    ops_ktdp,
    ops_linalg,
    ops_math,
    ops_named,
    ops_scf,
    ops_tensor,
)
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array, Format
from torch_loom.ktir.reference.machine import Machine, Options
from torch_loom.ktir.reference.memory import Buffer
from torch_loom.ktir.structure import op_name

# Importing the handler modules fills the tables.
HANDLER_MODULES = (exchange, ops_arith, ops_ktdp, ops_linalg, ops_math, ops_named, ops_scf, ops_tensor)

_ALIGNMENT = 4096
_GUARD = 4096


def run(
    program: Program,
    fn: str | None,
    arguments: Mapping[str, Any],
    options: Options,
    memory: Mapping[int, Any] | None = None,
) -> dict[Any, Any]:
    """Run a function and return every array as it is afterwards, by argument name (or address for ``memory``).

    Raises :class:`KtirError` when the program fails, ``ValueError`` or ``TypeError`` for arguments that do not fit.
    """
    function = program.function(fn)
    if function.is_declaration:
        raise ValueError(f"function '{function.sym_name.data}' has no body")
    machine = Machine(program.grid(function.sym_name.data), options, program._functions)
    try:
        launch = _Launch(machine, function)
        values = launch.bind(program.arguments(function.sym_name.data), arguments)
        launch.bake(memory or {})
        machine.run(function, values)
    except ExecutionError as error:
        raise KtirError([_diagnostic(program, function, error)]) from None
    return launch.results()


def _diagnostic(program: Program, function: FuncOp, error: ExecutionError) -> Diagnostic:
    place = program.location(error.op) if error.op is not None else None
    message = error.message
    if error.tile is not None:
        message += f" [compute tile {error.tile}"
        message += f", operands: {error.operands}]" if error.operands else "]"
    name = op_name(error.op) if error.op is not None else ""
    return Diagnostic(ERROR, error.code, message, place, function.sym_name.data, name)


class _Launch:
    """Buffers of one launch and how to give them back."""

    def __init__(self, machine: Machine, function: FuncOp) -> None:
        self.machine = machine
        self.function = function
        self.next_address = _ALIGNMENT
        self.outputs: dict[Any, tuple[Buffer, Format, Any]] = {}

    # ---- arguments ----

    def bind(self, declared: list[Argument], given: Mapping[str, Any]) -> list[Any]:
        """Values of the function arguments."""
        names = [a.name for a in declared]
        unknown = [n for n in given if n not in names]
        if unknown:
            raise TypeError(f"unknown argument '{unknown[0]}'; the function takes {names}")
        missing = [a.name for a in declared if a.name not in given]
        if missing:
            raise TypeError(f"argument '{missing[0]}' is missing; the function takes {names}")
        return [self._bind(argument, given[argument.name]) for argument in declared]

    def _bind(self, argument: Argument, value: Any) -> Any:
        if _is_array(value) and (np.ndim(_numpy(value)) > 0 or argument.kind == ADDRESS):
            return self._place(argument, value)
        kind = argument.type.value_type if isinstance(argument.type, RuntimeArgType) else argument.type
        if isinstance(kind, IndexType | IntegerType):
            number = _integer(argument.name, value)
            _check_promises(argument, number)
            return bool(number) if isinstance(kind, IntegerType) and kind.width.data == 1 else number
        if is_float(kind):
            return self.machine.formats.of(kind).round(np.asarray(value, np.float32))
        raise ExecutionError("KT-X10", f"argument '{argument.name}' of type {argument.type} cannot be passed")

    def _place(self, argument: Argument, value: Any) -> int:
        kind = argument.element or _element_for(_numpy(value))
        fmt = self.machine.formats.of(kind)
        unit = self.machine.options.address_unit
        if unit == "elements":
            _check_one_size(argument, fmt, self.machine)
        buffer = Buffer(f"argument '{argument.name}'", self.next_address, _encode(value, fmt))
        self.next_address = -(-(buffer.end + _GUARD) // _ALIGNMENT) * _ALIGNMENT
        self.machine.ddr.add(buffer)
        self.outputs[argument.name] = (buffer, fmt, value)
        return buffer.start // {"elements": fmt.bytes, "bytes": 1, "sticks": ops_ktdp.STICK_BYTES}[unit]

    # ---- baked addresses ----

    def bake(self, memory: Mapping[int, Any]) -> None:
        """Buffers at constant addresses: seeded ones, and the rest of what views on constants cover."""
        views = [v for v in _baked_views(self.function) if v[0].memory_space and v[0].memory_space.is_global]
        for address, value in memory.items():
            found = [v for v, offset in views if offset == address]
            kind = found[0].view.type.element_type if found else _element_for(_numpy(value))
            fmt = self.machine.formats.of(kind)
            buffer = Buffer(f"memory at {address}", address * self._unit(fmt), _encode(value, fmt))
            self.machine.ddr.add(buffer)
            self.outputs[address] = (buffer, fmt, value)
        spans = sorted(span for view, offset in views for span in self._span(view, offset))
        for start, end, address, fmt, shape in _merged(spans):
            for low, high in self._free(start, end):
                buffer = Buffer(f"memory at {address}", low, np.zeros(high - low, np.uint8), np.zeros(high - low, bool))
                self.machine.ddr.add(buffer)
                if address not in self.outputs and low == start:
                    self.outputs[address] = (buffer, fmt, shape)

    def _unit(self, fmt: Format) -> int:
        return {"elements": fmt.bytes, "bytes": 1, "sticks": ops_ktdp.STICK_BYTES}[self.machine.options.address_unit]

    def _span(self, view: ConstructMemoryViewOp, offset: int) -> list[tuple[int, int, int, Format, tuple[int, ...]]]:
        sizes, strides = view.mixed_sizes, view.mixed_strides
        if not all(isinstance(v, int) for v in (*sizes, *strides)) or 0 in sizes:
            return []
        fmt = self.machine.formats.of(view.view.type.element_type)
        reach = [(int(s) - 1) * int(t) for s, t in zip(sizes, strides, strict=True)]  # type: ignore[arg-type]
        base = offset * self._unit(fmt)
        low = base + sum(r for r in reach if r < 0) * fmt.bytes
        high = base + (sum(r for r in reach if r > 0) + 1) * fmt.bytes
        dense = fmt.bytes * int(np.prod([int(s) for s in sizes])) == high - low  # type: ignore[arg-type]
        shape = tuple(int(s) for s in sizes) if dense else ()  # type: ignore[arg-type]
        return [(low, high, offset, fmt, shape)]

    def _free(self, start: int, end: int) -> list[tuple[int, int]]:
        """Parts of a range that no buffer covers."""
        free = []
        for buffer in self.machine.ddr.buffers:
            if buffer.end <= start or buffer.start >= end:
                continue
            if buffer.start > start:
                free.append((start, buffer.start))
            start = max(start, buffer.end)
        if start < end:
            free.append((start, end))
        return free

    # ---- results ----

    def results(self) -> dict[Any, Any]:
        """All arrays as they are now, in the dtype and library of what was given."""
        return {name: _decode(buffer, fmt, given) for name, (buffer, fmt, given) in self.outputs.items()}


def _merged(spans: list[tuple[int, int, int, Format, tuple[int, ...]]]) -> list[Any]:
    merged: list[list[Any]] = []
    for start, end, address, fmt, shape in spans:
        if merged and start < merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1][1], merged[-1][4] = end, ()
        else:
            merged.append([start, end, address, fmt, shape])
    return merged


def _baked_views(function: FuncOp) -> list[tuple[ConstructMemoryViewOp, int]]:
    found = []
    for op in function.walk():
        if isinstance(op, ConstructMemoryViewOp):
            offset = constant_of(op.offset.owner)
            if offset is not None:
                found.append((op, offset))
    return found


def constant_of(owner: Any) -> int | None:
    """The integer of an ``arith.constant``, None for anything else."""
    if isinstance(owner, Operation) and owner.name == "arith.constant":
        value = owner.properties.get("value")
        if isinstance(value, IntegerAttr):
            return value.value.data
    return None


def _check_promises(argument: Argument, value: int) -> None:
    for name, promise in argument.promises.items():
        if name == "granularity" and value % promise:
            raise ExecutionError("KT-X09", f"argument '{argument.name}' = {value} is not a multiple of {promise}")
        if name == "upperbound" and value > promise:
            raise ExecutionError("KT-X09", f"argument '{argument.name}' = {value} exceeds its upper bound {promise}")


def _check_one_size(argument: Argument, fmt: Format, machine: Machine) -> None:
    """Element-addressed buffers must not be viewed with different element sizes."""
    for use in argument.value.uses:
        if isinstance(use.operation, ConstructMemoryViewOp):
            other = machine.formats.of(use.operation.view.type.element_type)
            if other.bytes != fmt.bytes:
                raise ExecutionError(
                    "KT-V15",
                    f"views on '{argument.name}' have elements of {fmt.bytes} and {other.bytes} bytes; "
                    "an element address is ambiguous (address_unit='bytes')",
                )


# ---- arrays ------------------------------------------------------------------------------------


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "detach")


def _numpy(value: Any) -> Array:
    """A NumPy view or copy of an array or a torch tensor."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return np.asarray(tensor.float().numpy() if "bfloat16" in str(tensor.dtype) else tensor.numpy())
    return np.asarray(value)


def _element_for(array: Array) -> Attribute:
    """The element type that a dtype stands for when no view tells."""
    if array.dtype == np.float16:
        return Float16Type()
    if array.dtype.kind == "f":
        return Float32Type()
    if array.dtype.kind in "iub":
        return IntegerType(8 * array.dtype.itemsize if array.dtype.kind != "b" else 8)
    raise TypeError(f"arrays of {array.dtype} cannot be passed")


def _encode(value: Any, fmt: Format) -> Any:
    array = np.ascontiguousarray(_numpy(value))
    if fmt.is_float:
        raw = fmt.encode(array.astype(np.float32))
    elif array.dtype.kind == "f":
        raise TypeError(f"an array of {array.dtype} for a buffer of {fmt.name}")
    else:
        raw = fmt.encode(array.astype(fmt.dtype))
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8).copy()


def _decode(buffer: Buffer, fmt: Format, given: Any) -> Any:
    values = fmt.decode(buffer.data.view(fmt.memory))
    if isinstance(given, tuple):
        return values.reshape(given) if given else values
    array = _numpy(given)
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ascontiguousarray(values.reshape(array.shape).astype(array.dtype))
    if hasattr(given, "detach"):
        import torch

        return torch.from_numpy(result).to(given.dtype)
    return result


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool | int | np.integer):
        return int(value)
    if _is_array(value) and np.ndim(_numpy(value)) == 0:
        return int(_numpy(value))
    raise TypeError(f"argument '{name}' takes an integer, got {type(value).__name__}")
