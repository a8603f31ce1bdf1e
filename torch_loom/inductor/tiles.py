"""Emit the memory side of a kernel: views, tiles, loads, stores and gathers of one access.

A view is built per access. Host dims with one tile dim of step one map to one view dim, so bounds of the
buffer stay visible (reads outside give 0). Several tile dims in one host dim become several view dims.
Lane dims whose stick tiles are not neighbours take two view dims, (tile, lane), which a load brings
together and collapses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from ..ktir.builder import Dim as Num
from ..ktir.builder import Index, Indirect, KernelBuilder, Tensor, View
from .access import Access, Coordinate
from .compat import CeilDiv, FloorDiv, Max, Min, Mod, ModularIndexing, PythonMod
from .domain import Dim, exact_div, hint
from .errors import Unsupported
from .lanes import Entry, Window, joined, run_of, window_of


@dataclass(frozen=True)
class GatherIndex:
    """Where the values of a gather symbol are: an i32 view, the tile dims it varies over, and the size of the view
    that they count in, which may be a part of a buffer."""

    view: View
    at: tuple[tuple[Dim | None, Num], ...]  # per view dim: the tile dim that walks it (or None) and its start
    dims: tuple[Dim, ...]
    size: sympy.Expr | None = None


def _subtracts(expr: sympy.Expr) -> bool:
    return bool(expr.is_Number and expr < 0)


class Tiles:
    """Start and block of every dim inside the current loops, and emission of accesses with them."""

    def __init__(self, builder: KernelBuilder, sizes: dict[sympy.Expr, Num]) -> None:
        self.b = builder
        self.sizes = sizes
        self.start: dict[Dim, Num] = {}
        self.block: dict[Dim, Num] = {}
        self.extent: dict[Dim, Num] = {}
        self.bases: dict[str, Index] = {}
        self.written: set[str] = set()
        self.scalars: dict[str, Tensor] = {}
        self.joined: dict[Dim, tuple[Dim, ...]] = {}
        self.overrun: set[Dim] = set()  # dims whose last tiles may begin behind their end (see matmul.share)
        self.part: Num = 0  # number of this core among those that share a reduced extent

    # -- numbers ----

    def number(self, expr: sympy.Expr) -> Num:
        """A size expression as an integer or an index value."""
        expr = sympy.sympify(expr)
        if expr.is_Integer:
            return int(expr)
        if expr in self.sizes:
            return self.sizes[expr]
        if isinstance(expr, sympy.Symbol):
            raise Unsupported(f"size {expr} is not known when the kernel starts")
        args = [self.number(a) for a in expr.args]
        two: dict[type, Callable[[Num, Num], Num]] = {
            FloorDiv: self.b.floordiv,
            CeilDiv: self.b.ceildiv,
            Mod: self.b.mod,
            PythonMod: self.b.mod,
        }
        if isinstance(expr, (sympy.Add, sympy.Mul, Max, Min)):
            fold = {sympy.Add: self.b.add, sympy.Mul: self.b.mul, Max: self.b.max, Min: self.b.min}
            step = next(f for kind, f in fold.items() if isinstance(expr, kind))
            out = args[0]
            for a in args[1:]:
                out = step(out, a)
            return out
        if isinstance(expr, ModularIndexing):
            return self.b.mod(self.b.floordiv(args[0], args[1]), args[2])
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and 0 < int(expr.exp) <= 4:
            out = args[0]
            for _ in range(int(expr.exp) - 1):
                out = self.b.mul(out, args[0])
            return out
        if type(expr) in two:
            return two[type(expr)](args[0], self._nonnegative(expr.args[1], args[1]))
        raise Unsupported(f"size expression {expr}")

    def size(self, expr: sympy.Expr) -> Num:
        """An extent as an integer or an index value that the scheduler knows not to be negative."""
        return self._nonnegative(sympy.sympify(expr), self.number(expr))

    def _nonnegative(self, expr: sympy.Expr, value: Num) -> Num:
        """``value`` of an expression that is a size: a difference of sizes such as s - 2 could be negative for all that
        a kernel's text says."""
        return self.b.max(value, 0) if any(_subtracts(a) for a in sympy.preorder_traversal(expr)) else value

    def base_of(self, c: Coordinate) -> Num:
        """Coordinate of the tile's origin along a host dim."""
        at = self.number(c.offset)
        for d, step in c.terms:
            at = self.b.add(at, self.b.mul(self.number(step), self.start[d]))
        return at

    def inside(self, d: Dim) -> Num:
        """Extent of the current tile of ``d`` that lies within the extent of ``d``."""
        block = self.block[d]
        if isinstance(block, int) and exact_div(d.extent, sympy.Integer(block)) is not None:
            return block
        return self.b.min(block, self.b.sub(self.extent[d], self.start[d]))

    # -- views ----

    def regular(self, access: Access, store: bool = False) -> bool:
        """Can views and tiles express the access? Otherwise it goes element by element (``irregular.py``)."""
        gathers = any(c.indirect for c in access.coordinates)
        if access.linear is not None:
            return False
        per_stick = access.geometry.format.per_stick
        for c in access.coordinates:
            tiled = sorted(((d, s) for d, s in c.terms if d in self.block), key=lambda t: hint(t[1]))
            if c.indirect and (len(c.indirect) > 1 or c.terms or c.offset != 0 or c.dim.tile_stride is not None):
                return False
            if c.dim.tile_stride is None:
                if gathers and (len(tiled) > 1 or (tiled and tiled[0][1] != 1)):
                    return False
                continue
            step: Num = 1
            for i, (d, s) in enumerate(tiled):
                if self.number(s) != step or (i + 1 < len(tiled) and self.block[d] != self.extent[d]):
                    return False
                step = self.b.mul(step, self.block[d])
            if (store or gathers) and tiled and not self._whole_sticks(c, step, per_stick):
                return False
            if store and not self._to_the_end(c, tiled):
                return False
        return True

    def _to_the_end(self, c: Coordinate, tiled: Sequence[tuple[Dim, sympy.Expr]]) -> bool:
        """Does no tile reach past its loop, except where the host dim ends too?"""
        if all(self.block[d] == self.extent[d] for d, _ in tiled):
            return True
        d, _ = tiled[-1]
        block = self.block[d]
        if isinstance(block, int) and exact_div(d.extent, sympy.Integer(block)) is not None:
            return True
        end = sympy.expand(c.offset + sum(s * (e.extent - 1) for e, s in c.terms) + 1)
        return bool(end == c.dim.extent)

    def _whole_sticks(self, c: Coordinate, block: Num, per_stick: int) -> bool:
        """Do tiles of ``block`` lanes start at a stick, or lie inside of one?"""
        return self.divides(c, per_stick) % per_stick == 0 or self._in_a_stick(c, block, per_stick)

    def _in_a_stick(self, c: Coordinate, block: Num, per_stick: int) -> bool:
        """Do tiles of ``block`` lanes each lie inside of one stick?"""
        return isinstance(block, int) and self.divides(c, per_stick) % block == 0 and per_stick % block == 0

    def stick_and_lane(self, access: Access) -> set[Dim]:
        """Dims that take two dims of a view, one for sticks and one for lanes."""
        lane, per_stick = access.coordinates[-1], access.geometry.format.per_stick
        tiled = [d for d, _ in lane.terms if d in self.block]
        short = len(tiled) == 1 and self._in_a_stick(lane, self.block[tiled[0]], per_stick)
        return set() if short or lane.dim.tile_stride is None else set(tiled)

    def _lane_entries(self, c: Coordinate, per_stick: int) -> tuple[list[Entry], Num | None]:
        """(tile, lane) entries of a split lane dim and the lane at which the wanted run begins
        (None when the entries are exact)."""
        at, stride = self.base_of(c), self.number(c.dim.tile_stride)
        tiles = self.b.ceildiv(self.number(c.dim.extent), per_stick)
        tiled = [(d, s) for d, s in c.terms if d in self.block]
        first = self.b.floordiv(at, per_stick)
        # A guarded access may start before the row: the lane is the floor remainder.
        lane = self.b.sub(at, self.b.mul(first, per_stick))
        if not tiled:
            return [Entry(tiles, stride, first, 1), Entry(per_stick, 1, lane, 1)], None
        d = tiled[0][0] if tiled[0][1] == 1 and len(tiled) == 1 else self.join(c, tiled)
        block = self.block[d]
        step = self.divides(c, per_stick)
        if self._in_a_stick(c, block, per_stick):
            return [Entry(tiles, stride, first, 1), Entry(per_stick, 1, lane, block, d)], None
        if step % per_stick == 0:
            return [
                Entry(tiles, stride, first, self.b.ceildiv(block, per_stick), d),
                Entry(per_stick, 1, 0, per_stick, d),
            ], 0
        count = self.b.ceildiv(self.b.add(block, per_stick - 1), per_stick)
        entries = [Entry(tiles, stride, first, count, d), Entry(per_stick, 1, 0, per_stick, d)]
        return entries, lane

    def join(self, c: Coordinate, tiled: Sequence[tuple[Dim, sympy.Expr]]) -> Dim:
        """One dim for several that together walk a contiguous run of lanes (see ``regular``)."""
        ordered = sorted(tiled, key=lambda t: hint(t[1]))
        step: Num = 1
        for d, _ in ordered:
            step = self.b.mul(step, self.block[d])
        parts = tuple(d for d, _ in reversed(ordered))
        name = sympy.Symbol("_".join(str(d.symbol) for d in parts), integer=True, nonnegative=True)
        joined = Dim(name, sympy.Mul(*(d.extent for d in parts)), parts[-1].suffix)
        self.block[joined] = step
        self.joined[joined] = parts
        return joined

    def _unjoin(self, value: Tensor, dims: tuple[Dim, ...]) -> tuple[Tensor, tuple[Dim, ...]]:
        out: list[Dim] = []
        groups: list[list[int]] = []
        for d in dims:
            parts = self.joined.get(d, (d,))
            groups.append(list(range(len(out), len(out) + len(parts))))
            out.extend(parts)
        return self.b.expand(value, groups, [self.block[d] for d in out]), tuple(out)

    def _bounded(self, c: Coordinate, d: Dim) -> bool:
        """Does the end of the host dim stop every tile of ``d`` that reaches past the extent of ``d``?

        Not when other loops move within the same host dim: then a partial tile would run on into the rows of
        the next index."""
        block = self.block[d]
        divides = isinstance(block, int) and exact_div(d.extent, sympy.Integer(block)) is not None
        whole = divides and d not in self.overrun
        return whole or block == self.extent[d] or len(c.terms) == 1

    def divides(self, c: Coordinate, per_stick: int) -> int:
        """A number that divides the start coordinate for all loop indices (0 counts as a stick)."""
        import math

        out = 0
        values: list[sympy.Expr | int] = [c.offset]
        for d, step in c.terms:
            start = self.start[d]
            if isinstance(start, int):
                values.append(step * start)
            else:
                block = self.block.get(d, 1)
                values.append(step * block if isinstance(block, int) else step)
        for v in values:
            v = sympy.sympify(v)
            out = math.gcd(out, int(v) if v.is_Integer else 1)
        return out or per_stick

    def _entries(self, access: Access, store: bool = False) -> tuple[list[Entry], Window | None]:
        """View dims of an access. A store ends where its loop does: what lies behind in the same dim is not its own."""
        entries: list[Entry] = []
        window: Window | None = None
        for c in access.coordinates:
            narrow = window_of(self, access, c) if c is access.coordinates[-1] and not store else None
            if narrow is not None:
                entries.extend(narrow[0])
                window = narrow[1]
                continue
            if c is access.coordinates[-1] and c.dim.tile_stride is None and not access.limits:
                c = joined(self, c, run_of(self, c, None, access.geometry.format.per_stick))
            if c.dim.tile_stride is not None:
                lanes, lane_at = self._lane_entries(c, access.geometry.format.per_stick)
                window = None if lane_at is None else Window(lane_at)
                entries.extend(lanes)
                continue
            size, stride = self.number(c.dim.extent), self.number(c.dim.device_stride)
            tiled = [(d, s) for d, s in c.terms if d in self.block]
            if len(tiled) == 1 and tiled[0][1] == 1 and self._bounded(c, tiled[0][0]):
                if store and len(c.terms) == 1:
                    size = self.b.add(self.number(c.offset), self.extent[tiled[0][0]])
                entries.append(Entry(size, stride, self.base_of(c), self.block[tiled[0][0]], tiled[0][0]))
                continue
            if not tiled:
                at = self.base_of(c)
                if at != 0:
                    entries.append(Entry(size, stride, at, 1))
                continue
            rest = Coordinate(c.dim, tuple(t for t in c.terms if t[0] not in self.block), c.offset)
            # A mask narrows the view of its loop, so that what the mask hides is outside and reads 0.
            within = {d: access.limits.get(d.symbol, (None, None)) for d, _ in tiled}
            at = self.base_of(rest)
            for d, s in tiled:
                at = self.b.add(at, self.b.mul(self.number(s), max(within[d][0] or 0, 0)))
            if at != 0:
                entries.append(Entry(size, stride, at, 1))
            for d, s in sorted(tiled, key=lambda t: hint(t[1]), reverse=True):
                step = self.b.mul(self.number(s), stride)
                low, high = max(within[d][0] or 0, 0), within[d][1]
                end = self.extent[d] if high is None else self.b.min(self.extent[d], high)
                entries.append(Entry(self.b.sub(end, low), step, self.b.sub(self.start[d], low), self.block[d], d))
        if not entries:
            entries.append(Entry(1, 1, 0, 1))
        return entries, window

    def axes(self, access: Access) -> tuple[list[Dim | None], bool]:
        """The dim of each axis of a loaded tile (None: a single element), and whether its last axis may begin inside of
        a stick, so that a stick more is loaded."""
        entries, window = self._entries(access)
        return [entries[i].dim for i in _together(entries)], window is not None and window.lane != 0

    # -- loads and stores ----

    def load(self, access: Access) -> tuple[Tensor, tuple[Dim, ...]]:
        """Load the tile of an access; returns the value and the dim of each of its axes."""
        entries, window = self._entries(access)
        view = self.b.view(
            self.bases[access.geometry.name],
            [e.size for e in entries],
            [e.stride for e in entries],
            access.geometry.format.element,
        )
        order = _together(entries)
        tile = self.b.load(
            view,
            [e.at for e in entries],
            [e.extent for e in entries],
            order,
            invariant=access.geometry.name not in self.written,
        )
        return self._shape(tile, [entries[i] for i in order], window)

    def _shape(self, tile: Tensor, entries: Sequence[Entry], window: Window | None) -> tuple[Tensor, tuple[Dim, ...]]:
        """Collapse unit axes and (tile, lane) pairs; cut the wanted run out of whole sticks."""
        axes = [e.dim for e in entries]
        dims = tuple(dict.fromkeys(d for d in axes if d is not None))
        if not dims:
            return self.b.collapse(tile, [list(range(len(axes)))], [1]), ()
        runs = _runs(axes)
        shape: list[Num] = []
        for run in runs:
            extent: Num = 1
            for i in run:
                extent = self.b.mul(extent, entries[i].extent)
            shape.append(extent)
        value = self.b.collapse(tile, runs, shape)
        if window is not None:
            whole = [self.block[d] for d in dims]
            wanted = whole if window.width is None else [*whole[:-1], window.width]
            value = self.b.slice(value, [*[0] * (len(dims) - 1), window.lane], wanted)
            value = self.b.pad_to(value, whole, [*[0] * (len(dims) - 1), window.place])
        return self._unjoin(value, dims)

    def store(self, access: Access, value: Tensor, dims: Sequence[Dim]) -> None:
        """Store a value whose axes are ``dims`` (all tile dims of the access, any order)."""
        entries, window = self._entries(access, store=True)
        order = _together(entries)
        axes = [entries[i] for i in order]
        wanted = list(dict.fromkeys(e.dim for e in axes if e.dim is not None))
        if wanted:
            value = self._arranged(value, dims, wanted)
        if window is not None:
            shape = list(value.shape)
            shape[-1] = self.b.mul(axes[-2].extent, axes[-1].extent)
            value = self.b.pad_to(value, shape)
        value = self.b.expand(value, _runs([e.dim for e in axes]), [e.extent for e in axes])
        view = self.b.view(
            self.bases[access.geometry.name],
            [e.size for e in entries],
            [e.stride for e in entries],
            access.geometry.format.element,
        )
        self.b.store(value, view, [e.at for e in entries], [e.extent for e in entries], order)

    def _arranged(self, value: Tensor, dims: Sequence[Dim], wanted: Sequence[Dim]) -> Tensor:
        """A value over ``dims`` with one axis per dim of ``wanted``, some of which may be joined ones."""
        parts = [p for d in wanted for p in self.joined.get(d, (d,))]
        value = self.b.transpose(value, [list(dims).index(d) for d in parts])
        spans = [len(self.joined.get(d, (d,))) for d in wanted]
        runs = [list(range(sum(spans[:i]), sum(spans[: i + 1]))) for i in range(len(spans))]
        return self.b.collapse(value, runs, [self.block[d] for d in wanted])

    def gather(self, access: Access, indices: dict[sympy.Symbol, GatherIndex]) -> tuple[Tensor, tuple[Dim, ...]]:
        """Load a regular access through index views: every axis of the result is a variable of an indirect tile."""
        walked = [d for c in access.coordinates for s in c.indirect for d in indices[s].dims]
        axes, view, subscripts = self._indirect(access, indices, walked)
        tile = self.b.gather(view, [extent for _, extent in axes] or [1], subscripts)
        if not axes:
            return tile, ()
        return self._shape(tile, [Entry(0, 0, 0, extent, d) for d, extent in axes], Window(0))

    def scatter(
        self, access: Access, indices: dict[sympy.Symbol, GatherIndex], value: Tensor, dims: Sequence[Dim]
    ) -> None:
        """Store a value whose axes are ``dims`` through index views. What a tile holds beyond the extent of a dim
        that an index walks is cut off: there is no row that it belongs to."""
        axes, view, subscripts = self._indirect(access, indices, [])
        if not axes:
            self.b.scatter(value, view, subscripts)
            return
        wanted = list(dict.fromkeys(d for d, _ in axes))
        value = self._arranged(value, dims, wanted)
        walked = {d for i in indices.values() for d in i.dims}
        ends = [self.inside(d) if d in walked else self.block[d] for d in wanted]
        value = self.b.slice(value, [0] * len(ends), ends)
        axes = [(d, ends[wanted.index(d)] if d in walked else extent) for d, extent in axes]
        whole: list[Num] = [1] * len(wanted)
        for d, extent in axes:  # whole sticks where a lane dim takes two view dims
            whole[wanted.index(d)] = self.b.mul(whole[wanted.index(d)], extent)
        value = self.b.expand(self.b.pad_to(value, whole), _runs([d for d, _ in axes]), [e for _, e in axes])
        self.b.scatter(value, view, subscripts)

    def _indirect(
        self, access: Access, indices: dict[sympy.Symbol, GatherIndex], walked: Sequence[Dim]
    ) -> tuple[list[tuple[Dim, Num]], View, list[str | Indirect]]:
        """Variables (dim and extent) of an indirect tile, beginning with ``walked``, its view and subscripts."""
        axes: list[tuple[Dim, Num]] = []

        def variable(d: Dim, extent: Num) -> str:
            axes.append((d, extent))
            return f"%v{len(axes) - 1}"

        names = {d: variable(d, self.block[d]) for d in dict.fromkeys(walked)}
        sizes: list[Num] = []
        strides: list[Num] = []
        subscripts: list[str | Indirect] = []
        for c in access.coordinates:
            stride = self.number(c.dim.device_stride)
            if c.indirect:
                where = indices[c.indirect[0]]
                known = where.size is not None and where.size.is_Integer and c.dim.extent.is_Integer
                sizes.append(self.number(sympy.Min(where.size, c.dim.extent) if known else c.dim.extent))
                strides.append(stride)
                for d, _ in where.at:
                    if d is not None and d not in names:
                        names[d] = variable(d, self.block[d])
                at = tuple(_affine(names[d] if d else None, start) for d, start in where.at)
                subscripts.append(Indirect(where.view, at))
                continue
            for e in self._indirect_entries(access, c):
                sizes.append(e.size)
                strides.append(e.stride)
                if e.dim is None:
                    subscripts.append(_affine(None, e.at))
                elif e.dim in names:
                    subscripts.append(_affine(names[e.dim], e.at))
                else:
                    subscripts.append(_affine(variable(e.dim, e.extent), e.at))
        view = self.b.view(self.bases[access.geometry.name], sizes, strides, access.geometry.format.element)
        return axes, view, subscripts

    def _indirect_entries(self, access: Access, c: Coordinate) -> list[Entry]:
        """View dims of a coordinate without an index in an indirect tile."""
        if c.dim.tile_stride is not None:
            entries, lane_at = self._lane_entries(c, access.geometry.format.per_stick)
            if lane_at not in (None, 0):
                raise Unsupported(f"gather from {access.geometry.name} at a lane offset")
            return entries
        tiled = [(d, s) for d, s in c.terms if d in self.block]
        if len(tiled) > 1 or (tiled and tiled[0][1] != 1):
            raise Unsupported(f"gather from {access.geometry.name} with several loops on one dim")
        d = tiled[0][0] if tiled else None
        extent = self.block[d] if d else 1
        return [Entry(self.number(c.dim.extent), self.number(c.dim.device_stride), self.base_of(c), extent, d)]


def _affine(variable: str | None, at: Num) -> str:
    text = "" if isinstance(at, int) and at == 0 else str(at) if isinstance(at, int) else at.name
    if variable is None:
        return text or "0"
    return f"{variable} + {text}" if text else variable


def _together(entries: Sequence[Entry]) -> list[int]:
    """Axis order in which a (tile, lane) pair of one dim stands side by side, before its lane."""
    order = list(range(len(entries)))
    for i, e in enumerate(entries):
        twin = next((j for j in range(i + 1, len(entries)) if e.dim is not None and entries[j].dim is e.dim), None)
        if twin is not None and twin != i + 1:
            order.remove(i)
            order.insert(order.index(twin), i)
    return order


def _runs(axes: Sequence[Dim | None]) -> list[list[int]]:
    """Axes grouped by dim; unit axes (None) join the group before them, or the first one."""
    runs: list[list[int]] = []
    current: Dim | None = None
    for i, d in enumerate(axes):
        if runs and (current is None or d is None or d is current):
            runs[-1].append(i)
        else:
            runs.append([i])
        current = d if d is not None else current
    return runs
