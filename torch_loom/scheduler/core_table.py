"""Numbers that differ from core to core, as expressions of the core number.

Which cores take part in an exchange, and with whom, is known when a kernel is scheduled, but all cores run one
program. A list of one number per core becomes an affine form of the core number, of its digits to some base
(shifted round), or a sum of steps; the first that fits all cores is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import Expr

_STEPS = 16  # an expression has at most 256 tokens


@lru_cache(maxsize=4096)
def table(values: tuple[int | None, ...]) -> Expr:
    """An expression that is ``values[c]`` on core c; None: any number will do there."""
    known = [(c, v) for c, v in enumerate(values) if v is not None]
    core = ex.core_number(len(values))
    if len({v for _, v in known}) <= 1:
        return Expr(known[0][1] if known else 0)
    cores = np.array([c for c, _ in known])
    wanted = np.array([v for _, v in known])
    for base, shift, whole in _forms(len(values)):
        columns = np.stack([np.ones_like(cores), (cores + shift) % base, (cores + whole) // base], axis=1)
        found = np.rint(np.linalg.lstsq(columns.astype(float), wanted.astype(float), rcond=None)[0]).astype(int)
        if (columns @ found == wanted).all():
            a, b, c = (int(v) for v in found)
            e = Expr(a)
            if b:
                e = e + ex.mod(core + shift, base) * b
            return e + ex.floordiv(core + whole, base) * c if c else e
    return _steps(known, core)


def _forms(cores: int) -> Iterator[tuple[int, int, int]]:
    """(base, shift of the digit, shift of the rest), simple ones first."""
    yield 1, 0, 0
    for base in range(2, cores + 1):
        if cores % base == 0:
            for shift in range(base):
                yield base, shift, 0
                if shift:
                    yield base, shift, shift


def _steps(known: list[tuple[int, int]], core: Expr) -> Expr:
    e = Expr(known[0][1])
    count = 0
    for (_, before), (c, v) in zip(known, known[1:], strict=False):
        if v != before:
            count += 1
            e = e + ex.less(Expr(c - 1), core) * (v - before)
    if count > _STEPS:
        raise ScheduleError(
            f"an exchange pairs cores in {count} irregular steps, at most {_STEPS} can be expressed",
            hint="use sets that are affine in the compute tile id",
        )
    return e


def partner(values: Sequence[int | None]) -> Expr:
    """The other core per core, -1 where there is none."""
    taking_part = [v is not None for v in values]
    if all(taking_part):
        return table(tuple(values))
    if not any(taking_part):
        return Expr(-1)
    return table(tuple(int(t) for t in taking_part)) * (table(tuple(values)) + 1) - 1
