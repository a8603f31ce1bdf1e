"""Chip descriptions: what a chip has, how fast it is, and where each number comes from."""

from torch_loom.arch.chip import ArchError, Basis, Chip, Param, load, presets
from torch_loom.arch.draw import describe, draw

__all__ = ["ArchError", "Basis", "Chip", "Param", "describe", "draw", "load", "presets"]
