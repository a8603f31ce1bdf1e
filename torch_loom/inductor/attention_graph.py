"""Where the graph pass finds attention: PyTorch's fused operator becomes ``spyre::attention``.

Keys and values that a model repeats for its query heads are taken before the repetition.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from .attention import NOTHING

aten = torch.ops.aten
Emit = Callable[..., Any]
_NAMES = ("query", "key", "value", "attn_bias", "dropout_p", "is_causal", "return_debug_mask")
_REPEATS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_COPIES = (aten.clone.default, aten._to_copy.default)


def rewrite_attention(emit: Emit, node: torch.fx.Node) -> Any:
    """softmax(q k^T * scale + bias) v; only the first result of the operator is provided."""
    if any(_item_of(u) != 0 and u.users for u in node.users):
        return None
    arguments: dict[str, Any] = dict(zip(_NAMES, node.args, strict=False)) | dict(node.kwargs)
    if arguments.get("dropout_p", 0.0):
        return None
    q, k, v = arguments["query"], arguments["key"], arguments["value"]
    shape = q.meta["val"].shape
    scale = arguments.get("scale") or 1.0 / math.sqrt(shape[-1])
    causal, bias = bool(arguments.get("is_causal")), arguments.get("attn_bias")
    lengths = (shape[-1], k.meta["val"].shape[-2])
    if len(shape) != 4 or any(n in (0, 1) for n in lengths):
        out = _by_definition(emit, q, k, v, bias, scale, causal)
    else:
        operands = (q, _unrepeated(k), _unrepeated(v), bias, scale, causal)
        out = emit(torch.ops.spyre.attention.default, operands)
        out = emit(aten.permute.default, (out, [0, 2, 1, 3]))
    for user in list(node.users):
        if _item_of(user) == 0:
            _replace(user, out)
    return None if node.users else out


def _replace(user: torch.fx.Node, out: Any) -> None:
    """Use ``out`` for the first result; what only brings rows before heads again is the operator's own order."""
    if out.target is aten.permute.default:
        for turned in list(user.users):
            if turned.target is aten.permute.default and list(turned.args[1]) == [0, 2, 1, 3]:  # type: ignore[arg-type]
                _drop_copies(turned)
                turned.replace_all_uses_with(out.args[0])
                turned.graph.erase_node(turned)
    user.replace_all_uses_with(out)
    user.graph.erase_node(user)


def _drop_copies(turned: torch.fx.Node) -> None:
    for copy in list(turned.users):
        if copy.target is aten.clone.default and copy.meta["val"].dtype == turned.meta["val"].dtype:
            copy.replace_all_uses_with(turned)
            copy.graph.erase_node(copy)


def _unrepeated(x: torch.fx.Node) -> torch.fx.Node:
    """[batch, groups, keys, size] behind ``x`` when x is that with every group repeated for its heads, else x."""
    shape = x.meta["val"].shape
    if x.target not in _REPEATS:
        return x
    at: Any = x.args[0]
    while at.target in _COPIES and at.meta["val"].dtype == x.meta["val"].dtype:
        at = at.args[0]
    if at.target is not aten.expand.default:
        return x
    wide: Any = at.meta["val"].shape
    narrow: Any = at.args[0]
    if len(wide) != 5 or narrow.target is not aten.unsqueeze.default or narrow.args[1] not in (2, -3):
        return x
    grouped: torch.fx.Node = narrow.args[0]
    groups = grouped.meta["val"].shape
    same = wide[1] * wide[2] == shape[1] and groups[1] == wide[1] and wide[3:] == shape[2:]
    return grouped if same else x


def _by_definition(emit: Emit, q: Any, k: Any, v: Any, bias: Any, scale: float, causal: bool) -> Any:
    """The chain of operators that attention stands for; of no use but for single elements and other ranks."""
    shape = q.meta["val"].shape
    rank = len(shape)
    k, v = (_repeated(emit, x, shape) for x in (k, v))
    kt = emit(aten.permute.default, (k, [*range(rank - 2), rank - 1, rank - 2]))
    scores = emit(torch.ops.spyre.matmul.default, (q, kt))
    scores = emit(aten.mul.Tensor, (scores, scale))
    if bias is not None:
        scores = emit(aten.add.Tensor, (scores, bias))
    if causal:
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
    if bias is not None or causal:  # a row without any key has no weights
        empty = emit(aten.lt.Scalar, (highest, NOTHING))
        weights = emit(aten.where.ScalarSelf, (empty, 0.0, weights))
    return emit(torch.ops.spyre.matmul.default, (weights, v))


def _repeated(emit: Emit, x: torch.fx.Node, of_q: torch.Size) -> torch.fx.Node:
    """Keys or values with every group repeated for its query heads."""
    shape = x.meta["val"].shape
    if len(shape) < 3 or shape[-3] == of_q[-3]:
        return x
    wide = [*shape[:-2], of_q[-3] // shape[-3], *shape[-2:]]
    out = emit(aten.expand.default, (emit(aten.unsqueeze.default, (x, -3)), wide))
    out = emit(aten.clone.default, (out,), {"memory_format": torch.contiguous_format})
    repeated: torch.fx.Node = emit(aten.view.default, (out, [*shape[:-3], of_q[-3], *shape[-2:]]))
    return repeated


def _arange(emit: Emit, n: Any, like: dict[str, Any]) -> Any:
    return emit(
        torch.ops.prims.iota.default,
        (n,),
        {"start": 0, "step": 1, "dtype": torch.int64, "requires_grad": False, **like},
    )


def _item_of(node: torch.fx.Node) -> int | None:
    return int(node.args[1]) if node.target is operator.getitem else None  # type: ignore[arg-type]
