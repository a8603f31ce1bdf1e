"""What a model occupies in device memory, and whether that fits.

Sizes are those of the device layouts: 16-bit floats take 2 bytes, rows are padded to whole sticks of 128 bytes. The
limit is the memory of the card without what error correction takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch_loom.arch import Chip
from torch_loom.integrations.huggingface.estimate.configs import EstimateError
from torch_loom.layout import SpyreTensorLayout


class TooLarge(EstimateError):
    """The model does not fit device memory."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of device memory: weights and buffers, key and value cache, the largest sum of intermediates alive at
    one time; ``limit`` is what a card has."""

    weights: int
    cache: int
    activations: int
    limit: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.weights + self.cache + self.activations

    def check(self, name: str) -> None:
        """Raise ``TooLarge`` if it does not fit, saying by how much."""
        if self.total <= self.limit:
            return
        parts = f"weights {_gb(self.weights)} + cache {_gb(self.cache)} + activations {_gb(self.activations)}"
        raise TooLarge(
            f"{name} does not fit device memory: {parts} = {_gb(self.total)}, "
            f"{_gb(self.total - self.limit)} more than the {_gb(self.limit)} of a card"
        )


def limit_of(chip: Chip) -> int:
    """Bytes of device memory that tensors may take."""
    return chip.ddr.bytes.value - chip.ddr.ecc_bytes.value


def device_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of tensors (of any device, meta included) in their default device layouts; shared storage counts once."""
    seen: dict[int, Any] = {}
    for tensor in tensors:
        seen.setdefault(id(tensor), tensor)
    return sum(SpyreTensorLayout(list(t.shape), t.dtype).device_bytes for t in seen.values() if t.numel())


def weight_bytes(model: Any) -> int:
    """Bytes of the parameters and buffers of a model; tied weights count once."""
    return device_bytes([*model.parameters(), *model.buffers()])


def cache_bytes(cache: Any) -> int:
    """Bytes of a static key and value cache."""
    return device_bytes(t for layer in cache.layers for t in (layer.keys, layer.values))


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
