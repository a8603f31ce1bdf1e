"""Run members of the zoo on the device beside the CPU in fp32, and say what was compiled and how far off it is.

``python -m torch_loom.integrations.huggingface.zoo_run [NAME...]`` prints the table of ``docs/models.md``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_loom.device import module
from torch_loom.integrations.huggingface.zoo import LAYERS, VOCABULARY, ZOO, Member, build, member, sample

DF16_HALF_STEP = 2.0**-10  # largest relative error of one rounding to 9 fraction bits
# df16 roundings on the way through a layer: two norms, q, k, v and their rotation, weights and result of the
# attention, its projection, gate, up, their product, down, two residuals; embedding and head once more.
ROUNDINGS = 16 * (LAYERS + 1)
STEPS, CAPACITY = 16, 48


def tolerance() -> float:
    """Largest relative error (RMS of the difference over RMS of the value) of a model's result.

    Roundings are independent, so their relative errors add in squares; each is taken at its largest."""
    return float(ROUNDINGS**0.5 * DF16_HALF_STEP)


@dataclass(frozen=True)
class Run:
    """A forward, or a prefill with decode steps: what Dynamo made of it and the relative RMS error.

    ``decided`` counts greedy choices whose gap on the CPU exceeds the error, ``agreed`` those that the device makes
    alike; a forward makes none."""

    graphs: int
    breaks: int
    fallbacks: dict[str, int]
    error: float
    decided: int = 0
    agreed: int = 0


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference over RMS of what is expected."""
    return float((found - expected).norm() / expected.norm())


def _measured(error: float, decided: int = 0, agreed: int = 0) -> Run:
    from torch._dynamo.utils import counters

    graphs = int(counters["stats"]["unique_graphs"])
    breaks = sum(counters["graph_break"].values())
    return Run(graphs, breaks, dict(module.fallbacks()), error, decided, agreed)


def _start() -> None:
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.utils.counters.clear()
    module.reset_fallbacks()


def _on_device(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: (v.half() if v.is_floating_point() else v).to("spyre") for k, v in values.items()}


def forward(one: Member) -> Run:
    """One forward without a cache in one graph, compared in its first result (hidden states or logits)."""
    model, inputs = build(one), sample(one)
    options = {"use_cache": False} if one.kind == "decoder" else {}
    with torch.no_grad():
        expected = model(**inputs, **options)[0]
        _start()
        compiled = torch.compile(copy.deepcopy(model).half().to("spyre"))
        found = compiled(**_on_device(inputs), **options)[0].cpu().float()
    return _measured(error_of(found, expected))


def static_cache(model: nn.Module, batch: int, capacity: int) -> Any:
    """A static key-value cache for ``capacity`` tokens, allocated where the weights of ``model`` are."""
    from transformers import StaticCache

    config: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
    weight = next(model.parameters())
    cache = StaticCache(config=config, max_cache_len=capacity)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    layers: Any = cache.layers
    for layer in layers:
        if hasattr(layer, "cumulative_length"):
            empty = weight.new_zeros(batch, heads, 0, size)
            layer.lazy_initialization(empty, empty)
    return cache


def _places(seen: int, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Mask of the cache's cells up to ``ids`` [batch, CAPACITY] and positions of ``ids`` [batch, tokens], int64, when
    ``seen`` tokens are cached already. The mask has one shape in all steps, so that they share a graph."""
    batch, new = ids.shape
    mask = (torch.arange(CAPACITY) < seen + new).long().expand(batch, -1).contiguous()
    return {"attention_mask": mask, "position_ids": torch.arange(seen, seen + new).expand(batch, -1).contiguous()}


def _logits(
    one: Member, model: Any, on: nn.Module, ids: torch.Tensor, tokens: Sequence[torch.Tensor] | None
) -> list[torch.Tensor]:
    """Last logits of the prefill of ``ids`` and of each step, fed ``tokens`` or, without them, greedily."""
    device = next(on.parameters()).device
    cache = static_cache(on, len(ids), CAPACITY)
    out: list[torch.Tensor] = []
    seen, new = 0, ids
    for step in range(STEPS + 1):
        inputs = {"input_ids": new, **(_places(seen, new) if one.placed else {})}
        result = model(**{k: v.to(device) for k, v in inputs.items()}, past_key_values=cache, use_cache=True)
        out.append(result[0][:, -1].cpu().float())
        seen += new.shape[1]
        new = tokens[step] if tokens is not None else greedy(out[-1])
    return out


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """Token of the highest logit, int64 [batch, 1]. A tower without a head gives hidden states; then the first
    dims stand for tokens."""
    return logits[:, :VOCABULARY].argmax(-1, keepdim=True)


def decode(one: Member) -> Run:
    """Prefill and 16 steps with a static key-value cache; the device is fed the tokens that the CPU chose."""
    model, ids = build(one), sample(one)["input_ids"]
    with torch.no_grad():
        expected = _logits(one, model, model, ids, None)
        tokens = [greedy(x) for x in expected]
        _start()
        device = copy.deepcopy(model).half().to("spyre")
        found = _logits(one, torch.compile(device), device, ids, tokens)
    wanted, got = torch.stack(expected), torch.stack(found)
    best = wanted[..., :VOCABULARY].topk(2).values
    # Both of the two highest may be off, each by less than six standard deviations.
    sure = (best[..., 0] - best[..., 1]) > 2 * 6 * tolerance() * wanted.square().mean().sqrt()
    same = got[..., :VOCABULARY].argmax(-1) == wanted[..., :VOCABULARY].argmax(-1)
    return _measured(error_of(got, wanted), int(sure.sum()), int((sure & same).sum()))


HEADER = ("model", "class", "forward: graphs, breaks, fallbacks", "decode: graphs, breaks, fallbacks")


def table_row(one: Member, first: Run, steps: Run | None) -> tuple[str, ...]:
    """Row of the table in ``docs/models.md``: nothing in it depends on the machine."""

    def counts(run: Run | None) -> str:
        return "-" if run is None else f"{run.graphs}, {run.breaks}, {sum(run.fallbacks.values())}"

    return (one.name, f"`{one.model}`", counts(first), counts(steps))


def markdown(row: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(row)} |"


def main(names: Sequence[str]) -> None:
    """Print the table, and the errors to stderr."""
    print(markdown(HEADER), markdown(["---"] * len(HEADER)), sep="\n")
    for one in [member(n) for n in names] or ZOO:
        first = forward(one)
        steps = decode(one) if one.kind == "decoder" else None
        print(markdown(table_row(one, first, steps)), flush=True)
        print(f"{one.name}: {first} {steps or ''}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
