"""Operators of this backend inside Inductor, and the graph pass that introduces them.

The pass runs on the post-grad graph of spyre devices only, through Inductor's own hook; lowerings of aten
are left alone. ``spyre::matmul`` becomes a reduction of type "dot" in the loop language, so matmul takes
part in fusion like any other node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from .access import FORMATS
from .attention_graph import rewrite_attention
from .compat import (
    CustomGraphModulePass,
    Pointwise,
    Reduction,
    TensorBox,
    get_hash_for_files,
    ops,
    register_lowering,
)
from .errors import Unsupported
from .staging import stage_inputs

aten = torch.ops.aten
_HELD = {t: str(t).removeprefix("torch.") for t in (*FORMATS, torch.float8_e4m3fn, torch.float8_e5m2fnuz)}
DEVICE = "spyre"


@torch.library.custom_op("spyre::matmul", mutates_args=())
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a[..., m, k] @ b[..., k, n]`` with equal batch dims; products of the operand format, fp32 sums."""
    return torch.matmul(a, b)


@matmul.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty([*a.shape[:-1], b.shape[-1]])


@register_lowering(torch.ops.spyre.matmul.default, type_promotion_kind=None)
def lower_matmul(a: TensorBox, b: TensorBox) -> TensorBox:
    """A "dot" reduction over k. Operands are realised: PT reads them from memory. It multiplies floats only;
    products of integers are summed in the vector unit."""
    a.realize()
    b.realize()
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    load_a, load_b = a.make_loader(), b.make_loader()
    rank = len(batch)

    def operands(index: Sequence[Any], inside: Any) -> tuple[Any, Any]:
        lead, row, column = index[:rank], index[rank], index[rank + 1]
        return load_a([*lead, row, inside]), load_b([*lead, inside, column])

    exact = not a.get_dtype().is_floating_point

    def inner(index: Sequence[Any], reduction: Sequence[Any]) -> Any:
        return (ops.mul if exact else ops.dot)(*operands(index, reduction[0]))

    def outer(index: Sequence[Any]) -> Any:
        """Without a sum a product is the SFU's work."""
        return ops.mul(*operands(index, sympy.Integer(0))) if k == 1 else ops.constant(0, a.get_dtype())

    if k in (0, 1):
        device, dtype = a.get_device_or_error(), a.get_dtype()
        return Pointwise.create(device=device, dtype=dtype, inner_fn=outer, ranges=[*batch, m, n])
    result = Reduction.create(
        device=a.get_device_or_error(),
        dst_dtype=a.get_dtype(),
        src_dtype=a.get_dtype(),
        inner_fn=inner,
        ranges=[*batch, m, n],
        reduction_ranges=[k],
        reduction_type="sum" if exact else "dot",
    )
    result.realize()
    # Row-major over (batch, m, n): n runs along the sticks, as PT delivers it.
    result.freeze_layout()
    return result


Emit = Callable[..., Any]


def _emitter(graph: torch.fx.Graph, origin: torch.fx.Node) -> Emit:
    """A function that adds a call with its fake value; calls inherit the origin's provenance."""
    inherited = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node")
    kept = {k: origin.meta[k] for k in inherited if k in origin.meta}
    value = origin.meta["val"]
    mode = (value[0] if isinstance(value, (tuple, list)) else value).fake_mode

    def emit(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        node = graph.call_function(target, args, kwargs or {})
        values, keywords = torch.fx.node.map_arg((args, kwargs or {}), lambda n: n.meta["val"])
        with mode:  # factories must make fake tensors too
            node.meta.update(kept, val=target(*values, **keywords), original_aten=origin.target)
        return node

    return emit


class GraphPass(CustomGraphModulePass):
    """Rewrite matrix products and attention of a spyre graph into operators of this backend."""

    def uuid(self) -> Any:
        """Changes with this room, with the device (constants are folded on it) and with all settings, so that
        cached graphs are never stale."""
        from pathlib import Path

        from .. import _device
        from . import config
        from .runtime import chip_name

        own = sorted(str(p) for p in Path(__file__).parent.rglob("*.py"))
        settings = (config.get_hash().hex(), chip_name(), os.environ.get("SENCORES"))  # type: ignore[attr-defined]
        return get_hash_for_files((*own, str(_device.__file__)), repr(settings))

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        from .expand import expand_node

        _refuse(gm.graph)
        waiting = [n for n in gm.graph.nodes if n.op == "call_function"]
        while waiting:
            node = waiting.pop()
            value = node.meta.get("val")
            first = value[0] if isinstance(value, (tuple, list)) else value
            if not isinstance(first, torch.Tensor) or first.device.type != DEVICE:
                continue
            added = expand_node(node)
            if added is not None:
                waiting.extend(added)
                continue
            rewrite = _REWRITES.get(node.target)
            if rewrite is None:
                continue
            with gm.graph.inserting_before(node):
                replacement = rewrite(_emitter(gm.graph, node), node)
            if replacement is not None:
                node.replace_all_uses_with(replacement)
                gm.graph.erase_node(node)
        stage_inputs(gm.graph)
        gm.graph.eliminate_dead_code()
        gm.recompile()


def _refuse(graph: torch.fx.Graph) -> None:
    """An error that names the operator and its line for values that the device cannot hold."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if not isinstance(x, torch.Tensor) or x.device.type != DEVICE:
                continue
            if x.layout != torch.strided:
                raise Unsupported(f"tensors of layout {x.layout}", [node])
            if x.dtype not in _HELD:
                raise Unsupported(f"{x.dtype}; tensors on the device hold {', '.join(_HELD.values())}", [node])


def _mm(emit: Emit, node: torch.fx.Node) -> Any:
    return emit(torch.ops.spyre.matmul.default, node.args[:2])


def _addmm(emit: Emit, node: torch.fx.Node) -> Any:
    bias, a, b = node.args
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    out = emit(torch.ops.spyre.matmul.default, (a, b))
    if alpha != 1:
        out = emit(aten.mul.Tensor, (out, alpha))
    if beta == 0:
        return out
    if beta != 1:
        bias = emit(aten.mul.Tensor, (bias, beta))
    return emit(aten.add.Tensor, (out, bias))


_REWRITES = {
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten._scaled_dot_product_fused_attention_overrideable.default: rewrite_attention,
}
