"""Iteration spaces of segments: nests of dims that are split until every address is affine in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.expr import Atom, Expr, variable
from torch_loom.scheduler.rewrite import linear, recombine, substitute


@dataclass(frozen=True)
class Space:
    """Dims of a nest (counters, zero for extent 1) and what the dims of the original space became."""

    prefix: str
    dims: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    origin: tuple[int, ...]  # original dim of each dim
    values: dict[str, Expr]  # original counter name -> expression over dims

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the counters; "" where the extent is 1."""
        return tuple(d.terms[0][0][0].name if d.terms else "" for d in self.dims)

    def affine(self, address: Expr) -> tuple[Expr, tuple[Expr, ...]] | None:
        """(offset, stride per dim) of an address over the original counters, None if not affine."""
        e = recombine(substitute(address, self.values))
        split = linear(e, tuple(n for n in self.names if n))
        if split is None:
            return None
        return split[0], tuple(split[1].get(n, ex.ZERO) if n else ex.ZERO for n in self.names)


def make(prefix: str, extents: Sequence[Expr]) -> Space:
    """The unsplit space with counters ``prefix.k``."""
    dims = tuple(variable("dim", f"{prefix}.{k}", e) for k, e in enumerate(extents))
    return Space(prefix, dims, tuple(extents), tuple(range(len(dims))), {})


def refine(space: Space, addresses: Sequence[Expr]) -> Space | None:
    """Split dims until all addresses are affine; None if no split helps."""
    for _ in range(16):
        blocked = next((a for a in addresses if space.affine(a) is None), None)
        if blocked is None:
            return space
        found = _find_split(space, recombine(substitute(blocked, space.values)))
        if found is None:
            return None
        space = _split(space, *found)
    return None


def _find_split(space: Space, e: Expr) -> tuple[int, int] | None:
    """(dim, inner extent) of a split that removes a division from the expression."""
    names = {n: k for k, n in enumerate(space.names) if n}
    for atom in e.atoms():
        if atom.kind not in ("floordiv", "mod") or not atom.args[1].static:
            continue
        n = atom.args[1].value
        for name, factor in _linear_parts(atom, names):
            if n % factor or factor >= n:
                continue
            inner, extent = n // factor, space.extents[names[name]]
            if extent.divisible(inner) and extent != inner:
                return names[name], inner
    return None


def _linear_parts(atom: Atom, names: dict[str, int]) -> list[tuple[str, int]]:
    split = linear(atom.args[0], tuple(names))
    if split is None:
        return []
    return [(name, f.value) for name, f in split[1].items() if f.static and f.value > 0]


def _split(space: Space, dim: int, inner: int) -> Space:
    extents = list(space.extents)
    extents[dim : dim + 1] = [ex.floordiv(extents[dim], inner), Expr(inner)]
    origin = list(space.origin)
    origin[dim : dim + 1] = [origin[dim], origin[dim]]
    label = f"{space.prefix}/{len(space.values)}"
    fresh = tuple(variable("dim", f"{label}.{k}", e) for k, e in enumerate(extents))
    step: dict[str, Expr] = {}
    for k, name in enumerate(space.names):
        if name:
            step[name] = fresh[k] if k < dim else fresh[k + 1] if k > dim else fresh[dim] * inner + fresh[dim + 1]
    values = {name: substitute(e, step) for name, e in space.values.items()}
    values.update({name: e for name, e in step.items() if name not in values})
    return Space(space.prefix, fresh, tuple(extents), tuple(origin), values)
