"""The reference interpreter: KTIR executed op by op with NumPy, slow and plain, to compare everything else with."""

from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.run import run

__all__ = ["ExecutionError", "run"]
