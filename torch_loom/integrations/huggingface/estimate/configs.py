"""Model configurations: those that ship with the package, and any ``config.json``."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from torch_loom.integrations.huggingface import MissingExtra


class EstimateError(ValueError):
    """A configuration or request that cannot be estimated; the message says why."""


# Sizes by their names in Transformers, and far more than any published model has of each: beyond that, building
# the model alone would take minutes or its element counts leave 64 bits.
SIZES = {
    "num_hidden_layers": 1_000,
    "hidden_size": 2**24,
    "num_attention_heads": 2**16,
    "num_key_value_heads": 2**16,
    "head_dim": 2**16,
    "intermediate_size": 2**26,
    "vocab_size": 2**26,
    "max_position_embeddings": 2**40,
}

# What classes of Transformers raise on fields they cannot use; its own validation raises TypeError and ValueError
# wrapped in StrictDataclassError, which is an Exception of huggingface_hub.
REFUSALS: tuple[type[Exception], ...] = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError)
try:
    from huggingface_hub.errors import StrictDataclassError
except ImportError:  # older, or without the extra; then the validation does not exist either
    pass
else:
    REFUSALS += (StrictDataclassError,)


def _folder() -> Any:
    return resources.files("torch_loom.integrations.huggingface.estimate") / "configs"


def bundled() -> list[str]:
    """Names of the configurations that ship with the package."""
    return sorted(p.name.removesuffix(".json") for p in _folder().iterdir() if p.name.endswith(".json"))


def load_config(name: str) -> Any:
    """The Transformers configuration of a bundled name, a ``config.json`` or a folder that holds one.

    Raises ``EstimateError`` for a file that is none, ``MissingExtra`` without Transformers."""
    try:
        from transformers import AutoConfig
    except ImportError:
        raise MissingExtra("estimates need Transformers: pip install 'torch-loom[huggingface]'") from None
    text, label = _text(name)
    try:
        fields = json.loads(text)
    except RecursionError:
        raise EstimateError(f"{label}: not a model configuration (nested too deeply)") from None
    except json.JSONDecodeError as error:
        raise EstimateError(f"{label}: not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise EstimateError(f"{label}: not a model configuration (no model_type)")
    kind = fields.pop("model_type")
    try:
        config = AutoConfig.for_model(kind, **fields)
    except REFUSALS as error:
        raise EstimateError(f"{label}: {reason(error)}") from None
    _check_sizes(config.get_text_config(decoder=True), label)
    return config


def reason(error: Exception) -> str:
    """Why a class of Transformers refused a configuration, in one line; bare keys say nothing without the kind."""
    text = " ".join(str(error).split())
    bare = isinstance(error, KeyError | ArithmeticError) or not text
    return f"{type(error).__name__}: {text}" if bare else text


def _check_sizes(config: Any, label: str) -> None:
    """Sizes that every decoder has are within ``SIZES``; some classes build nonsense or divide by zero otherwise."""
    for name, most in SIZES.items():
        value = getattr(config, name, None)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            # Families with layers of different shapes give one number per layer.
            if isinstance(value, list | tuple) and value and all(isinstance(v, int) and 0 < v <= most for v in value):
                continue
            raise EstimateError(f"{label}: {name} is {value!r}, not a number of at least 1")
        if not 1 <= value <= most:
            raise EstimateError(f"{label}: {name} is {value}, must be in 1..{most}")
    heads, groups = getattr(config, "num_attention_heads", None), getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise EstimateError(f"{label}: {heads} attention heads cannot share {groups} key-value heads evenly")


def _text(name: str) -> tuple[str, str]:
    """The text of a configuration and the label for messages."""
    if name in bundled():
        return (_folder() / f"{name}.json").read_text("utf-8"), name
    path = Path(name) / "config.json" if os.path.isdir(name) else Path(name)
    if not os.path.isfile(path):
        raise EstimateError(f"{name}: neither a file nor one of {', '.join(bundled())}")
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise EstimateError(f"{path} cannot be read ({error})") from None
