"""Identical layers are compiled once: a short model and one that is a unit of layers longer stand for the whole.

A unit is the shortest even number of layers after which the kinds of layers repeat. Even, because the compiler fuses a
residual sum into its readers until the chain is long enough to be worth storing, which happens every other layer. What
one more unit launches, every further unit launches too, so the whole model launches what the short model does and, for
each unit that it lacks, the difference of the two. First and last layers, whose neighbours differ, are in both.

Two layers are of one kind when their parameters agree in names, shapes and types, and every per-layer field of the
configuration (attention kind, window, ..) agrees.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_loom.integrations.huggingface.estimate.configs import EstimateError

SHORTEST = 2  # layers of a short model: a first and a last one


@dataclass(frozen=True)
class Plan:
    """The whole model = ``short`` layers and ``units`` times ``unit`` more; 0 units: it is compiled whole."""

    short: int
    unit: int
    units: int


def plan_of(kinds: Sequence[Hashable]) -> Plan:
    """How to put together a model whose layers are of these kinds."""
    count = len(kinds)
    for unit in range(2, count, 2):
        short = SHORTEST + (count - SHORTEST) % unit
        if short + unit < count and all(kinds[i] == kinds[i + unit] for i in range(count - unit)):
            return Plan(short, unit, (count - short) // unit)
    return Plan(count, 0, 0)


def decoder_layers(model: Any) -> Any:
    """The list of decoder layers of a causal language model."""
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None or not len(layers):
        raise EstimateError(f"{type(model).__name__} has no list of decoder layers")
    return layers


def kinds_of(model: Any) -> list[Hashable]:
    """The kind of every layer of a model (which may be on the meta device)."""
    fields = _per_layer(model.config)
    return [
        (
            type(layer).__name__,
            tuple((name, tuple(p.shape), p.dtype) for name, p in layer.named_parameters()),
            tuple((name, str(values[number])) for name, values in fields.items()),
        )
        for number, layer in enumerate(decoder_layers(model))
    ]


def shortened(config: Any, count: int) -> Any:
    """The configuration of a model that has only the first ``count`` layers."""
    out = copy.deepcopy(config)
    for name, values in _per_layer(config).items():
        setattr(out, name, values[:count])
    out.num_hidden_layers = count
    return out


def _per_layer(config: Any) -> dict[str, list[Any]]:
    """Fields of a configuration that hold one value per layer."""
    count = config.num_hidden_layers
    return {
        name: value
        for name, value in config.to_dict().items()
        if isinstance(value, list) and len(value) == count and name != "architectures"
    }
