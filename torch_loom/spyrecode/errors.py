"""The one error of this room: a code of the table in docs/spyrecode.md and a message naming the place."""

from __future__ import annotations

UNSUPPORTED = "SC-E15"  # version, feature or device profile
DAMAGED = "SC-E16"  # checksum or file hash
MALFORMED = "SC-E17"  # section, instruction, expression, overflow


class SpyreCodeError(ValueError):
    """A binary, plan, text or launch that breaks a rule. ``code`` is SC-Exx."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def malformed(message: str) -> SpyreCodeError:
    """The error for content that breaks the format's rules."""
    return SpyreCodeError(MALFORMED, message)
