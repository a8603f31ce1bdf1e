"""Every contact with private interfaces of PyTorch's Inductor, in one place.

Other files of this room import these names from here, so that a new PyTorch version is answered by
editing this file. ``tests/inductor/test_compat.py`` fails loudly when one of them changes its meaning.

Extension points used: ``register_backend_for_device`` (scheduling, wrapper, post-grad pass),
``register_device_op_overrides`` and ``register_lowering`` for our own operators. Nothing is patched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext
from torch._inductor import config, ir
from torch._inductor.codegen import wrapper as host_lines
from torch._inductor.codegen.common import (
    BackendFeature,
    DeviceOpOverrides,
    Kernel,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.dependencies import MemoryDep
from torch._inductor.exc import InductorError
from torch._inductor.ir import Pointwise, Reduction, ReductionHint, TensorBox
from torch._inductor.lowering import register_lowering
from torch._inductor.lowering import view as view_of
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    BaseScheduling,
    FusedSchedulerNode,
    SchedulerNode,
)
from torch._inductor.utils import LineContext, get_fused_kernel_name, get_kernel_metadata
from torch._inductor.virtualized import V, ops
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._sympy.functions import (
    CeilDiv,
    FloorDiv,
    Identity,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PythonMod,
)
from torch.utils._sympy.symbol import SymT, symbol_is_type

from .options import current as options

__all__ = [
    "V",
    "BackendFeature",
    "BaseScheduling",
    "BaseSchedulerNode",
    "CeilDiv",
    "CustomGraphModulePass",
    "DefaultHandler",
    "DeviceOpOverrides",
    "FloorDiv",
    "FusedSchedulerNode",
    "Identity",
    "InductorError",
    "Kernel",
    "LineContext",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "Pointwise",
    "PythonMod",
    "PythonWrapperCodegen",
    "Reduction",
    "ReductionHint",
    "SchedulerNode",
    "SizeVars",
    "SubgraphPythonWrapperCodegen",
    "TensorBox",
    "buffer_numel",
    "buffer_of",
    "compile_graph_module",
    "config",
    "crossing",
    "dense_strides",
    "extents_of",
    "get_fused_kernel_name",
    "get_hash_for_files",
    "get_kernel_metadata",
    "graph_input",
    "graph_output",
    "host_lines",
    "host_scalar",
    "ir",
    "lines_of",
    "number_kind",
    "on_device",
    "ops",
    "origins_of",
    "private_buffers",
    "real_place",
    "register_backend_for_device",
    "register_device_op_overrides",
    "register_lowering",
    "sizevars",
    "static_inputs",
    "trace_with_decompositions",
    "view_of",
    "ranges_of",
    "same_floors",
]


class SizeVars:
    """The size facts of the graph being compiled."""

    def hint(self, expr: sympy.Expr) -> int:
        """A representative value of a symbolic size."""
        return int(V.graph.sizevars.optimization_hint(expr, fallback=64))

    def simplify(self, expr: sympy.Expr) -> sympy.Expr:
        """Apply what is known about the symbols."""
        return V.graph.sizevars.simplify(expr)

    def with_ranges(self, expr: sympy.Expr, ranges: dict[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
        """Simplify FloorDiv and ModularIndexing knowing that each symbol lies in [0, range)."""
        return V.graph.sizevars.simplify_with_ranges(expr, ranges)

    def limits(self, symbol: sympy.Symbol) -> tuple[int | None, int | None]:
        """Lowest and highest value that the symbol may take, None where there is no bound."""
        env = V.graph.sizevars.shape_env
        found = env.var_to_range.get(symbol) if env is not None else None
        ends = (found.lower, found.upper) if found is not None else (None, None)
        low, high = (int(v) if isinstance(v, (int, sympy.Integer)) else None for v in ends)
        return low, high

    def upper_bound(self, symbol: sympy.Symbol) -> int | None:
        """Largest value the symbol may take, None when it is unbounded."""
        return self.limits(symbol)[1]

    def span(self, expr: sympy.Expr, below: dict[sympy.Symbol, sympy.Expr]) -> tuple[int, int]:
        """Lowest and highest value of an integer expression whose symbols ``below`` lie in [0, their bound). A size
        without a bound counts as one of 32 bits, which launches check; unbounded results come out as +-2^63."""
        from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

        lowest, highest, endless = -(2**31), 2**31 - 1, 2**63

        def ends(found: Any, low: int, high: int) -> tuple[int, int]:
            values = zip((found.lower, found.upper), (low, high), strict=True)
            low, high = (int(v) if isinstance(v, (int, sympy.Integer)) else other for v, other in values)
            return low, high

        def bound(wanted: sympy.Expr) -> Any:
            return bound_sympy(wanted, {s: ranges(s) for s in wanted.free_symbols})

        def ranges(symbol: sympy.Symbol) -> Any:
            if symbol in below:
                top = ends(bound(sympy.sympify(below[symbol])), 0, highest)[1]
                return ValueRanges(0, max(min(top, highest) - 1, 0))
            low, high = self.limits(symbol)
            return ValueRanges(lowest if low is None else low, highest if high is None else min(high, highest))

        return ends(bound(expr), -endless, endless)

    def equal(self, a: sympy.Expr, b: sympy.Expr) -> bool:
        """Are the two expressions equal for all sizes?"""
        return bool(V.graph.sizevars.statically_known_equals(a, b))


def trace_with_decompositions(fn: Callable[..., Any], values: Sequence[Any]) -> torch.fx.GraphModule:
    """The aten graph of ``fn`` for fake tensors and symbolic numbers, after Inductor's decompositions."""
    with V.fake_mode, enable_python_dispatcher():
        return make_fx(fn, select_decomp_table(), tracing_mode="real")(*values)


def sizevars() -> SizeVars:
    """Size facts of the current graph."""
    return SizeVars()


def compile_graph_module(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Compile a functional graph of decomposed operators; returns the function of the generated wrapper, which
    takes a list of arguments that it empties.

    Raises Unsupported where this backend refuses; an error of Inductor itself about an operator too."""
    from torch._guards import tracing
    from torch._inductor.compile_fx import compile_fx_inner, record_original_output_strides
    from torch._inductor.exc import InductorError
    from torch._subclasses.fake_tensor import FakeTensor

    from .errors import Unsupported

    output = gm.graph.output_node()
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    results = [_copied(r) for r in results]
    output.args = (tuple(results),)
    gm.recompile()
    output.meta["user_visible_output_idxs"] = list(range(len(results)))
    record_original_output_strides(gm)
    values = (*inputs, *(n.meta.get("val") for n in gm.graph.nodes))  # there may be no tensor among the inputs
    mode = next(x.fake_mode for x in values if isinstance(x, FakeTensor))
    try:
        with (
            config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
            tracing(TracingContext(mode)),
            torch.no_grad(),
        ):
            compiled = compile_fx_inner(gm, list(inputs))
    except InductorError as error:
        if isinstance(error.__cause__, Unsupported):
            raise error.__cause__ from error
        raise Unsupported(str(error.__cause__ or error)) from error
    return compiled.current_callable  # type: ignore[attr-defined,no-any-return]


def lines_of(nodes: Sequence[SchedulerNode]) -> list[int]:
    """``meta["line"]`` of the FX nodes that scheduler nodes compute, in order."""
    return sorted({o.meta["line"] for o in origins_of(nodes) if "line" in o.meta})


def origins_of(nodes: Sequence[SchedulerNode]) -> list[torch.fx.Node]:
    """The FX nodes that scheduler nodes compute, by name."""
    found = {o.name: o for n in nodes if n.node is not None for o in n.node.get_origins()}
    return [found[name] for name in sorted(found)]


def _copied(result: Any) -> Any:
    """A result of a graph; a copy where it is one of the arguments."""
    if not isinstance(result, torch.fx.Node) or result.op != "placeholder":
        return result
    with result.graph.inserting_before(result.graph.output_node()):
        copy = result.graph.call_function(torch.ops.aten.clone.default, (result,))
    copy.meta.update(result.meta)
    return copy


def graph_input(name: str) -> bool:
    """Is ``name`` a buffer that comes from outside of the graph (argument or constant)?"""
    return name in V.graph.graph_inputs or name in V.graph.constants


def static_inputs() -> list[str]:
    """Inputs of the current graph that are the same tensors in every call and that it does not change: parameters and
    buffers of modules. None where gradients are wanted, since parameters then change from call to call."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or not V.graph.is_inference or options().public_outputs:
        return []
    names = list(V.graph.graph_inputs)
    changed = {*V.graph.mutated_inputs, *V.graph.scheduler.mutation_real_name.values()}
    found = [names[i] for i in metadata.static_input_indices if i < len(names)]
    return [n for n in found if n not in changed and isinstance(V.graph.graph_inputs[n], TensorBox)]


def graph_output(name: str) -> bool:
    """Does the graph return the buffer ``name``?"""
    return name in V.graph.get_output_names()


def crossing(node: SchedulerNode) -> list[MemoryDep]:
    """The accesses of a node, if its innermost loop does not go along the innermost dim in one of them; else none."""
    deps = [d for d in (*node.read_writes.reads, *node.read_writes.writes) if isinstance(d, MemoryDep)]
    crosses = any(len(d.var_names) > 1 and d.index.coeff(d.var_names[-1], 1) != 1 for d in deps)
    return deps if crosses else []


def on_device(node: BaseSchedulerNode) -> bool:
    """Does a scheduler node run on the device of this backend?"""
    device = node.get_device()
    return device is not None and device.type == "spyre"


def private_buffers(nodes: Sequence[SchedulerNode]) -> list[str]:
    """Buffers that ``nodes`` make and that nothing but them can see: no results or views of the graph, no arguments of
    host operators, nothing that is written in place."""
    own = {n.get_name() for n in nodes}
    renamed = V.graph.scheduler.mutation_real_name
    seen = {*renamed, *renamed.values()}
    for part in V.graph.buffers:
        layout = getattr(part, "layout", None)
        if isinstance(layout, ir.NonOwningLayout):
            seen |= {part.get_name(), real_place(part.get_name())[0]}
    found = []
    for b in (b for n in nodes for b in n.get_outputs()):
        plain = type(b.node.layout) is ir.FixedLayout and not b.get_aliases() and not b.get_mutations()
        inside = all(u.node.get_name() in own for u in b.users)
        if plain and inside and b.get_name() not in seen and not graph_output(b.get_name()):
            found.append(b.get_name())
    return found


def number_kind(symbol: sympy.Symbol) -> str | None:
    """Register type of a symbol that is a number rather than a size: f32, i32, or None for sizes."""
    if symbol_is_type(symbol, SymT.FLOAT):
        return "f32"
    return "i32" if symbol_is_type(symbol, SymT.SIZE) and symbol.name in options().integers else None


def real_place(name: str) -> tuple[str, sympy.Expr]:
    """The buffer that holds the memory of a name, and the element of it at which the name's own indices begin: an
    operation that mutates an input writes to the input, and a part of a concatenation writes into the whole."""
    scheduler = V.graph.scheduler
    name = scheduler.mutation_real_name.get(name, name) if scheduler is not None else name
    layout = getattr(V.graph.try_get_buffer(name), "layout", None)
    if not isinstance(layout, ir.NonOwningLayout):
        return name, sympy.Integer(0)
    whole, start = real_place(layout.view.get_name())
    return whole, start + layout.view.get_layout().offset


def same_floors(expr: Any) -> sympy.Expr:
    """A size in which equal quotients look equal: in ``(a + c) // n`` the number c is cut to 0 .. n - 1, so that
    ``(s - 1) // 2 + 1`` becomes ``(s + 1) // 2``."""

    def cut(e: sympy.Expr) -> sympy.Expr:
        base, n = e.args
        constant = base.as_coeff_Add()[0]
        if not (n.is_Integer and n > 0 and constant.is_Integer):
            return e
        whole = constant // n
        return FloorDiv(base - whole * n, n) + whole

    found = sympy.sympify(expr)
    return found.replace(lambda e: isinstance(e, FloorDiv), cut) if found.has(FloorDiv) else found


def ranges_of(node: SchedulerNode) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Extents of the loops of a node, and of its reduction."""
    sizes, reduced = node.get_ranges()
    return [same_floors(s) for s in sizes], [same_floors(s) for s in reduced]


def extents_of(node: SchedulerNode) -> tuple[sympy.Expr, sympy.Expr]:
    """Numbers of results and of summands of each."""
    results, summands = node.group[1]
    return same_floors(results), same_floors(summands)


def dense_strides(expr: sympy.Expr) -> sympy.Expr:
    """An index or stride without the Max(1, size) of torch's strides: it differs only where a buffer is empty."""
    return same_floors(expr).replace(
        lambda e: isinstance(e, Max) and len(e.args) == 2 and sympy.Integer(1) in e.args,
        lambda e: next((a for a in e.args if a != 1), sympy.Integer(1)),
    )


def buffer_of(name: str) -> tuple[list[sympy.Expr], list[sympy.Expr], torch.dtype]:
    """Sizes, strides and dtype of a buffer or graph input."""
    if name in V.graph.constants:
        value = V.graph.constants[name]
        sizes = [sympy.Integer(s) for s in value.shape]
        return sizes, [sympy.Integer(s) for s in value.stride()], value.dtype
    node = V.graph.graph_inputs.get(name) or V.graph.try_get_buffer(name)
    if node is None:
        raise RuntimeError(f"buffer {name} is unknown to the graph")
    layout = node.get_layout()
    strides = [dense_strides(sympy.sympify(s)) for s in layout.stride]
    return [same_floors(s) for s in layout.size], strides, layout.dtype


def buffer_numel(name: str) -> sympy.Expr:
    """Elements of a buffer."""
    return sympy.Mul(*buffer_of(name)[0])


def host_scalar(name: str) -> torch.dtype | None:
    """Dtype of a zero-dimensional input that lives on the host (a Python number made an argument)."""
    node = V.graph.graph_inputs.get(name)
    if node is None or not hasattr(node, "get_layout"):
        return None
    layout = node.get_layout()
    return layout.dtype if layout.device.type == "cpu" and not layout.size else None
