"""The ``dataflow`` dialect: a program per unit, the last IR before SpyreCode.

Operations mirror ``torch_loom.spyrecode.model`` one to one. Numbers are integers where they are known and SSA
values where they are not: ``dataflow.slot`` is a number of the value table, a loop's argument counts its
iterations, ``dataflow.let`` computes from both. Registers stand in the text because the four streams of the
compute group must agree on them. Every operation keeps its numbers in one list (``numbers``): integers in
place, a marker where the next operand stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntAttr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Dialect, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from torch_loom.dialects.dataflow_base import INDEX, MixedOp, Number, dense, lx_pair, parse_lx, print_lx, split_numbers
from torch_loom.dialects.dataflow_ring import RingAcquireOp, RingCopyOp, RingReleaseOp
from torch_loom.dialects.dataflow_text import (
    parse_int_list,
    parse_number,
    parse_numbers,
    parse_word,
    print_list,
    print_number,
    print_numbers,
)

UNITS = ("MNILU", "MNISU", "L1LU", "PT", "SFU", "L1SU")


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """One kernel: declarations, then a unit op per unit kind."""

    name = "dataflow.program"

    sym_name = prop_def(SymbolNameConstraint())
    profile = prop_def(ArrayAttr[Attribute])  # chip name, cores, corelets, LX bytes, stick bytes
    cores = prop_def(IntAttr)
    body = region_def("single_block")

    traits = traits_def(NoTerminator(), SymbolOpInterface())

    def __init__(self, name: str, profile: tuple[str, int, int, int, int], cores: int, block: Block) -> None:
        parts: list[Attribute] = [StringAttr(profile[0]), *(IntAttr(v) for v in profile[1:])]
        super().__init__(
            properties={"sym_name": StringAttr(name), "profile": ArrayAttr(parts), "cores": IntAttr(cores)},
            regions=[Region(block)],
        )

    def print(self, printer: Printer) -> None:
        """``@name on "chip" cores N of (cores, corelets, lx, stick) { .. }``"""
        chip, *rest = self.profile.data
        assert isinstance(chip, StringAttr)
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string(f' on "{chip.data}" (')
        printer.print_string(", ".join(str(v.data) for v in rest if isinstance(v, IntAttr)))
        printer.print_string(f") cores {self.cores.data} ")
        printer.print_region(self.body, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> ProgramOp:
        """Parse the printed form."""
        name = parser.parse_symbol_name().data
        parser.parse_keyword("on")
        chip = parser.parse_str_literal()
        rest = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_integer)
        parser.parse_keyword("cores")
        cores = parser.parse_integer()
        region = parser.parse_region()
        parts: list[Attribute] = [StringAttr(chip), *(IntAttr(v) for v in rest)]
        return cls.create(
            properties={"sym_name": StringAttr(name), "profile": ArrayAttr(parts), "cores": IntAttr(cores)},
            regions=[region],
        )


@irdl_op_definition
class DeclareOp(IRDLOperation):
    """An argument, symbol, block or channel: ``dataflow.declare kind "name" {fields}``."""

    name = "dataflow.declare"

    kind = prop_def(StringAttr)
    label = prop_def(StringAttr)
    fields = prop_def(ArrayAttr[Attribute])

    def __init__(self, kind: str, label: str, fields: Sequence[int | str]) -> None:
        parts: list[Attribute] = [StringAttr(f) if isinstance(f, str) else IntAttr(f) for f in fields]
        super().__init__(properties={"kind": StringAttr(kind), "label": StringAttr(label), "fields": ArrayAttr(parts)})

    def plain(self) -> list[int | str]:
        """The fields as Python values."""
        return [f.data for f in self.fields.data if isinstance(f, IntAttr | StringAttr)]

    def print(self, printer: Printer) -> None:
        """``kind "name" field=value, ..`` with the field names of the kind."""
        printer.print_string(f" {self.kind.data} ")
        printer.print_string_literal(self.label.data)
        for field, value in zip(FIELDS[self.kind.data], self.plain(), strict=True):
            printer.print_string(f" {field} ")
            if isinstance(value, str):
                printer.print_string_literal(value)
            else:
                printer.print_string(str(value))

    @classmethod
    def parse(cls, parser: Parser) -> DeclareOp:
        """Parse the printed form."""
        kind = parse_word(parser)
        if kind not in FIELDS:
            parser.raise_error(f"unknown declaration '{kind}', expected one of {', '.join(FIELDS)}")
        label = parser.parse_str_literal()
        fields: list[int | str] = []
        for field in FIELDS[kind]:
            if parse_word(parser) != field:
                parser.raise_error(f"expected the field '{field}' of a {kind}")
            text = parser.parse_optional_str_literal()
            fields.append(parser.parse_integer(allow_negative=True) if text is None else text)
        return cls(kind, label, fields)


FIELDS: dict[str, tuple[str, ...]] = {
    "arg": ("kind", "elem", "access"),
    "symbol": ("kind", "arg", "min", "max", "granularity"),
    "guard": ("expr", "relation", "message"),
    "block": ("address", "bytes", "phases", "role"),
    "channel": ("from", "to", "phases", "blocks"),
    "ring": ("from", "to", "blocks"),  # a channel between cores, one phase
    "meta": ("value",),
}


@irdl_op_definition
class SlotOp(IRDLOperation):
    """A number of the value table: an expression over symbols ``s0..`` and, per core, ``core``."""

    name = "dataflow.slot"

    scope = prop_def(StringAttr)  # launch or core
    expr = prop_def(StringAttr)
    result = result_def(IndexType)

    traits = traits_def(Pure())
    assembly_format = "$scope $expr attr-dict `:` type($result)"

    def __init__(self, scope: str, expr: str) -> None:
        super().__init__(properties={"scope": StringAttr(scope), "expr": StringAttr(expr)}, result_types=[INDEX])


@irdl_op_definition
class LetOp(IRDLOperation):
    """Scalar register := expression over the operands ``d0..``."""

    name = "dataflow.let"

    reg = prop_def(IntegerAttr)
    expr = prop_def(StringAttr)
    values = var_operand_def(IndexType)
    result = result_def(IndexType)

    traits = traits_def(Pure())
    assembly_format = "$reg $expr `(` $values `)` attr-dict `:` type($result)"

    def __init__(self, reg: int, expr: str, values: Sequence[SSAValue]) -> None:
        super().__init__(
            operands=[list(values)],
            properties={"reg": IntegerAttr(reg, i64), "expr": StringAttr(expr)},
            result_types=[INDEX],
        )


@irdl_op_definition
class UnitOp(IRDLOperation):
    """The instruction stream of one unit kind."""

    name = "dataflow.unit"

    unit = prop_def(StringAttr)
    body = region_def("single_block")

    traits = traits_def(NoTerminator())

    def __init__(self, unit: str, block: Block) -> None:
        super().__init__(properties={"unit": StringAttr(unit)}, regions=[Region(block)])

    def verify_(self) -> None:
        """The unit exists."""
        if self.unit.data not in UNITS:
            raise VerifyException(f"unknown unit '{self.unit.data}', expected one of {', '.join(UNITS)}")

    def print(self, printer: Printer) -> None:
        """``NAME { .. }``"""
        printer.print_string(f" {self.unit.data} ")
        printer.print_region(self.body, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> UnitOp:
        """Parse the printed form."""
        unit = parse_word(parser)
        return cls.create(properties={"unit": StringAttr(unit)}, regions=[_filled(parser.parse_region())])


def _filled(region: Region) -> Region:
    if not region.blocks:
        region.add_block(Block())
    return region


@irdl_op_definition
class LoopOp(MixedOp):
    """Run the body for register = 0 .. count-1."""

    name = "dataflow.loop"

    reg = prop_def(IntAttr)
    body = region_def("single_block")

    traits = traits_def(NoTerminator())

    def __init__(self, reg: int, count: Number, block: Block) -> None:
        operands, static = split_numbers([count])
        super().__init__(
            operands=[operands], properties={"reg": IntAttr(reg), "static": static}, regions=[Region(block)]
        )

    @property
    def count(self) -> Number:
        """Trip count."""
        return self.numbers()[0]

    def print(self, printer: Printer) -> None:
        """``%i in count reg N { .. }``"""
        printer.print_string(" ")
        printer.print_ssa_value(self.body.block.args[0])
        printer.print_string(" in ")
        print_number(printer, self.count)
        printer.print_string(f" reg {self.reg.data} ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> LoopOp:
        """Parse the printed form."""
        argument = parser.parse_argument(expect_type=False).resolve(INDEX)
        parser.parse_keyword("in")
        count = parse_number(parser)
        parser.parse_keyword("reg")
        reg = parser.parse_integer()
        region = parser.parse_region((argument,))
        operands, static = split_numbers([count])
        return cls.create(operands=operands, properties={"reg": IntAttr(reg), "static": static}, regions=[region])


class _CreditOp(IRDLOperation):
    """Base of acquire and release."""

    channel = prop_def(StringAttr)
    side = prop_def(StringAttr)

    def __init__(self, channel: str, side: str) -> None:
        super().__init__(properties={"channel": StringAttr(channel), "side": StringAttr(side)})

    def verify_(self) -> None:
        """The side exists."""
        if self.side.data not in ("empty", "full"):
            raise VerifyException(f"a channel has the sides empty and full, not '{self.side.data}'")


@irdl_op_definition
class AcquireOp(_CreditOp):
    """Take one credit of a channel side; waits at zero."""

    name = "dataflow.acquire"
    assembly_format = "$channel $side attr-dict"


@irdl_op_definition
class ReleaseOp(_CreditOp):
    """Give one credit after all earlier transfers of the unit are complete."""

    name = "dataflow.release"
    assembly_format = "$channel $side attr-dict"


@irdl_op_definition
class CopyOp(MixedOp):
    """A transfer between DDR and LX (``model.Dma``).

    Numbers: ddr, lx offset, byte_lo, byte_hi, then per dim extent, lo, hi, ddr stride, lx stride, then
    per gather index offset, scale, bound and a stride per dim, then with a lane split (``elems`` > 0)
    start, tile stride and a stride per dim, then for a load that several cores share (``shared``) the core's
    group and how many cores are in it."""

    name = "dataflow.copy"

    arg = prop_def(StringAttr)
    lx = prop_def(ArrayAttr[StringAttr])  # block, channel ("" for none)
    rank = prop_def(IntAttr)
    leaf = prop_def(IntAttr)
    zero_fill = prop_def(IntAttr)
    gathers = prop_def(ArrayAttr[ArrayAttr[StringAttr]])
    elems = prop_def(IntAttr)
    shared = opt_prop_def(UnitAttr)
    where = opt_prop_def(StringAttr)

    def __init__(
        self,
        arg: str,
        lx: tuple[str, str],
        rank: int,
        leaf: int,
        zero_fill: bool,
        gathers: Sequence[tuple[str, str]],
        elems: int,
        numbers: Sequence[Number],
        where: str = "",
        shared: bool = False,
    ) -> None:
        operands, static = split_numbers(numbers)
        super().__init__(
            operands=[operands],
            properties={
                **({"shared": UnitAttr()} if shared else {}),
                "arg": StringAttr(arg),
                "lx": lx_pair(lx),
                "rank": IntAttr(rank),
                "leaf": IntAttr(leaf),
                "zero_fill": IntAttr(int(zero_fill)),
                "gathers": ArrayAttr([lx_pair(g) for g in gathers]),
                "elems": IntAttr(elems),
                "static": static,
                **({"where": StringAttr(where)} if where else {}),
            },
        )

    def print(self, printer: Printer) -> None:
        """``"x" at N lx "b" via "c" at N leaf N bytes [lo, hi] dims [[..], ..] gathers [..] zero_fill``"""
        n = self.numbers()
        rank = self.rank.data
        printer.print_string(" ")
        printer.print_string_literal(self.arg.data)
        printer.print_string(" at ")
        print_number(printer, n[0])
        print_lx(printer, self.lx, n[1])
        printer.print_string(f" leaf {self.leaf.data} bytes ")
        print_numbers(printer, n[2:4])
        printer.print_string(" dims ")
        print_list(printer, [n[4 + 5 * k : 9 + 5 * k] for k in range(rank)], print_numbers)
        at = 4 + 5 * rank
        for pair in self.gathers.data:
            printer.print_string(" gather")
            print_lx(printer, pair, n[at])
            printer.print_string(" ")
            print_numbers(printer, n[at + 1 : at + 3 + rank])
            at += 3 + rank
        if self.elems.data:
            printer.print_string(f" lanes {self.elems.data} ")
            print_numbers(printer, n[at : at + 2 + rank])
        if self.shared is not None:
            printer.print_string(" shared ")
            print_numbers(printer, n[-2:])
        if self.zero_fill.data:
            printer.print_string(" zero_fill")
        if self.where is not None:
            printer.print_string(" loc ")
            printer.print_string_literal(self.where.data)

    @classmethod
    def parse(cls, parser: Parser) -> CopyOp:
        """Parse the printed form."""
        arg = parser.parse_str_literal()
        parser.parse_keyword("at")
        ddr = parse_number(parser)
        lx, offset = parse_lx(parser)
        parser.parse_keyword("leaf")
        leaf = parser.parse_integer()
        parser.parse_keyword("bytes")
        numbers: list[Number] = [ddr, offset, *parse_numbers(parser)]
        parser.parse_keyword("dims")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_numbers(parser))
        for d in dims:
            numbers += d
        gathers = []
        while parser.parse_optional_keyword("gather"):
            pair, index = parse_lx(parser)
            gathers.append(pair)
            numbers += [index, *parse_numbers(parser)]
        elems = 0
        if parser.parse_optional_keyword("lanes"):
            elems = parser.parse_integer()
            numbers += parse_numbers(parser)
        shared = parser.parse_optional_keyword("shared") is not None
        if shared:
            numbers += parse_numbers(parser)
        zero_fill = parser.parse_optional_keyword("zero_fill") is not None
        where = parser.parse_str_literal() if parser.parse_optional_keyword("loc") else ""
        return cls(arg, lx, len(dims), leaf, zero_fill, gathers, elems, numbers, where, shared)


class _PortOp(MixedOp):
    """Base of seg_load and seg_store. Numbers: lx offset, then a stride per dim in elements."""

    seg = prop_def(IntAttr)
    queue = prop_def(IntAttr)
    lx = prop_def(ArrayAttr[StringAttr])
    elem = prop_def(StringAttr)

    def __init__(self, seg: int, queue: int, lx: tuple[str, str], elem: str, numbers: Sequence[Number]) -> None:
        operands, static = split_numbers(numbers)
        super().__init__(
            operands=[operands],
            properties={
                "seg": IntAttr(seg),
                "queue": IntAttr(queue),
                "lx": lx_pair(lx),
                "elem": StringAttr(elem),
                "static": static,
            },
        )

    def print(self, printer: Printer) -> None:
        """``seg N queue N lx "b" via "c" at N elem strides [..]``"""
        n = self.numbers()
        printer.print_string(f" seg {self.seg.data} queue {self.queue.data}")
        print_lx(printer, self.lx, n[0])
        printer.print_string(f" {self.elem.data} strides ")
        print_numbers(printer, n[1:])

    @classmethod
    def parse(cls, parser: Parser) -> _PortOp:
        """Parse the printed form."""
        parser.parse_keyword("seg")
        seg = parser.parse_integer()
        parser.parse_keyword("queue")
        queue = parser.parse_integer()
        lx, offset = parse_lx(parser)
        elem = parse_word(parser)
        parser.parse_keyword("strides")
        return cls(seg, queue, lx, elem, [offset, *parse_numbers(parser)])


@irdl_op_definition
class SegLoadOp(_PortOp):
    """L1LU: stream elements of an LX block into a queue of a segment."""

    name = "dataflow.seg_load"


@irdl_op_definition
class SegStoreOp(_PortOp):
    """L1SU: write what arrives in a queue of a segment to LX."""

    name = "dataflow.seg_store"


@irdl_op_definition
class SegPtOp(MixedOp):
    """PT: contract the queues ``a`` and ``b`` over k into ``out``."""

    name = "dataflow.seg_pt"

    seg = prop_def(IntAttr)
    queues = prop_def(DenseArrayBase)

    def __init__(self, seg: int, a: int, b: int, out: int, k: Number) -> None:
        operands, static = split_numbers([k])
        super().__init__(
            operands=[operands],
            properties={"seg": IntAttr(seg), "queues": dense([a, b, out]), "static": static},
        )

    def print(self, printer: Printer) -> None:
        """``seg N queues [a, b, out] k N``"""
        printer.print_string(f" seg {self.seg.data} queues {list(map(int, self.queues.get_values()))} k ")
        print_number(printer, self.numbers()[0])

    @classmethod
    def parse(cls, parser: Parser) -> SegPtOp:
        """Parse the printed form."""
        parser.parse_keyword("seg")
        seg = parser.parse_integer()
        parser.parse_keyword("queues")
        a, b, out = parse_int_list(parser)
        parser.parse_keyword("k")
        return cls(seg, a, b, out, parse_number(parser))


@irdl_op_definition
class SegVecOp(MixedOp):
    """SFU: run the lane program for every point of the nest.

    Numbers: the extents (``rank`` of them), then the scalars that SCALAR operations name by position. Lane
    operations are texts ``rD = op rA rB rC`` or ``rD = op number``; outputs are texts ``rN -> queue`` with an
    optional ``reduce [dims]``."""

    name = "dataflow.seg_vec"

    seg = prop_def(IntAttr)
    rank = prop_def(IntAttr)
    inputs = prop_def(DenseArrayBase)
    corelet_dim = prop_def(IntAttr)
    ops = prop_def(ArrayAttr[StringAttr])
    outputs = prop_def(ArrayAttr[StringAttr])
    where = opt_prop_def(StringAttr)

    def __init__(
        self,
        seg: int,
        extents: Sequence[Number],
        scalars: Sequence[Number],
        inputs: Sequence[int],
        ops: Sequence[str],
        outputs: Sequence[str],
        corelet_dim: int,
        where: str = "",
    ) -> None:
        operands, static = split_numbers([*extents, *scalars])
        super().__init__(
            operands=[operands],
            properties={
                "seg": IntAttr(seg),
                "rank": IntAttr(len(extents)),
                "inputs": dense(inputs),
                "corelet_dim": IntAttr(corelet_dim),
                "ops": ArrayAttr([StringAttr(o) for o in ops]),
                "outputs": ArrayAttr([StringAttr(o) for o in outputs]),
                "static": static,
                **({"where": StringAttr(where)} if where else {}),
            },
        )

    def print(self, printer: Printer) -> None:
        """Header, then one lane operation per line."""
        n = self.numbers()
        rank = self.rank.data
        printer.print_string(f" seg {self.seg.data} extents ")
        print_numbers(printer, n[:rank])
        printer.print_string(f" corelet {self.corelet_dim.data} in {list(map(int, self.inputs.get_values()))}")
        if n[rank:]:
            printer.print_string(" scalars ")
            print_numbers(printer, n[rank:])
        printer.print_string(" ops [")
        with printer.indented():
            for k, op in enumerate(self.ops.data):
                printer.print_string("," if k else "")
                printer._print_new_line()
                printer.print_string_literal(op.data)
        printer.print_string("] out ")
        print_list(printer, [o.data for o in self.outputs.data], lambda p, o: p.print_string_literal(o))
        if self.where is not None:
            printer.print_string(" loc ")
            printer.print_string_literal(self.where.data)

    @classmethod
    def parse(cls, parser: Parser) -> SegVecOp:
        """Parse the printed form."""
        parser.parse_keyword("seg")
        seg = parser.parse_integer()
        parser.parse_keyword("extents")
        extents = parse_numbers(parser)
        parser.parse_keyword("corelet")
        corelet = parser.parse_integer()
        parser.parse_keyword("in")
        inputs = parse_int_list(parser)
        scalars = parse_numbers(parser) if parser.parse_optional_keyword("scalars") else []
        parser.parse_keyword("ops")
        square = parser.Delimiter.SQUARE
        ops = parser.parse_comma_separated_list(square, parser.parse_str_literal)
        parser.parse_keyword("out")
        outputs = parser.parse_comma_separated_list(square, parser.parse_str_literal)
        where = parser.parse_str_literal() if parser.parse_optional_keyword("loc") else ""
        return cls(seg, extents, scalars, inputs, ops, outputs, corelet, where)


Dataflow = Dialect(
    "dataflow",
    [
        ProgramOp,
        DeclareOp,
        SlotOp,
        LetOp,
        UnitOp,
        LoopOp,
        AcquireOp,
        ReleaseOp,
        CopyOp,
        SegLoadOp,
        SegStoreOp,
        SegPtOp,
        SegVecOp,
        RingAcquireOp,
        RingReleaseOp,
        RingCopyOp,
    ],
    [],
)
