"""Files that ``torch.load`` cannot read: an error, and memory as it was."""

import gc
import io
import pickle
import random

import pytest
import torch


def saved(**options) -> bytes:
    file = io.BytesIO()
    half = torch.arange(1000.0).half().to("spyre")
    torch.save({"half": half, "part": half[3:70], "ints": torch.arange(70).to("spyre")}, file, **options)
    return file.getvalue()


def load(data: bytes, weights_only: bool = True):
    return torch.load(io.BytesIO(data), map_location="spyre", weights_only=weights_only)


@pytest.fixture(autouse=True)
def memory_is_as_before():
    kept = torch.arange(100.0, device="spyre")
    gc.collect()
    before = torch.spyre.memory_allocated()
    yield
    gc.collect()
    torch.spyre.synchronize()
    assert torch.spyre.memory_allocated() == before
    assert torch.equal(kept.cpu(), torch.arange(100.0))
    assert load(saved())["part"].tolist() == list(range(3, 70))


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "old"])
def test_files_that_end_early(options, weights_only):
    data = saved(**options)
    for end in [0, 1, 10, 100, *range(200, len(data) - 1, len(data) // 13), len(data) - 1]:
        with pytest.raises((RuntimeError, EOFError, ValueError, IndexError, OSError, pickle.UnpicklingError)):
            load(data[:end], weights_only)


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_give_an_error_or_tensors(seed):
    """Neither of the formats has a checksum that PyTorch looks at: a flipped bit may only change a value."""
    rng = random.Random(seed)
    data = bytearray(saved())
    for _ in range(4):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    try:
        loaded = load(bytes(data))
    except Exception as error:  # whatever PyTorch's own readers make of it
        assert str(error) or isinstance(error, EOFError)
    else:
        for t in loaded.values():
            assert t.device.type == "spyre" and t.cpu().shape == t.shape
