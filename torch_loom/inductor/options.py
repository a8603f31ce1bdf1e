"""What the caller of a compilation decides: the eager target compiles under other rules than torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from . import config


@dataclass(frozen=True)
class GraphOptions:
    """Rules of the graph being compiled."""

    public_outputs: bool = False
    """Results take the default layout of their rank, so that the next operator reads them as they lie."""
    integers: frozenset[str] = frozenset()
    """Names of integer symbols that are numbers (they may be negative), not sizes."""
    lines: list[list[int]] = field(default_factory=list, compare=False)
    """Filled while compiling: per kernel call, ``meta["line"]`` of the graph's nodes that it computes."""


_DEFAULT = GraphOptions()
_current: ContextVar[GraphOptions] = ContextVar("graph_options", default=_DEFAULT)


def current() -> GraphOptions:
    """Options in force."""
    return _current.get()


def lx_between_kernels() -> bool:
    """May buffers of the graph stay in LX from one kernel to the next? Results that the next operator reads may not."""
    return config.residency and not current().public_outputs


@contextmanager
def using(options: GraphOptions) -> Iterator[None]:
    """Compile under ``options``."""
    token = _current.set(options)
    try:
        yield
    finally:
        _current.reset(token)
