"""What segments write: sinks, and the signal that a value must become one."""

from __future__ import annotations

from dataclasses import dataclass

from torch_loom.scheduler.kernel import Assign, Kind, Store, Value


@dataclass(eq=False)
class Sink:
    """A value written to LX by a segment: a root, or what a store or assignment writes (``target``).

    ``source`` is evaluated over ``source.vars``; for a reduction it is the operand."""

    value: Value
    scope: int
    run: int
    target: Store | Assign | None = None
    level: int = 0

    @property
    def store(self) -> Store | None:
        """The store it serves, if any."""
        return self.target if isinstance(self.target, Store) else None

    @property
    def source(self) -> Value:
        """What is computed per point of the iteration space."""
        return self.value.operands[0] if self.reduces else self.value

    @property
    def reduces(self) -> bool:
        """True if the points are folded."""
        return self.target is None and self.value.kind is Kind.REDUCE


class MoreRoots(Exception):
    """Planning found values that must lie in LX after all; grouping starts again with them forced."""

    def __init__(self, values: set[Value]) -> None:
        super().__init__(f"{len(values)} more roots")
        self.values = values
