"""The Spyre target of the eager recorder: a graph of operators becomes an op program.

Inductor compiles the graph as it does for torch.compile; the wrapper that it writes is straight-line Python. Running
that wrapper once on recorders (stand-ins for tensors, sizes, kernels and allocations) yields the list of steps that
the native recorder repeats without Python. Whatever the wrapper does that is not such a step (a call of an operator
that Inductor could not lower, a copy through the host) makes the target refuse the graph.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import runtime
from .op_program import Kernel, Program, Refusal


class _Refused(Exception):
    """The wrapper does something that is no step of a program."""


class _Expr:
    """A size or number of the call; arithmetic on it is recorded."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def __bool__(self) -> bool:
        raise _Refused("the host program branches on a size")


def _node(value: Any) -> Any:
    if isinstance(value, _Expr):
        return value.node
    if isinstance(value, int):
        return int(value)
    raise _Refused(f"a {type(value).__name__} in a size expression")


def _binary(name: str, swap: bool = False) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        first, second = (_node(b), _node(a)) if swap else (_node(a), _node(b))
        return _Expr([name, first, second])

    return apply


for _method, _name in {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}.items():
    setattr(_Expr, f"__{_method}__", _binary(_name))
    setattr(_Expr, f"__r{_method}__", _binary(_name, swap=True))


def _fold(name: str) -> Callable[..., Any]:
    def apply(first: Any, *rest: Any) -> Any:
        for value in rest:
            first = _Expr([name, _node(first), _node(value)])
        return first

    return apply


class _Buffer:
    """A tensor of the wrapper."""

    def __init__(self, number: int, rank: int = 0) -> None:
        self.number = number
        self.rank = rank

    def size(self) -> list[_Expr]:
        return [_Expr(["t", self.number, d]) for d in range(self.rank)]


class _Torch:
    """The names of torch that a wrapper needs for device work; any other makes the target refuse."""

    def __init__(self) -> None:
        self.spyre = types.SimpleNamespace(device=lambda index: nullcontext(), set_device=lambda index: None)

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        if isinstance(value, torch.dtype):
            return value
        raise _Refused(f"the host program uses torch.{name}")


class _Refuse:
    """Stands for a module of host operators."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise _Refused(f"{self._name}.{name} is not lowered")


class _Recording:
    """Steps of one run of a wrapper."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.buffers = inputs
        self.steps: list[list[Any]] = []
        self.kernels: list[Kernel] = []
        self.objects: list[runtime.LoomKernel] = []

    def _new(self) -> _Buffer:
        buffer = _Buffer(self.buffers)
        self.buffers += 1
        return buffer

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype, index: int, kind: str = "row_major") -> _Buffer:
        out = self._new()
        nodes = [_node(s) for s in size], [_node(s) for s in stride]
        self.steps.append(["alloc", out.number, *nodes, str(dtype).removeprefix("torch."), kind])
        return out

    def view(self, base: _Buffer, size: Any, stride: Any, offset: Any = 0) -> _Buffer:
        out = self._new()
        nodes = [_node(s) for s in size], [_node(s) for s in stride]
        self.steps.append(["view", out.number, base.number, *nodes, _node(offset)])
        return out

    def kernel(self, found: runtime.LoomKernel) -> Callable[..., None]:
        number = len(self.kernels)
        self.kernels.append(Kernel(found.label, found.text, found.access, found.layouts))
        self.objects.append(found)

        def launch(*args: Any) -> None:
            described = [["b", a.number] if isinstance(a, _Buffer) else ["e", _node(a)] for a in args]
            self.steps.append(["launch", number, described])

        return launch

    def run(self, call: Callable[..., Any], args: list[Any]) -> list[int | None]:
        """Run the wrapper's ``call`` on stand-ins; returns the buffers that it returns."""
        function = getattr(call, "__func__", call)
        names = dict(function.__globals__)
        for name, value in list(names.items()):
            if isinstance(value, runtime.LoomKernel):
                names[name] = self.kernel(value)
        names.update(
            torch=_Torch(),
            aten=_Refuse("aten"),
            extern_kernels=_Refuse("extern_kernels"),
            inductor_ops=_Refuse("inductor"),
            empty_strided_spyre=self.allocate,
            empty_strided_cpu=lambda *a: _Refuse("empty_strided_cpu").call,
            reinterpret_tensor=self.view,
            assert_size_stride=lambda *a: None,
            assert_alignment=lambda *a: None,
            max=_fold("max"),
            min=_fold("min"),
        )
        recorded = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        owner = getattr(call, "__self__", None)
        results = recorded(owner, args) if owner is not None else recorded(args)
        return [self._output(r) for r in results]

    def _output(self, value: Any) -> int | None:
        if value is None:
            return None
        if not isinstance(value, _Buffer) or value.number < self.inputs:
            raise _Refused("a result that is no buffer of the program")
        return value.number


class SpyreTarget:
    """Implements the recorder's ``Target`` for the simulated card."""

    def decompositions(self) -> dict[Any, Any]:
        """Decompositions that graphs for this target are traced with: Inductor's own."""
        return _decompositions()

    def compile_graph(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], numbers: Sequence[str]
    ) -> Program | Refusal:
        """Compile a traced graph.

        ``inputs`` are its example arguments: fake tensors on the device, then SymInts and SymFloats, the numbers of
        the call. ``numbers`` names the integer symbols among them that are numbers, not sizes. Guards stay empty."""
        from . import register
        from .compat import compile_graph_module
        from .errors import Unsupported
        from .options import GraphOptions, using

        register()
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        if all(node.op in ("placeholder", "output") for node in gm.graph.nodes) and not gm.graph.output_node().args[0]:
            return Program(len(tensors), [], [], [])  # nothing is left of it; Inductor makes no wrapper then
        recording = _Recording(len(tensors))
        stand_ins: list[Any] = [_Buffer(i, t.dim()) for i, t in enumerate(tensors)]
        stand_ins += [_Expr(["n", k]) for k in range(len(inputs) - len(tensors))]
        try:
            options = GraphOptions(public_outputs=True, integers=frozenset(numbers))
            with using(options):
                call = compile_graph_module(gm, inputs)
            outputs = recording.run(call, stand_ins)
        except (_Refused, Unsupported) as error:
            return Refusal(str(error))
        launches = [step for step in recording.steps if step[0] == "launch"]
        for step, lines in zip(launches, options.lines, strict=True):
            step.append(lines)
        return Program(len(tensors), recording.steps, outputs, recording.kernels)

    def prepare(self, kernel: Kernel) -> runtime.LoomKernel:
        """The launchable form of a kernel: from memory, from the cache on disk, or compiled from its text."""
        return runtime.loom_kernel(kernel.name, kernel.text, kernel.access, kernel.layouts)

    def cache_dir(self) -> Path:
        """Op programs lie beside the kernels."""
        return runtime.cache_dir().parent / "operators"

    def identity(self) -> str:
        """Hash of all sources on the way from an operator to a kernel, the chip and the number format."""
        rooms = ("arch", "dialects", "ktir", "scheduler", "spyrecode", "layout", "inductor", "eager")
        return "\0".join([runtime.sources(*rooms), runtime.chip_name(), os.environ.get("TORCH_LOOM_NUMERICS", "df16")])


@cache
def _decompositions() -> dict[Any, Any]:
    from torch._inductor.decomposition import select_decomp_table

    from .expand import EARLY

    return {**select_decomp_table(), **EARLY}
