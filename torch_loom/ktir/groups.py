"""Who takes part in an exchange: pure questions about groups, producers, consumers and shares.

Used by the verifier before running and by the interpreter while running; both give the same codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import AffineSetAttr

from torch_loom.dialects.affine_sets import UnboundedSet, bound, evaluate, substitute
from torch_loom.dialects.errors import CodedVerifyError
from torch_loom.dialects.ktdp import DeliveryOp, InterTileProduceOp, TileFutureType

#: More groups than any grid can serve; a larger set is a mistake.
MAX_GROUPS = 1 << 12


def fail(code: str, message: str) -> CodedVerifyError:
    """The error to raise."""
    return CodedVerifyError(code, message)


def group_numbers(future: TileFutureType) -> list[int]:
    """Valid groups of a future, ascending."""
    try:
        points = bound(future.groups.data)
    except UnboundedSet as error:
        raise fail("KT-V02", f"groups: {error}") from None
    if points.bounds.size > MAX_GROUPS:
        raise fail("KT-V02", f"{points.bounds.size} groups are more than {MAX_GROUPS}")
    return [int(p[0]) for p in points.points()]


def members(value: AffineSetAttr, symbols: Sequence[int], tiles: int) -> list[int]:
    """Compute tiles of a set, ascending; ids outside the grid do not exist."""
    ids = np.arange(tiles, dtype=np.int64)
    mask = np.ones(tiles, bool)
    for item in value.data.constraints:
        result = np.broadcast_to(np.asarray(evaluate(substitute(item.lhs, [None], symbols), [ids])), (tiles,))
        mask &= result == 0 if item.kind.value == "==" else result >= 0
    return [int(i) for i in ids[mask]]


def producer_groups(op: InterTileProduceOp, tiles: int) -> dict[int, list[int]]:
    """Producers per group; a tile in two groups is KT-V20."""
    assert isinstance(op.future.type, TileFutureType)
    groups = {g: members(op.producer_tiles_per_group, (g,), tiles) for g in group_numbers(op.future.type)}
    seen: dict[int, int] = {}
    for group, ids in groups.items():
        for number in ids:
            if number in seen:
                raise fail("KT-V20", f"compute tile {number} produces for groups {seen[number]} and {group}")
            seen[number] = group
    return groups


def sources(op: DeliveryOp, consumer: int, group: int, producers: Sequence[int], tiles: int) -> list[int]:
    """Producers that a consumer depends on; naming a tile that is none is KT-V22."""
    dependency = op.producer_dependency_per_consumer
    if dependency is None:
        return list(producers)
    symbols = (consumer,) if dependency.data.num_symbols == 1 else (consumer, group)
    named = members(dependency, symbols, tiles)
    foreign = [n for n in named if n not in producers]
    if foreign:
        raise fail(
            "KT-V22", f"consumer {consumer} names compute tile {foreign[0]}, which is no producer of group {group}"
        )
    return named


# ---- shapes ------------------------------------------------------------------------------------


def divided(partial: Sequence[int], shape: Sequence[int], axes: Sequence[int], shares: int) -> list[int]:
    """Per-axis counts of a split into ``shares``."""
    if len(partial) != len(shape):
        raise fail("KT-V26", f"the partial has rank {len(partial)}, the result {len(shape)}")
    counts = []
    for axis, (whole, part) in enumerate(zip(partial, shape, strict=True)):
        if axis in axes:
            if part <= 0 or whole % part:
                raise fail("KT-V26", f"dim {axis}: {part} does not divide {whole}")
            counts.append(whole // part)
        elif whole != part:
            raise fail("KT-V26", f"dim {axis} is not listed but goes from {whole} to {part}")
    if len(counts) != len(axes) or prod(counts) != shares:
        raise fail("KT-V26", f"{prod(counts)} shares for {shares} consumers")
    return counts


def multiplied(partial: Sequence[int], shape: Sequence[int], axes: Sequence[int], producers: int) -> list[int]:
    """Per-axis counts of a concatenation of ``producers``."""
    if len(partial) != len(shape):
        raise fail("KT-V27", f"the partial has rank {len(partial)}, the result {len(shape)}")
    counts = []
    for axis, (part, whole) in enumerate(zip(partial, shape, strict=True)):
        if axis in axes:
            if part <= 0 or whole % part:
                raise fail("KT-V27", f"dim {axis}: {whole} is no multiple of {part}")
            counts.append(whole // part)
        elif whole != part:
            raise fail("KT-V27", f"dim {axis} is not listed but goes from {part} to {whole}")
    if len(counts) != len(axes) or prod(counts) != producers:
        raise fail("KT-V27", f"{prod(counts)} places for {producers} producers")
    return counts


def split_counts(
    partial: Sequence[int], shape: Sequence[int], split: Sequence[int], concat: Sequence[int], shares: int
) -> list[int]:
    """Per-axis counts of the split of an all_to_all; an axis in both lists takes what is left of the product."""
    counts: list[int | None] = []
    for axis in split:
        if axis >= len(shape):
            raise fail("KT-V26", f"dim {axis} of a partial of rank {len(partial)}")
        if axis in concat:
            counts.append(None)
        elif shape[axis] <= 0 or partial[axis] % shape[axis]:
            raise fail("KT-V26", f"dim {axis}: {shape[axis]} does not divide {partial[axis]}")
        else:
            counts.append(partial[axis] // shape[axis])
    known = prod(c for c in counts if c is not None)
    if counts.count(None) > 1 or known == 0 or shares % known:
        raise fail("KT-V26", f"the split of {list(partial)} into {shares} shares is not determined")
    found = [shares // known if c is None else c for c in counts]
    if prod(found) != shares:
        raise fail("KT-V26", f"{prod(found)} shares for {shares} consumers")
    for axis, count in zip(split, found, strict=True):
        if partial[axis] % count:
            raise fail("KT-V26", f"dim {axis} of extent {partial[axis]} cannot be split in {count}")
    return found


def check_placement(
    op: DeliveryOp, partial: Sequence[int], shape: Sequence[int], producers: int, consumers: int
) -> None:
    """The result shape follows from the partial shape by the rule of the delivery."""
    kind = op.name.removeprefix("ktdp.inter_tile_")
    if kind in ("consume", "reduce"):
        if tuple(partial) != tuple(shape):
            raise fail("KT-V26", f"{op.name} delivers shape {list(partial)}, the result is {list(shape)}")
    elif kind in ("scatter", "reduce_scatter"):
        divided(partial, shape, op.dimensions("scatter_dimensions"), consumers)
    elif kind == "gather":
        multiplied(partial, shape, op.dimensions("gather_dimensions"), producers)
    else:
        split, concat = op.dimensions("split_dimensions"), op.dimensions("concat_dimensions")
        middle = list(partial)
        for axis, count in zip(split, split_counts(partial, shape, split, concat, consumers), strict=True):
            middle[axis] //= count
        multiplied(middle, shape, concat, producers)
