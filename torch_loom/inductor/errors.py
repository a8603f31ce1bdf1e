"""Errors of the Inductor room, worded for the person who called torch.compile."""

from __future__ import annotations


class Unsupported(RuntimeError):
    """Something that this backend cannot compile; the message names the op, the sizes and the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(f"Spyre backend does not support: {message}")
