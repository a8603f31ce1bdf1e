"""The one error of the scheduler: what cannot be scheduled, where, and the way out."""

from __future__ import annotations


class ScheduleError(Exception):
    """A kernel that cannot be scheduled.

    ``where`` is the KTIR location (``file:line:col`` or the function) and ``op`` the operation."""

    def __init__(self, message: str, *, op: str = "", where: str = "", hint: str = "") -> None:
        self.message, self.op, self.where, self.hint = message, op, where, hint
        head = ": ".join(p for p in (where, op) if p)
        super().__init__(f"{head}: {message}{f' ({hint})' if hint else ''}" if head else message)
