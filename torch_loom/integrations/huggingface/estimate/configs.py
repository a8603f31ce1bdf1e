"""Model configurations: those that ship with the package, and any ``config.json``."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from torch_loom.integrations.huggingface import MissingExtra


class EstimateError(ValueError):
    """A configuration or request that cannot be estimated; the message says why."""


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
    except json.JSONDecodeError as error:
        raise EstimateError(f"{label}: not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise EstimateError(f"{label}: not a model configuration (no model_type)")
    kind = fields.pop("model_type")
    try:
        return AutoConfig.for_model(kind, **fields)
    except (ValueError, TypeError) as error:
        raise EstimateError(f"{label}: {error}") from None


def _text(name: str) -> tuple[str, str]:
    """The text of a configuration and the label for messages."""
    if name in bundled():
        return (_folder() / f"{name}.json").read_text("utf-8"), name
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if not path.is_file():
        raise EstimateError(f"{name}: neither a file nor one of {', '.join(bundled())}")
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise EstimateError(f"{path} cannot be read ({error})") from None
