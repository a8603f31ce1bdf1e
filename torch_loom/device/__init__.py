"""The ``spyre`` device of PyTorch.

``_autoload`` is the ``torch.backends`` entry point: it renames PrivateUse1, installs ``torch.spyre`` and
registers the native backend. It starts nothing: memory is reserved by the first operation on a card, host
threads by the first launch. Registering twice does nothing.
"""

from __future__ import annotations

import atexit
import importlib
import sys

__all__ = ["_autoload"]

_registered = False


def _autoload() -> None:
    """Register the device with PyTorch once per process."""
    global _registered
    if _registered:
        return
    _registered = True

    import torch

    from torch_loom.device import importhook

    torch.utils.rename_privateuse1_backend("spyre")
    from torch_loom import _device
    from torch_loom.device import layout_argument, module, printing, settings

    _device.register_backend(module.FallbackWarning)
    _device.set_fallback_mode(settings.fallback_mode())
    _device.set_downcast_warning(settings.downcast_warning())
    torch._register_device_module("spyre", module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
    )
    torch.Tensor.device_tensor_layout = module.device_tensor_layout  # type: ignore[attr-defined]
    printing.install()
    layout_argument.install()
    atexit.register(_finish)
    importhook.after_import("torch._dynamo.device_interface", "torch_loom.device.dynamo")


def _finish() -> None:
    """Let queued work end before the interpreter does, and show an error that nobody has seen yet."""
    from torch_loom import _device

    if not _device.started():
        return
    for index in range(_device.device_count()):
        try:
            _device.synchronize(index)
        except RuntimeError as error:
            print(f"torch-loom: {error}", file=sys.stderr)


# A module of this package may be what a program imports first. Its own `import torch` would load the device, this
# package, in the middle of it; so torch comes before all of them.
importlib.import_module("torch")
