"""Random numbers of the device: one generator per card, with the same sequence as the CPU's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_loom import _device
from torch_loom.device.arguments import expect_integer, expect_tensor


def _index(device: Any) -> int:
    from torch_loom.device.module import _index as index

    return index(device)


def _get_default_generator(device: Any = None) -> torch.Generator:
    return _device.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Seed the current card's generator."""
    _get_default_generator().manual_seed(expect_integer("manual_seed", seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cards."""
    seed = expect_integer("manual_seed_all", seed)
    for index in range(_device.device_count()):
        _get_default_generator(index).manual_seed(seed)


def seed() -> int:
    """Seed the current card's generator from the system's entropy; returns the seed."""
    return _get_default_generator().seed()


def seed_all() -> None:
    """Seed all cards with one fresh seed."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """Seed of the current card's generator."""
    return _get_default_generator().initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of a card's generator, a CPU byte tensor."""
    return _get_default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore the state of a card's generator."""
    _get_default_generator(device).set_state(expect_tensor("set_rng_state", new_state).cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all cards."""
    return [get_rng_state(index) for index in range(_device.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states of all cards."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
