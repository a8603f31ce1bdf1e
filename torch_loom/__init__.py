"""torch-loom: run, check, time and tune PyTorch models on a simulated Spyre-class chip.

The package registers the ``spyre`` device through the ``torch.backends`` entry point when torch is
imported. Importing ``torch_loom`` registers it too when torch is already there (for instance under
``TORCH_DEVICE_BACKEND_AUTOLOAD=0``); the tools that need no torch stay free of it.
"""

import sys

if hasattr(sys.modules.get("torch"), "_is_device_backend_autoload_enabled"):
    from torch_loom.device import _autoload

    _autoload()

    import torch

    def _inductor_hook(name: str) -> object:
        """Inductor asks the device module for its backend when it first compiles: load it then."""
        if name in ("Scheduling", "PythonWrapperCodegen"):
            from torch_loom import inductor

            return inductor.register()[name]
        raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")

    torch.spyre.__getattr__ = _inductor_hook  # type: ignore[attr-defined]
