"""The lane program of one segment: values of the graph become operations on registers.

Registers are written once while the program is built; at the end they are renumbered so that inputs come
first and a register is reused as soon as nothing reads it any more, which keeps the engine's working set
small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torch_loom.numerics import df16
from torch_loom.scheduler import expr as ex
from torch_loom.scheduler.errors import ScheduleError
from torch_loom.scheduler.expr import Atom, Expr
from torch_loom.scheduler.footprint import Clip
from torch_loom.scheduler.kernel import FLOATS, Kind, Numerics, Value
from torch_loom.scheduler.plan import InputPlan, OpPlan
from torch_loom.scheduler.rewrite import substitute
from torch_loom.scheduler.space import Space
from torch_loom.spyrecode.model import VecOp as V

Index = tuple[Expr, ...]


@dataclass(frozen=True)
class Leaf:
    """How a segment reads a value: the input, and tile indices outside which it must read as zero."""

    input: InputPlan
    masks: tuple[tuple[Expr, Clip], ...] = ()


class LaneProgram:
    """Builds the operations of a segment over ``space``.

    ``leaf(value, index)`` returns how to read a load or root, or None if the value is computed here."""

    def __init__(self, space: Space, numerics: Numerics, leaf: Callable[[Value, Index], Leaf | None]) -> None:
        self.space = space
        self.numerics = numerics
        self.leaf = leaf
        self.inputs: dict[InputPlan | None, int] = {}
        self.ops: list[OpPlan] = []
        self._made: dict[object, int] = {}
        self._next = 0

    def _register(self) -> int:
        self._next += 1
        return self._next - 1

    def input(self, plan: InputPlan | None) -> int:
        """Register of an input stream (None: the result of PT)."""
        if plan not in self.inputs:
            self.inputs[plan] = self._register()
        return self.inputs[plan]

    def op(self, op: V, *args: int, imm: float | int | Expr = 0) -> int:
        """Register of an operation; equal operations are shared."""
        key = (op, args, repr(imm))
        if key not in self._made:
            self._made[key] = self._register()
            self.ops.append(OpPlan(op, self._made[key], args, imm))
        return self._made[key]

    # -- values -----------------------------------------------------------------------------------

    def value(self, v: Value, index: Index) -> int:
        """Register that holds ``v`` at ``index`` (expressions over the space's dims)."""
        key = (v.id, index)
        if key not in self._made:
            self._made[key] = self._value(v, index)
        return self._made[key]

    def _value(self, v: Value, index: Index) -> int:
        leaf = self.leaf(v, index)
        if leaf is not None:
            return self._masked(self.input(leaf.input), leaf, v)
        if v.kind is Kind.MATMUL:
            return self.input(None)
        if v.kind is Kind.CONST:
            return self._constant(v)
        if v.kind is Kind.SCALAR:
            return self._scalar(v)
        names = {x.terms[0][0][0].name: i for x, i in zip(v.vars, index, strict=True) if x.terms}
        if v.kind is Kind.INDEX:
            assert v.index is not None
            return self.number(substitute(v.index, names))
        if v.kind is Kind.REMAP:
            return self.value(v.operands[0], tuple(substitute(e, names) for e in v.imap))
        if v.kind is not Kind.MAP or v.op is None:
            raise ScheduleError(f"a {v.kind.name.lower()} value cannot be read here", op=v.op_name, where=v.where)
        registers = [self.value(o, index) for o in v.operands]
        if v.op is V.COPY:
            return registers[0]
        return self.op(v.op, *registers, imm=v.imm)

    def _masked(self, register: int, leaf: Leaf, v: Value) -> int:
        zero = None
        for position, clip in leaf.masks:
            at = self.number(substitute(position, self.space.values))
            inside = []
            if clip.lo != 0:
                inside.append(self.op(V.GE_I, at, self.number(clip.lo)))
            inside.append(self.op(V.LT_I, at, self.number(clip.hi)))
            mask = inside[0] if len(inside) == 1 else self.op(V.AND_M, *inside)
            if zero is None:
                floating = v.dtype in FLOATS or v.dtype == "i1"
                zero = self.op(V.CONST_F, imm=0.0) if floating else self.op(V.CONST_I, imm=0)
            register = self.op(V.SELECT, mask, register, zero)
        return register

    def _constant(self, v: Value) -> int:
        if v.dtype in FLOATS:
            return self.op(V.CONST_F, imm=self._rounded(float(v.imm), v.dtype))
        if v.dtype == "i1":
            return self.op(V.CONST_F, imm=float(bool(v.imm)))
        return self.op(V.CONST_I, imm=int(v.imm))

    def _rounded(self, number: float, dtype: str) -> float:
        if dtype == "f32" or self.numerics.ieee or not np.isfinite(number):
            return number
        return float(df16.round_f32(np.array([number], dtype=np.float32))[0])

    def _scalar(self, v: Value) -> int:
        register = self.op(V.SCALAR_F, imm=ex.symbol(f"bits:{v.arg}"))
        rounding = self.numerics.rounding(v.dtype)
        return register if rounding is None else self.op(rounding, register)

    # -- integers ---------------------------------------------------------------------------------

    def number(self, e: Expr) -> int:
        """Register that holds an index expression over dims, loop variables and symbols."""
        e = substitute(e, self.space.values)
        if not e.depends(("dim",)):
            if e.static:
                return self.op(V.CONST_I, imm=e.value)
            return self.op(V.SCALAR_I, imm=e)
        fixed = ex.Expr(e.const, tuple(t for t in e.terms if not Expr(0, (t,)).depends(("dim",))))
        total: int | None = None
        for monomial, c in e.terms:
            if not Expr(0, ((monomial, c),)).depends(("dim",)):
                continue
            varying = [a for a in monomial if of_dim(a)]
            rest = tuple(a for a in monomial if not of_dim(a))
            product = self._atom(varying[0])
            for a in varying[1:]:
                product = self.op(V.MUL_I, product, self._atom(a))
            scale = Expr(0, ((rest, c),)) if rest else Expr(c)
            if scale != 1:
                product = self.op(V.MUL_I, product, self.number(scale))
            total = product if total is None else self.op(V.ADD_I, total, product)
        assert total is not None
        return total if fixed == 0 else self.op(V.ADD_I, total, self.number(fixed))

    def _atom(self, atom: Atom) -> int:
        if not atom.args:
            return self.op(V.IOTA, imm=self.space.names.index(atom.name))
        a, b = (self.number(x) for x in atom.args)
        if atom.kind == "mod":
            quotient = self.op(V.FLOORDIV_I, a, b)
            return self.op(V.SUB_I, a, self.op(V.MUL_I, quotient, b))
        return self.op({"floordiv": V.FLOORDIV_I, "min": V.MIN_I, "max": V.MAX_I}[atom.kind], a, b)


def of_dim(atom: Atom) -> bool:
    """True if the atom's value changes over the iteration space."""
    return atom.kind == "dim" or any(a.depends(("dim",)) for a in atom.args)


def compact(inputs: list[int], ops: list[OpPlan], outputs: list[int]) -> tuple[list[OpPlan], list[int]]:
    """Renumber registers: inputs first, results into registers nothing needs any more.

    Operations without a reader are dropped. Outputs stay alive to the end."""
    needed = set(outputs)
    kept: list[OpPlan] = []
    for op in reversed(ops):
        if op.dst in needed:
            kept.append(op)
            needed.update(op.args)
    kept.reverse()
    last = {r: len(kept) for r in outputs}
    for position, op in enumerate(kept):
        for r in op.args:
            last[r] = max(last.get(r, -1), position)
    place = {r: k for k, r in enumerate(inputs)}
    free: list[int] = []
    top = len(inputs)
    for r in inputs:
        if r not in last:
            last[r] = -1
    renamed: list[OpPlan] = []
    for position, op in enumerate(kept):
        args = tuple(place[r] for r in op.args)
        for r in dict.fromkeys(op.args):
            if last[r] == position:
                free.append(place[r])
        if free:
            slot = free.pop()
        else:
            slot, top = top, top + 1
        place[op.dst] = slot
        renamed.append(OpPlan(op.op, slot, args, op.imm))
    return renamed, [place[r] for r in outputs]
