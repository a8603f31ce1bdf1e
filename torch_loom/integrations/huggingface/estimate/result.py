"""What an estimate says: a report for the prompt, one for a generated token, and the memory that the model needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_loom.integrations.huggingface.estimate.footprint import Footprint
from torch_loom.profiler import Report


@dataclass(frozen=True)
class Step:
    """One forward of the whole model: the report of its launches, what ran on the host instead (calls by operation),
    and copies inside the device that the clock does not see (count, bytes). ``compile_s`` and ``timing_s`` are the
    seconds of this machine that it took to compile the step, or load it from caches, and to time it with advice."""

    report: Report
    fallbacks: dict[str, int]
    copies: int
    copied_bytes: int
    compile_s: float
    timing_s: float

    @property
    def ns(self) -> float:
        """Modelled time of the launches."""
        return self.report.ns

    @property
    def macs(self) -> int:
        """Multiply-accumulates of PT."""
        return sum(entry.figures.macs * entry.launches for entry in self.report.entries)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON."""
        return {
            **self.report.as_dict(),
            "macs": self.macs,
            "fallbacks": self.fallbacks,
            "copies": self.copies,
            "copied_bytes": self.copied_bytes,
            "compile_s": self.compile_s,
            "timing_s": self.timing_s,
        }


@dataclass(frozen=True)
class Estimate:
    """A model on the chip: ``batch`` sequences of ``prompt`` tokens, ``generate`` tokens each."""

    model: str
    layers: int
    parameters: int
    batch: int
    prompt: int
    generate: int
    footprint: Footprint
    prefill: Step
    decode: Step | None

    @property
    def complete(self) -> bool:
        """True when the clock saw everything: nothing ran on the host, nothing was copied."""
        steps = [step for step in (self.prefill, self.decode) if step is not None]
        return not any(step.fallbacks or step.copies for step in steps)

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated per second by all sequences together; 0 when none is generated."""
        return self.batch * 1e9 / self.decode.ns if self.decode else 0.0

    @property
    def total_ns(self) -> float:
        """The prompt, which gives the first token, and one step for each further token."""
        return self.prefill.ns + (self.decode.ns * (self.generate - 1) if self.decode else 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON."""
        return {
            "model": self.model,
            "layers": self.layers,
            "parameters": self.parameters,
            "batch": self.batch,
            "prompt": self.prompt,
            "generate": self.generate,
            "complete": self.complete,
            "prefill_ns": self.prefill.ns,
            "token_ns": self.decode.ns if self.decode else None,
            "tokens_per_s": self.tokens_per_s,
            "total_ns": self.total_ns,
            "footprint": {
                "weights": self.footprint.weights,
                "cache": self.footprint.cache,
                "activations": self.footprint.activations,
                "total": self.footprint.total,
                "limit": self.footprint.limit,
            },
            "prefill": self.prefill.as_dict(),
            "decode": self.decode.as_dict() if self.decode else None,
        }
