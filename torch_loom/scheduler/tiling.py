"""Tile-size choice: cut the statements of a loop body along one dim, so that they fit LX and overlap.

A *class* is a set of dims (of values and stores) that always take the same index. Cutting a class into
pieces of T puts a loop around the body: values with a dim of the class shrink to T and move into the
loop, all others are computed once before it. That is legal when nothing folds over the class, every
store of the body has a dim of it, and no value outside reads one inside. Only bodies without inner loops
are cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.expr import Expr
from torch_loom.scheduler.footprint import names_of
from torch_loom.scheduler.graph import Graph
from torch_loom.scheduler.kernel import Assign, For, Indirect, Kernel, Kind, Load, Stmt, Store, Tile, Value
from torch_loom.scheduler.rewrite import substitute

Dim = tuple[int, int]  # value id (or -1 - position for the store at a position), dim


@dataclass(frozen=True)
class Cut:
    """A dim class of a body that may be cut: the dims, and the extent they share."""

    scope: int
    members: frozenset[Dim]
    extent: Expr
    weight: int  # elements of the stores per index of the class; the larger, the smaller T may be
    rows: bool = False  # the class holds the rows of a contraction


def body_of(kernel: Kernel, scope: int) -> list[Stmt]:
    """Statements of a scope."""
    if scope == 0:
        return kernel.body
    stack = list(kernel.body)
    while stack:
        s = stack.pop()
        if isinstance(s, For):
            if s.id == scope:
                return s.body
            stack.extend(s.body)
    raise KeyError(scope)


def leaf_scopes(kernel: Kernel) -> list[int]:
    """Scopes whose bodies hold stores, no loops and no assignments."""
    found = []
    for scope in kernel.parents:
        body = body_of(kernel, scope)
        if any(isinstance(s, Store) for s in body) and not any(isinstance(s, For | Assign) for s in body):
            found.append(scope)
    return found


class _Classes:
    """Union-find over dims."""

    def __init__(self) -> None:
        self.parent: dict[Dim, Dim] = {}

    def find(self, d: Dim) -> Dim:
        root = d
        while self.parent.get(root, root) != root:
            root = self.parent[root]
        self.parent[d] = root
        return root

    def join(self, a: Dim, b: Dim) -> None:
        self.parent[self.find(a)] = self.find(b)


def _values(body: list[Stmt], scope: int) -> list[Value]:
    """Values of the scope that its stores need, in order of definition."""
    seen: dict[int, Value] = {}
    stack = [s.value for s in body if isinstance(s, Store)]
    for s in body:
        tile = s.value.tile if isinstance(s, Load) else s.tile if isinstance(s, Store) else None
        if tile is not None:
            stack += [c.source.value for c in tile.coords if isinstance(c, Indirect) and c.source]
    while stack:
        v = stack.pop()
        if v.scope == scope and v.id not in seen:
            seen[v.id] = v
            stack.extend(v.operands)
    return [seen[k] for k in sorted(seen)]


def cuts(kernel: Kernel, scope: int) -> list[Cut]:
    """Every class of a leaf body that may be cut, larger extents first."""
    body = body_of(kernel, scope)
    values = _values(body, scope)
    stores = [s for s in body if isinstance(s, Store)]
    classes, frozen = _classify(values, stores)
    groups: dict[Dim, set[Dim]] = {}
    for d in list(classes.parent):
        groups.setdefault(classes.find(d), set()).add(d)
    found = []
    for root, members in groups.items():
        if any(classes.find(d) == root for d in frozen):
            continue
        cut = _legal(scope, frozenset(members), values, stores)
        if cut is not None:
            found.append(cut)
    return sorted(found, key=lambda c: (-(c.extent.hi or 1 << 40), min(c.members)))


def _classify(values: list[Value], stores: list[Store]) -> tuple[_Classes, list[Dim]]:
    classes = _Classes()
    frozen: list[Dim] = []
    inside = {v.id for v in values}
    for v in values:
        for k in range(len(v.shape)):
            classes.find((v.id, k))
        for o in v.operands:
            if o.id not in inside:
                continue
            if v.kind is Kind.MAP:
                for k in range(len(v.shape)):
                    classes.join((v.id, k), (o.id, k))
            elif v.kind is Kind.REMAP:
                for j, e in enumerate(v.imap):
                    if e in v.vars and e.terms:
                        classes.join((v.id, v.vars.index(e)), (o.id, j))
                    elif e.depends(("dim",)):
                        frozen.append((o.id, j))
        if v.kind is Kind.REDUCE:
            kept = [k for k in range(len(v.operands[0].shape)) if k not in v.dims]
            for k, j in enumerate(kept):
                classes.join((v.id, k), (v.operands[0].id, j))
            frozen += [(v.operands[0].id, j) for j in v.dims]
        elif v.kind is Kind.MATMUL:
            a, b = v.operands
            for k, dims in enumerate((((a, 0), (b, 0)), ((a, 1),), ((b, 2),))):
                for o, j in dims:
                    classes.join((v.id, k), (o.id, j))
            frozen += [(a.id, 2), (b.id, 1)]
        elif v.kind is Kind.CELL:
            frozen += [(v.id, k) for k in range(len(v.shape))]
    for n, s in enumerate(stores):
        for k in range(len(s.value.shape)):
            classes.join((-1 - n, k), (s.value.id, k))
    return classes, frozen


def _legal(scope: int, members: frozenset[Dim], values: list[Value], stores: list[Store]) -> Cut | None:
    owners = [d[0] for d in members]
    if len(set(owners)) != len(owners):
        return None  # a value with two dims of the class
    inside = {v.id for v in values if any(d[0] == v.id for d in members)}
    by_id = {v.id: v for v in values}
    extents = set()
    for d in members:
        shape = by_id[d[0]].shape if d[0] in by_id else None
        if shape is None:
            n = -1 - d[0]
            if d[0] < 0:
                shape = stores[n].value.shape
            else:
                continue  # a value of an outer scope: read at shifted indices
        extents.add(shape[d[1]])
    if len(extents) != 1:
        return None
    extent = extents.pop()
    if extent.hi is not None and extent.hi <= 1:
        return None
    if any((-1 - n) not in owners for n in range(len(stores))):
        return None
    for v in values:
        dims = [d[1] for d in members if d[0] == v.id]
        for o in v.operands:
            if o.id in inside and not dims:
                return None
            if v.kind is Kind.REMAP and o.id in inside and not _passes(v, o, dims[0], members):
                return None
    weight = max(_elements_per_index(s.value, members, n) for n, s in enumerate(stores))
    rows = any(v.kind is Kind.MATMUL and (v.id, 1) in members for v in values)
    return Cut(scope, members, extent, weight, rows)


def _passes(v: Value, o: Value, dim: int, members: frozenset[Dim]) -> bool:
    """True if a REMAP hands the class's index through unchanged and uses it nowhere else."""
    at = next(d[1] for d in members if d[0] == o.id)
    variable = v.vars[dim]
    if v.imap[at] != variable:
        return False
    name = names_of((variable,))[0]
    return not any(a.name == name for j, e in enumerate(v.imap) if j != at for a in e.atoms())


def _elements_per_index(v: Value, members: frozenset[Dim], n: int) -> int:
    dim = next(d[1] for d in members if d[0] == -1 - n)
    count = 1
    for k, e in enumerate(v.shape):
        if k != dim:
            count *= e.hi or 1
    return count


def apply(kernel: Kernel, graph: Graph, cut: Cut, size: int) -> None:
    """Cut in place: the body of ``cut.scope`` becomes loads outside the class, then a loop over pieces."""
    body = body_of(kernel, cut.scope)
    scope = len(kernel.parents)
    kernel.parents[scope] = cut.scope
    count = ex.ceildiv(cut.extent, size)
    var = ex.variable("var", f"i{scope}", count)
    loop = For(scope, var, count)
    cutter = _Cutter(kernel, graph, cut, size, var)
    before: list[Stmt] = []
    graph.enter(scope)
    graph.scope = scope
    stores = [s for s in body if isinstance(s, Store)]
    for s in body:
        if isinstance(s, Load) and not cutter.inside(s.value):
            before.append(s)
        elif isinstance(s, Load):
            loop.body.append(Load(cutter.value(s.value)))
        elif isinstance(s, Store):
            loop.body.append(cutter.store(s, stores.index(s)))
    graph.leave(cut.scope)
    body[:] = [*before, loop]


_PIECES = 8  # iterations that make start and end of a pipeline short against its middle
_SMALLEST = 8192  # bytes of a piece below which fixed costs outweigh the overlap


def overlapping(kernel: Kernel, possible: dict[int, Cut], full_rows: int) -> dict[int, int]:
    """Piece sizes for bodies that run only once or twice: without iterations nothing overlaps.

    Contractions keep at least ``full_rows`` rows, below which PT is used badly."""
    found: dict[int, int] = {}
    for scope, cut in possible.items():
        trips = _trips(kernel, scope)
        bound = cut.extent.hi
        if trips is None or trips >= _PIECES // 2 or bound is None:
            continue
        per_index = 2 * cut.weight
        size = max(-(-bound * trips // _PIECES), -(-_SMALLEST // per_index), 1)
        if cut.rows:
            size = max(size, full_rows)
        if size < bound:
            found[scope] = size
    return found


def _trips(kernel: Kernel, scope: int) -> int | None:
    """How often a body runs at most; None when that depends on the launch."""
    total = 1
    for s in _around(kernel.body, scope) or ():
        if not s.count.static:
            return None
        total *= s.count.value
    return total


def _around(body: list[Stmt], scope: int) -> list[For] | None:
    """Loops from the function body to a scope."""
    if scope == 0:
        return []
    for s in body:
        if isinstance(s, For):
            if s.id == scope:
                return [s]
            inner = _around(s.body, scope)
            if inner:
                return [s, *inner]
    return None


class _Cutter:
    """Rebuilds values with the class's dim cut to ``size`` and its index shifted by the loop."""

    def __init__(self, kernel: Kernel, graph: Graph, cut: Cut, size: int, var: Expr) -> None:
        self.kernel, self.graph, self.cut = kernel, graph, cut
        self.start = var * size
        whole = cut.extent.divisible(size)
        self.piece = Expr(size) if whole else ex.minimum(Expr(size), cut.extent - self.start)
        self.dim = {d[0]: d[1] for d in cut.members}
        self.made: dict[int, Value] = {}
        self.stores: dict[int, Store] = {}

    def inside(self, v: Value) -> bool:
        """True if the value is rebuilt in the loop."""
        return v.scope == self.cut.scope and v.id in self.dim

    def value(self, v: Value) -> Value:
        """The piece of a value of the class."""
        if v.id not in self.made:
            self.graph.where, self.graph.op_name = v.where, v.op_name
            self.made[v.id] = self._rebuild(v, self.dim[v.id])
        return self.made[v.id]

    def operand(self, v: Value, dim: int | None) -> Value:
        """An operand of a rebuilt value: its piece, or the matching slice of a value outside."""
        if self.inside(v):
            return self.value(v)
        if dim is None or not v.shape:
            return v
        shape = self._shape(v, dim)
        return self.graph.remap(v, shape, lambda i: (*i[:dim], i[dim] + self.start, *i[dim + 1 :]))

    def _shape(self, v: Value, dim: int) -> tuple[Expr, ...]:
        return (*v.shape[:dim], self.piece, *v.shape[dim + 1 :])

    def _rebuild(self, v: Value, dim: int) -> Value:
        g, shape = self.graph, self._shape(v, dim)
        if v.kind is Kind.LOAD:
            assert v.tile is not None
            return g.load(self._tile(v.tile, dim))
        if v.kind is Kind.CONST:
            return g.const(v.imm, v.dtype, shape)
        if v.kind is Kind.SCALAR:
            return g.scalar(v.arg, v.dtype, shape)
        if v.kind is Kind.INDEX:
            number = v.index
            assert number is not None
            return g.index(lambda i: substitute(number, self._shift(v.vars, i, dim)), v.dtype, shape)
        if v.kind is Kind.MAP:
            assert v.op is not None
            return g.map(v.op, v.dtype, *(self.operand(o, dim) for o in v.operands), imm=v.imm)
        if v.kind is Kind.REMAP:
            source = v.operands[0]
            if self.inside(source):
                names = names_of(v.vars)
                return g.remap(
                    self.value(source),
                    shape,
                    lambda i: tuple(substitute(e, {n: x for n, x in zip(names, i, strict=True) if n}) for e in v.imap),
                )
            return g.remap(source, shape, lambda i: tuple(substitute(e, self._shift(v.vars, i, dim)) for e in v.imap))
        if v.kind is Kind.REDUCE:
            kept = [k for k in range(len(v.operands[0].shape)) if k not in v.dims]
            return g.reduce(v.reduce, self.operand(v.operands[0], kept[dim]), v.dims, v.dtype)
        assert v.kind is Kind.MATMUL
        a, b = v.operands
        left = self.operand(a, dim) if dim < 2 else a
        right = self.operand(b, dim) if dim != 1 else b
        return g.matmul(left, right)

    def _shift(self, old: tuple[Expr, ...], new: tuple[Expr, ...], dim: int) -> dict[str, Expr]:
        names = names_of(old)
        return {n: x + self.start if k == dim else x for k, (n, x) in enumerate(zip(names, new, strict=True)) if n}

    def _tile(self, tile: Tile, dim: int) -> Tile:
        """A tile whose tensor dim ``dim`` is cut."""
        p = tile.order[dim]
        name = names_of(tile.vars)[p]
        piece = ex.variable("dim", f"{name}'", self.piece)
        moved = {name: piece + self.start}
        coords = tuple(
            Indirect(c.view, tuple(substitute(a, moved) for a in c.at), self.stores.get(id(c.source), c.source))
            if isinstance(c, Indirect)
            else substitute(c, moved)
            for c in tile.coords
        )
        return Tile(
            tile.view,
            (*tile.vars[:p], piece, *tile.vars[p + 1 :]),
            (*tile.extents[:p], self.piece, *tile.extents[p + 1 :]),
            coords,
            tile.order,
            tile.where,
        )

    def store(self, s: Store, n: int) -> Store:
        """The piece of a store."""
        dim = self.dim[-1 - n]
        made = Store(self.operand(s.value, dim), self._tile(s.tile, dim), s.where)
        self.stores[id(s)] = made
        return made
