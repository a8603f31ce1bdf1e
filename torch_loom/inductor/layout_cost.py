"""What kernels pay for the layouts of their buffers, in the clock's rates, and the choice for a graph.

Every kernel is run dry once, over dims that are cut wherever a candidate layout changes its device dim; the accesses of
a candidate follow from that by arithmetic. An access costs its sticks: those of a buffer that LX can keep move at the
rate of the transfer units, others at that of DDR as well. An element alone takes a stick. A load or store whose sticks
lie along another dim than the vectors of the kernel goes through the ports of LX element by element.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from ..arch import Chip
from .access import Geometry, format_of, geometry, resolve, rows_of
from .attention import CONTRACTIONS
from .compat import SchedulerNode, buffer_of, crossing, graph_input, static_inputs
from .domain import Dim, Misaligned, hint
from .errors import Unsupported
from .layouts import PUBLIC, Factor, Run, candidates, chosen_layouts, judged, solve, with_gain
from .plan import LANE_BLOCK, align, common_dims, groups, touched_buffers
from .rates import ceil, chip_of, ddr_cycles
from .record import Touch
from .runtime import chip_name

if TYPE_CHECKING:
    from .layout_trial import Trial

log = logging.getLogger(__name__)

# A buffer of at most this part of all LX is taken to be kept there.
KEPT_PART = 0.25
# Sticks that the computed place of an element costs: its index and the element itself.
COMPUTED_PLACE = 3.0
# Rows of a tile of a product when its cores share few of them.
LEAST_ROWS = 16
# Smaller buffers cost too little to look at.
LEAST_ELEMENTS = 4096
# What does not limit a kernel still delays its start and end.
HIDDEN_PART = 0.15


def dims_of(name: str) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """(Extent, host stride) of the dims of more than one element, outermost first."""
    sizes, strides, _ = buffer_of(name)
    dims = [(sympy.sympify(s), sympy.sympify(t)) for s, t in zip(sizes, strides, strict=True) if s != 1 and t != 0]
    return sorted(dims, key=lambda d: hint(d[1]), reverse=True)


@dataclass(frozen=True)
class Cost:
    """An access: sticks that move, elements, the dims along its sticks (``lanes`` those that walk them without a
    gap), and whether LX keeps the buffer."""

    sticks: float
    elements: float
    lanes: frozenset[Dim]
    along: frozenset[Dim]
    dims: frozenset[Dim]
    kept: bool
    store: bool


class KernelCosts:
    """A kernel under every choice of layouts for its buffers."""

    def __init__(
        self, nodes: list[SchedulerNode], removed: set[str], options: Mapping[str, Sequence[Run]], chip: Chip
    ) -> None:
        self.chip, self.removed = chip, removed
        numel, rnumel = groups(nodes)
        cuts = {b: [t for _, t in dims_of(b)[:-1]] for b in options}
        self.dims, self.reduced, self.record = common_dims(
            nodes, numel, rnumel, align(nodes, numel, rnumel), removed, lambda b: cuts.get(b) or geometry(b).cuts
        )
        self.buffers = tuple(dict.fromkeys(t.name for t in self.record.touches if t.name in options))
        self.points = hint(sympy.expand(numel * rnumel))
        self.contracts = any(n.is_reduction() and n.node.get_reduction_type() in CONTRACTIONS for n in nodes)  # type: ignore[union-attr]
        self.blocks = self._blocks()
        self.known: dict[tuple[int, Run | None], Cost] = {}
        self.total: dict[tuple[Run, ...], float] = {}

    def __call__(self, choice: Mapping[str, Run]) -> float:
        key = tuple(choice[b] for b in self.buffers)
        if key not in self.total:
            self.total[key] = self._cycles(choice)
        return self.total[key]

    def _access(self, at: int, run: Run | None) -> Cost:
        if (at, run) not in self.known:
            self.known[at, run] = self._cost(self.record.touches[at], run)
        return self.known[at, run]

    def _cost(self, touch: Touch, run: Run | None) -> Cost:
        g = geometry(touch.name)
        if run not in (None, PUBLIC):
            g = Geometry(g.name, g.dtype, g.format, rows_of(dims_of(g.name), run, g.format.per_stick), g.row_major)
        access = resolve(g, touch.index, self.dims, touch.indirect, touch.limits if touch.guarded else None)
        reach = math.prod(hint(d.extent) for d in access.dims)
        kept = (
            g.row_major
            and not graph_input(touch.name)
            and _bytes(g) <= KEPT_PART * self.chip.cores * self.chip.lx.bytes.value
        )
        if access.linear is not None or not access.coordinates:
            elements = reach if access.linear is not None else 1
            return Cost(
                COMPUTED_PLACE * elements, elements, frozenset(), frozenset(), frozenset(access.dims), kept, touch.store
            )
        terms = sorted(((hint(s), hint(d.extent), d) for d, s in access.coordinates[-1].terms), key=lambda t: t[:2])
        lanes: list[Dim] = []
        length = 1
        for step, extent, d in terms:
            block = min(extent, self.blocks.get(d, 1)) if self.contracts else extent
            if step != length or block == 1:
                break
            length, lanes = length * block, [*lanes, d]
            if block < extent:
                break
        sticks = reach / length * ceil(length, g.format.per_stick)
        if g.dims[-1].tile_stride is not None and len(lanes) < len(terms):
            sticks = COMPUTED_PLACE * reach  # whole sticks cannot express it
        along = frozenset(d for *_, d in terms)
        return Cost(sticks, reach, frozenset(lanes), along, frozenset(access.dims), kept, touch.store)

    def _blocks(self) -> dict[Dim, int]:
        """Elements that a tile of a contraction has along its dims, at least; other dims are loops."""
        left = frozenset().union(*(a for a, _ in self.record.contractions))
        right = frozenset().union(*(b for _, b in self.record.contractions))
        outer = [d for d in self.dims if d not in self.reduced]
        rows = [d for d in outer if d.symbol in left and d.symbol not in right]
        columns = [d for d in outer if d.symbol in right and d.symbol not in left]
        blocks = {d: hint(d.extent) for d in self.dims if d in self.reduced or d in columns}
        return blocks | dict.fromkeys(rows[-1:], LEAST_ROWS)

    def _busy(self, found: Sequence[Cost]) -> int:
        """Cores that have something to do: tiles hold reduced dims and up to a block of those along sticks."""
        if self.contracts:
            return self.chip.cores
        lanes = frozenset().union(*(a.along for a in found))
        extents = [(hint(d.extent), d in lanes) for d in self.dims if d not in self.reduced]

        def tiles(block: int) -> int:
            return math.prod(-(-extent // block) if along else extent for extent, along in extents)

        # Where there are too few, the planner cuts what runs along sticks as well.
        return min(self.chip.cores, tiles(LANE_BLOCK) if tiles(LANE_BLOCK) >= self.chip.cores else tiles(64))

    def _cycles(self, choice: Mapping[str, Run]) -> float:
        found = [self._access(i, choice.get(t.name)) for i, t in enumerate(self.record.touches)]
        chip, cores = self.chip, self._busy(found)
        votes = {d: sum(d in a.lanes for a in found) for d in self.dims}
        vector = max(self.dims, key=lambda d: (votes[d], self.dims.index(d)), default=None)
        line = 128.0 / chip.dma.read_bytes_per_cycle.value / cores
        moved, ports, far = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        for a in found:
            moved[a.store] += a.sticks * line
            if not a.kept:
                far[a.store] += a.sticks * 128.0
            if self.contracts and not a.store:
                continue  # PT takes its operands as they lie
            beside = vector is None or vector not in a.dims or vector in a.lanes
            rate = chip.lanes() if beside else chip.lx.strided_elements_per_cycle.value
            ports[a.store] += a.elements / rate / cores / chip.corelets
        vectors = self.points / chip.lanes()
        if vector is not None:
            extent = hint(vector.extent)
            vectors *= ceil(extent, chip.lanes()) * chip.lanes() / extent
        if self.contracts:
            pt = chip.pt
            compute = self.points / (pt.rows.value * pt.macs_per_element.value * pt.columns.value * chip.corelets)
        else:
            compute = vectors * max(self.record.operations, 1.0) / chip.corelets
        parts = [*moved, *ports, compute / cores, float(ddr_cycles(far[0], far[1], chip))]
        return max(parts) + HIDDEN_PART * (sum(parts) - max(parts))


def _bytes(g: Geometry) -> int:
    rows = math.prod(hint(d.extent) for d in g.dims[:-1])
    return int(rows * ceil(hint(g.dims[-1].extent), g.format.per_stick) * 128) if g.dims else 128


def lay_out(kernels: Sequence[tuple[list[SchedulerNode], set[str]]], private: set[str], trial: Trial) -> None:
    """Choose the layouts of the current graph's buffers; ``kernels`` are nodes that share one, with the buffers that
    live only inside; only ``private`` buffers may lie otherwise than by default."""
    options = _options(kernels, private) | _options_of_parameters(kernels)
    factors, steps = [], []
    for step, (nodes, removed) in enumerate(kernels):
        if touched_buffers(nodes).isdisjoint(options):
            continue
        try:
            costs = KernelCosts(nodes, removed, options, chip_of(chip_name()))
        except (Misaligned, Unsupported):  # what is wrong with it is reported when its kernel is written
            continue
        factors.append(Factor(costs.buffers, costs))
        steps.append(step)
    wanted = with_gain(solve(options, factors), options, factors)
    wanted = {b: run for b, run in wanted.items() if run != options[b][0]}
    if wanted:
        users = {b: [s for s, f in zip(steps, factors, strict=True) if b in f.buffers] for b in wanted}
        chosen_layouts().update(judged(wanted, users, len(kernels), trial.ns))


def _options(kernels: Sequence[tuple[list[SchedulerNode], set[str]]], private: set[str]) -> dict[str, list[Run]]:
    """Candidates of the buffers that have any besides the default."""
    made = (b for nodes, _ in kernels for n in nodes for b in n.get_buffer_names())
    return _candidates((b for b in made if b in private), kernels)


def _options_of_parameters(kernels: Sequence[tuple[list[SchedulerNode], set[str]]]) -> dict[str, list[Run]]:
    """Candidates of the parameters that have any besides the public layout. A copy is made once,
    so that a call pays nothing for it."""
    used = {b for nodes, _ in kernels for b in touched_buffers(nodes)}
    dense = [b for b in static_inputs() if b in used and _dense(b)]
    return {b: [PUBLIC, *runs] for b, runs in _candidates(dense, kernels).items()}


def _dense(name: str) -> bool:
    """Do the elements follow one another in the order of the dims?"""
    sizes, strides, _ = buffer_of(name)
    reach = 1
    for size, stride in reversed(list(zip(sizes, strides, strict=True))):
        if size != 1 and stride != reach:
            return False
        reach *= size
    return True


def _candidates(names: Iterable[str], kernels: Sequence[tuple[list[SchedulerNode], set[str]]]) -> dict[str, list[Run]]:
    """Layouts of those buffers that lie badly somewhere, the default first."""
    options: dict[str, list[Run]] = {}
    crossed = _crossed([n for nodes, _ in kernels for n in nodes])
    for name in names:
        dims = dims_of(name)
        if len(dims) < 2 or len({hint(t) for _, t in dims}) < len(dims):
            continue
        per_stick = format_of(buffer_of(name)[2], f"buffer {name}").per_stick
        whole = hint(dims[-1][0]) % per_stick == 0
        if (whole and name not in crossed) or math.prod(hint(s) for s, _ in dims) < LEAST_ELEMENTS:
            continue
        found = candidates([hint(s) for s, _ in dims], [bool(s.is_Integer) for s, _ in dims], per_stick)
        if len(found) > 1:
            options[name] = found
    return options


def _crossed(nodes: Sequence[SchedulerNode]) -> set[str]:
    """Buffers of loops in which some access does not go along the innermost dim, which costs ports or transfers."""
    return {d.name for n in nodes if n.node.get_reduction_type() not in CONTRACTIONS for d in crossing(n)}  # type: ignore[union-attr]
