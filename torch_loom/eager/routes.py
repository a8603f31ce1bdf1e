"""Which way each operator of aten goes on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import _device
from . import compiler

ROUTES = {
    "native": "a kernel of the device itself",
    "decomposed": "PyTorch expresses it by other operators",
    "compiled": "an op program, compiled at first use and kept; the CPU where the compiler refuses",
    "host": "always the CPU: its result depends on data or on random numbers, or has no functional form",
}


@dataclass(frozen=True)
class Route:
    """An operator overload: its route, and what this process has seen of it."""

    name: str
    route: str
    programs: int = 0
    refused: str = ""


def routes() -> list[Route]:
    """All overloads of aten that a call on the device can reach, by name."""
    recorder = {f"{n}." if "." not in n else n for n in _device.eager_operators()}
    seen = {f"{n}.{o}": programs for n, o, programs, _ in _device.eager_tables()}
    out = []
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::"):
            continue
        name, _, overload = full.partition(".")
        key = f"{name}.{overload}"
        has = {k: torch._C._dispatch_has_kernel_for_dispatch_key(full, k) for k in _KEYS}
        if has["PrivateUse1"] and key not in recorder:
            route = "native"
        elif key not in recorder and any(has[k] for k in _KEYS if k.startswith("Composite")):
            route = "decomposed"
        elif not any(has.values()) and not torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):
            continue  # exists for other devices or other kinds of tensors only
        else:
            route = "compiled" if _device.eager_compiles(name, overload) else "host"
        label = full.removesuffix(".")
        out.append(Route(label, route, seen.get(key, 0), compiler.refusals.get(label, "")))
    return sorted(out, key=lambda r: r.name)


_KEYS = (
    "PrivateUse1",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
