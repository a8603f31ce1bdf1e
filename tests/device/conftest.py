"""The device under test is registered here, whether or not the package's entry point is installed."""

import pytest
import torch

from torch_loom.device import _autoload

_autoload()


@pytest.fixture(autouse=True)
def quiet_fallbacks():
    """Host fallbacks are the subject of one file only; elsewhere they are a tool of the comparison. Operators are
    not compiled here: what the device itself does is tested without the compiler."""
    from torch_loom import _device

    mode = _device.fallback_mode()
    _device.set_fallback_mode("silent")
    with torch.spyre.use_eager_mode("host"):
        yield
    _device.set_fallback_mode(mode)
    torch.spyre.synchronize()
