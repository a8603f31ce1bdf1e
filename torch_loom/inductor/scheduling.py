"""Fusion rules and kernel generation: what Inductor's scheduler asks of this backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy

from . import config as settings
from .access import layout_name
from .attention import CONTRACTIONS
from .chain_cost import chain_pays
from .compat import (
    BackendFeature,
    BaseSchedulerNode,
    BaseScheduling,
    FusedSchedulerNode,
    Kernel,
    SchedulerNode,
    V,
    buffer_numel,
    config,
    extents_of,
    get_fused_kernel_name,
    get_kernel_metadata,
    lines_of,
    on_device,
    origins_of,
    private_buffers,
    sizevars,
)
from .division import LX_BUDGET, joint_pays, rows_pay
from .domain import Misaligned, hint, product, typical
from .errors import Unsupported
from .options import current as options
from .options import lx_between_kernels
from .plan import REDUCED_ELEMENTS, align, flatten, groups, is_dot, link, planned, readers, same_left_operand
from .runtime import chip_name

if TYPE_CHECKING:
    from .layout_trial import Trial


def core_count() -> int:
    """Cores that kernels are divided over (``SENCORES`` 1..32, as in the public stack)."""
    text = os.environ.get("SENCORES", "32")
    if not text.isdecimal() or not 1 <= int(text) <= 32:
        raise ValueError(f"SENCORES must be a number from 1 to 32, not {text!r}")
    return int(text)


class TileKernel(Kernel):
    """Bookkeeping of buffers of one kernel; the code itself comes from ``emit_kernel``."""

    overrides = None  # type: ignore[assignment]


def local_kernel(nodes: Sequence[SchedulerNode]) -> TileKernel:
    """The bookkeeping of a kernel of ``nodes``, without the buffers that live only inside."""
    kernel = TileKernel()
    kernel.store_buffer_names.update(name for n in nodes for name in n.get_buffer_names())
    kernel.remove_kernel_local_buffers()
    return kernel


def _contracts(node: BaseSchedulerNode) -> bool:
    kinds = (getattr(n.node, "get_reduction_type", lambda: None)() for n in flatten(node) if n.is_reduction())
    return not CONTRACTIONS.isdisjoint(kinds)


class LoomScheduling(BaseScheduling):
    """Kernels for ``spyre``: fuse what fits one tile space, print KTIR, call it."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.names: dict[tuple[Any, ...], str] = {}
        self.held: list[SchedulerNode] = []  # a product whose only reader comes next
        self.laid_out = False
        self.trial: Trial | None = None

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
            return first and self._joins(flatten(node1), flatten(node2))
        if first:
            return self._epilogue(flatten(node1), flatten(node2))
        return self._same_space(node1, node2) and not self._second_pass(node1, node2)

    def _second_pass(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        """Would node2 go once more over a reduced extent that LX cannot hold, with a result of the first pass?

        Apart, each pass goes block by block over memory."""
        numel, rnumel = groups([*flatten(node1), *flatten(node2)])
        if rnumel == 1 or planned(rnumel) <= REDUCED_ELEMENTS:
            return False
        results = {b for n in flatten(node1) if n.is_reduction() for b in n.get_buffer_names()}
        again = (n for n in flatten(node2) if n.is_reduction() or sizevars().equal(extents_of(n)[0], numel * rnumel))
        return any(results & n.used_buffer_names() for n in again)

    def _epilogue(self, made: list[SchedulerNode], after: list[SchedulerNode]) -> bool:
        """May ``after`` be computed from the tiles of a contraction? Element by element, or row by row: a norm or a
        softmax over the columns, if a core can have whole rows and that is faster."""
        if not after:
            return False
        numel, rnumel = groups(made)
        rows = [n for n in [*made, *after] if n.is_reduction() and not is_dot(n)]
        if rows and sum(is_dot(n) for n in made) > 1:
            return False
        for node in after:
            own, reduced = extents_of(node)
            if sizevars().equal(own, numel) and not node.is_reduction():
                continue
            if not rows or not sizevars().equal(sympy.expand(extents_of(rows[0])[0]), own):
                return False
            if node.is_reduction() and not sizevars().equal(product([own, reduced]), numel):
                return False
        if rows and not (any(is_dot(n) for n in made) and self._rows_pay(made, rows, after)):
            return False
        try:
            align([*made, *after], numel, rnumel)
        except Misaligned:
            return False
        return True

    def _rows_pay(self, before: list[SchedulerNode], rows: list[SchedulerNode], after: list[SchedulerNode]) -> bool:
        dot = next(n for n in before if is_dot(n))
        m, n = extents_of(rows[0])
        columns = dot.node.get_size()[-1]  # type: ignore[union-attr]
        if any(not sizevars().equal(extents_of(r)[1], n) for r in rows) or not sizevars().equal(columns, n):
            return False
        if not (settings.fusion and all(sympy.sympify(s).is_Integer for s in (n, extents_of(dot)[1]))):
            return False
        made = {b for node in [*before, *after] for b in node.get_buffer_names()}
        read = {d.name for node in [*before, *after] if not is_dot(node) for d in node.read_writes.reads} - made
        whole = [b for b in read if sizevars().equal(sympy.expand(buffer_numel(b)), product([m, n]))]
        sizes = hint(m), hint(n), hint(extents_of(dot)[1])
        return rows_pay(*sizes, len(whole), core_count(), LX_BUDGET, chip_name(), settings.residency)

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        """May two independent nodes share a kernel?"""
        first, second = _contracts(node1), _contracts(node2)
        if first or second:
            return first and second and self._joins(flatten(node1), flatten(node2))
        return self._same_space(node1, node2)

    def _joins(self, a: list[SchedulerNode], b: list[SchedulerNode]) -> bool:
        """May the products of ``b`` be computed beside those of ``a``, from the same tile of the left operand?

        What else ``b`` does is an epilogue, which may read what ``a`` makes; its products may not."""
        both = [*a, *b]
        dots, rest = [n for n in both if is_dot(n)], [n for n in both if not is_dot(n)]
        if not settings.joint_products or any(n.is_reduction() for n in rest):
            return False
        if not same_left_operand(dots):
            return False
        made = {name for n in both for name in n.get_buffer_names()}
        if any(made & n.used_buffer_names() - n.get_buffer_names() for n in dots):
            return False
        return (not rest or self._epilogue(dots, rest)) and self._joint_pays(both, dots)

    def _joint_pays(self, nodes: list[SchedulerNode], dots: list[SchedulerNode]) -> bool:
        """Are the products faster as one kernel?"""
        sizes = [sympy.sympify(s) for s in dots[0].node.get_size()]  # type: ignore[union-attr]
        if len(sizes) < 2:
            return False
        *batch, m, n = sizes
        k = extents_of(dots[0])[1]
        shape = hint(product(batch)), typical(m), typical(n), hint(k)
        own = {n.get_name() for n in nodes}
        outputs = [o for n in nodes for o in n.get_outputs()]
        kept = sum(any(u.node.get_name() not in own for u in o.users) for o in outputs)
        # A kernel makes all its results at once. Apart, some may stay in LX where all of them have no room.
        one, room = hint(product(sizes)) * dots[0].node.get_dtype().itemsize, core_count() * LX_BUDGET  # type: ignore[union-attr]
        if lx_between_kernels() and one <= room < kept * one:
            return False
        return joint_pays(*shape, len(dots), max(kept, 1), core_count(), LX_BUDGET, chip_name())

    # -- generation ----

    def codegen_node(self, node: FusedSchedulerNode | SchedulerNode) -> None:
        """Generate and call the kernel of a (fused) node."""

        if not self.laid_out:
            self.laid_out = True
            self._lay_out()
        nodes, held, self.held = flatten(node), self.held, []
        ring = self._chains(held, nodes) if held else None
        if held and not (ring is not None and self._generate([held, nodes], ring)):
            self._generate([held])
            held = []
        if not held and self._awaits(nodes):
            self.held = nodes
            return
        if not held:
            self._generate([nodes])
        self.free_buffers_in_scheduler()

    def _lay_out(self) -> None:
        """Choose the layouts of buffers between kernels, now that it is known which nodes share one, and which products
        are divided so that rows stay where LX keeps them."""
        from .homes import choose_homes
        from .layout_cost import lay_out
        from .layout_trial import Trial

        assert self.scheduler is not None
        parts = [nodes for n in self.scheduler.nodes if on_device(n) and (nodes := flatten(n))]
        gone = set(V.graph.removed_buffers)
        kernels = [(nodes, set(local_kernel(nodes).removed_buffers) | gone) for nodes in parts]
        private = set(private_buffers([n for nodes in parts for n in nodes]))
        private -= set().union(*(removed for _, removed in kernels))
        self.trial = trial = Trial(kernels, private, core_count())
        if settings.layout_choice:
            lay_out(kernels, private, trial)
        choose_homes(parts, private, trial)

    def _awaits(self, nodes: list[SchedulerNode]) -> bool:
        """May the next kernel take what these nodes make without a buffer between them? Then it is waited for."""
        plain = any(is_dot(n) for n in nodes) and all(is_dot(n) for n in nodes if n.is_reduction())
        return settings.chains and plain and len(readers(nodes)) == 1

    def _chains(self, first: list[SchedulerNode], second: list[SchedulerNode]) -> bool | None:
        """Whether cores share the hidden layer, where the contraction of ``second`` and what ``first`` makes for it are
        faster as one kernel; else None."""
        dots = [next((n for n in part if is_dot(n)), None) for part in (first, second)]
        if link(first, second) is None or dots[0] is None or dots[1] is None:
            return None
        from .chain import chain_way, layers

        found = layers(first, second, 1)
        way = chain_way(found, core_count())
        if found is None or way is None:
            return None
        if self.trial is not None and lx_between_kernels():
            from .chain_trial import judged

            known = judged(self.trial, first, second, set(local_kernel([*first, *second]).removed_buffers))
            if known is not None:
                return known.ring
        return True if chain_pays(found, way, core_count(), LX_BUDGET, chip_name()) else None

    def _generate(self, parts: list[list[SchedulerNode]], ring: bool = True) -> bool:
        """Generate and call the kernel of one list of nodes, or of a chain of two, which share the hidden layer between
        cores only with ``ring``; False if two do not fit together."""
        nodes = [n for part in parts for n in part]
        try:
            return self._generated(parts, nodes, ring)
        except Unsupported as error:
            raise error.within(origins_of(nodes)) from error.__cause__

    def _generated(self, parts: list[list[SchedulerNode]], nodes: list[SchedulerNode], ring: bool) -> bool:
        from .generate import write_kernel

        kernel = local_kernel(nodes)
        gone = set(kernel.removed_buffers) | set(V.graph.removed_buffers)
        written = write_kernel(parts, gone, core_count(), ring)
        if written is None:
            return False
        arguments = list(written.buffers)
        layouts = [layout_name(n) for n in arguments]
        name = self._define(nodes, written.text, list(written.access), layouts)
        with V.set_kernel_handler(kernel):
            for n in nodes:
                n.mark_run()
        self.codegen_comment(nodes, name)
        wrapper = V.graph.wrapper_code
        sizes = [wrapper.codegen_sizevar(s) for s in written.sizes]
        numbers = [f"{s}.item()" for s in written.scalars]
        wrapper.generate_kernel_call(name, [*arguments, *sizes, *numbers], triton=False)
        options().lines.append(lines_of(nodes))
        V.graph.removed_buffers |= kernel.removed_buffers
        V.graph.inplaced_to_remove |= kernel.inplaced_to_remove
        return True

    def _define(self, nodes: list[SchedulerNode], text: str, kinds: list[str], layouts: list[str]) -> str:
        """Define the kernel in the wrapper unless the graph has it already; its name."""
        from . import runtime

        # One text may serve several layouts (a vector looks the same in each), but a call checks its own.
        key = (text, *kinds, *layouts)
        name = self.names.get(key)
        if name is None:
            label = get_fused_kernel_name(nodes, config.triton.descriptive_names).replace("__", "_")
            label = label.replace("scaled_dot_product_fused_attention_overrideable", "attention")
            wrapper = V.graph.wrapper_code
            name = f"loom_{label[:60].strip('_')}_{wrapper.next_kernel_suffix()}"
            self.names[key] = name
            origins, detailed = get_kernel_metadata(nodes, wrapper)
            body = f"loom_kernel({name!r}, '''\n{text}''', {kinds!r}, {layouts!r})"
            runtime.request(name, text)
            wrapper.define_kernel(name, body, f"{origins}\n{detailed}", gpu=False)
        return name

    def codegen_comment(self, nodes: Sequence[Any], name: str | None = None) -> None:
        """Say in the wrapper where a call comes from."""
        origins, _ = get_kernel_metadata(nodes, V.graph.wrapper_code)
        V.graph.wrapper_code.make_comment(origins)

    def codegen_sync(self) -> None:
        """Wait for the device."""
        V.graph.wrapper_code.writeline("torch.spyre.synchronize()")

    def flush(self) -> None:
        """Generate what waits for its reader."""
        held, self.held = self.held, []
        if held:
            self._generate([held])
            self.free_buffers_in_scheduler()

    def benchmark_fused_nodes(self, nodes: Sequence[BaseSchedulerNode]) -> tuple[float, str]:
        """Fusion is decided by rules, not by benchmarks."""
        raise NotImplementedError("fusion benchmarks do not apply to spyre")
