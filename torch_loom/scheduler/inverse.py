"""Index maps of the value graph: skipping conversions, and turning a map around."""

from __future__ import annotations

from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.expr import ONE, Expr
from torch_loom.scheduler.kernel import Kind, Value
from torch_loom.scheduler.rewrite import linear, substitute
from torch_loom.spyrecode.model import VecOp

Index = tuple[Expr, ...]


def strip(v: Value) -> Value:
    """Skip conversions that keep every value (extf)."""
    while v.kind is Kind.MAP and v.op is VecOp.COPY:
        v = v.operands[0]
    return v


def index_names(v: Value, index: Index) -> dict[str, Expr]:
    """The value's index variables by name, bound to an index."""
    return {x.terms[0][0][0].name: i for x, i in zip(v.vars, index, strict=True) if x.terms}


def invert(index: Index, source: Value, target: Value) -> Index | None:
    """Source index as a function of the target's variables, for target index ``index(source.vars)``.

    Solves permutations, merged and split dims; None when the map is not one-to-one in that form."""

    if not index:
        return None
    found: list[Expr] = []
    for var, extent in zip(source.vars, source.shape, strict=True):
        if extent == ONE:
            found.append(ex.ZERO)
            continue
        name = var.terms[0][0][0].name
        parts: Expr = ex.ZERO
        for component, at in zip(index, target.vars, strict=True):
            if not any(a.name == name for a in component.atoms()):
                continue
            split = linear(component, (name,))
            if split is not None:
                factor = split[1][name]
                if not factor.static:
                    return None
                parts = ex.floordiv(at, factor.value)
                parts = ex.mod(parts, extent) if parts.hi is None or not ex.nonnegative(extent - 1 - parts) else parts
                break
            weight = _digit_weight(component, name)
            if weight is None:
                return None
            parts = parts + at * weight
        found.append(parts)
    names = index_names(source, tuple(found))
    back = tuple(substitute(e, names) for e in index)
    return tuple(found) if back == target.vars else None


def _digit_weight(component: Expr, name: str) -> Expr | None:
    """x floordiv d -> d; x mod d -> 1; (x floordiv a) mod b -> a."""
    if component.const or len(component.terms) != 1 or component.terms[0][1] != 1 or len(component.terms[0][0]) != 1:
        return None
    atom = component.terms[0][0][0]
    if atom.kind == "floordiv":
        inner, d = atom.args
        return d if inner.terms and inner.terms[0][0][0].name == name and len(inner.terms) == 1 else None
    if atom.kind == "mod":
        inner = atom.args[0]
        if len(inner.terms) == 1 and inner.terms[0][0][0].name == name:
            return ONE
        return _digit_weight(inner, name)
    return None
