"""Random numbers inside of kernels: a number for every place, from a seed that the card's generator draws.

A value is a hash of its place and the seed (the finaliser of MurmurHash3, twice, with the seed mixed in between), so a
kernel gives the same numbers however it is divided over cores.
"""

from __future__ import annotations

import math

import torch

from .special import Term
from .values import Algebra, Number, Operand

GOLDEN = -1640531527  # 2^32 divided by the golden ratio, as a signed number
MIX1, MIX2 = -2048144789, -1028477387  # 0x85ebca6b, 0xc2b2ae35


@torch.library.custom_op("spyre::seeds", mutates_args=())
def seeds(count: int, device: torch.device) -> torch.Tensor:
    """``count`` seeds of 31 bits from the generator of the card."""
    return torch.empty(count, dtype=torch.int64, device=device).random_(0, 2**31 - 1)


@seeds.register_fake
def _(count: int, device: torch.device) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, device=device)


def _mixed(a: Algebra, x: Operand) -> Operand:
    for shift, factor in ((16, MIX1), (13, MIX2), (16, None)):
        high = a.apply("arith.shrui", [x, Number(shift, "i32")], "i32")
        x = a.apply("arith.xori", [x, high], "i32")
        if factor is not None:
            x = a.apply("arith.muli", [x, Number(factor, "i32")], "i32")
    return x


def bits(a: Algebra, seed: Operand, place: Operand, stream: int = 0) -> Operand:
    """32 random bits for each place."""
    salt = a.apply("arith.muli", [seed, Number(GOLDEN, "i32")], "i32")
    if stream:
        salt = a.apply("arith.addi", [salt, Number(stream * MIX1 & 0x7FFFFFFF, "i32")], "i32")
    first = _mixed(a, a.apply("arith.addi", [place, salt], "i32"))
    return _mixed(a, a.apply("arith.xori", [first, seed], "i32"))


def uniform(a: Algebra, seed: Operand, place: Operand, stream: int = 0) -> Operand:
    """Float32 in [0, 1) with 24 random bits."""
    high = a.apply("arith.shrui", [bits(a, seed, place, stream), Number(8, "i32")], "i32")
    return a.apply("arith.mulf", [a.cast(high, "f32"), Number(2.0**-24, "f32")], "f32")


def normal(a: Algebra, seed: Operand, place: Operand) -> Operand:
    """Standard normal numbers, by Box and Muller."""
    u, v = Term(a, uniform(a, seed, place, 1)), Term(a, uniform(a, seed, place, 2))
    radius = (-2.0 * (1.0 - u).one("log")).one("sqrt")
    return (radius * (v * (2.0 * math.pi)).one("cos")).x


def integers(a: Algebra, seed: Operand, place: Operand, low: Operand, high: Operand) -> Operand:
    """Integers in [low, high), by the remainder of 31 bits."""
    value = a.apply("arith.shrui", [bits(a, seed, place), Number(1, "i32")], "i32")
    span = a.apply("arith.subi", [high, low], "i32")
    return a.apply("arith.addi", [a.apply("arith.remsi", [value, span], "i32"), low], "i32")
