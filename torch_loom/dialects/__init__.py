"""The dialects of torch-loom on xDSL, and the context in which KTIR text is read.

``ktdp`` and ``spyreop`` are ours; ``arith``, ``math``, ``linalg``, ``tensor``, ``scf``, ``affine`` are upstream's,
completed in the ``upstream_*`` modules where xDSL lacks an op, a form or a check. Completed classes refine xDSL's
class of the same op where there is one, so ``isinstance`` against either works.
"""

from __future__ import annotations

from functools import cache

from xdsl.context import Context


@cache
def _base_context() -> Context:
    from xdsl.dialects import builtin, func, memref

    from torch_loom.dialects.ktdf_arch import KtdfArch
    from torch_loom.dialects.ktdp import Ktdp
    from torch_loom.dialects.spyreop import Spyreop
    from torch_loom.dialects.upstream_affine import Affine
    from torch_loom.dialects.upstream_arith import Arith
    from torch_loom.dialects.upstream_linalg import Linalg
    from torch_loom.dialects.upstream_math import Math
    from torch_loom.dialects.upstream_scf import Scf
    from torch_loom.dialects.upstream_tensor import Tensor

    context = Context(allow_unregistered=True)
    ours = (Ktdp, KtdfArch, Spyreop, Arith, Math, Linalg, Tensor, Scf, Affine)
    for dialect in (builtin.Builtin, func.Func, memref.MemRef, *ours):
        context.load_dialect(dialect)
    return context


def context() -> Context:
    """A fresh context with every dialect of KTIR; unknown names are kept, not refused."""
    return _base_context().clone()
