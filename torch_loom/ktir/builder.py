"""Write KTIR from Python.

A ``KernelBuilder`` prints one function. Numbers that are known stay Python integers; numbers that are
known only at launch are ``Index`` values, and arithmetic on either gives the other where it must, so a
kernel generator is written once for static and symbolic sizes. Equal index expressions of one scope are
emitted once. Tensors carry shape and element type and are checked when an operation is built.

The builder prints text, not IR objects: text is the contract between the rooms, and printing is fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

FLOATS = ("f16", "bf16", "f32")


class BuildError(ValueError):
    """A kernel that cannot be expressed: wrong shapes or types handed to the builder."""


@dataclass(frozen=True)
class Index:
    """An SSA value of type ``index``. Supports + - * // % with integers and other indices."""

    name: str
    builder: KernelBuilder = field(repr=False, compare=False)

    def __add__(self, other: Dim) -> Dim:
        return self.builder.add(self, other)

    def __radd__(self, other: Dim) -> Dim:
        return self.builder.add(other, self)

    def __sub__(self, other: Dim) -> Dim:
        return self.builder.sub(self, other)

    def __rsub__(self, other: Dim) -> Dim:
        return self.builder.sub(other, self)

    def __mul__(self, other: Dim) -> Dim:
        return self.builder.mul(self, other)

    def __rmul__(self, other: Dim) -> Dim:
        return self.builder.mul(other, self)

    def __floordiv__(self, other: Dim) -> Dim:
        return self.builder.floordiv(self, other)

    def __mod__(self, other: Dim) -> Dim:
        return self.builder.mod(self, other)


Dim = int | Index


@dataclass(frozen=True)
class Tensor:
    """An SSA tensor value; ``shape`` holds integers and, where dynamic, indices.

    A value of rank 0 is a scalar unless ``boxed``, which marks a tensor that was collapsed to rank 0."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    boxed: bool = False

    @property
    def type(self) -> str:
        """MLIR type of the value."""
        return tensor_type(self.shape, self.dtype)


@dataclass(frozen=True)
class View:
    """A memory view: where elements lie, not the elements."""

    name: str
    sizes: tuple[Dim, ...]
    dtype: str

    @property
    def type(self) -> str:
        """MLIR type of the view."""
        return f"memref<{_dims(self.sizes)}{self.dtype}>"


@dataclass(frozen=True)
class Indirect:
    """A subscript of a gather: the value stored in ``view`` at ``at`` (texts, see ``gather``)."""

    view: View
    at: tuple[str, ...]


def _dims(shape: Sequence[Dim]) -> str:
    return "".join(f"{d if isinstance(d, int) else '?'}x" for d in shape)


def tensor_type(shape: Sequence[Dim], dtype: str) -> str:
    """``tensor<16x?xf32>`` for a shape whose second extent is dynamic."""
    return f"tensor<{_dims(shape)}{dtype}>"


def _box(extents: Sequence[Dim]) -> tuple[str, list[Index]]:
    """The affine set 0 <= d_k < extent_k and the values its symbols stand for."""
    names = [f"d{i}" for i in range(len(extents))]
    symbols: list[Index] = []
    rows = []
    for n, e in zip(names, extents, strict=True):
        rows.append(f"{n} >= 0")
        if isinstance(e, int):
            rows.append(f"-{n} + {e - 1} >= 0" if e != 1 else f"-{n} >= 0")
        else:
            rows.append(f"-{n} + s{len(symbols)} - 1 >= 0")
            symbols.append(e)
    head = f"({', '.join(names)})" + (f"[{', '.join(f's{i}' for i in range(len(symbols)))}]" if symbols else "")
    return f"affine_set<{head} : ({', '.join(rows) or '0 == 0'})>", symbols


def _order(perm: Sequence[int]) -> str:
    names = ", ".join(f"d{i}" for i in range(len(perm)))
    return f"affine_map<({names}) -> ({', '.join(f'd{p}' for p in perm)})>"


@dataclass
class Carried:
    """State of an ``accumulate`` loop: its index, the values that enter, the values that leave."""

    index: Index
    values: list[Tensor]
    results: list[Tensor] = field(default_factory=list)


@dataclass
class _Scope:
    """Lines of one loop body and the pure definitions visible in it."""

    lines: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)


_NAMES = re.compile(r"%[A-Za-z0-9_]+")


class KernelBuilder:
    """Builds the text of one KTIR function run by ``grid`` compute tiles."""

    def __init__(self, name: str, grid: int) -> None:
        self.name = name
        self.grid = grid
        self._args: list[str] = []
        self._scopes = [_Scope()]
        self._level_of: dict[str, int] = {}
        self._next = 0

    # -- plumbing ---------------------------------------------------------------------------------

    @property
    def _here(self) -> int:
        return len(self._scopes) - 1

    def _emit(self, text: str, level: int | None = None) -> None:
        level = self._here if level is None else level
        self._scopes[level].lines.append("  " * (level + 2) + text)

    def _define(self, text: str, level: int | None = None) -> str:
        """Emit ``text`` as the definition of a new value."""
        level = self._here if level is None else level
        name = f"%{self._next}"
        self._next += 1
        self._emit(f"{name} = {text}", level)
        self._level_of[name] = level
        return name

    def _define_many(self, text: str, count: int) -> list[str]:
        """Emit ``text`` as the definition of ``count`` new values."""
        if count == 1:
            return [self._define(text)]
        name = f"%{self._next}"
        self._next += 1
        self._emit(f"{name}:{count} = {text}")
        self._level_of[name] = self._here
        return [f"{name}#{i}" for i in range(count)]

    def _hoisted(self, text: str) -> int:
        """The outermost loop level at which every operand of ``text`` is defined."""
        return max((self._level_of.get(n, 0) for n in _NAMES.findall(text)), default=0)

    def _value(self, text: str, *, hoist: bool = False) -> str:
        """Emit a pure definition unless an equal one is visible; ``hoist`` moves it out of loops."""
        level = self._hoisted(text) if hoist else self._here
        for scope in self._scopes[: level + 1]:
            if text in scope.known:
                return scope.known[text]
        name = self._define(text, level)
        self._scopes[level].known[text] = name
        return name

    def _ssa(self, value: Dim) -> str:
        if isinstance(value, int):
            return self._value(f"arith.constant {value} : index", hoist=True)
        return value.name

    def _listed(self, values: Sequence[Dim]) -> str:
        return ", ".join(str(v) if isinstance(v, int) else v.name for v in values)

    def text(self) -> str:
        """The finished module."""
        head = f"  func.func @{self.name}({', '.join(self._args)}) attributes {{grid = [{self.grid}]}} {{"
        return "\n".join(["module {", head, *self._scopes[0].lines, "    return", "  }", "}", ""])

    # -- arguments and index arithmetic -------------------------------------------------------------

    def buffer(self, name: str) -> Index:
        """A buffer argument: its base address."""
        self._args.append(f"%{name}: index")
        return Index(f"%{name}", self)

    def size(self, name: str, upperbound: int | None = None) -> Index:
        """A launch-time size, at most ``upperbound`` when given."""
        if upperbound is None:
            self._args.append(f"%{name}: index")
            return Index(f"%{name}", self)
        kind = f"<index, upperbound={upperbound}>"
        self._args.append(f"%{name}: !ktdp.runtime_arg{kind}")
        return Index(self._value(f"ktdp.runtime_arg_extract value from %{name} : {kind} -> index", hoist=True), self)

    def scalar(self, name: str, dtype: str) -> Tensor:
        """A launch-time number as a rank-0 value of type ``dtype`` (used through ``splat``)."""
        self._args.append(f"%{name}: {dtype}")
        return Tensor(f"%{name}", (), dtype)

    def tile_id(self) -> Index:
        """Number of the executing compute tile."""
        return Index(self._value("ktdp.get_compute_tile_id : index", hoist=True), self)

    def _arith(self, op: str, a: Dim, b: Dim) -> Index:
        return Index(self._value(f"arith.{op} {self._ssa(a)}, {self._ssa(b)} : index", hoist=True), self)

    def add(self, a: Dim, b: Dim) -> Dim:
        """a + b"""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self._arith("addi", a, b)

    def sub(self, a: Dim, b: Dim) -> Dim:
        """a - b"""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if a == b:
            return 0
        return a if b == 0 else self._arith("subi", a, b)

    def mul(self, a: Dim, b: Dim) -> Dim:
        """a * b"""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1 or b == 1:
            return b if a == 1 else a
        return self._arith("muli", a, b)

    def floordiv(self, a: Dim, b: Dim) -> Dim:
        """floor(a / b) for b > 0"""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if b == 1 or a == 0:
            return a
        return self._arith("floordivsi", a, b)

    def ceildiv(self, a: Dim, b: Dim) -> Dim:
        """ceil(a / b) for b > 0"""
        if isinstance(a, int) and isinstance(b, int):
            return -(-a // b)
        if b == 1 or a == 0:
            return a
        return self._arith("ceildivsi", a, b)

    def mod(self, a: Dim, b: Dim) -> Dim:
        """a mod b for a >= 0, b > 0"""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        if b == 1 or a == 0:
            return 0
        return self._arith("remsi", a, b)

    def min(self, a: Dim, b: Dim) -> Dim:
        """Smaller of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return a if a == b else self._arith("minsi", a, b)

    def max(self, a: Dim, b: Dim) -> Dim:
        """Larger of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return a if a == b else self._arith("maxsi", a, b)

    @contextmanager
    def loop(self, lo: Dim, hi: Dim, step: Dim = 1) -> Iterator[Index]:
        """``for i in range(lo, hi, step)``; values defined inside are not visible afterwards."""
        bounds = [self._ssa(v) for v in (lo, hi, step)]
        name = f"%{self._next}"
        self._next += 1
        self._scopes.append(_Scope())
        self._level_of[name] = self._here
        yield Index(name, self)
        body = self._scopes.pop()
        # The header is written last: what was hoisted out of the body stands before it.
        self._emit(f"scf.for {name} = {bounds[0]} to {bounds[1]} step {bounds[2]} {{")
        self._scopes[-1].lines.extend(body.lines)
        self._emit("}")

    @contextmanager
    def accumulate(self, lo: Dim, hi: Dim, inits: Sequence[Tensor]) -> Iterator[Carried]:
        """A loop that carries tensors: set ``carried.results`` to their next values inside; afterwards it
        holds the values after the last iteration."""
        bounds = [self._ssa(v) for v in (lo, hi, 1)]
        count = len(inits)
        names = [f"%{self._next + i}" for i in range(count + 2)]
        index, out, inside = names[0], names[1], names[2:]
        self._next += count + 2
        self._scopes.append(_Scope())
        for name in (index, *inside):
            self._level_of[name] = self._here
        entering = [Tensor(n, t.shape, t.dtype) for n, t in zip(inside, inits, strict=True)]
        carried = Carried(Index(index, self), entering)
        yield carried
        kinds = ", ".join(t.type for t in inits)
        if ", ".join(t.type for t in carried.results) != kinds:
            raise BuildError(f"a loop that carries {kinds} must set its next values of these types")
        self._emit(f"scf.yield {', '.join(t.name for t in carried.results)} : {kinds}")
        body = self._scopes.pop()
        pairs = ", ".join(f"{n} = {t.name}" for n, t in zip(inside, inits, strict=True))
        self._emit(
            f"{out}{f':{count}' if count > 1 else ''} = scf.for {index} = {bounds[0]} to {bounds[1]} "
            f"step {bounds[2]} iter_args({pairs}) -> ({kinds}) {{"
        )
        self._scopes[-1].lines.extend(body.lines)
        self._emit("}")
        self._level_of[out] = self._here
        ends = [out] if count == 1 else [f"{out}#{i}" for i in range(count)]
        carried.results = [Tensor(n, t.shape, t.dtype) for n, t in zip(ends, inits, strict=True)]

    # -- memory -------------------------------------------------------------------------------------

    def view(self, base: Dim, sizes: Sequence[Dim], strides: Sequence[Dim], dtype: str, space: str = "global") -> View:
        """Elements base + sum(i_k * strides_k) for 0 <= i_k < sizes_k; ``space`` is global or ct_local."""
        box, _ = _box(sizes)
        view = View("", tuple(sizes), dtype)
        attrs = f"{{coordinate_set = {box}, memory_space = #ktdp.memory_space<{space}>}}"
        text = (
            f"ktdp.construct_memory_view {self._ssa(base)}, sizes: [{self._listed(sizes)}], "
            f"strides: [{self._listed(strides)}] {attrs} : {view.type}"
        )
        return View(self._value(text, hoist=True), view.sizes, dtype)

    def _tile(self, view: View, at: Sequence[Dim], shape: Sequence[Dim], order: Sequence[int]) -> str:
        box, symbols = _box(shape)
        bound = f" symbols({', '.join(s.name for s in symbols)})" if symbols else ""
        kind = f"!ktdp.access_tile<{_dims([shape[p] for p in order])}index>"
        return self._value(
            f"ktdp.construct_access_tile {view.name}[{self._listed(at)}]{bound} "
            f"{{access_tile_order = {_order(order)}, access_tile_set = {box}}} : {view.type} -> {kind}",
            hoist=True,
        )

    def load(
        self,
        view: View,
        at: Sequence[Dim],
        shape: Sequence[Dim],
        order: Sequence[int] | None = None,
        *,
        invariant: bool = True,
    ) -> Tensor:
        """Tile of ``shape`` at coordinates ``at``; result dim i is view dim ``order[i]``.

        ``invariant`` says that this kernel never writes the memory, so equal loads are one load."""
        order = order or range(len(shape))
        tile = self._tile(view, at, shape, order)
        out = tuple(shape[p] for p in order)
        text = f"ktdp.load {tile} : <{_dims(out)}index> -> {tensor_type(out, view.dtype)}"
        # A load that no enclosing loop changes stands outside of it: the tile is fetched once.
        name = self._value(text, hoist=True) if invariant else self._define(text)
        return Tensor(name, out, view.dtype)

    def store(
        self,
        value: Tensor,
        view: View,
        at: Sequence[Dim],
        shape: Sequence[Dim],
        order: Sequence[int] | None = None,
    ) -> None:
        """Write ``value`` to the tile of ``shape`` at ``at``; value dim i goes to view dim ``order[i]``."""
        order = order or range(len(shape))
        if value.dtype != view.dtype or [shape[p] for p in order] != list(value.shape):
            raise BuildError(f"store of {value.type} to a tile {list(shape)} (order {list(order)}) of {view.type}")
        tile = self._tile(view, at, shape, order)
        self._emit(f"ktdp.store {value.name}, {tile} : {value.type}, <{_dims(value.shape)}index>")

    def _indirect_tile(self, view: View, shape: Sequence[Dim], subscripts: Sequence[str | Indirect]) -> str:
        box, symbols = _box(shape)
        variables = [f"%v{i}" for i in range(len(shape))]
        parts, types = [], [view.type]
        for s in subscripts:
            if isinstance(s, Indirect):
                parts.append(f"ind({s.view.name}[{', '.join(s.at)}])")
                types.append(s.view.type)
            else:
                parts.append(f"({s})")
        bound = f" symbols({', '.join(s.name for s in symbols)})" if symbols else ""
        kind = f"!ktdp.access_tile<{_dims(shape)}index>"
        return self._define(
            f"ktdp.construct_indirect_access_tile intermediate_variables({', '.join(variables)}) "
            f"{view.name}[{', '.join(parts)}]{bound} {{variables_space_order = {_order(range(len(shape)))}, "
            f"variables_space_set = {box}}} : {', '.join(types)} -> {kind}"
        )

    def gather(self, view: View, shape: Sequence[Dim], subscripts: Sequence[str | Indirect]) -> Tensor:
        """Load through an indirect tile over variables ``%v0 .. `` of extents ``shape``. A subscript is an affine
        text over the variables and index values, or an ``Indirect`` whose subscripts are such texts."""
        tile = self._indirect_tile(view, shape, subscripts)
        name = self._define(f"ktdp.load {tile} : <{_dims(shape)}index> -> {tensor_type(shape, view.dtype)}")
        return Tensor(name, tuple(shape), view.dtype)

    def scatter(self, value: Tensor, view: View, subscripts: Sequence[str | Indirect]) -> None:
        """Write ``value`` through an indirect tile over variables of its own extents, see ``gather``. Points
        outside of an index view write nothing; of points with the same target the last one wins."""
        if value.dtype != view.dtype:
            raise BuildError(f"scatter of {value.type} into {view.type}")
        tile = self._indirect_tile(view, value.shape, subscripts)
        self._emit(f"ktdp.store {value.name}, {tile} : {value.type}, <{_dims(value.shape)}index>")

    # -- tensor operations ----------------------------------------------------------------------------

    def empty(self, shape: Sequence[Dim], dtype: str) -> Tensor:
        """An uninitialised tensor: a shape for ``outs``."""
        dynamic = ", ".join(d.name for d in shape if not isinstance(d, int))
        kind = tensor_type(shape, dtype)
        return Tensor(self._value(f"tensor.empty({dynamic}) : {kind}", hoist=True), tuple(shape), dtype)

    def constant(self, value: float | int | bool, dtype: str) -> Tensor:
        """A rank-0 constant; floats are printed so that they parse back to the same bits."""
        if dtype in FLOATS:
            return Tensor(self._value(f"arith.constant {float_literal(float(value), dtype)} : {dtype}"), (), dtype)
        if dtype == "i1":
            return Tensor(self._value(f"arith.constant {'true' if value else 'false'}"), (), dtype)
        return Tensor(self._value(f"arith.constant {int(value)} : {dtype}"), (), dtype)

    def from_index(self, value: Dim, dtype: str = "i32") -> Tensor:
        """An index as a rank-0 integer."""
        if isinstance(value, int):
            return self.constant(value, dtype)
        return Tensor(self._value(f"arith.index_cast {value.name} : index to {dtype}", hoist=True), (), dtype)

    def splat(self, scalar: Tensor, shape: Sequence[Dim]) -> Tensor:
        """Every element equals the scalar."""
        if not shape:
            return scalar
        open_sizes = ", ".join(d.name for d in shape if not isinstance(d, int))
        dynamic = f"[{open_sizes}]" if open_sizes else ""
        kind = tensor_type(shape, scalar.dtype)
        return Tensor(self._value(f"tensor.splat {scalar.name}{dynamic} : {kind}"), tuple(shape), scalar.dtype)

    def iota(self, extent: Dim) -> Tensor:
        """``tensor<extent x i32>`` holding 0, 1, 2, ..."""
        init = self.empty((extent,), "i32")
        text = (
            'linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} '
            f"outs({init.name} : {init.type}) {{ ^bb0(%out: i32): %at = linalg.index 0 : index "
            "%as = arith.index_cast %at : index to i32 linalg.yield %as : i32 "
            f"}} -> {init.type}"
        )
        return Tensor(self._value(text), (extent,), "i32")

    def op(self, name: str, *operands: Tensor, result: str | None = None) -> Tensor:
        """An elementwise arith or math operation on values of one shape; ``result`` changes the type
        (casts and comparisons print it as their dialect wants)."""
        first = operands[-1]
        for o in operands:
            if o.shape != first.shape:
                raise BuildError(f"{name}: shapes {[x.type for x in operands]} differ")
        names = ", ".join(o.name for o in operands)
        if name.startswith(("arith.cmpf", "arith.cmpi")):
            return Tensor(self._value(f"{name}, {names} : {first.type}"), first.shape, "i1")
        if name in ("arith.select", "spyreop.checked"):
            short = name == "arith.select" and not first.shape
            kinds = first.dtype if short else f"{operands[0].type}, {first.type}"
            return Tensor(self._value(f"{name} {names} : {kinds}"), first.shape, first.dtype)
        if result is None:
            kind = first.type if first.shape else first.dtype
            return Tensor(self._value(f"{name} {names} : {kind}"), first.shape, first.dtype)
        source, target = (first.type, tensor_type(first.shape, result)) if first.shape else (first.dtype, result)
        return Tensor(self._value(f"{name} {names} : {source} to {target}"), first.shape, result)

    def reduce(self, combiner: str, value: Tensor, dims: Sequence[int]) -> Tensor:
        """Fold ``value`` over ``dims`` from the combiner's identity."""
        shape = tuple(s for i, s in enumerate(value.shape) if i not in dims)
        init = self.empty(shape, value.dtype)
        name = self._define(
            f"linalg.reduce {{ {combiner} }} ins({value.name} : {value.type}) "
            f"outs({init.name} : {init.type}) dimensions = [{', '.join(map(str, dims))}]"
        )
        return Tensor(name, shape, value.dtype)

    def broadcast(self, value: Tensor, shape: Sequence[Dim], added: Sequence[int]) -> Tensor:
        """Repeat ``value`` along the ``added`` dims of the result."""
        if not added:
            return value
        if not value.shape and not value.boxed:
            return self.splat(value, shape)
        init = self.empty(shape, value.dtype)
        text = (
            f"linalg.broadcast ins({value.name} : {value.type}) outs({init.name} : {init.type}) "
            f"dimensions = [{', '.join(map(str, added))}]"
        )
        return Tensor(self._value(text), tuple(shape), value.dtype)

    def transpose(self, value: Tensor, perm: Sequence[int]) -> Tensor:
        """Result dim i is operand dim perm[i]."""
        if list(perm) == list(range(len(perm))):
            return value
        shape = tuple(value.shape[p] for p in perm)
        init = self.empty(shape, value.dtype)
        text = (
            f"linalg.transpose ins({value.name} : {value.type}) outs({init.name} : {init.type}) "
            f"permutation = [{', '.join(map(str, perm))}]"
        )
        return Tensor(self._value(text), shape, value.dtype)

    def collapse(self, value: Tensor, groups: Sequence[Sequence[int]], shape: Sequence[Dim]) -> Tensor:
        """Merge neighbouring dims; ``shape`` is the result's."""
        if len(shape) == len(value.shape):
            return value
        kinds = f"{value.type} into {tensor_type(shape, value.dtype)}"
        text = f"tensor.collapse_shape {value.name} {_groups(groups)} : {kinds}"
        return Tensor(self._value(text), tuple(shape), value.dtype, boxed=not shape)

    def expand(self, value: Tensor, groups: Sequence[Sequence[int]], shape: Sequence[Dim]) -> Tensor:
        """Split dims; ``shape`` is the result's."""
        if len(shape) == len(value.shape):
            return value
        text = (
            f"tensor.expand_shape {value.name} {_groups(groups)} output_shape [{self._listed(shape)}] : "
            f"{value.type} into {tensor_type(shape, value.dtype)}"
        )
        return Tensor(self._value(text), tuple(shape), value.dtype)

    def expand_front(self, value: Tensor) -> Tensor:
        """The value with a leading dim of one."""
        rank = len(value.shape)
        groups = [[0, 1], *([i] for i in range(2, rank + 1))]
        return self.expand(value, groups, [1, *value.shape])

    def slice(self, value: Tensor, offsets: Sequence[Dim], sizes: Sequence[Dim]) -> Tensor:
        """The box at ``offsets`` of extents ``sizes``."""
        if list(sizes) == list(value.shape):
            return value
        out = tensor_type(sizes, value.dtype)
        text = (
            f"tensor.extract_slice {value.name}[{self._listed(offsets)}] [{self._listed(sizes)}] "
            f"[{', '.join('1' for _ in sizes)}] : {value.type} to {out}"
        )
        return Tensor(self._value(text), tuple(sizes), value.dtype)

    def pad_to(self, value: Tensor, shape: Sequence[Dim], at: Sequence[int] | None = None) -> Tensor:
        """``value`` at ``at`` (default: the origin) of an otherwise uninitialised tensor of ``shape``."""
        if list(shape) == list(value.shape):
            return value
        init = self.empty(shape, value.dtype)
        text = (
            f"tensor.insert_slice {value.name} into {init.name}[{self._listed(at or [0] * len(shape))}] "
            f"[{self._listed(value.shape)}] [{', '.join('1' for _ in shape)}] : {value.type} into {init.type}"
        )
        return Tensor(self._value(text), tuple(shape), value.dtype)

    def matmul(self, a: Tensor, b: Tensor, dtype: str = "f32", init: Tensor | None = None) -> Tensor:
        """a[m, k] times b[k, n] (plus ``init``), accumulated and returned in ``dtype``."""
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise BuildError(f"matmul of {a.type} and {b.type}")
        init = init or self.empty((a.shape[0], b.shape[1]), dtype)
        name = self._define(
            f"linalg.matmul ins({a.name}, {b.name} : {a.type}, {b.type}) outs({init.name} : {init.type}) -> {init.type}"
        )
        return Tensor(name, init.shape, dtype)

    # -- exchanges ----------------------------------------------------------------------------------

    def ring_fold(
        self,
        combiners: Sequence[str],
        values: Sequence[Tensor],
        identities: Sequence[float],
        size: int,
        scatter: int | None = None,
    ) -> list[Tensor]:
        """Fold ``values[i]`` with ``combiners[i]`` over each group of ``size`` neighbouring compute tiles, in the order
        of their numbers. Every tile of the group gets the whole result, or, with ``scatter``, its share of that dim
        (whose extent ``size`` divides)."""
        groups = self.grid // size
        everyone = f"affine_set<(t)[g] : (t - g * {size} >= 0, -t + g * {size} + {size - 1} >= 0)>"
        numbers = f"affine_set<(g) : (g >= 0, -g + {groups - 1} >= 0)>"
        types = ", ".join(v.type for v in values)
        future = f"<({types}), groups = {numbers}>"
        names = ", ".join(v.name for v in values)
        group = f"%{self._next}"
        self._next += 1
        sent = self._define(
            f"ktdp.inter_tile_produce producer_tiles_per_group = {everyone} -> {future} "
            f"{{ ^bb0({group}: index): ktdp.yield_partial {names} : {types} }}"
        )
        starts = [self.splat(self.constant(x, v.dtype), v.shape) for x, v in zip(identities, values, strict=True)]
        count = len(values)
        left, right, out = ([f"%{self._next + j * count + i}" for i in range(count)] for j in range(3))
        self._next += 3 * count
        arguments = ", ".join(f"{n}: {v.type}" for side in (left, right) for n, v in zip(side, values, strict=True))
        body = " ".join(
            f"{o} = {c} {a}, {b} : {v.type}" for o, c, a, b, v in zip(out, combiners, left, right, values, strict=True)
        )
        kind, where = "reduce", ""
        shapes = [list(v.shape) for v in values]
        if scatter is not None:
            kind, where = "reduce_scatter", f", scatter_dimensions = [{scatter}]"
            for shape in shapes:
                shape[scatter] = self.floordiv(shape[scatter], size)
        results = ", ".join(tensor_type(s, v.dtype) for s, v in zip(shapes, values, strict=True))
        name = self._define_many(
            f"ktdp.inter_tile_{kind}({sent}) consumer_tiles_per_group = {everyone}{where}, "
            f"identity({', '.join(s.name for s in starts)} : {types}) : {future} -> {results} "
            f"{{ ^bb0({arguments}): {body} ktdp.yield_reduced {', '.join(out)} : {types} }}",
            count,
        )
        return [Tensor(n, tuple(s), v.dtype) for n, s, v in zip(name, shapes, values, strict=True)]


def _groups(groups: Sequence[Sequence[int]]) -> str:
    return "[" + ", ".join("[" + ", ".join(map(str, g)) + "]" for g in groups) + "]"


def float_literal(value: float, dtype: str) -> str:
    """A literal that parses to exactly this value; infinities and NaN as bit patterns."""
    if value != value or value in (float("inf"), float("-inf")):
        bits = {
            "f16": ("0x7E00", "0x7C00", "0xFC00"),
            "bf16": ("0x7FC0", "0x7F80", "0xFF80"),
            "f32": ("0x7FC00000", "0x7F800000", "0xFF800000"),
        }[dtype]
        return bits[0] if value != value else bits[1] if value > 0 else bits[2]
    text = repr(value)
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"
    return text
