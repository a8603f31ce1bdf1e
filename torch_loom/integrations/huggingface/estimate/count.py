"""What a forward launches, as counts that can be added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_loom.integrations.huggingface.estimate.configs import EstimateError
from torch_loom.profiler import Subject, launched, reset


@dataclass(frozen=True)
class Counts:
    """Launches by program and numbers, calls of host operations, copies inside the device and their bytes, and the
    most bytes of intermediates alive at one time."""

    launches: Counter[Hashable]
    subjects: dict[Hashable, Subject]
    fallbacks: Counter[str]
    copies: Counter[str]
    peak_bytes: int

    def and_units(self, longer: Counts, units: int) -> Counts:
        """These, and ``units`` times what ``longer`` has beyond them."""
        return Counts(
            _more(self.launches, longer.launches, units),
            {**longer.subjects, **self.subjects},
            _more(self.fallbacks, longer.fallbacks, units),
            _more(self.copies, longer.copies, units),
            max(self.peak_bytes, longer.peak_bytes),
        )

    def timed(self) -> list[Subject]:
        """One subject per program and numbers, with its number of launches; where it was launched says nothing here."""
        return [replace(self.subjects[key], launches=count, origin="") for key, count in self.launches.items()]


def _more(short: Counter[Any], longer: Counter[Any], units: int) -> Counter[Any]:
    out = Counter({key: short[key] + units * (longer[key] - short[key]) for key in short.keys() | longer.keys()})
    if any(count < 0 for count in out.values()):
        raise EstimateError("a longer model launches fewer of some kernel: its layers do not repeat")
    return +out


def restart() -> int:
    """Count from here; returns the bytes that are allocated."""
    device = spyre()
    device.synchronize()
    device.reset_fallbacks()
    device.memory.reset_peak_memory_stats()
    reset()
    held: int = device.memory.memory_allocated()
    return held


def counted(held: int) -> Counts:
    """What happened since ``restart`` returned ``held``."""
    from torch_loom import _device  # type: ignore[attr-defined]

    device = spyre()
    device.synchronize()
    launches: Counter[Hashable] = Counter()
    subjects: dict[Hashable, Subject] = {}
    for subject in launched():
        key = (subject.image, tuple(value for value in subject.call if not isinstance(value, tuple)))
        launches[key] += subject.launches
        subjects.setdefault(key, subject)
    copies, size = _device.copy_counts()
    peak = device.memory.max_memory_allocated() - held
    moved = Counter({"copies": copies, "bytes": size})
    return Counts(launches, subjects, Counter(device.fallbacks()), moved, peak)


def spyre() -> Any:
    """The device module of torch."""
    return torch.get_device_module("spyre")
