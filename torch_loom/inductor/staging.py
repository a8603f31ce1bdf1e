"""Inputs of a graph whose elements kernels read out of order: copied once to a buffer of the graph's own.

An input keeps the public layout and lies in DDR, where an element that is read alone costs a whole stick, and windows
read theirs many times. A buffer of the graph may stay in LX and takes the layout that its readers want
(``layout_cost.py``), so that the copy, which moves whole sticks, pays for itself.
"""

from __future__ import annotations

from typing import Any

import torch

from .compat import Pointwise, TensorBox, register_lowering
from .options import lx_between_kernels

aten, prims = torch.ops.aten, torch.ops.prims

# Operators of Inductor that read windows, or places that they compute, of their first argument.
_WINDOWED = {
    aten._adaptive_avg_pool2d.default,
    aten.adaptive_max_pool2d.default,
    aten.avg_pool2d.default,
    aten.avg_pool3d.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
    prims._low_memory_max_pool_with_offsets.default,
}


@torch.library.custom_op("spyre::staged", mutates_args=())
def staged(x: torch.Tensor) -> torch.Tensor:
    """``x`` in a buffer of its own if it is an input of the graph; expansions call it on what they read in windows."""
    return x.clone(memory_format=torch.contiguous_format)


@staged.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@register_lowering(torch.ops.spyre.staged.default, type_promotion_kind=None)
def lower_staged(x: TensorBox) -> TensorBox:
    """A copy that is realised, so that its readers do not read the input after all."""
    out = Pointwise.create(
        device=x.get_device_or_error(), dtype=x.get_dtype(), inner_fn=x.make_loader(), ranges=list(x.get_size())
    )
    out.realize()
    return out


def stage_inputs(graph: torch.fx.Graph) -> None:
    """Put copies before the readers of windows of inputs; drop those that expansions asked for where they read anything
    else, or where LX keeps no buffers."""
    useful = lx_between_kernels()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        source: Any = node.args[0] if node.args else None
        wanted = useful and isinstance(source, torch.fx.Node) and source.op == "placeholder"
        if node.target is torch.ops.spyre.staged.default:
            if not wanted or source in copies:
                node.replace_all_uses_with(copies.get(source, source))
                graph.erase_node(node)
            else:
                copies[source] = node
        elif wanted and node.target in _WINDOWED:
            if source not in copies:
                with graph.inserting_before(node):
                    copies[source] = _copy(graph, node, source)
            node.replace_input_with(source, copies[source])


def _copy(graph: torch.fx.Graph, reader: torch.fx.Node, source: torch.fx.Node) -> torch.fx.Node:
    """The copy of an input; it inherits where it comes from."""
    out = graph.call_function(torch.ops.spyre.staged.default, (source,))
    out.meta.update({k: v for k, v in reader.meta.items() if k != "val"})
    value = source.meta["val"]
    with value.fake_mode:
        out.meta["val"] = torch.ops.spyre.staged.default(value)
    return out
