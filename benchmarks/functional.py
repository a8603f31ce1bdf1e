"""Functional speed on spyre against the CPU: a sentence encoder and a small decoder.

all-MiniLM-L6-v2 on 32 sentences of 128 tokens, and a Llama of 4 layers and hidden size 512 with grouped heads and
random weights on 4 x 256 tokens. Prints wall seconds, best of the repeats, of one forward from tokens on the device
to results on the device: the simulated chip under torch.compile, torch CPU eager in fp32 and in fp16. All candidates
of a model run in this process, one repeat of each in turn, so that all see the same machine. Targets: spyre at most
2 x CPU fp32.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Before torch is imported: idle OpenMP threads must not take the cores from the next candidate.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console
from rich.table import Table

from torch_loom.integrations.huggingface import cosines, load_minilm

THREADS, REPEATS = 2, 3


@dataclass
class Candidate:
    """A way to run a model: ``run`` returns its result; ``wait`` ends its work."""

    name: str
    run: Callable[[], torch.Tensor]
    wait: Callable[[], None]
    seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """One timed run."""
        started = time.perf_counter()
        self.run()
        self.wait()
        self.seconds.append(time.perf_counter() - started)


@dataclass(frozen=True)
class Case:
    """A model in fp32 on the CPU and its inputs; its result is a tensor whose rows are compared by angle."""

    title: str
    model: torch.nn.Module
    inputs: list[torch.Tensor]


class Logits(torch.nn.Module):
    """Token ids [batch, tokens] -> logits [batch * tokens, vocabulary] of a causal model, without a cache."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits.flatten(0, 1)


def minilm() -> Case:
    """The sentence encoder with its real weights; every second sentence is padded."""
    batch, tokens = 32, 128
    mask = torch.ones(batch, tokens, dtype=torch.int64)
    mask[1::2, tokens * 3 // 4 :] = 0
    return Case(
        f"MiniLM, {batch} x {tokens} tokens", load_minilm().encoder, [torch.randint(1000, 30000, (batch, tokens)), mask]
    )


def llama() -> Case:
    """A Llama of 4 layers, hidden size 512, 8 heads over 4 key heads, random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    batch, tokens, vocabulary = 4, 256, 2048
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    model = Logits(LlamaForCausalLM(config).eval())
    return Case(f"Llama, 4 x 512, {batch} x {tokens} tokens", model, [torch.randint(3, vocabulary, (batch, tokens))])


CASES = {"minilm": minilm, "llama": llama}


def candidate(name: str, model: torch.nn.Module, inputs: list[torch.Tensor], device: str, compiled: bool) -> Candidate:
    """The model on a device; its first run, with all compilation, is made here."""
    model = model.to(device)
    run = torch.compile(model) if compiled else model
    moved = [t.to(device) for t in inputs]
    wait = torch.accelerator.synchronize if device == "spyre" else (lambda: None)
    started = time.perf_counter()
    made = Candidate(name, lambda: run(*moved), wait)
    made.run()
    wait()
    print(f"{name}: first run {time.perf_counter() - started:.2f} s", file=sys.stderr)
    return made


def compare(case: Case, repeats: int, cpu_only: bool) -> Table:
    """Measure all candidates of a case."""
    half = copy.deepcopy(case.model).half()
    found = [
        candidate("CPU fp32 eager", case.model, case.inputs, "cpu", False),
        candidate("CPU fp16 eager", half, case.inputs, "cpu", False),
    ]
    if not cpu_only:
        found.append(candidate("spyre, torch.compile", copy.deepcopy(half), case.inputs, "spyre", True))
    for _ in range(repeats):
        for one in found:
            one.measure()
    reference = found[0].run()
    table = Table(title=f"{case.title}, {THREADS} threads, best of {repeats}")
    for column in ("", "best s", "median s", "x CPU fp32", "x CPU fp16", "cosine min"):
        table.add_column(column, justify="right" if column else "left")
    best = {one.name: min(one.seconds) for one in found}
    for one in found:
        cosine = float(cosines(one.run().cpu().float(), reference).min())
        table.add_row(
            one.name,
            f"{best[one.name]:.3f}",
            f"{statistics.median(one.seconds):.3f}",
            f"{best[one.name] / best['CPU fp32 eager']:.2f}",
            f"{best[one.name] / best['CPU fp16 eager']:.2f}",
            f"{cosine:.6f}",
        )
    return table


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-only", action="store_true", help="leave the simulated chip out")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="models to run; all without one")
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    torch.set_num_threads(THREADS)
    with torch.no_grad():
        for name in options.cases or CASES:
            torch.manual_seed(0)
            Console().print(compare(CASES[name](), options.repeats, options.cpu_only))


if __name__ == "__main__":
    main()
