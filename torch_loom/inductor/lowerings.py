"""Operators of this backend inside Inductor, and the graph pass that introduces them.

The pass runs on the post-grad graph of spyre devices only, through Inductor's own hook; lowerings of aten
are left alone. ``spyre::matmul`` becomes a reduction of type "dot" in the loop language, so matmul takes
part in fusion like any other node.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from .compat import (
    CustomGraphModulePass,
    Pointwise,
    Reduction,
    TensorBox,
    get_hash_for_files,
    ops,
    register_lowering,
)

aten = torch.ops.aten
DEVICE = "spyre"
# A score below the smallest half is a mask: -inf, or what a stored -inf becomes on the device.
NOTHING = -65504.0


@torch.library.custom_op("spyre::matmul", mutates_args=())
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a[..., m, k] @ b[..., k, n]`` with equal batch dims; products of the operand format, fp32 sums."""
    return torch.matmul(a, b)


@matmul.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty([*a.shape[:-1], b.shape[-1]])


@register_lowering(torch.ops.spyre.matmul.default, type_promotion_kind=None)
def lower_matmul(a: TensorBox, b: TensorBox) -> TensorBox:
    """A "dot" reduction over k. Operands are realised: PT reads them from memory."""
    a.realize()
    b.realize()
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    load_a, load_b = a.make_loader(), b.make_loader()
    rank = len(batch)

    def operands(index: Sequence[Any], inside: Any) -> tuple[Any, Any]:
        lead, row, column = index[:rank], index[rank], index[rank + 1]
        return load_a([*lead, row, inside]), load_b([*lead, inside, column])

    def inner(index: Sequence[Any], reduction: Sequence[Any]) -> Any:
        return ops.dot(*operands(index, reduction[0]))

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
        reduction_type="dot",
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
        gm.graph.eliminate_dead_code()
        gm.recompile()


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


def _attention(emit: Emit, node: torch.fx.Node) -> Any:
    """softmax(q k^T * scale + bias) v by its definition; only the first result is provided."""
    if any(_item_of(u) != 0 and u.users for u in node.users):
        return None
    arguments: dict[str, Any] = dict(zip(_SDPA_NAMES, node.args, strict=False)) | dict(node.kwargs)
    q, k, v = arguments["query"], arguments["key"], arguments["value"]
    if arguments.get("dropout_p", 0.0):
        return None
    shape = q.meta["val"].shape
    scale = arguments.get("scale") or 1.0 / math.sqrt(shape[-1])
    rank = len(shape)
    kt = emit(aten.permute.default, (k, [*range(rank - 2), rank - 1, rank - 2]))
    scores = emit(torch.ops.spyre.matmul.default, (q, kt))
    scores = emit(aten.mul.Tensor, (scores, scale))
    bias = arguments.get("attn_bias")
    if bias is not None:
        scores = emit(aten.add.Tensor, (scores, bias))
    if arguments.get("is_causal"):
        length, width = shape[-2], k.meta["val"].shape[-2]
        like = {"device": q.meta["val"].device}
        rows = emit(aten.unsqueeze.default, (_arange(emit, length, like), -1))
        keep = emit(aten.ge.Tensor, (rows, _arange(emit, width, like)))
        low = emit(aten.full.default, ([], -math.inf), {"dtype": q.meta["val"].dtype, **like})
        scores = emit(aten.where.self, (keep, scores, low))
    highest = emit(aten.amax.default, (scores, [-1], True))
    shifted = emit(aten.exp.default, (emit(aten.sub.Tensor, (scores, highest)),))
    total = emit(aten.sum.dim_IntList, (shifted, [-1], True))
    weights = emit(aten.div.Tensor, (shifted, total))
    if bias is not None or arguments.get("is_causal"):  # a row without any key has no weights
        empty = emit(aten.lt.Scalar, (highest, NOTHING))
        weights = emit(aten.where.ScalarSelf, (empty, 0.0, weights))
    out = emit(torch.ops.spyre.matmul.default, (weights, v))
    for user in list(node.users):
        if _item_of(user) == 0:
            user.replace_all_uses_with(out)
            user.graph.erase_node(user)
    return None if node.users else out


def _arange(emit: Emit, n: Any, like: dict[str, Any]) -> Any:
    return emit(
        torch.ops.prims.iota.default,
        (n,),
        {"start": 0, "step": 1, "dtype": torch.int64, "requires_grad": False, **like},
    )


def _item_of(node: torch.fx.Node) -> int | None:
    import operator

    return int(node.args[1]) if node.target is operator.getitem else None  # type: ignore[arg-type]


_SDPA_NAMES = ("query", "key", "value", "attn_bias", "dropout_p", "is_causal", "return_debug_mask")
_REWRITES = {
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten._scaled_dot_product_fused_attention_overrideable.default: _attention,
}
