import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The current accelerator, with its index."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        pytest.skip("no accelerator")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
