"""``device_layout=`` of factories and ``Tensor.to``, as programs for the card write it.

PyTorch's functions refuse arguments they do not know, and no extension point adds one; so the functions named
here are replaced (``csrc/torch_device/layout_argument.cpp`` says how). A call without ``device_layout=`` goes
straight to the original. :func:`uninstall` puts the originals back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.jit import _builtins

from torch_loom import _device
from torch_loom.device import layouts
from torch_loom.layout import SpyreTensorLayout

UNDEFINED = ("empty", "empty_like", "empty_strided")
"""Functions whose result has no content to keep."""
FUNCTIONS = (*UNDEFINED, "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "rand", "randn", "tensor")

_installed = False


def _checked(name: str, device_layout: Any, result: torch.Tensor) -> bool:
    """Whether the result needs the layout; raises for a layout that cannot be given to it."""
    if device_layout is None:
        return False
    if not isinstance(device_layout, SpyreTensorLayout):
        raise TypeError(f"{name}: device_layout must be a SpyreTensorLayout, got {type(device_layout).__name__}")
    if result.device.type != "spyre":
        raise ValueError(f"{name}: device_layout needs a tensor on spyre, the result is on {result.device}")
    return True


def _place(tensor: torch.Tensor, layout: SpyreTensorLayout) -> torch.Tensor:
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return layouts.to_layout(tensor, layout)
    # A compiler looks on: there is no memory yet, and the layout must become part of the graph.
    from torch_loom.device.layout_op import place

    return place(tensor, layout)


def _factory(original: Callable[..., torch.Tensor], *args: Any, device_layout: Any, **kwargs: Any) -> torch.Tensor:
    name = original.__name__
    if device_layout is not None and kwargs.get("out") is not None:
        raise TypeError(f"{name}: device_layout and out= exclude each other")
    result = original(*args, **kwargs)
    if not _checked(name, device_layout, result):
        return result
    if name in UNDEFINED and type(result) is torch.Tensor:
        placed = layouts.empty_with_layout(
            result.shape, device_layout, result.dtype, result.device, stride=result.stride()
        )
    else:
        placed = _place(result.detach(), device_layout)
    return placed.requires_grad_(result.requires_grad)


def _to(
    original: Callable[..., torch.Tensor], tensor: torch.Tensor, *args: Any, device_layout: Any = None, **kwargs: Any
) -> torch.Tensor:
    result = original(tensor, *args, **kwargs)
    return _place(result, device_layout) if _checked("to", device_layout, result) else result


def install() -> None:
    """Let the functions take ``device_layout=``; once per process."""
    global _installed
    if _installed:
        return
    _installed = True
    for name in FUNCTIONS:
        original = getattr(torch, name)
        _device.add_layout_function(torch, type(torch._C._VariableFunctions), name, _factory)
        # TorchScript made its table of functions when it was imported.
        _builtins._register_builtin(getattr(torch, name), _builtins._find_builtin(original))
    _device.add_layout_method(torch.Tensor, "to", _to)


def uninstall() -> None:
    """Put PyTorch's own functions back, for good."""
    _device.restore_layout_functions()
