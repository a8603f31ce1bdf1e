"""Estimates of whole models: sizes against the public ones, layers added up against the whole model, refusals."""

import json

import pytest
import torch

pytest.importorskip("transformers")

from torch_loom.arch import load
from torch_loom.cli import main
from torch_loom.integrations.huggingface import estimate as package
from torch_loom.integrations.huggingface.estimate import run as room
from torch_loom.integrations.huggingface.estimate.footprint import cache_bytes, weight_bytes
from torch_loom.integrations.huggingface.estimate.layers import (
    Plan,
    decoder_layers,
    kinds_of,
    plan_of,
    shortened,
)

EstimateError, TooLarge = package.EstimateError, package.TooLarge
bundled, estimate, load_config = package.bundled, package.estimate, package.load_config

# layers, hidden, heads, kv heads, head dim, intermediate, vocabulary, tied: the published sizes.
PUBLIC = {
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, 128256, False),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, True),
    "granite-3.3-8b": (40, 4096, 32, 8, 128, 12800, 49159, True),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936, False),
    "mistral-small-24b": (40, 5120, 32, 8, 128, 32768, 131072, False),
}
TINY = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 192,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}


def fields(**changed):
    """Fields of a small configuration without its type."""
    return {key: value for key, value in (TINY | changed).items() if key != "model_type"}


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return str(tmp_path)


def test_every_bundled_configuration_has_its_public_size():
    assert set(bundled()) == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_sizes_follow_from_the_published_numbers(name):
    layers, hidden, heads, kv, width, inner, words, tied = PUBLIC[name]
    config = load_config(name)
    model = room.build(config)
    norms = 2 * hidden + (2 * width if name.startswith("qwen3") else 0)
    layer = hidden * width * (heads + 2 * kv) + heads * width * hidden + 3 * hidden * inner + norms
    parameters = layers * layer + words * hidden * (1 if tied else 2) + hidden
    assert sum(p.numel() for p in model.parameters()) == parameters
    # Rows are whole sticks in all of them, so a parameter takes two bytes; buffers are small.
    assert weight_bytes(model) == pytest.approx(2 * parameters, rel=1e-6)
    assert cache_bytes(room.weightless_cache(config, 3, 1000, "meta")) == 3 * 1000 * layers * 2 * kv * width * 2
    assert len(set(kinds_of(model))) == 1 and plan_of(kinds_of(model)).units == (layers - 2) // 2


def test_what_does_not_fit_is_refused_with_the_difference(tmp_path):
    big = TINY | {"hidden_size": 8192, "num_attention_heads": 128, "intermediate_size": 28672, "num_hidden_layers": 80}
    (tmp_path / "config.json").write_text(json.dumps(big))
    with pytest.raises(TooLarge, match=r"does not fit device memory: weights 13\d\.\d\d GB .* more than the 112.00 GB"):
        estimate(str(tmp_path), 1, 16, 4)


def test_a_cache_that_does_not_fit_is_refused(tiny):
    # 2 x 4 layers x 2 heads x 64 x 2 bytes = 2048 bytes a token.
    ddr = load("spyre").ddr
    usable = ddr.bytes.value - ddr.ecc_bytes.value
    batch = usable // (2048 * 200) + 1
    with pytest.raises(TooLarge, match="cache 112.0"):
        estimate(tiny, batch, 190, 10)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, (0, 16, 4), "batch must be at least 1, got 0"),
        ({}, (1, 0, 4), "prompt must be at least 1, got 0"),
        ({}, (1, 16, -1), "generate must be at least 0, got -1"),
        ({}, (1, 250, 7), "knows 256 positions; prompt and generated tokens need 257"),
        ({"model_type": "nothing"}, (1, 16, 4), "nothing"),
        ({"model_type": 3}, (1, 16, 4), "not a model configuration"),
        ({"model_type": "vit"}, (1, 16, 4), "ViT"),
        ({}, (10**30, 16, 4), "batch must be at most"),
        ({}, (1, 10**30, 4), "prompt must be at most"),
        ({"num_hidden_layers": 0}, (1, 16, 4), "num_hidden_layers is 0, must be in 1"),
        ({"num_hidden_layers": -1}, (1, 16, 4), "num_hidden_layers is -1, must be in 1"),
        ({"num_hidden_layers": 10**5}, (1, 16, 4), "num_hidden_layers is 100000, must be in 1"),
        ({"hidden_size": 0}, (1, 16, 4), "hidden_size is 0, must be in 1"),
        ({"hidden_size": -128}, (1, 16, 4), "hidden_size is -128, must be in 1"),
        ({"hidden_size": 10**12}, (1, 16, 4), "hidden_size is 1000000000000, must be in 1"),
        ({"hidden_size": "x"}, (1, 16, 4), "hidden_size"),
        ({"vocab_size": 10**30}, (1, 16, 4), "vocab_size is 1000000000000000000000000000000, must be in 1"),
        ({"intermediate_size": 0}, (1, 16, 4), "intermediate_size is 0, must be in 1"),
        ({"num_attention_heads": 0}, (1, 16, 4), "ZeroDivisionError"),
        ({"num_key_value_heads": 3}, (1, 16, 4), "4 attention heads cannot share 3 key-value heads evenly"),
        ({"head_dim": 0}, (1, 16, 4), "head_dim is 0, must be in 1"),
        ({"hidden_act": "nope"}, (1, 16, 4), "cannot build a language model of type llama: KeyError: 'nope'"),
        ({"dtype": "nope"}, (1, 16, 4), "nope"),
        ({"model_type": "mamba"}, (1, 16, 4), "type mamba keep a state of their own"),
    ],
)
def test_requests_that_make_no_sense_are_refused(tmp_path, change, arguments, message):
    (tmp_path / "config.json").write_text(json.dumps(TINY | change))
    with pytest.raises(EstimateError, match=message):
        estimate(str(tmp_path), *arguments)


def test_files_that_are_no_configuration_are_refused(tmp_path):
    (tmp_path / "bad.json").write_text("{,")
    with pytest.raises(EstimateError, match="not JSON"):
        load_config(str(tmp_path / "bad.json"))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(EstimateError, match="nested too deeply"):
        load_config(str(tmp_path / "deep.json"))
    with pytest.raises(EstimateError, match="neither a file"):
        load_config("x" * 5000)
    with pytest.raises(EstimateError, match="neither a file nor one of granite-3.3-8b, "):
        load_config("absent")


@pytest.mark.parametrize(
    ("kinds", "plan"),
    [
        ("a" * 32, Plan(2, 2, 15)),
        ("a" * 7, Plan(3, 2, 2)),
        ("ab" * 12, Plan(2, 2, 11)),
        ("aaaaab" * 5 + "aaaa", Plan(4, 6, 5)),
        ("a" * 4, Plan(4, 0, 0)),
        ("a", Plan(1, 0, 0)),
        ("aabaaaabba", Plan(10, 0, 0)),
    ],
)
def test_a_model_is_a_short_one_and_units(kinds, plan):
    assert plan_of(kinds) == plan
    short = kinds[: plan.short]
    assert sorted(short + kinds[plan.short : plan.short + plan.unit] * plan.units) == sorted(kinds)


def test_layers_of_several_kinds_are_told_apart():
    from transformers import AutoConfig

    kinds = ["sliding_attention", "full_attention"] * 2 + ["full_attention"]
    config = AutoConfig.for_model("qwen3", **fields(num_hidden_layers=5, layer_types=kinds, sliding_window=8))
    a, b, *rest = kinds_of(room.build(config))
    assert a != b and rest == [a, b, b]
    small = shortened(config, 3)
    assert small.layer_types == kinds[:3] and len(decoder_layers(room.build(small))) == 3
    assert config.num_hidden_layers == 5


@pytest.mark.parametrize(("model", "layers"), [("llama", 7), ("qwen3", 6)])
def test_units_add_up_to_the_whole_model(model, layers):
    from transformers import AutoConfig

    config = AutoConfig.for_model(model, **fields(num_hidden_layers=layers))
    plan = plan_of(kinds_of(room.build(config)))
    assert plan.units == 2

    def count(layers):
        torch._dynamo.reset()
        return room.Loaded(shortened(config, layers), 2, 32).count(24, 1)

    with room.timing_only():
        short, longer, whole = (count(n) for n in (plan.short, plan.short + plan.unit, layers))
    found = short.and_units(longer, plan.units)
    assert found.launches == whole.launches
    assert (found.fallbacks, found.copies) == (whole.fallbacks, whole.copies)


def test_an_estimate_holds_together(tiny):
    found = estimate(tiny, 2, 24, 8)
    assert found.decode is not None
    assert found.decode.ns > 0 and found.prefill.ns > 0
    assert found.tokens_per_s == pytest.approx(2e9 / found.decode.ns)
    assert found.total_ns == pytest.approx(found.prefill.ns + 7 * found.decode.ns)
    # Every product of weights with the tokens of the prompt; the last layer's head only for the last token.
    weights = 128 * 64 * (4 + 2 + 2) + 256 * 128 + 3 * 128 * 192
    assert found.prefill.macs >= 4 * 48 * weights
    assert found.decode.macs >= 4 * 2 * weights + 2 * 128 * 320
    assert found.footprint.activations > 0
    data = json.loads(json.dumps(found.as_dict()))
    assert data["token_ns"] == found.decode.ns and data["complete"] == found.complete


def test_one_generated_token_comes_from_the_prompt(tiny):
    found = estimate(tiny, 1, 8, 1)
    assert found.decode is None and found.tokens_per_s == 0 and found.total_ns == found.prefill.ns


def test_the_command_prints_and_writes(tiny, tmp_path, capsys):
    assert main.run(["estimate", tiny, "--prompt", "24", "--generate", "8", "--json", str(tmp_path / "e.json")]) == 0
    out = capsys.readouterr().out
    for part in ("prefill ", "per token ", "tokens/s", "of 112 GB: weights", "one generated token: kernels by time"):
        assert part in out
    assert json.loads((tmp_path / "e.json").read_text())["layers"] == 4
    assert main.run(["estimate", "list"]) == 0
    assert "llama-3.1-8b" in capsys.readouterr().out
    assert main.run(["estimate", "absent"]) == 2
    assert capsys.readouterr().err.startswith("loom estimate: absent: neither a file nor one of ")
