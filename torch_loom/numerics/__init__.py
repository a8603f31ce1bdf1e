"""Number formats of the chip: df16, fp8 and int4, each vectorised and as a scalar reference."""

from torch_loom.numerics import df16, fp8, int4

__all__ = ["df16", "fp8", "int4"]
