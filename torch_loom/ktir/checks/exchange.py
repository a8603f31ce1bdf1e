"""Rules about inter-tile exchange: futures, groups, producers and consumers, shapes, combiners."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import TensorType
from xdsl.traits import MemoryEffect, Pure

from torch_loom.dialects.errors import CodedVerifyError
from torch_loom.dialects.ktdp import (
    ConstructAccessTileOp,
    ConstructIndirectAccessTileOp,
    DeliveryOp,
    InterTileProduceOp,
    LoadOp,
    TileFutureType,
    YieldPartialOp,
)
from torch_loom.ktir import groups
from torch_loom.ktir.checks.context import Context, Finding, error, warning

_JOINS = ("gather", "all_to_all")
_SINGLE = ("consume", "scatter")


def _kind(op: DeliveryOp) -> str:
    return op.name.removeprefix("ktdp.inter_tile_")


def futures(context: Context) -> Iterator[Finding]:
    """KT-V21: exactly one use, in the block of the produce. KT-L04: what the region may hold."""
    for op in context.of_type(InterTileProduceOp):
        uses = [use.operation for use in op.future.uses]
        if len(uses) != 1:
            yield error("KT-V21", op, f"the future is used {len(uses)} times, it must be used exactly once")
        elif uses[0].parent_block() is not op.parent_block():
            yield error("KT-V21", op, "the future is used in another block than its produce")
        for inner in op.body.walk():
            allowed = inner.name.startswith(("arith.", "affine.")) or isinstance(
                inner, LoadOp | ConstructAccessTileOp | ConstructIndirectAccessTileOp | YieldPartialOp
            )
            if not allowed and not inner.name.startswith("ktdp.region"):
                yield warning(
                    "KT-L04",
                    inner,
                    "a produce region holds index arithmetic, access tiles and loads; compute before it",
                )
                break


def producers(context: Context) -> Iterator[Finding]:
    """KT-V20: producer sets of groups are disjoint. KT-L06: groups in which nothing happens."""
    for op in context.of_type(InterTileProduceOp):
        try:
            found = groups.producer_groups(op, context.tiles)
        except CodedVerifyError as problem:
            yield error(problem.code, op, str(problem))
            continue
        if not found:
            yield warning("KT-L06", op, "the set of groups is empty, nothing is exchanged")
        unused = [g for g, ids in found.items() if not ids]
        if unused:
            yield warning(
                "KT-L06",
                op,
                f"groups {_few(unused)} have no producer among the {context.tiles} compute tiles of the grid",
            )


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:6]))
    return shown + (", ..." if len(numbers) > 6 else "")


def deliveries(context: Context) -> Iterator[Finding]:
    """KT-V22 to V29 for every group of every delivery."""
    for op in context.of_type(DeliveryOp):
        source = op.future.owner
        if not isinstance(source, InterTileProduceOp):
            yield error("KT-V21", op, "the future must come straight from an inter_tile_produce")
            continue
        try:
            found = groups.producer_groups(source, context.tiles)
        except CodedVerifyError:
            continue  # reported at the produce
        sizes = {len(ids) for ids in found.values() if ids}
        if _kind(op) in _JOINS and len(sizes) > 1:
            yield error("KT-V24", op, f"groups have {sorted(sizes)} producers; all need equally many")
        owner: dict[int, int] = {}
        for group, ids in found.items():
            try:
                consumers = groups.members(op.consumer_tiles_per_group, (group,), context.tiles)
                twice = next((c for c in consumers if c in owner), None)
                if twice is not None and ids:
                    raise groups.fail("KT-V25", f"compute tile {twice} also consumes from group {owner[twice]}")
                owner.update(dict.fromkeys(consumers, group))
                yield from _group(context, op, group, ids, consumers)
            except CodedVerifyError as problem:
                yield error(problem.code, op, f"group {group}: {problem}")
                break
        yield from _combiner(op)


def _group(context: Context, op: DeliveryOp, group: int, ids: list[int], consumers: list[int]) -> Iterator[Finding]:
    kind = _kind(op)
    if not ids:
        return
    if not consumers:
        yield warning("KT-L06", op, f"group {group} has producers but no consumer")
        return
    needed = {c: groups.sources(op, c, group, ids, context.tiles) for c in consumers}
    named = {p for sources in needed.values() for p in sources}
    lonely = [p for p in ids if p not in named]
    if lonely and kind != "scatter":
        raise groups.fail("KT-V23", f"producers {_few(lonely)} are needed by no consumer")
    if kind in _JOINS and op.producer_dependency_per_consumer is not None:
        if len({len(sources) for sources in needed.values()}) > 1:
            raise groups.fail("KT-V24", "consumers need different numbers of producers")
        if sum(len(sources) for sources in needed.values()) != len(named):
            raise groups.fail("KT-V24", "two consumers depend on one producer")
    if kind in _SINGLE:
        bad = [c for c, sources in needed.items() if len(sources) != 1]
        if bad:
            raise groups.fail("KT-V25", f"consumer {bad[0]} has sources {needed[bad[0]]}, it needs exactly one")
    if kind == "reduce":
        inside = set(consumers) <= set(ids)
        if not inside or (len(consumers) != 1 and set(consumers) != set(ids)):
            raise groups.fail(
                "KT-V29", f"consumers {_few(consumers)} must be all producers {_few(ids)} of the group, or one of them"
            )
    producing = len(next(iter(needed.values())))
    assert isinstance(op.future.type, TileFutureType)
    for partial, result in zip(op.future.type.value_types.data, op.values, strict=True):
        if not isinstance(partial, TensorType) or not isinstance(result.type, TensorType):
            raise groups.fail("KT-V18", f"exchanged values are tensors, got {partial} and {result.type}")
        if partial.element_type != result.type.element_type:
            raise groups.fail(
                "KT-V12", f"the partial holds {partial.element_type}, the result {result.type.element_type}"
            )
        shape = partial.get_shape()
        if any(d < 0 for d in (*shape, *result.type.get_shape())):
            continue
        groups.check_placement(op, shape, result.type.get_shape(), producing, len(consumers))


def _combiner(op: DeliveryOp) -> Iterator[Finding]:
    """KT-V28: a combiner reads and writes no memory."""
    for region in op.combiner:
        for inner in region.walk():
            effects = [t for t in inner.traits.traits if isinstance(t, MemoryEffect)]
            pure = any(isinstance(t, Pure) for t in effects) or inner.name.startswith("linalg.")
            if effects and not pure:
                yield error("KT-V28", inner, f"'{inner.name}' in a combiner; combiners must be pure")
                return


RULES = (futures, producers, deliveries)
