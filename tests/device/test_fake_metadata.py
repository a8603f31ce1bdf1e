"""Fake tensors of the device have no memory; tools that ask for their metadata get an answer, not an error."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def test_metadata_of_a_fake_tensor_is_that_of_a_plain_one() -> None:
    with FakeTensorMode():
        fake = torch.empty(3, 65, dtype=torch.float16, device="spyre")
    plain = torch.empty(3, 65, dtype=torch.float16)
    assert torch._utils.get_tensor_metadata(fake) == torch._utils.get_tensor_metadata(plain)
