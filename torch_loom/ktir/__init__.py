"""KTIR, the tile IR: load, check, print and run kernels written as text.

    program = load(path_or_text)          # -> Program; raises KtirError with diagnostics
    program.module                        # xDSL ModuleOp, canonical (one spelling in memory)
    program.functions                     # names of the functions, in order
    program.function(fn)                  # the func.func op of a name
    program.arguments(fn)                 # list of Argument(name, kind, type, shape, dtype, ...)
    program.text                          # the source text;  str(program): canonical text
    program.print(generic=False, locations=False)
    program.check()                       # list of Diagnostic (errors and warnings), never raises
    program.run(fn, engine="reference", **args) -> dict of arrays as they are afterwards
    program.location(op)                  # Position(file, line, col, ...) of an op in the text, or None

``load`` takes a path (``.ktir``, ``.mlir``, any existing file) or the text itself. Operation classes live in
``torch_loom.dialects``: ``ktdp``, ``spyreop``, ``upstream_arith`` (arith and math), ``upstream_linalg``,
``upstream_tensor``, ``upstream_scf`` (scf and affine). Affine sets and maps are in normal form (``affine_text``);
``torch_loom.dialects.affine_sets`` answers questions about them (bounds, extents, boxes, points).
"""

from __future__ import annotations

from torch_loom.ktir.diagnostics import Diagnostic, KtirError, Position
from torch_loom.ktir.program import Argument, Program, load

__all__ = ["Argument", "Diagnostic", "KtirError", "Position", "Program", "load"]
