"""From an unknown structural key to op programs: memory, disk, then trace and compile.

``program`` is what the native recorder calls on a miss, ``refuse`` what it calls when the host has shown that an
operator works and cannot be traced. Answers are kept on disk under the key, also refusals, so that a fresh process
neither compiles nor imports the compiler for operators that were used before.

A program leaves sizes open. Where the target cannot do that, it is asked for the sizes at hand; a key gets at most
``SPECIAL`` such programs, then its calls run on the host.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from .. import _device
from ..inductor.op_program import Program, Refusal
from . import cache
from .target import Target

if TYPE_CHECKING:
    from .graph import Graph

SPECIAL = 8
log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What the recorder did in this process."""

    compiled: int = 0
    graphs: int = 0
    loaded: int = 0
    refused: int = 0


counts = Counts()
refusals: dict[str, str] = {}
_lock = threading.RLock()
_target: Target | None = None


def install(target: Target) -> None:
    """Compile for ``target`` from now on."""
    global _target
    _target = target
    _device.set_eager_compiler(sys.modules[__name__])


def _overload(name: str, overload: str) -> Any:
    space, _, base = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


def _entry(name: str, overload: str, key: bytes) -> tuple[str, str]:
    """Text of a key and name of its entry on disk."""
    assert _target is not None
    text = f"{name}.{overload} {key.hex()}"
    return text, cache.digest(text, _target.identity())


def program(
    name: str, overload: str, key: bytes, arguments: Sequence[Any], card: int, known: int
) -> list[Any] | str | bool | None:
    """Programs for a call that no known program accepts.

    ``known`` is the number of programs that the recorder has under ``key``. Other answers: None when the target
    refuses; an error's text when tracing raised one that may be the caller's; False when this is no time to compile."""
    assert _target is not None
    if _busy():
        return False
    text, entry = _entry(name, overload, key)
    with _lock:
        found = cache.load(_target.cache_dir(), entry)
        if isinstance(found, Refusal):
            _note(name, overload, found)
            return None
        if found and len(found) > known:
            counts.loaded += 1
            return _ready(_target, found, card)
        programs = found or []
        fresh = _compile(_target, _overload(name, overload), arguments, programs)
        if isinstance(fresh, str):
            return fresh
        if isinstance(fresh, Refusal):
            if not programs:
                cache.save(_target.cache_dir(), entry, text, fresh)
            _note(name, overload, fresh)
            return None
        counts.compiled += 1
        programs = [*programs, fresh]
        cache.save(_target.cache_dir(), entry, text, programs)
        return _ready(_target, programs, card)


def graph(content: bytes, described: tuple[Any, ...] | None, card: int, known: int) -> list[Any] | int | None:
    """Programs of a pending graph of fused mode.

    ``content`` says what the graph is; without a description only the cache is asked. ``known`` is the number of
    programs that the recorder has. Other answers: None when there is none (yet), or the node before which the graph
    must be cut."""
    assert _target is not None
    if _busy():
        return None
    entry = cache.digest(f"graph {content.hex()}", _target.identity())
    with _lock:
        found = cache.load(_target.cache_dir(), entry)
        if isinstance(found, Refusal):
            return int(found.reason)
        if found and len(found) > known:
            counts.loaded += 1
            return _ready(_target, found, card)
        if described is None:
            return None
        made = _compile_graph(_target, described)
        if isinstance(made, int):
            cache.save(_target.cache_dir(), entry, "graph", Refusal(str(made)))
            return made
        counts.graphs += 1
        programs = [*(found or []), made]
        cache.save(_target.cache_dir(), entry, "graph", programs)
        return _ready(_target, programs, card)


def _compile_graph(target: Target, described: tuple[Any, ...]) -> Program | int:
    from . import fused

    work = fused.pending(described, _overload)
    try:
        traced = fused.trace(work, target.decompositions())
    except fused.Cut as cut:
        log.info("fused graph cut at operator %d: %s", cut.at, cut)
        return cut.at or 1
    made = _made(target, traced, True)
    if isinstance(made, Program):
        return made
    log.info("fused graph of %d operators refused: %s", len(work.nodes), made.reason)
    return len(work.nodes) // 2


def _made(target: Target, traced: Graph, special: bool) -> Program | Refusal:
    """The target's program of a graph, under what tracing and compiling assumed."""
    from .graph import Untraceable

    made = target.compile_graph(traced.module, traced.inputs, traced.integers)
    if isinstance(made, Refusal):
        return made
    try:
        return replace(made, guards=traced.guards, special=special)
    except Untraceable as error:
        return Refusal(str(error))


def refuse(name: str, overload: str, key: bytes, reason: str) -> None:
    """Remember that an operator cannot be traced."""
    assert _target is not None
    text, entry = _entry(name, overload, key)
    with _lock:
        cache.save(_target.cache_dir(), entry, text, Refusal(reason))
        _note(name, overload, Refusal(reason))


def _busy() -> bool:
    """Is a graph being compiled on this thread? Then operators are constants of that graph."""
    from torch._guards import TracingContext

    return TracingContext.try_get() is not None


def _note(name: str, overload: str, why: Refusal) -> None:
    counts.refused += 1
    refusals[f"{name}.{overload}".removesuffix(".")] = why.reason


def _ready(target: Target, programs: Sequence[Program], card: int) -> list[Any]:
    with torch.spyre.device(card):  # type: ignore[attr-defined]
        return [_device.EagerProgram(p, [target.prepare(k) for k in p.kernels]) for p in programs]


def _compile(target: Target, op: Any, arguments: Sequence[Any], have: Sequence[Program]) -> Program | Refusal | str:
    from . import graph

    described = [graph.argument(a) for a in arguments]
    first: Refusal | None = None
    for special in (False, True):
        if not special and any(p.special for p in have):
            continue
        if special and sum(p.special for p in have) >= SPECIAL:
            return Refusal(f"more than {SPECIAL} sets of sizes, and the target needs a program for each")
        try:
            traced = graph.trace(op, described, target.decompositions(), special)
        except (graph.Untraceable, *graph.NEEDS_DATA) as error:
            first = first or Refusal(f"{type(error).__name__}: {error}")
            continue
        except graph.ARGUMENT_ERRORS as error:
            if special:  # not for want of numbers in place of symbols
                return f"{type(error).__name__}: {error}"
            first = Refusal(f"{type(error).__name__}: {error}")
            continue
        if not traced.tensors_used:
            return Refusal("the result does not depend on a tensor of the device")
        made = _made(target, traced, special)
        if isinstance(made, Program):
            return made
        first = first or made
    return first or Refusal("no program")
