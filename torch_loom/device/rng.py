"""Random numbers of the device: one generator per card, with the same sequence as the CPU's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_loom import _device
from torch_loom.device.arguments import expect, expect_integer, expect_tensor


def _index(device: Any) -> int:
    from torch_loom.device.module import _index as index

    return index(device)


def _get_default_generator(device: Any = None) -> torch.Generator:
    return _device.default_generator(_index(device))


def _expect_seed(call: str, seed: int) -> int:
    """``seed`` when it fits 64 bits, with or without sign, as ``torch.manual_seed`` takes it."""
    seed = expect_integer(call, seed)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"{call} takes a number from -2**63 to 2**64 - 1, got {seed}")
    return seed


def manual_seed(seed: int) -> None:
    """Seed the current card's generator."""
    _get_default_generator().manual_seed(_expect_seed("manual_seed", seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cards."""
    seed = _expect_seed("manual_seed_all", seed)
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
    states = list(expect("set_rng_state_all", new_states, Iterable, "one state for each card"))
    if len(states) != _device.device_count():
        raise ValueError(
            f"set_rng_state_all takes one state for each of {_device.device_count()} cards, got {len(states)}"
        )
    for index, state in enumerate(states):
        set_rng_state(expect_tensor("set_rng_state_all", state), index)
