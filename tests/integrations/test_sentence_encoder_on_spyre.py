"""The real sentence encoder under plain torch.compile on the simulated chip: any batch, any length."""

import pytest
import torch

from torch_loom.integrations.huggingface import cosines, encode, load_minilm

TEXT = "the small red fox runs over a wide green field while two old birds watch from their quiet tree"
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def encoders():
    """The encoder on the CPU in fp32, the compiled one on spyre in fp16, and the tokenizer."""
    model = load_minilm()
    device = load_minilm().encoder.half().to("spyre")
    return model, torch.compile(device)


@pytest.mark.parametrize(("batch", "words"), [(8, 7), (3, 40), (1, 62), (1, 1), (2, 90)], ids=lambda value: str(value))
def test_vectors_agree_with_the_cpu_without_any_fallback(encoders, batch, words):
    model, compiled = encoders
    # Sentence i starts at word i and is i words shorter, so that padding differs from row to row.
    sentences = [" ".join(WORDS[(i + k) % len(WORDS)] for k in range(max(words - i, 1))) for i in range(batch)]
    tokens = model.tokenize(sentences)
    before = dict(torch.spyre.fallbacks())
    found, _ = encode(compiled, [tokens], torch.device("spyre"))
    assert dict(torch.spyre.fallbacks()) == before
    expected, _ = encode(model.encoder, [tokens], torch.device("cpu"))
    assert cosines(found, expected).min() >= 0.999
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(batch), atol=2e-3, rtol=0)
