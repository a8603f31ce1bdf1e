"""The dialect ``ktdp``: data movement between DDR, LX and compute tiles. See docs/dialects.md for every op."""

from __future__ import annotations

from xdsl.ir import Dialect

from torch_loom.dialects.ktdp_indirect import (
    ConstructIndirectAccessTileOp,
    RegionTerminatorOp,
    RuntimeArgExtractOp,
    Subscript,
)
from torch_loom.dialects.ktdp_inter_tile import (
    DELIVERIES,
    DeliveryOp,
    InterTileAllToAllOp,
    InterTileConsumeOp,
    InterTileGatherOp,
    InterTileProduceOp,
    InterTileReduceOp,
    InterTileReduceScatterOp,
    InterTileScatterOp,
    YieldPartialOp,
    YieldReducedOp,
)
from torch_loom.dialects.ktdp_tiles import ConstructAccessTileOp, LoadOp, StoreOp
from torch_loom.dialects.ktdp_types import (
    GLOBAL,
    LOCAL,
    AccessTileType,
    LegacyMemorySpaceAttr,
    MemorySpaceAttr,
    RuntimeArgType,
    TileFutureType,
)
from torch_loom.dialects.ktdp_views import (
    ConstructDistributedMemoryViewOp,
    ConstructMemoryViewOp,
    CoreIdOp,
    GetComputeTileIdOp,
)

Ktdp = Dialect(
    "ktdp",
    [
        GetComputeTileIdOp,
        CoreIdOp,
        ConstructMemoryViewOp,
        ConstructDistributedMemoryViewOp,
        ConstructAccessTileOp,
        ConstructIndirectAccessTileOp,
        LoadOp,
        StoreOp,
        RuntimeArgExtractOp,
        RegionTerminatorOp,
        InterTileProduceOp,
        YieldPartialOp,
        YieldReducedOp,
        *DELIVERIES,
    ],
    [AccessTileType, RuntimeArgType, TileFutureType, MemorySpaceAttr, LegacyMemorySpaceAttr],
)

__all__ = [
    "DELIVERIES",
    "GLOBAL",
    "LOCAL",
    "AccessTileType",
    "ConstructAccessTileOp",
    "ConstructDistributedMemoryViewOp",
    "ConstructIndirectAccessTileOp",
    "ConstructMemoryViewOp",
    "CoreIdOp",
    "DeliveryOp",
    "GetComputeTileIdOp",
    "InterTileAllToAllOp",
    "InterTileConsumeOp",
    "InterTileGatherOp",
    "InterTileProduceOp",
    "InterTileReduceOp",
    "InterTileReduceScatterOp",
    "InterTileScatterOp",
    "Ktdp",
    "LegacyMemorySpaceAttr",
    "LoadOp",
    "MemorySpaceAttr",
    "RegionTerminatorOp",
    "RuntimeArgExtractOp",
    "RuntimeArgType",
    "StoreOp",
    "Subscript",
    "TileFutureType",
    "YieldPartialOp",
    "YieldReducedOp",
]
