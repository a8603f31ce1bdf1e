"""Small random members of the model families that the device must run, by name.

Each row is a Transformers config of two layers whose shapes keep what is peculiar to the family: grouped heads,
sliding windows beside full layers, sinks, experts, gated norms, rotary variants. Weights are random; no hub is
asked. The vocabulary is small so that a greedy choice is decided by the layers and not by its size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

VOCABULARY = 199  # a prime: the last projection fills no stick
HIDDEN, INTERMEDIATE, LAYERS, HEADS, GROUPS = 128, 160, 2, 4, 2
POSITIONS = 516  # lengths to 512, and the two places that RoBERTa leaves out


@dataclass(frozen=True)
class Member:
    """A family: class and config of Transformers, and what a forward takes and gives.

    ``kind`` is "encoder" (tokens -> hidden states), "decoder" (tokens -> logits, with a static KV cache),
    "image" (pixels -> hidden states) or "audio" (mel frames -> hidden states). ``placed`` decoders are told mask and
    positions in every step, as ``generate`` does, because on their own they would slice by the length of the cache,
    which is a tensor. ``needs`` says what the device does not do yet for it."""

    name: str
    kind: str
    model: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    part: Callable[[Any], Any] = lambda m: m
    placed: bool = False
    needs: str = ""


_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_TEXT, "num_key_value_heads": GROUPS}
_WIDE_HEADS = {**_GROUPED, "head_dim": 64}

ZOO: tuple[Member, ...] = (
    Member("BERT", "encoder", "BertModel", "BertConfig", _TEXT),
    Member("RoBERTa", "encoder", "RobertaModel", "RobertaConfig", _TEXT),
    Member(
        "DistilBERT",
        "encoder",
        "DistilBertModel",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": HIDDEN,
            "hidden_dim": INTERMEDIATE,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "max_position_embeddings": POSITIONS,
        },
    ),
    Member("MPNet", "encoder", "MPNetModel", "MPNetConfig", _TEXT),
    Member(
        "ModernBERT",
        "encoder",
        "ModernBertModel",
        "ModernBertConfig",
        {**_TEXT, "global_attn_every_n_layers": 2, "local_attention": 16},
    ),
    Member("XLM-R", "encoder", "XLMRobertaModel", "XLMRobertaConfig", _TEXT),
    Member("E5", "encoder", "BertModel", "BertConfig", {**_TEXT, "num_attention_heads": 2}),
    Member(
        "ViT",
        "image",
        "ViTModel",
        "ViTConfig",
        {
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "image_size": 64,
            "patch_size": 16,
        },
    ),
    Member("CLIP text", "encoder", "CLIPTextModel", "CLIPTextConfig", _TEXT),
    Member(
        "GPT-2",
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": HIDDEN,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": POSITIONS,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    Member(
        "OPT",
        "decoder",
        "OPTForCausalLM",
        "OPTConfig",
        {**_TEXT, "ffn_dim": INTERMEDIATE, "word_embed_proj_dim": HIDDEN},
        placed=True,
    ),
    Member(
        "Llama 3",
        "decoder",
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **_GROUPED,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    Member("Mistral", "decoder", "MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 16}),
    Member(
        "Ministral",
        "decoder",
        "MinistralForCausalLM",
        "MinistralConfig",
        {**_WIDE_HEADS, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    Member("Qwen2", "decoder", "Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    Member("Qwen3", "decoder", "Qwen3ForCausalLM", "Qwen3Config", _WIDE_HEADS),
    Member(
        "Gemma 3",
        "decoder",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **_WIDE_HEADS,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 64,
        },
    ),
    Member("Phi-3", "decoder", "Phi3ForCausalLM", "Phi3Config", _GROUPED),
    Member(
        "Granite",
        "decoder",
        "GraniteForCausalLM",
        "GraniteConfig",
        {
            **_GROUPED,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0078125,
            "logits_scaling": 16.0,
        },
    ),
    Member(
        "GPT-OSS",
        "decoder",
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **_WIDE_HEADS,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    Member(
        "Granite 4 hybrid",
        "decoder",
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {
            **_GROUPED,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "mamba_expand": 2,
            "mamba_chunk_size": 32,
        },
    ),
    Member(
        "Qwen 2.5 VL text",
        "decoder",
        "Qwen2_5_VLTextModel",
        "Qwen2_5_VLTextConfig",
        {**_GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}},
    ),
    Member(
        "Whisper encoder",
        "audio",
        "WhisperModel",
        "WhisperConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": HIDDEN,
            "encoder_layers": LAYERS,
            "encoder_attention_heads": HEADS,
            "decoder_layers": 1,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": INTERMEDIATE,
            "decoder_ffn_dim": INTERMEDIATE,
            "num_mel_bins": 20,
            "max_source_positions": 48,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        part=lambda m: m.encoder,
    ),
)


def member(name: str) -> Member:
    """The family of that name. Raises KeyError naming the known ones."""
    found = next((m for m in ZOO if m.name == name), None)
    if found is None:
        raise KeyError(f"no model {name!r} in the zoo; there are {', '.join(m.name for m in ZOO)}")
    return found


def build(one: Member, seed: int = 0) -> nn.Module:
    """The model in fp32 on the CPU with seeded random weights, in eval mode and without gradients."""
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, one.config)(**copy.deepcopy(one.settings))
    model = one.part(getattr(transformers, one.model)(config)).eval()
    model.requires_grad_(False)
    return model


def sample(one: Member, batch: int = 2, length: int = 21, seed: int = 1) -> dict[str, torch.Tensor]:
    """Random inputs of a forward, on the CPU; of encoders the last row is padded."""
    generator = torch.Generator().manual_seed(seed)
    if one.kind == "image":
        size = one.settings["image_size"]
        return {"pixel_values": torch.randn(batch, 3, size, size, generator=generator)}
    if one.kind == "audio":
        frames = 2 * one.settings["max_source_positions"]
        return {"input_features": torch.randn(batch, one.settings["num_mel_bins"], frames, generator=generator)}
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.int64)
    if one.kind == "encoder":
        mask[-1, length * 2 // 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}
