"""Fusion rules and kernel generation: what Inductor's scheduler asks of this backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import sympy

from .access import public_layout
from .attention import ATTENTION, CAUSAL
from .compat import (
    BackendFeature,
    BaseSchedulerNode,
    BaseScheduling,
    FusedSchedulerNode,
    Kernel,
    SchedulerNode,
    V,
    config,
    get_fused_kernel_name,
    get_kernel_metadata,
    sizevars,
)
from .domain import Misaligned, product
from .plan import align, flatten, groups, make_plan


def core_count() -> int:
    """Cores that kernels are divided over (``SENCORES`` 1..32, as in the public stack)."""
    text = os.environ.get("SENCORES", "32")
    if not text.isdecimal() or not 1 <= int(text) <= 32:
        raise ValueError(f"SENCORES must be a number from 1 to 32, not {text!r}")
    return int(text)


class TileKernel(Kernel):
    """Bookkeeping of buffers of one kernel; the code itself comes from ``emit_kernel``."""

    overrides = None  # type: ignore[assignment]


CONTRACTIONS = frozenset(("dot", ATTENTION, CAUSAL))


def _contracts(node: BaseSchedulerNode) -> bool:
    kinds = (getattr(n.node, "get_reduction_type", lambda: None)() for n in flatten(node) if n.is_reduction())
    return not CONTRACTIONS.isdisjoint(kinds)


class LoomScheduling(BaseScheduling):
    """Kernels for ``spyre``: fuse what fits one tile space, print KTIR, call it."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.names: dict[tuple[Any, ...], str] = {}

    def get_backend_features(self, device: Any) -> Any:
        # A reduction is never cut into two kernels: a tile holds its whole extent.
        from torch.utils._ordered_set import OrderedSet

        return OrderedSet([BackendFeature.REDUCE_TO_SINGLE_ELEMENT])

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[sympy.Expr, ...]:
        """Total sizes of the iteration and the reduction ranges."""
        return tuple(sizevars().simplify(product(s)) for s in sizes)  # type: ignore[return-value]

    # -- fusion ----

    def _same_space(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        a, b = flatten(node1), flatten(node2)
        if not a or not b:
            return False
        n1, r1 = groups(a)
        n2, r2 = groups(b)
        numel, rnumel = (n1, r1) if r1 != 1 else (n2, r2)
        if r1 != 1 and r2 != 1:
            if not (sizevars().equal(n1, n2) and sizevars().equal(r1, r2)):
                return False
        else:
            total = sympy.expand(numel * rnumel)
            other = n2 if r1 != 1 else n1
            if not (sizevars().equal(other, numel) or sizevars().equal(other, total)):
                return False
        try:
            align([*a, *b], numel, rnumel)
        except Misaligned:
            return False
        return True

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        """May node2, which reads what node1 writes, join its kernel?"""
        first, second = _contracts(node1), _contracts(node2)
        if second:
            return False
        if first:
            if node2.is_reduction():
                return False
            numel = groups(flatten(node1))[0]
            if not sizevars().equal(groups(flatten(node2))[0], numel):
                return False
        return self._same_space(node1, node2)

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        """May two independent nodes share a kernel?"""
        if _contracts(node1) or _contracts(node2):
            return False
        return self._same_space(node1, node2)

    # -- generation ----

    def codegen_node(self, node: FusedSchedulerNode | SchedulerNode) -> None:
        """Generate and call the kernel of a (fused) node."""
        from . import runtime  # not needed, and not loaded, where a cached graph is found
        from .emit import emit_kernel

        nodes = flatten(node)
        kernel = TileKernel()
        kernel.store_buffer_names.update(name for n in nodes for name in n.get_buffer_names())
        kernel.remove_kernel_local_buffers()
        removed = set(kernel.removed_buffers) | set(V.graph.removed_buffers)
        plan = make_plan(nodes, core_count(), removed)
        stored: list[str] = []
        loaded: list[str] = []
        for t in plan.record.touches:  # a read after a write in the same kernel never reaches memory
            if t.store:
                stored.append(t.name)
            elif t.name not in stored:
                loaded.append(t.name)
        arguments = list(dict.fromkeys([*loaded, *stored]))
        label = get_fused_kernel_name(nodes, config.triton.descriptive_names).replace("__", "_")
        label = label.replace("scaled_dot_product_fused_attention_overrideable", "attention")
        text, symbols = emit_kernel(plan, "kernel", arguments, removed)
        wrapper = V.graph.wrapper_code
        kinds = ["rw" if n in stored and n in loaded else "w" if n in stored else "r" for n in arguments]
        layouts = ["default" if public_layout(n) else "rows" for n in arguments]
        # One text may serve several layouts (a vector looks the same in each), but a call checks its own.
        key = (text, *kinds, *layouts)
        name = self.names.get(key)
        if name is None:
            name = f"loom_{label[:60].strip('_')}_{len(self.names)}"
            self.names[key] = name
            origins, detailed = get_kernel_metadata(nodes, wrapper)
            body = f"loom_kernel({name!r}, '''\n{text}''', {kinds!r}, {layouts!r})"
            runtime.request(name, text)
            wrapper.define_kernel(name, body, f"{origins}\n{detailed}", gpu=False)
        with V.set_kernel_handler(kernel):
            for n in nodes:
                n.mark_run()
        self.codegen_comment(nodes, name)
        sizes = [V.graph.wrapper_code.codegen_sizevar(s) for s in symbols]
        numbers = [f"{s}.item()" for s in plan.record.scalars]
        wrapper.generate_kernel_call(name, [*arguments, *sizes, *numbers], triton=False)
        V.graph.removed_buffers |= kernel.removed_buffers
        V.graph.inplaced_to_remove |= kernel.inplaced_to_remove
        self.free_buffers_in_scheduler()

    def codegen_comment(self, nodes: Sequence[Any], name: str | None = None) -> None:
        """Say in the wrapper where a call comes from."""
        origins, _ = get_kernel_metadata(nodes, V.graph.wrapper_code)
        V.graph.wrapper_code.make_comment(origins)

    def codegen_sync(self) -> None:
        """Wait for the device."""
        V.graph.wrapper_code.writeline("torch.spyre.synchronize()")

    def flush(self) -> None:
        """Kernels are generated at once; nothing is pending."""

    def benchmark_fused_nodes(self, nodes: Sequence[BaseSchedulerNode]) -> tuple[float, str]:
        """Fusion is decided by rules, not by benchmarks."""
        raise NotImplementedError("fusion benchmarks do not apply to spyre")
