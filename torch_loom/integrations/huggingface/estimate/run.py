"""Builds a model, compiles and launches it without data, and times the launches.

Launches are checked and counted but not executed (``_device.set_timing_only``), and device memory is backed by host
memory only where it is touched: a model of any size costs almost nothing here. Contents mean nothing.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from torch_loom import arch
from torch_loom.inductor.compat import InductorError
from torch_loom.integrations.huggingface.estimate.configs import REFUSALS, EstimateError, load_config, reason
from torch_loom.integrations.huggingface.estimate.count import Counts, counted, restart, spyre
from torch_loom.integrations.huggingface.estimate.footprint import Footprint, cache_bytes, limit_of, weight_bytes
from torch_loom.integrations.huggingface.estimate.layers import kinds_of, plan_of, shortened
from torch_loom.integrations.huggingface.estimate.result import Estimate, Step
from torch_loom.profiler import report_of

DTYPE = torch.float16
MOST = 2**32
"""Sequences or tokens that a request may name: beyond, byte counts leave 64 bits."""
Watch = Callable[[str], None]


def estimate(name: str, batch: int, prompt: int, generate: int, watch: Watch = lambda text: None) -> Estimate:
    """Estimate a model by the name or path of its configuration. ``watch`` is told what is being done.

    Raises ``EstimateError`` (``TooLarge`` when it does not fit) and ``MissingExtra``."""
    for what, value, least in (("batch", batch, 1), ("prompt", prompt, 1), ("generate", generate, 0)):
        if value < least:
            raise EstimateError(f"{what} must be at least {least}, got {value}")
        if value > MOST:
            raise EstimateError(f"{what} must be at most {MOST}, got {value}")
    config = load_config(name)
    positions = prompt + generate
    known = getattr(config, "max_position_embeddings", None)
    if known and positions > known:
        raise EstimateError(f"{name} knows {known} positions; prompt and generated tokens need {positions}")
    chip = arch.load(_chip_name())
    watch("building")
    model = build(config)
    parameters = sum(p.numel() for p in model.parameters())
    cache = weightless_cache(config, batch, positions, "meta")
    footprint = Footprint(weight_bytes(model), cache_bytes(cache), 0, limit_of(chip))
    footprint.check(name)
    plan = plan_of(kinds_of(model))
    counts: dict[str, Counts] = {}
    seconds: dict[str, float] = {}
    with timing_only():
        short = Loaded(shortened(config, plan.short), batch, positions)
        longer = Loaded(shortened(config, plan.short + plan.unit), batch, positions) if plan.units else None
        for step, first, length in (("prefill", 0, prompt), ("decode", prompt, 1))[: 2 if generate > 1 else 1]:
            watch(step)
            began = time.perf_counter()
            counts[step] = short.count(first, length)
            if longer is not None:
                counts[step] = counts[step].and_units(longer.count(first, length), plan.units)
            seconds[step] = time.perf_counter() - began
    footprint = replace(footprint, activations=max(c.peak_bytes for c in counts.values()))
    footprint.check(name)
    watch("timing")
    steps = {step: timed(counts[step], chip, seconds[step]) for step in counts}
    sizes = (config.num_hidden_layers, parameters, batch, prompt, generate)
    return Estimate(name, *sizes, footprint, steps["prefill"], steps.get("decode"))


def build(config: Any) -> Any:
    """A causal language model of a configuration, on the meta device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config, dtype=DTYPE).eval()
        except REFUSALS as error:
            raise EstimateError(f"cannot build a language model of type {config.model_type}: {reason(error)}") from None


def weightless_cache(config: Any, batch: int, positions: int, device: str) -> Any:
    """A static cache for ``positions`` positions, allocated on ``device``."""
    from transformers import StaticCache

    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache = StaticCache(config=config, max_cache_len=positions)
    cache.early_initialization(batch, heads, width, DTYPE, torch.device(device))
    if not all(hasattr(layer, "keys") and hasattr(layer, "values") for layer in cache.layers):
        raise EstimateError(f"models of type {config.model_type} keep a state of their own, not keys and values")
    return cache


@contextmanager
def timing_only() -> Iterator[None]:
    """Launches are counted but not executed inside the block."""
    from torch_loom import _device  # type: ignore[attr-defined]

    _device.set_timing_only(True)
    try:
        yield
    finally:
        spyre().synchronize()
        _device.set_timing_only(False)


class Loaded:
    """A model on the device (memory that holds nothing in particular), compiled, with a cache of its own."""

    def __init__(self, config: Any, batch: int, positions: int) -> None:
        self.batch = batch
        self._model = build(config).to_empty(device="spyre")
        self._cache = weightless_cache(config, batch, positions, "spyre")
        self._forward = torch.compile(self._model, dynamic=False)

    def count(self, first: int, length: int) -> Counts:
        """What a forward of ``length`` tokens from position ``first`` on launches once it is compiled."""
        from torch_loom.inductor import config

        # Buffers between kernels are counted in DDR: where LX keeps them depends on the layers around, so that
        # the launches of a layer would not add up to those of a model.
        with config.patch(residency=False):
            self._launch(first, length)
            held = restart()
            self._launch(first, length)
            return counted(held)

    def _launch(self, first: int, length: int) -> None:
        tokens = torch.zeros(self.batch, length, dtype=torch.int64).to("spyre")
        positions = torch.arange(first, first + length).repeat(self.batch, 1).to("spyre")
        call = {"input_ids": tokens, "position_ids": positions, "use_cache": True, "logits_to_keep": 1}
        # The argument's name differs between versions of Transformers.
        takes = inspect.signature(self._model.forward).parameters
        call["cache" if "cache" in takes else "past_key_values"] = self._cache
        with torch.no_grad():
            try:
                self._forward(**call)
            except InductorError as error:
                raise EstimateError(str(error).splitlines()[0]) from error


def timed(counts: Counts, chip: arch.Chip, seconds: float) -> Step:
    """The step that launches ``counts``; it took ``seconds`` to compile."""
    began = time.perf_counter()
    report = report_of(counts.timed(), chip)
    copies, size = counts.copies["copies"], counts.copies["bytes"]
    return Step(report, dict(counts.fallbacks), copies, size, seconds, time.perf_counter() - began)


def _chip_name() -> str:
    from torch_loom.inductor import runtime

    return runtime.chip_name()
