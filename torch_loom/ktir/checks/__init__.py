"""Checks beyond single operations: what other tools let pass and then get wrong.

Each rule is a generator ``rule(context) -> findings`` over one function; rules live in modules by subject and are
listed in :data:`RULES`. A finding is an error (the program has no meaning), a warning (it has one, but hardly the
intended one) or a note.
"""

from __future__ import annotations

from torch_loom.ktir.checks.context import CheckOptions, Context
from torch_loom.ktir.checks.run import check, check_program

__all__ = ["CheckOptions", "Context", "check", "check_program"]
