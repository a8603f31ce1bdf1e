"""What stops an execution, with the compute tile and the operands where it happened."""

from __future__ import annotations

from xdsl.ir import Operation


class ExecutionError(Exception):
    """A run-time error. The machine adds the op and the compute tile on the way out."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.op: Operation | None = None
        self.tile: int | None = None
        self.operands: str = ""
