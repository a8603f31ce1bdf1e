"""Hugging Face models on the device."""

from torch_loom.integrations.huggingface.compare import (
    Encoding,
    batches,
    check_dtype,
    cosines,
    encode,
    similarity,
)
from torch_loom.integrations.huggingface.sentence import (
    MissingExtra,
    SentenceEncoder,
    SentenceModel,
    Tokens,
    load_minilm,
)

__all__ = [
    "Encoding",
    "MissingExtra",
    "SentenceEncoder",
    "SentenceModel",
    "Tokens",
    "batches",
    "check_dtype",
    "cosines",
    "encode",
    "load_minilm",
    "similarity",
]
