import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The current accelerator, with its index."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        pytest.skip("torch knows no accelerator here; README.md says how to name one")
    if not torch.accelerator.is_available():
        pytest.skip(f"the accelerator {accelerator.type!r} has no device here")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
