"""The dialect ``linalg`` as KTIR uses it. See the three modules it is made of."""

from __future__ import annotations

from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.ir import Dialect

from torch_loom.dialects.upstream_linalg_base import IndexOp, StructuredOp, YieldOp
from torch_loom.dialects.upstream_linalg_layout import BroadcastOp, TransposeOp
from torch_loom.dialects.upstream_linalg_named import (
    CONTRACTION_OPS,
    CONTRACTIONS,
    ELEMENTWISE,
    ELEMENTWISE_OPS,
    AddOp,
    BatchMatmulOp,
    ContractionOp,
    CopyOp,
    DivOp,
    ElementwiseOp,
    FillOp,
    MatmulOp,
    MaxOp,
    MinOp,
    MulOp,
    NamedOp,
    SelectOp,
    SubOp,
)
from torch_loom.dialects.upstream_linalg_regions import GenericOp, MapOp, ReduceOp, short_form

Linalg = Dialect(
    "linalg",
    [
        *ELEMENTWISE_OPS.values(),
        *CONTRACTION_OPS.values(),
        *(GenericOp, ReduceOp, MapOp, TransposeOp, BroadcastOp, YieldOp, IndexOp),
    ],
    [IteratorTypeAttr],
)

__all__ = [
    "CONTRACTIONS",
    "CONTRACTION_OPS",
    "ELEMENTWISE",
    "ELEMENTWISE_OPS",
    "AddOp",
    "BatchMatmulOp",
    "BroadcastOp",
    "ContractionOp",
    "CopyOp",
    "DivOp",
    "ElementwiseOp",
    "FillOp",
    "GenericOp",
    "IndexOp",
    "IteratorType",
    "IteratorTypeAttr",
    "Linalg",
    "MapOp",
    "MatmulOp",
    "MaxOp",
    "MinOp",
    "MulOp",
    "NamedOp",
    "ReduceOp",
    "SelectOp",
    "StructuredOp",
    "SubOp",
    "TransposeOp",
    "YieldOp",
    "short_form",
]
