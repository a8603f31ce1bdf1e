"""The layout of a tensor in device memory: device dims made of sticks, and what host step each one is.

A layout is a value with four fields (device sizes, stride map, format, element arrangement). The stride
map says how many host elements one step along a device dim is: -1 for dims without a host counterpart,
0 for broadcast dims. A map of strides, not of dims, survives padding, fused and split views and aliases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, overload

from torch_loom.layout.arrangement import ElementArrangement
from torch_loom.layout.formats import STICK_BYTES, DataFormats, device_format

PICKLE_VERSION = 3
"""Version 1 carried a dim map, version 2 had no element arrangement."""

LARGEST = 2**63 - 1
"""Largest number of bytes or elements that a layout may speak of: what PyTorch and the runtime count with."""


def contiguous_strides(size: Sequence[int]) -> list[int]:
    """Row-major strides in elements; empty dims count as one, as torch does."""
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


def device_dims(size: Sequence[int], dim_order: Sequence[int], elems: int) -> list[tuple[int, int]]:
    """Pairs (host dim, extent) of the device dims for a dim order, outermost first.

    The last host dim of the order is the stick; a final -1 asks for one element in each stick. Host dim
    -1 marks a synthetic dim. Order: o1 .. o(r-2), sticks of the stick dim, o0, lanes.
    """
    if not dim_order:
        return [(-1, 1), (-1, elems)]
    stick = dim_order[-1]
    tiles = 1 if stick == -1 else -(-size[stick] // elems)
    if len(dim_order) == 1:
        return [(stick, tiles), (stick, elems)]
    middle = [(dim, size[dim]) for dim in dim_order[1:-1]]
    first = dim_order[0]
    return [*middle, (stick, tiles), (first, size[first]), (stick, elems)]


def stride_map_of(dims: Sequence[tuple[int, int]], size: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Stride map of device dims: a host dim's stride at its innermost use, then what that use spans."""
    next_step = list(strides)
    out = []
    for dim, extent in reversed(dims):
        if dim == -1 or size[dim] == 1:
            out.append(-1)
        else:
            out.append(next_step[dim])
            next_step[dim] *= extent
    return out[::-1]


def default_order(size: Sequence[int]) -> list[int]:
    """Dims in their own order without those of extent 1, which never contribute to an address."""
    return [dim for dim, extent in enumerate(size) if extent != 1]


class SpyreTensorLayout:
    """Layout of a tensor on the device. Immutable, hashable, picklable; ``repr`` evaluates back.

    ``SpyreTensorLayout(size, dtype)``: default layout by rank, contiguous host tensor.
    ``SpyreTensorLayout(size, strides, dtype, dim_order[, arrangement])``: chosen order, real host strides.
    ``SpyreTensorLayout(device_size, stride_map, DataFormats.X[, arrangement])``: raw.
    """

    __slots__ = ("_arrangement", "_device_size", "_format", "_stride_map")

    _device_size: tuple[int, ...]
    _stride_map: tuple[int, ...]
    _format: DataFormats
    _arrangement: ElementArrangement

    @overload
    def __init__(self, host_size: Sequence[int], dtype: Any, /) -> None: ...
    @overload
    def __init__(
        self,
        host_size: Sequence[int],
        host_strides: Sequence[int],
        dtype: Any,
        dim_order: Sequence[int],
        element_arrangement: ElementArrangement = ...,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device_size: Sequence[int],
        stride_map: Sequence[int],
        device_dtype: DataFormats,
        element_arrangement: ElementArrangement = ...,
        /,
    ) -> None: ...
    @overload
    def __init__(self, **fields: Any) -> None: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = _bind(args, kwargs)
        arrangement = fields.get("element_arrangement", ElementArrangement.STANDARD)
        if "device_size" in fields:
            self._set(fields["device_size"], fields["stride_map"], fields["device_dtype"], arrangement)
            return
        size = [int(extent) for extent in fields["host_size"]]
        strides = fields.get("host_strides")
        strides = contiguous_strides(size) if strides is None else [int(step) for step in strides]
        order = fields.get("dim_order")
        order = default_order(size) if order is None else [int(dim) for dim in order]
        _check_host(size, strides, order, explicit="dim_order" in fields)
        dtype = fields["dtype"]
        fmt = dtype if isinstance(dtype, DataFormats) else device_format(dtype)
        dims = device_dims(size, order, fmt.elems_per_stick())
        self._set([extent for _, extent in dims], stride_map_of(dims, size, strides), fmt, arrangement)

    def _set(
        self,
        device_size: Sequence[int],
        stride_map: Sequence[int],
        fmt: DataFormats,
        arrangement: ElementArrangement,
    ) -> None:
        sizes, steps = tuple(map(int, device_size)), tuple(map(int, stride_map))
        if not isinstance(fmt, DataFormats) or not isinstance(arrangement, ElementArrangement):
            raise TypeError(f"a layout needs a DataFormats and an ElementArrangement, got {fmt!r}, {arrangement!r}")
        elems = fmt.elems_per_stick()
        if elems == 0:
            raise ValueError(f"{fmt!r} is not a format of device memory")
        if len(sizes) != len(steps) or not sizes:
            raise ValueError(f"device_size {list(sizes)} and stride_map {list(steps)} need one entry per device dim")
        if sizes[-1] != elems:
            raise ValueError(f"the last device dim is the stick: {elems} elements of {fmt!r}, got {sizes[-1]}")
        if min(sizes) < 0 or min(steps) < -1:
            raise ValueError(f"negative extent or step in device_size {list(sizes)}, stride_map {list(steps)}")
        if max(steps) > LARGEST or STICK_BYTES * math.prod(sizes[:-1]) > LARGEST:
            raise ValueError(
                f"device_size {list(sizes)} with stride_map {list(steps)} is too large: bytes and steps of a layout "
                "must fit 63 bits"
            )
        for name, value in zip(SpyreTensorLayout.__slots__, (arrangement, sizes, fmt, steps), strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a layout is immutable; cannot set {name}")

    @property
    def device_size(self) -> list[int]:
        """Extents of the device dims, outermost first; the last is the stick."""
        return list(self._device_size)

    @property
    def stride_map(self) -> list[int]:
        """Host elements per step of each device dim; -1 synthetic or size 1, 0 broadcast."""
        return list(self._stride_map)

    @property
    def device_dtype(self) -> DataFormats:
        """Format of the elements."""
        return self._format

    @property
    def element_arrangement(self) -> ElementArrangement:
        """Order of the elements inside sticks."""
        return self._arrangement

    @property
    def device_strides(self) -> list[int]:
        """Device elements per step of each device dim: row-major."""
        return contiguous_strides(self._device_size)

    @property
    def device_bytes(self) -> int:
        """Bytes in device memory, a whole number of sticks."""
        return STICK_BYTES * math.prod(self._device_size[:-1])

    def elems_per_stick(self) -> int:
        """Elements per stick."""
        return self._device_size[-1]

    def tile_dim(self) -> int | None:
        """The device dim that counts sticks along the stick's host dim, or None (one element a stick).

        Its step is what the stick spans. By the public rule it is third from the end; row-major layouts
        have it second from the end. Two dims can have that step only if one of them has extent 1: a row
        of at most one stick, whose tile count it is.
        """
        if self._stride_map[-1] <= 0:
            return None
        span = self._stride_map[-1] * self._device_size[-1]
        rank = len(self._device_size)
        found = [d for d in (rank - 3, rank - 2, *range(rank - 3)) if d >= 0 and self._stride_map[d] == span]
        singles = [d for d in found if self._device_size[d] == 1]
        return (singles if len(found) > 1 and singles else found or [None])[0]

    def squeezed(self) -> SpyreTensorLayout:
        """The same bytes without extent-1 dims of map -1 outside the stick."""
        keep = [d for d in range(len(self._device_size) - 1) if self._device_size[d] != 1] + [-1]
        return SpyreTensorLayout(
            [self._device_size[d] for d in keep],
            [self._stride_map[d] for d in keep],
            self._format,
            self._arrangement,
        )

    def same_bytes(self, other: SpyreTensorLayout) -> bool:
        """Compatibility: equal up to dims of extent 1, which hold no address."""
        return self.squeezed() == other.squeezed()

    def _key(self) -> tuple[object, ...]:
        return self._device_size, self._stride_map, self._format, self._arrangement

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpyreTensorLayout) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """Code that gives the layout back and the names it uses: PyTorch writes it into graphs that hold a layout."""
        return repr(self), {c.__name__: c for c in (SpyreTensorLayout, DataFormats, ElementArrangement)}

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Pairs (extent, step) of the device dims, outermost first."""
        return iter(zip(self._device_size, self._stride_map, strict=True))

    def __repr__(self) -> str:
        order = (
            "" if self._arrangement is ElementArrangement.STANDARD else (f", element_arrangement={self._arrangement!r}")
        )
        return (
            f"SpyreTensorLayout(device_size={self.device_size}, stride_map ={self.stride_map}, "
            f"device_dtype={self._format!r}{order})"
        )

    def __getstate__(self) -> tuple[Any, ...]:
        return PICKLE_VERSION, self.device_size, self.stride_map, self._format.name, self._arrangement.name

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version = state[0] if isinstance(state, tuple) and state else None
        if version not in (2, PICKLE_VERSION):
            raise ValueError(f"a pickled layout of version {version!r} cannot be read; known are 2 and 3")
        arrangement = ElementArrangement.STANDARD if version == 2 else ElementArrangement[state[4]]
        self._set(state[1], state[2], DataFormats[state[3]], arrangement)


# Argument names of the constructor forms, and how many of them are required.
_FORMS = (
    (("host_size", "dtype"), 2),
    (("host_size", "host_strides", "dtype", "dim_order", "element_arrangement"), 4),
    (("device_size", "stride_map", "device_dtype", "element_arrangement"), 3),
)
_SEQUENCES = {"host_size", "host_strides", "dim_order", "device_size", "stride_map"}


def _bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, of the one constructor form that they fit."""
    for names, required in _FORMS:
        fields = dict(zip(names, args, strict=False))
        if len(args) > len(names) or fields.keys() & kwargs.keys():
            continue
        fields |= kwargs
        complete = set(names[:required]) <= fields.keys() <= set(names)
        if complete and all(_is_sequence(v) == (name in _SEQUENCES) for name, v in fields.items()):
            return fields
    raise TypeError(
        "SpyreTensorLayout takes (host_size, dtype), (host_size, host_strides, dtype, dim_order[, "
        "element_arrangement]) or (device_size, stride_map, device_dtype[, element_arrangement])"
    )


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _check_host(size: list[int], strides: list[int], order: list[int], *, explicit: bool) -> None:
    if len(strides) != len(size):
        raise ValueError(f"host size {size} and host strides {strides} need one entry per dim")
    if any(extent < 0 for extent in size) or any(step < 0 for step in strides):
        raise ValueError(f"negative extent or stride in host size {size}, host strides {strides}")
    dims = order[:-1] if explicit and order and order[-1] == -1 else order
    if explicit and sorted(dims) != list(range(len(size))):
        raise ValueError(f"dim_order {order} must name each of the {len(size)} host dims once, then maybe -1")


def default_layout(size: Sequence[int], dtype: Any) -> SpyreTensorLayout:
    """The layout that ``.to("spyre")`` gives a contiguous tensor."""
    return SpyreTensorLayout(list(size), dtype)


def row_major_geometry(size: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """(rows, columns) of a dense tensor seen in the order of its strides, extent-1 dims dropped.

    Raises ValueError if the tensor is not dense: two dims overlap or leave a gap.
    """
    dims = sorted(((step, extent) for step, extent in zip(strides, size, strict=True) if extent != 1), reverse=True)
    expected = 1
    for step, extent in reversed(dims):
        if step != expected and 0 not in size:
            raise ValueError(f"a row-major layout needs a dense tensor, got size {list(size)}, strides {list(strides)}")
        expected = step * extent
    columns = dims[-1][1] if dims else 1
    return math.prod(extent for _, extent in dims[:-1]), columns


def row_major_layout(size: Sequence[int], strides: Sequence[int], dtype: Any) -> SpyreTensorLayout:
    """Rows of sticks one after the other, for intermediates that a compiler makes: [rows, tiles, lanes].

    Its host side is the two-dim geometry of :func:`row_major_geometry`, not the tensor's own dims.
    """
    rows, columns = row_major_geometry(size, strides)
    fmt = dtype if isinstance(dtype, DataFormats) else device_format(dtype)
    elems = fmt.elems_per_stick()
    dims = [(0, rows), (1, -(-columns // elems)), (1, elems)]
    return SpyreTensorLayout([extent for _, extent in dims], stride_map_of(dims, (rows, columns), (columns, 1)), fmt)
