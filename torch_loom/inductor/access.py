"""From a host index to a tile of a device buffer.

Inductor addresses a buffer by a host-linear index. The device holds it in sticks, so the index is split
into coordinates of the buffer's host dims, and each access becomes a memory view with one tile:

* intermediates are ROW_MAJOR: rows of ceil(C/E) sticks, so all outer dims merge into one row dim;
* graph inputs (and outputs, where the options say so) have the public default layout of their rank (layout
  page, 2.1), in which the stick-tile dim lies outside the first host dim.

E is the number of elements in a stick. Everything here is symbolic; nothing is emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch

from .compat import buffer_of, graph_input, graph_output
from .domain import Dim, exact_div, hint, linear, never_negative, product
from .errors import Unsupported
from .layouts import chosen_layouts
from .options import current as options
from .relaid import written


@dataclass(frozen=True)
class Format:
    """How a torch dtype lies on the device: KTIR element type and elements per stick."""

    element: str
    per_stick: int


FORMATS: dict[torch.dtype, Format] = {
    torch.float16: Format("f16", 64),
    torch.bfloat16: Format("bf16", 64),
    torch.bool: Format("f16", 64),
    torch.float32: Format("f32", 32),
    torch.int64: Format("i32", 32),
    torch.int32: Format("i32", 32),
    torch.int16: Format("i16", 64),
    torch.int8: Format("i8", 128),
    torch.uint8: Format("i32", 32),
}


def format_of(dtype: torch.dtype, what: str) -> Format:
    """Device format of a dtype; an error that names the buffer when there is none."""
    found = FORMATS.get(dtype)
    if found is None:
        raise Unsupported(f"{what}: compiled kernels do not support dtype {dtype}")
    return found


@dataclass(frozen=True)
class HostDim:
    """One addressable dim: extent, host stride and device stride (elements). A lane dim whose sticks do
    not follow one another in memory has ``tile_stride``, the distance between stick tiles."""

    extent: sympy.Expr
    host_stride: sympy.Expr
    device_stride: sympy.Expr
    tile_stride: sympy.Expr | None = None


@dataclass(frozen=True)
class Geometry:
    """A buffer as the device sees it; dims as they lie on the device, outermost first, the lane dim last."""

    name: str
    dtype: torch.dtype
    format: Format
    dims: tuple[HostDim, ...]
    row_major: bool

    @property
    def by_host(self) -> list[HostDim]:
        """The dims in the order of the host's strides, outermost first: how an index splits."""
        return sorted(self.dims, key=lambda d: hint(d.host_stride), reverse=True)

    @property
    def cuts(self) -> list[sympy.Expr]:
        """Host strides at which an index changes its device dim."""
        return [d.host_stride for d in self.by_host[:-1]]


def public_layout(name: str) -> bool:
    """Does a buffer lie in the default layout of its rank, as users' tensors do, rather than in rows of sticks?"""
    if graph_input(name):
        return name not in chosen_layouts()
    return options().public_outputs and graph_output(name)


def layout_name(name: str) -> str:
    """The layout of an argument as the host program tells it to its kernel."""
    run = chosen_layouts().get(name)
    if run is not None and graph_input(name):
        return written(run)
    return "default" if public_layout(name) else "rows"


def ceil_sticks(extent: sympy.Expr, per_stick: int) -> sympy.Expr:
    """Sticks needed for ``extent`` elements."""
    from .compat import CeilDiv

    if extent.is_Integer:
        return sympy.Integer(-(-int(extent) // per_stick))
    exact = exact_div(extent, sympy.Integer(per_stick))
    return exact if exact is not None else CeilDiv(extent, per_stick)


def geometry(name: str) -> Geometry:
    """Geometry of a buffer of the current graph.

    An input with gaps between its elements is launched as a dense copy in the same order of dims, so its host
    strides only tell the dims of an index apart. Raises Unsupported for overlapping elements."""
    sizes, strides, dtype = buffer_of(name)
    fmt = format_of(dtype, f"buffer {name}")
    kept = [(sympy.sympify(s), sympy.sympify(t)) for s, t in zip(sizes, strides, strict=True) if s != 1]
    kept = [(s, t) for s, t in kept if t != 0]
    kept.sort(key=lambda p: hint(p[1]), reverse=True)
    row_major = not public_layout(name)
    reach: sympy.Expr = sympy.Integer(1)
    for s, t in reversed(kept):
        if hint(t) < hint(reach) or (row_major and sympy.expand(t - reach) != 0):
            raise Unsupported(f"buffer {name}: sizes {sizes} with strides {strides} overlap or leave gaps")
        reach = sympy.expand(t * s)
    if not kept:
        return Geometry(name, dtype, fmt, (), row_major)
    run = chosen_layouts().get(name)
    if run is not None:
        return Geometry(name, dtype, fmt, rows_of(kept, run, fmt.per_stick), row_major)
    lanes, lane_stride = kept[-1]
    tiles = ceil_sticks(lanes, fmt.per_stick)
    pitch = sympy.expand(tiles * fmt.per_stick)
    lane = HostDim(lanes, lane_stride, sympy.Integer(1))
    outer = kept[:-1]
    if not outer:
        return Geometry(name, dtype, fmt, (lane,), row_major)
    if row_major or (tiles == 1 and len(outer) == 1):
        rows = product(s for s, _ in outer)
        return Geometry(name, dtype, fmt, (HostDim(rows, outer[-1][1], pitch), lane), row_major)
    first, rest = outer[0], outer[1:]
    step = sympy.Integer(fmt.per_stick)
    head = HostDim(first[0], first[1], step)
    step = sympy.expand(step * first[0])
    lane = HostDim(lanes, lane_stride, sympy.Integer(1), step)
    step = sympy.expand(step * tiles)
    dims = []
    for s, t in reversed(rest):
        dims.append(HostDim(s, t, step))
        step = sympy.expand(step * s)
    return Geometry(name, dtype, fmt, (head, *reversed(dims), lane), row_major)


def rows_of(dims: Sequence[tuple[sympy.Expr, sympy.Expr]], run: tuple[int, int], per_stick: int) -> tuple[HostDim, ...]:
    """Dims of a dense buffer in rows of sticks along the host dims ``run[0]`` to ``run[1] - 1`` of (extent, host
    stride), outermost first; the others count the rows, in their order."""
    first, end = run
    lanes = product(s for s, _ in dims[first:end])
    pitch = sympy.expand(ceil_sticks(lanes, per_stick) * per_stick)
    out = [HostDim(lanes, dims[end - 1][1], sympy.Integer(1))]
    for part in (dims[end:], dims[:first]):
        if part:
            rows = product(s for s, _ in part)
            out.append(HostDim(rows, part[-1][1], pitch))
            pitch = sympy.expand(pitch * rows)
    return tuple(reversed(out))


@dataclass(frozen=True)
class Coordinate:
    """Coordinate along one host dim: sum(coefficient * dim) + offset + sum(indirect symbols)."""

    dim: HostDim
    terms: tuple[tuple[Dim, sympy.Expr], ...]
    offset: sympy.Expr
    indirect: tuple[sympy.Symbol, ...] = ()


@dataclass(frozen=True)
class Access:
    """An access of a buffer, coordinate by coordinate.

    An irregular access (strided or reversed lanes, indices that cross rows, several gathered dims) has no
    coordinates; ``linear`` is its host-linear index, from which every element's place is computed. Under a mask,
    ``limits`` are the ranges of loops in which it can be on; outside of them the coordinates may leave the buffer."""

    geometry: Geometry
    coordinates: tuple[Coordinate, ...]
    linear: sympy.Expr | None = None
    loops: tuple[Dim, ...] = ()  # dims that an irregular access depends on
    limits: dict[sympy.Symbol, tuple[int | None, int | None]] = field(default_factory=dict)

    @property
    def lane_dims(self) -> list[Dim]:
        """Dims that run along the sticks of the buffer."""
        if not self.coordinates:
            return []
        return [d for d, _ in self.coordinates[-1].terms]

    @property
    def dims(self) -> set[Dim]:
        """All dims the access depends on."""
        return {d for c in self.coordinates for d, _ in c.terms} | set(self.loops)

    def by_element(self, dims: list[Dim]) -> Access:
        """The same access by its host-linear index, over those of ``dims`` that it depends on."""
        if self.linear is not None:
            return self
        g = self.geometry
        index = sympy.Add(
            *(c.dim.host_stride * (c.offset + sum(c.indirect)) for c in self.coordinates),
            *(c.dim.host_stride * s * d.symbol for c in self.coordinates for d, s in c.terms),
        )
        return Access(g, (), sympy.expand(index), tuple(d for d in dims if d in self.dims))


def resolve(
    buffer: Geometry,
    index: sympy.Expr,
    dims: list[Dim],
    indirect: Mapping[sympy.Symbol, sympy.Expr],
    limits: dict[sympy.Symbol, tuple[int | None, int | None]] | None = None,
) -> Access:
    """Split a host-linear index into coordinates; an irregular access is left linear. ``indirect`` holds the gather
    symbols and the sizes below which they stay.

    ``limits`` belong to an access under a mask: the loops they name may leave the row, where the mask is off; the
    constant of the index is split so that coordinates are in range where it can be on."""
    if not buffer.dims:  # one element: a valid index is 0
        return Access(buffer, ())
    index = sympy.expand(index)
    irregular = Access(buffer, (), index, tuple(d for d in dims if d.symbol in index.free_symbols))
    gathered: dict[HostDim, list[sympy.Symbol]] = {}
    for symbol in sorted(indirect.keys() & index.free_symbols, key=str):
        c = index.coeff(symbol, 1)
        target = next((h for h in buffer.dims if sympy.expand(h.host_stride - c) == 0), None)
        if target is None or hint(indirect[symbol]) > hint(target.extent):
            return irregular
        gathered.setdefault(target, []).append(symbol)
        index = sympy.expand(index - c * symbol)
    parts = linear(index, dims)
    if parts is None:
        return irregular
    coefficients, constant = parts
    terms: dict[HostDim, list[tuple[Dim, sympy.Expr]]] = {h: [] for h in buffer.dims}
    for d, c in coefficients.items():
        for h in buffer.by_host:
            local = exact_div(c, h.host_stride)
            if local is not None and hint(h.host_stride) <= hint(c):
                reach = hint(local) * (hint(d.extent) - 1)
                if reach >= hint(h.extent) and d.symbol not in (limits or {}):
                    return irregular
                terms[h].append((d, local))
                break
        else:
            return irregular
    offsets = _inside(buffer, terms, constant, limits) if limits else None
    if offsets is None:
        offsets = _greedy(buffer, constant)
        if not _within(buffer, terms, offsets, limits):
            return irregular
    return Access(
        buffer,
        tuple(Coordinate(h, tuple(terms[h]), offsets[h], tuple(gathered.get(h, []))) for h in buffer.dims),
        limits=limits or {},
    )


def _within(
    buffer: Geometry,
    terms: dict[HostDim, list[tuple[Dim, sympy.Expr]]],
    offsets: dict[HostDim, sympy.Expr],
    limits: dict[sympy.Symbol, tuple[int | None, int | None]] | None,
) -> bool:
    """Do all coordinates stay in their dim, as far as views rely on it? Without a mask they do if they do at the sizes
    seen, since the index is one of the buffer; under a mask it must be sure for all sizes.

    Under a mask a single loop of step one may leave its dim where the mask is off: the view ends where the dim does,
    and what lies outside is not read. Gathered dims are checked by the unit that gathers."""
    for h in buffer.dims:
        low = first = offsets[h]
        high = last = low
        for d, c in terms[h]:
            begin, end = (limits or {}).get(d.symbol, (None, None))
            stop = d.extent - 1
            high += c * stop
            first += c * max(begin or 0, 0)
            last += c * (stop if end is None or hint(stop) < end - 1 else end - 1)
        if limits is None:
            if hint(low) < 0 or hint(high) >= hint(h.extent):
                return False
            continue

        def inside(first: sympy.Expr, last: sympy.Expr, extent: sympy.Expr = h.extent) -> bool:
            return never_negative(first) and never_negative(extent - 1 - last)

        alone = len(terms[h]) == 1 and terms[h][0][1] == 1
        hidden = h is buffer.by_host[0] or inside(first, last)
        if not (hidden and alone) and not inside(low, high):
            return False
    return True


def _greedy(buffer: Geometry, constant: sympy.Expr) -> dict[HostDim, sympy.Expr]:
    """Split a constant over host dims, outermost first."""
    out: dict[HostDim, sympy.Expr] = {}
    order = buffer.by_host
    for h in order:
        offset: sympy.Expr = sympy.Integer(0)
        if h is order[-1] and h.host_stride == 1:
            offset, constant = constant, sympy.Integer(0)
        elif constant.is_Integer and h.host_stride.is_Integer:
            value, step = int(constant), int(h.host_stride)
            whole = abs(value) // step * (1 if value >= 0 else -1)
            offset, constant = sympy.Integer(whole), sympy.Integer(value - whole * step)
        else:
            part = exact_div(constant, h.host_stride) if constant != 0 else None
            if part is not None:
                offset, constant = part, sympy.Integer(0)
        out[h] = offset
    return out


def _inside(
    buffer: Geometry,
    terms: dict[HostDim, list[tuple[Dim, sympy.Expr]]],
    constant: sympy.Expr,
    limits: dict[sympy.Symbol, tuple[int | None, int | None]],
) -> dict[HostDim, sympy.Expr] | None:
    """Split a constant so that coordinates lie in their dims wherever the mask is on, innermost first;
    None when sizes are symbolic or no such split exists."""
    out: dict[HostDim, sympy.Expr] = {}
    rest = constant
    order = buffer.by_host
    for at in range(len(order) - 1, -1, -1):
        h = order[at]
        low = high = 0
        for d, c in terms[h]:
            if not (c.is_Integer and d.extent.is_Integer):
                return None
            first, last = limits.get(d.symbol, (None, None))
            low += int(c) * max(first or 0, 0)
            high += int(c) * (min(int(d.extent), last if last is not None else int(d.extent)) - 1)
        if not (rest.is_Integer and h.extent.is_Integer and h.host_stride.is_Integer):
            return None
        local = int(rest) // int(h.host_stride)
        if at == 0:
            alone = len(terms[h]) <= 1 and all(c == 1 for _, c in terms[h])
            if (low + local < 0 or high + local >= int(h.extent)) and not alone:
                return None  # several loops leave the dim together: no view can end where it does
            out[h] = sympy.Integer(local)
            continue
        step = int(order[at - 1].host_stride) // int(h.host_stride)
        smallest = -low
        offset = smallest + (local - smallest) % step
        if high + offset >= int(h.extent):
            return None
        out[h] = sympy.Integer(offset)
        rest = sympy.Integer(int(rest) - offset * int(h.host_stride))
    return out
