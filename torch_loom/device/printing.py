"""Printing of device tensors: the values come from one copy to the CPU.

torch formats float values by converting them to float64 on their own device, which this device does not
have; the devices that share the fate are listed by name inside ``torch._tensor_str`` and the list has no
extension point. Wrapping the function that renders the values is the one patch to torch made here. The
``device='spyre:0'`` suffix is added by torch as for any device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._tensor_str as tensor_str


def install() -> None:
    """Wrap the renderer once."""
    original: Callable[[torch.Tensor, int], str] = tensor_str._tensor_str
    if getattr(original, "_renders_spyre", False):
        return

    def render(self: torch.Tensor, indent: int) -> str:
        return original(self.cpu() if self.device.type == "spyre" else self, indent)

    render._renders_spyre = True  # type: ignore[attr-defined]
    tensor_str._tensor_str = render
