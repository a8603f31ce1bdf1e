"""torch-loom: run, check, time and tune PyTorch models on a simulated Spyre-class chip.

``_autoload`` is the ``torch.backends`` entry point: it registers the ``spyre`` device when torch is imported.
Importing ``torch_loom`` registers it too when torch is already there (for instance under
``TORCH_DEVICE_BACKEND_AUTOLOAD=0``); the tools that need no torch stay free of it.
"""

import sys


def _autoload() -> None:
    """Register the device, and tell it where Inductor finds the compiler. Doing so twice does nothing."""
    from torch_loom.device import _autoload as register_device

    register_device()

    import torch

    torch.spyre.__getattr__ = _compiler_class  # type: ignore[attr-defined]
    _start_eager()


def _start_eager() -> None:
    """Connect the eager recorder with its target; both load the compiler only when they need it."""
    import os

    import torch

    from torch_loom import _device
    from torch_loom.eager import compiler, modes
    from torch_loom.inductor.eager_target import SpyreTarget

    compiler.install(SpyreTarget())
    modes.start()
    os.register_at_fork(before=_device.finish_pending)  # what is held back belongs to this process
    for name in ("eager_mode", "set_eager_mode", "use_eager_mode"):
        setattr(torch.spyre, name, getattr(modes, name))  # type: ignore[attr-defined]

    from torch._logging._internal import register_log

    register_log("loom", __name__)  # TORCH_LOGS="+loom"; torch reads the variable after loading its backends


def _compiler_class(name: str) -> object:
    """Inductor asks the device module for its backend when it first compiles: load it then."""
    if name in ("Scheduling", "PythonWrapperCodegen"):
        from torch_loom import inductor

        return inductor.register()[name]
    raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")


if hasattr(sys.modules.get("torch"), "_is_device_backend_autoload_enabled"):
    _autoload()
