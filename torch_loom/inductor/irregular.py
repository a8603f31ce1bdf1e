"""Accesses element by element: the place of every element is computed as a number.

Flips, rolls, strided lanes, indices along the sticks of a default layout and every other index that is not affine in
the loops of a kernel come here. The host-linear index is evaluated on the vector unit, split into
coordinates by the host strides, turned into an offset on the device, and handed to the gather unit. This always
works and costs one element a cycle, so regular accesses never take this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from ..ktir.builder import Indirect, Tensor
from .access import Access, Geometry, ceil_sticks
from .domain import Dim, product
from .pointwise import elementwise
from .values import Number, Operand, Value
from .wide import span_of

if TYPE_CHECKING:
    from .emit import Emitter
    from .indices import IndexHandler
    from .tiles import GatherIndex


def device_elements(g: Geometry) -> sympy.Expr:
    """Elements of a buffer on the device, padding included."""
    if not g.dims:
        return sympy.Integer(g.format.per_stick)
    lane = g.dims[-1]
    tiles = ceil_sticks(lane.extent, g.format.per_stick)
    if len(g.dims) == 1:
        return sympy.expand(tiles * g.format.per_stick)
    if lane.tile_stride is None:
        return product([g.dims[0].extent, g.dims[0].device_stride])
    if len(g.dims) == 2:
        return product([tiles, lane.tile_stride])
    return product([g.dims[1].extent, g.dims[1].device_stride])


def place(e: Emitter, access: Access) -> Operand:
    """Offset on the device, in elements, of every point of an irregular access (i32); -1, which the transfer unit
    refuses, where a value used as an index leaves the dim that it counts."""
    assert access.linear is not None
    at = _offset(e, access)
    for symbol in sorted(access.linear.free_symbols & e.gathered.keys(), key=str):
        at = _refused(e, symbol, at)
    return at


def _refused(e: Emitter, symbol: sympy.Symbol, at: Operand) -> Operand:
    """A place, -1 where a gathered index lies outside of its size."""
    size = e.gathered[symbol].size
    index = e.index_value(symbol)
    low, high = span_of(index)
    if low >= 0 and size.is_Integer and high < int(size):
        return at
    end = e.splat_index(size, index.dims if isinstance(index, Value) else ())
    outside = e.algebra.apply("arith.cmpi sge", [index, end])
    if low < 0:
        outside = e.algebra.apply("arith.ori", [outside, e.algebra.apply("arith.cmpi slt", [index, Number(0, "i32")])])
    chosen = elementwise(e.algebra, "where", [outside, Number(-1, "i32"), at])
    assert chosen is not None
    return chosen


def _offset(e: Emitter, access: Access) -> Operand:
    """The place of an irregular access whose indices are valid."""
    g = access.geometry
    assert access.linear is not None

    def apply(name: str, x: Operand, size: sympy.Expr) -> Operand:
        result = elementwise(e.algebra, name, [x, e.size_value(size)])
        assert result is not None
        return result

    def plus(x: Operand | None, y: Operand) -> Operand:
        return y if x is None else e.algebra.apply("arith.addi", [x, y], "i32")

    rest = e.index_value(access.linear)
    lane = g.dims[-1]
    pitch = g.dims[-2].device_stride if len(g.dims) == 2 else None
    if lane.tile_stride is None and lane.host_stride == 1 and (pitch is None or pitch == g.dims[0].host_stride):
        return rest  # rows follow one another without padding
    total: Operand | None = None
    column: Operand = rest
    *outer, innermost = g.by_host
    for h in (*outer, innermost):
        at = rest if h is innermost and h.host_stride == 1 else apply("floordiv", rest, h.host_stride)
        if h is not innermost:
            rest = e.algebra.apply("arith.subi", [rest, apply("mul", at, h.host_stride)], "i32")
        if h is lane:
            column = at
        else:
            total = plus(total, apply("mul", at, h.device_stride))
    if lane.tile_stride is None:
        return plus(total, column)
    stick = sympy.Integer(g.format.per_stick)
    tile = apply("floordiv", column, stick)
    column = e.algebra.apply("arith.subi", [column, apply("mul", tile, stick)], "i32")
    return plus(plus(total, apply("mul", tile, lane.tile_stride)), column)


def load_elements(e: Emitter, access: Access) -> tuple[Tensor, tuple[Dim, ...]]:
    """Load an irregular access; returns the value and the dim of each of its axes."""
    index = e.computed_view(place(e, access))
    view, subscripts = _flat(e, access.geometry, index)
    shape = [e.tiles.block[d] for d in index.dims]
    return e.b.gather(view, shape or [1], subscripts), index.dims


def store_elements(e: Emitter, access: Access, value: Operand) -> None:
    """Store to an irregular access. Points beyond the extents of the kernel write nothing."""
    at = place(e, access)
    dims = e.algebra.ordered(set(access.loops) & set(e.plan.blocks) | set(at.dims if isinstance(at, Value) else ()))
    index = e.computed_view(e.algebra.materialise(at, dims))
    out = e.narrow(e.algebra.materialise(value, dims), access.geometry.dtype, access.geometry.format.element)
    inside = [e.tiles.inside(d) for d in dims]
    out = e.b.slice(out, [0] * len(out.shape), inside or [1])
    view, subscripts = _flat(e, access.geometry, index)
    e.b.scatter(out, view, subscripts)


def _flat(e: Emitter, g: Geometry, index: GatherIndex) -> tuple:  # type: ignore[type-arg]
    """The whole buffer as one run of elements, and the subscript that reads it at ``index``."""
    view = e.b.view(e.tiles.bases[g.name], [e.tiles.number(device_elements(g))], [1], g.format.element)
    at = tuple(f"%v{i}" for i in range(len(index.dims))) or ("0",)
    return view, [Indirect(index.view, at)]


def masked_index(e: IndexHandler, value: Operand) -> Operand:
    """An index with zero where a mask is off: there it may point anywhere."""
    for mask in e.masks:
        chosen = elementwise(e.algebra, "where", [mask, value, Number(0, "i32")])
        assert chosen is not None
        value = chosen
    return value
