"""One compile serves all lengths of a model up to its bound.

PyTorch itself compiles length 1 apart from all others, so two compiles serve 1 to 512.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from torch_loom.inductor import runtime
from torch_loom.integrations.huggingface.zoo import build, member, sample
from torch_loom.integrations.huggingface.zoo_run import error_of, static_cache, tolerance

LENGTHS = (33, 1, 2, 31, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 511, 512)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()


def compiled_for(name):
    one = member(name)
    model = build(one)
    device = build(one).half().to("spyre")
    return one, model, device, torch.compile(device)


def marked(ids):
    ids = ids.to("spyre")
    if ids.shape[1] > 1:
        torch._dynamo.mark_dynamic(ids, 1, min=2, max=512)
    return ids


def test_encoder():
    one, model, _, compiled = compiled_for("BERT")
    for n in LENGTHS:
        inputs = sample(one, length=n)
        with torch.no_grad():
            found = compiled(**{k: marked(v) for k, v in inputs.items()})[0].cpu().float()
            assert error_of(found, model(**inputs)[0]) < tolerance(), n
    assert counters["stats"]["unique_graphs"] <= 2


def test_prefill_of_a_decoder():
    one, model, device, compiled = compiled_for("Llama 3")
    cache, kernels = static_cache(device, 2, 512), 0
    for n in LENGTHS:
        ids = sample(one, length=n)["input_ids"]
        cache.reset()
        with torch.no_grad():
            found = compiled(input_ids=marked(ids), past_key_values=cache, use_cache=True)[0].cpu().float()
            assert error_of(found, model(input_ids=ids, use_cache=False)[0]) < tolerance(), n
        if n == 2:
            kernels = runtime.counters["kernels_compiled"]
    assert counters["stats"]["unique_graphs"] <= 2
    assert runtime.counters["kernels_compiled"] == kernels, "a length after the first ones compiled a kernel"
