"""One sentence encoder run in two ways: CPU fp32 eager, and the device under plain ``torch.compile``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torch_loom.integrations.huggingface.sentence import Tokens
from torch_loom.layout import UnsupportedDtype, device_format, dtype_name

ENCODER_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Encoding:
    """Unit vectors float32 [sentences, hidden] on the CPU, and wall seconds of a warm pass and of the first.

    The first pass includes whatever is done once: warming up, and on the device all compilation.
    """

    embeddings: torch.Tensor
    wall_s: float
    wall_s_first: float


def check_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """The dtype if an encoder can have it on the device, else :class:`UnsupportedDtype`."""
    device_format(dtype)
    name = dtype_name(dtype)
    if name not in ENCODER_DTYPES:
        raise UnsupportedDtype(f"an encoder on spyre has dtype {' or '.join(ENCODER_DTYPES)}, not {name}")
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def batches(tokens: Tokens, size: int) -> list[Tokens]:
    """Tokens cut into batches of at most ``size`` sentences, all of the same length."""
    if size < 1:
        raise ValueError(f"a batch has at least one sentence, got {size}")
    count = len(tokens.input_ids)
    return [Tokens(tokens.input_ids[i : i + size], tokens.attention_mask[i : i + size]) for i in range(0, count, size)]


def encode(
    encoder: Callable[..., torch.Tensor], parts: Sequence[Tokens], device: torch.device
) -> tuple[torch.Tensor, float]:
    """One pass over all batches: vectors float32 [sentences, hidden] on the CPU, and wall seconds.

    The time includes moving tokens to the device and vectors back, which waits for the device.
    """
    started = time.perf_counter()
    with torch.no_grad():
        found = [encoder(*(t.to(device) for t in part.arguments)) for part in parts]
        embeddings = torch.cat([vectors.to("cpu") for vectors in found]).float()
    return embeddings, time.perf_counter() - started


def cosines(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine of each row of ``a`` with the same row of ``b``, in float64."""
    return torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1)


def similarity(a: torch.Tensor) -> torch.Tensor:
    """Cosine of each row with each row, in float64."""
    unit = torch.nn.functional.normalize(a.double(), dim=-1)
    return unit @ unit.T
