"""Inter-tile exchange: who contributes, who receives, and how contributions are combined.

A produce deposits values under (op, how often this tile reached it, group). A delivery waits until every producer it
depends on has deposited, then builds its result by the row of its kind. Local index is the position in ascending id
order inside a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import AffineSetAttr, TensorType

from torch_loom.dialects.errors import CodedVerifyError
from torch_loom.ktir import groups
from torch_loom.ktir.reference.errors import ExecutionError
from torch_loom.ktir.reference.formats import Array
from torch_loom.ktir.reference.machine import UNDEFINED, Run, Tile, Values, handles_region, tensor


@dataclass(frozen=True)
class Future:
    """The result of a produce on one tile: which op, which time."""

    op: Any
    instance: int


def _cached(tile: Tile, key: Any, make: Any) -> Any:
    cache = tile.machine.caches
    if key not in cache:
        cache[key] = _coded(make)
    return cache[key]


def _coded(make: Any) -> Any:
    """Run a question about groups; its errors stop the execution with the same code."""
    try:
        return make()
    except CodedVerifyError as error:
        raise ExecutionError(error.code, str(error)) from None


def members(tile: Tile, value: AffineSetAttr, symbols: tuple[int, ...]) -> list[int]:
    """Compute tiles of a set."""
    count = len(tile.machine.tiles)
    found: list[int] = _cached(tile, ("members", value, symbols), lambda: groups.members(value, symbols, count))
    return found


def producer_groups(tile: Tile, op: Any) -> dict[int, list[int]]:
    """Producers per group."""
    count = len(tile.machine.tiles)
    found: dict[int, list[int]] = _cached(tile, ("producers", op), lambda: groups.producer_groups(op, count))
    return found


@handles_region("ktdp.inter_tile_produce")
def produce(tile: Tile, op: Any, values: Values) -> Run:
    """Evaluate the region on producers and deposit what it yields."""
    instance = tile.instances.get(op, 0)
    tile.instances[op] = instance + 1
    for group, ids in producer_groups(tile, op).items():
        if tile.number in ids:
            yielded = yield from tile.block(op.body.block, [group])
            tile.machine.mail.setdefault((op, instance, group), {})[tile.number] = [
                np.array(tensor(v, "contributes")) for v in yielded
            ]
            tile.machine.deposits += 1
            _reach(tile, op, group, "producer", ids)
    return [Future(op, instance)]


def _reach(tile: Tile, op: Any, group: int, role: str, ids: list[int]) -> None:
    """Count how often this tile took part in an exchange (named by its produce) in a role."""
    tile.machine.roles.setdefault((op, group), {})[role] = ids
    key = (op, group, role)
    tile.reached[key] = tile.reached.get(key, 0) + 1


def _group_of(tile: Tile, op: Any, source: Any) -> int | None:
    found = [
        g for g in producer_groups(tile, source) if tile.number in members(tile, op.consumer_tiles_per_group, (g,))
    ]
    if len(found) > 1:
        raise ExecutionError("KT-V25", f"compute tile {tile.number} consumes from groups {found}")
    return found[0] if found else None


@handles_region(
    "ktdp.inter_tile_consume",
    "ktdp.inter_tile_reduce",
    "ktdp.inter_tile_reduce_scatter",
    "ktdp.inter_tile_gather",
    "ktdp.inter_tile_scatter",
    "ktdp.inter_tile_all_to_all",
)
def deliver(tile: Tile, op: Any, values: Values) -> Run:
    """Wait for the producers, then combine."""
    future, *identities = values
    group = _group_of(tile, op, future.op)
    if group is None:
        return [UNDEFINED] * len(op.results)
    consumers = members(tile, op.consumer_tiles_per_group, (group,))
    _reach(tile, future.op, group, "consumer", consumers)
    producers = producer_groups(tile, future.op)[group]
    count = len(tile.machine.tiles)
    needed = _cached(
        tile, ("sources", op, tile.number), lambda: groups.sources(op, tile.number, group, producers, count)
    )
    key = (future.op, future.instance, group)
    while True:
        mail = tile.machine.mail.get(key, {})
        missing = [n for n in needed if n not in mail]
        if not missing:
            break
        tile.current = op
        yield f"tiles {missing} to produce for group {group} the {_nth(future.instance)} time"
    parts = [mail[n] for n in needed]
    local = consumers.index(tile.number)
    kind = op.name.removeprefix("ktdp.inter_tile_")
    if kind in ("consume", "scatter") and len(parts) != 1:
        raise ExecutionError("KT-V25", f"{op.name} needs exactly one source per consumer, got tiles {needed}")
    if kind in ("reduce", "reduce_scatter"):
        folded = identities
        for part in parts:
            folded = tile.now(op.combiner[0].block, [*folded, *part])
        parts = [folded]
    return [
        _place(op, kind, [np.asarray(p[k]) for p in parts], result.type, local, len(consumers))
        for k, result in enumerate(op.results)
    ]


def _nth(instance: int) -> str:
    return {0: "first", 1: "second", 2: "third"}.get(instance, f"{instance + 1}th")


def _place(op: Any, kind: str, parts: list[Array], result: TensorType, local: int, consumers: int) -> Array:
    shape, partial = result.get_shape(), parts[0].shape
    _coded(lambda: groups.check_placement(op, partial, shape, len(parts), consumers))
    if kind in ("consume", "reduce"):
        return parts[0]
    if kind in ("scatter", "reduce_scatter"):
        axes = op.dimensions("scatter_dimensions")
        return _share(parts[0], axes, groups.divided(partial, shape, axes, consumers), local)
    if kind == "gather":
        axes = op.dimensions("gather_dimensions")
        return _joined(parts, axes, groups.multiplied(partial, shape, axes, len(parts)))
    split, concat = op.dimensions("split_dimensions"), op.dimensions("concat_dimensions")
    pieces = groups.split_counts(partial, shape, split, concat, consumers)
    shares = [_share(p, split, pieces, local) for p in parts]
    return _joined(shares, concat, groups.multiplied(shares[0].shape, shape, concat, len(parts)))


def _digits(number: int, counts: Sequence[int]) -> list[int]:
    """Mixed-radix digits, first axis slowest."""
    digits = []
    for count in reversed(counts):
        digits.append(number % count)
        number //= count
    return digits[::-1]


def _share(array: Array, axes: Sequence[int], counts: Sequence[int], local: int) -> Array:
    chosen: list[Any] = [slice(None)] * array.ndim
    for axis, count, digit in zip(axes, counts, _digits(local, counts), strict=True):
        size = array.shape[axis] // count
        chosen[axis] = slice(digit * size, (digit + 1) * size)
    return array[tuple(chosen)]


def _joined(parts: Sequence[Array], axes: Sequence[int], counts: Sequence[int]) -> Array:
    shape = list(parts[0].shape)
    sizes = [shape[a] for a in axes]
    for axis, count in zip(axes, counts, strict=True):
        shape[axis] *= count
    result = np.empty(shape, parts[0].dtype)
    for number, part in enumerate(parts):
        chosen: list[Any] = [slice(None)] * len(shape)
        for axis, size, digit in zip(axes, sizes, _digits(number, counts), strict=True):
            chosen[axis] = slice(digit * size, (digit + 1) * size)
        result[tuple(chosen)] = part
    return result
