"""Where on the device an access of the host tensor lies: one expression per device dim.

The host offset of an access is taken apart digit by digit, largest step first; the stick and its tile
count are one digit, split last by floor and remainder of the *complete* expression. A column offset that
is no multiple of a stick therefore carries from lane to tile instead of being lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_loom.layout.index import Floor, Index, Ranges, Rem, bounds, const, floordiv, mod, substitute, var
from torch_loom.layout.stick import SpyreTensorLayout


def coordinates(layout: SpyreTensorLayout, index: Index, ranges: Ranges) -> list[Index]:
    """Coordinates of host offset ``index`` (relative to the tensor's first element) in the device dims.

    Dims without a host step, and broadcast dims, get 0. Raises ValueError if the offset can leave the
    tensor.
    """
    steps, sizes = layout.stride_map, layout.device_size
    tile, stick = layout.tile_dim(), len(sizes) - 1
    out = [const(0)] * len(sizes)
    digits = [d for d in range(len(sizes)) if steps[d] > 0 and d != tile]
    rest = index
    # Of two dims with one step only one can have more than one coordinate.
    for dim in sorted(digits, key=lambda d: (-steps[d], sizes[d] == 1)):
        digit = floordiv(rest, steps[dim], ranges)
        rest = mod(rest, steps[dim], ranges)
        if dim == stick:
            elems = sizes[stick]
            if tile is not None:
                out[tile] = floordiv(digit, elems, ranges)
            out[stick] = mod(digit, elems, ranges) if tile is not None else digit
        else:
            out[dim] = digit
    for dim, coordinate in enumerate(out):
        low, high = bounds(coordinate, ranges)
        if low < 0 or high >= max(sizes[dim], 1):
            raise ValueError(f"access {index} leaves the tensor: device dim {dim} of {sizes} reaches {low}..{high}")
    return out


def stick_compatible(accesses: Sequence[Sequence[Index]]) -> bool:
    """The public rule: the stick coordinates share at most one loop variable, used in no other coordinate."""
    sticks = set().union(*(access[-1].variables() for access in accesses)) if accesses else set()
    if len(sticks) > 1:
        return False
    # The tile coordinate floor(v / E) belongs to the stick: only other forms of v count.
    return not any(
        sticks & coordinate.variables() and not _is_tile(coordinate, access[-1])
        for access in accesses
        for coordinate in access[:-1]
    )


def _is_tile(coordinate: Index, stick: Index) -> bool:
    """floor(x / E) beside x mod E."""
    if len(coordinate.terms) != 1 or len(stick.terms) != 1:
        return False
    tile, lane = coordinate.terms[0][0], stick.terms[0][0]
    return isinstance(tile, Floor) and isinstance(lane, Rem) and (tile.arg, tile.divisor) == (lane.arg, lane.divisor)


@dataclass(frozen=True)
class Loop:
    """A loop variable: its extent and over how many cores it is split."""

    extent: int
    split: int = 1


@dataclass(frozen=True)
class Aligned:
    """Operands over one iteration space: per operand the coordinates and the extents of its device dims."""

    loops: dict[str, Loop]
    coordinates: list[list[Index]]
    sizes: list[list[int]]


def align(operands: Sequence[tuple[SpyreTensorLayout, Index]], loops: Mapping[str, Loop]) -> Aligned:
    """Split loop variables until no floor or remainder over a non-stick dim remains.

    Where any operand needs a boundary inside a variable, the variable becomes an outer and an inner one;
    a core split goes to the outer one, where it must divide. Boundaries that do not divide the extent
    stay as they are.
    """
    space = dict(loops)
    indices = [index for _, index in operands]
    while True:
        ranges = {name: loop.extent for name, loop in space.items()}
        found = [coordinates(layout, index, ranges) for (layout, _), index in zip(operands, indices, strict=True)]
        boundary = _boundary(operands, found, space)
        if boundary is None:
            break
        name, inner = boundary
        outer = _fresh(space)
        loop = space[name]
        space[outer] = Loop(loop.extent // inner, loop.split)
        space[name] = Loop(inner)
        ranges = {key: value.extent for key, value in space.items()}
        indices = [substitute(index, name, var(outer) * inner + var(name), ranges) for index in indices]
    expanded = [
        _expand(access, layout.device_size, ranges) for (layout, _), access in zip(operands, found, strict=True)
    ]
    return Aligned(space, [c for c, _ in expanded], [s for _, s in expanded])


def _fresh(space: Mapping[str, Loop]) -> str:
    number = 0
    while f"z{number}" in space:
        number += 1
    return f"z{number}"


def _boundary(
    operands: Sequence[tuple[SpyreTensorLayout, Index]],
    accesses: Sequence[Sequence[Index]],
    space: Mapping[str, Loop],
) -> tuple[str, int] | None:
    """(variable, inner extent) of the first boundary that a non-stick dim asks for."""
    for (layout, _), access in zip(operands, accesses, strict=True):
        tile = layout.tile_dim()
        for dim, coordinate in enumerate(access[:-1]):
            if dim == tile:
                continue
            for atom, _ in coordinate.terms:
                if isinstance(atom, str) or len(atom.arg.terms) != 1 or atom.arg.const:
                    continue
                name, factor = atom.arg.terms[0]
                if not isinstance(name, str) or factor != 1:
                    continue
                loop = space[name]
                outer, left = divmod(loop.extent, atom.divisor)
                if left == 0 and outer % loop.split == 0:
                    return name, atom.divisor
    return None


def _expand(access: Sequence[Index], sizes: Sequence[int], ranges: Ranges) -> tuple[list[Index], list[int]]:
    """One device dim per loop variable where a coordinate is a sum that tiles its dim exactly."""
    coords: list[Index] = []
    extents: list[int] = []
    for coordinate, size in zip(access, sizes, strict=True):
        terms = sorted(coordinate.terms, key=lambda term: -term[1])
        span, exact = 1, len(terms) > 1 and not coordinate.const
        for atom, factor in reversed(terms):
            exact = exact and isinstance(atom, str) and factor == span
            span *= ranges[atom] if isinstance(atom, str) else 0
        if exact and span == size:
            coords += [Index(((atom, 1),)) for atom, _ in terms]
            extents += [ranges[str(atom)] for atom, _ in terms]
        else:
            coords.append(coordinate)
            extents.append(size)
    return coords, extents
