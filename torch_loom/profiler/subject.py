"""A launch that can be timed again: the bytes of a program and the numbers it is called with.

The clock needs no data, so a subject serves a program from a file, a kernel that this process launched, and
the same kernel scheduled in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch_loom.arch import Chip
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import ArgKind, Program

if TYPE_CHECKING:
    from torch_loom.scheduler import Options

# Buffers as (address, bytes), or (address, bytes, share) between programs of a job; numbers.
Call = Sequence[tuple[int, ...] | int | float]
_BUFFER_BYTES = 1 << 33  # addresses only need to be apart


class ClockError(ValueError):
    """A program that cannot be timed: an argument is missing, unknown or refused by the program."""


def call_of(program: Program, sizes: Mapping[str, int | float]) -> Call:
    """Arguments of a launch for given sizes; every buffer gets a range of its own. Raises ``ClockError``."""
    call: list[tuple[int, ...] | int | float] = []
    for position, arg in enumerate(program.args):
        if arg.kind is ArgKind.BUFFER:
            call.append((position * _BUFFER_BYTES, _BUFFER_BYTES))
        elif arg.name not in sizes:
            raise ClockError(f"{program.name}: give argument {arg.name!r} a value")
        elif arg.kind is ArgKind.FLOAT:
            call.append(float(sizes[arg.name]))
        elif isinstance(sizes[arg.name], float):
            raise ClockError(f"{program.name}: argument {arg.name!r} is an integer, not {sizes[arg.name]}")
        elif not -(2**63) <= sizes[arg.name] < 2**63:
            raise ClockError(f"{program.name}: argument {arg.name!r} = {sizes[arg.name]} does not fit 64 bits")
        else:
            call.append(sizes[arg.name])
    numbers = [arg.name for arg in program.args if arg.kind is not ArgKind.BUFFER]
    unknown = sorted(sizes.keys() - set(numbers))
    if unknown:
        known = ", ".join(numbers) or "none"
        raise ClockError(f"{program.name} has no size {', '.join(unknown)}; its numbers are: {known}")
    return call


@dataclass(frozen=True)
class Subject:
    """What is timed: ``image`` called with ``call``, ``launches`` times. ``origin`` is the line that launched it.

    ``reschedule`` gives the image of the same KTIR under other options of the scheduler; None where the KTIR is
    not at hand."""

    name: str
    image: bytes
    call: Call
    launches: int = 1
    origin: str = ""
    reschedule: Callable[[Options], bytes] | None = field(default=None, compare=False)

    @staticmethod
    def of(
        program: Program, sizes: Mapping[str, int | float], reschedule: Callable[[Options], bytes] | None = None
    ) -> Subject:
        """One launch of a program for given sizes. Raises ``ClockError``."""
        return Subject(program.name, encode(program), call_of(program, sizes), reschedule=reschedule)

    @cached_property
    def handle(self) -> Any:
        """The program as the clock reads it."""
        return native_chip().decode(self.image)

    @property
    def buffer_bytes(self) -> int:
        """Sum of the sizes of the buffers of the call; 0 when they are not known."""
        sizes = [value[1] for value in self.call if isinstance(value, tuple)]
        return 0 if _BUFFER_BYTES in sizes else sum(sizes)

    @cached_property
    def program(self) -> Program:
        """The program as data."""
        from torch_loom.spyrecode import decode

        return decode(self.image)

    def time(self, chip: Chip, **changed: float) -> Any:
        """Timing of one launch; ``changed`` replaces clock parameters by their dotted names."""
        return self._ask(native_chip().time, chip.clock_params() | changed)

    def trace(self, chip: Chip, max_spans: int) -> dict[str, Any]:
        """Spans and credits of one launch, see ``torch_loom.profiler.trace``."""
        found: dict[str, Any] = self._ask(native_chip().trace, chip.clock_params(), max_spans)
        return found

    def _ask(self, function: Callable[..., Any], *more: Any) -> Any:
        try:
            return function(self.handle, list(self.call), *more)
        except RuntimeError as error:
            raise ClockError(f"{self.name}: {error}") from None


def native_chip() -> Any:
    """The native clock, loaded when first asked."""
    from torch_loom.scheduler.compiled import native_chip as load

    return load()
