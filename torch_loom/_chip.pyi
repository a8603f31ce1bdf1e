# The native module is documented where it is bound (csrc); type checkers take its names as given.
from typing import Any

def __getattr__(name: str) -> Any: ...
