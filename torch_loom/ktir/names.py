"""Names that KTIR does not take, and why. One row per reason."""

from __future__ import annotations

from typing import Any, NoReturn

from xdsl.dialects.builtin import UnregisteredOp
from xdsl.parser import Parser
from xdsl.utils.lexer import Span

from torch_loom.dialects.assembly import nearest
from torch_loom.dialects.errors import parse_error
from torch_loom.dialects.spyreop import RESERVED

_EXCHANGE = "use ktdp.inter_tile_produce and a delivery (docs/ktir.md, exchange between compute tiles)"
_DATA = "data moves only through ktdp.load and ktdp.store"

#: Exact names or prefixes ending in '.' or '_' -> (code, reason).
REJECTED: dict[str, tuple[str, str]] = {
    "tt.": ("KT-P08", "this is Triton IR, not KTIR"),
    "ttg.": ("KT-P08", "this is Triton IR, not KTIR"),
    "ktdp.transfer": ("KT-P05", f"legacy op; {_EXCHANGE}"),
    "ktdp.reduce": ("KT-P05", f"legacy op; {_EXCHANGE}"),
    "vector.": ("KT-P09", "vectors are not part of KTIR; use tensors"),
    "cf.": ("KT-P09", "unstructured control flow is not part of KTIR; use scf"),
    "memref.alloc": ("KT-P09", f"memory is described by ktdp.construct_memory_view; {_DATA}"),
    "memref.alloca": ("KT-P09", f"memory is described by ktdp.construct_memory_view; {_DATA}"),
    "memref.load": ("KT-P09", _DATA),
    "memref.store": ("KT-P09", _DATA),
    "memref.copy": ("KT-P09", _DATA),
    "affine.for": ("KT-P09", "use scf.for"),
    "affine.if": ("KT-P09", "use scf.if"),
    "affine.parallel": ("KT-P09", "use scf.parallel"),
    "affine.load": ("KT-P09", _DATA),
    "affine.store": ("KT-P09", _DATA),
    "tensor.gather": ("KT-P09", "use ktdp.construct_indirect_access_tile and ktdp.load"),
    "tensor.scatter": ("KT-P09", "use ktdp.construct_indirect_access_tile and ktdp.store"),
    "linalg.conv_": ("KT-P09", "convolutions are lowered to matmul before KTIR"),
    "linalg.depthwise_": ("KT-P09", "convolutions are lowered to matmul before KTIR"),
    "linalg.pooling_": ("KT-P09", "poolings are lowered to reduce before KTIR"),
    "scf.index_switch": ("KT-P09", "use scf.if"),
    "scf.execute_region": ("KT-P09", "write the region's ops in place"),
    "builtin.unrealized_conversion_cast": ("KT-P09", "casts between unrelated types have no meaning in KTIR"),
    "unrealized_conversion_cast": ("KT-P09", "casts between unrelated types have no meaning in KTIR"),
    **{f"spyreop.{name}": ("KT-P09", "the name is reserved; the op is not published yet") for name in RESERVED},
}


def reject_name(parser: Parser, name: str, span: Span[Any]) -> None:
    """Raise when the name belongs to a row of :data:`REJECTED`."""
    row = REJECTED.get(name)
    if row is None:
        dot = name.find(".")
        if dot < 0:
            return
        row = REJECTED.get(name[: dot + 1])
        underscore = name.find("_", dot)
        if row is None and underscore > 0:
            row = REJECTED.get(name[: underscore + 1])
    if row is not None:
        parse_error(parser, row[0], f"'{name}': {row[1]}", span)


def unknown_op(parser: Parser, name: str, span: Span[Any]) -> NoReturn:
    """Report an op that no dialect defines, with the nearest known name."""
    known = [n for n, op in parser.ctx._loaded_ops.items() if not issubclass(op, UnregisteredOp)]
    hint = nearest(name, known) or nearest(f"func.{name}", known)
    dialect, dot, _ = name.partition(".")
    dialects = sorted({n.partition(".")[0] for n in known})
    if dot and dialect not in dialects:
        parse_error(
            parser, "KT-P01", f"unknown dialect '{dialect}' of '{name}'; known: {', '.join(dialects)}{hint}", span
        )
    parse_error(parser, "KT-P01", f"unknown operation '{name}'{hint}", span)
