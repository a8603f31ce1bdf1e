"""Broken and unusual texts made from good ones: by tokens, by lines, by bytes, by splicing two programs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

TOKEN = re.compile(r"\s+|[%#!@^]?[\w$.]+|\"[^\"]*\"|->|[^\w\s]")

NUMBERS = ["0", "-1", "1", "63", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "4294967296"]
NUMBERS += ["0x7FF", "0xFFFFFFFFFFFFFFFFFF", "1.0e400", "1.0", "1000000000000", "?"]
SNIPPETS = [
    "tensor<?x?xf16>",
    "tensor<1000000x1000000xf32>",
    "tensor<4x64xi1>",
    "tensor<*xf32>",
    "memref<4xf16>",
    "vector<4xf32>",
    "complex<f32>",
    "!tt.ptr<f16>",
    "!ktdp.access_tile<4x64xindex>",
    "!ktdp.runtime_arg<index, granularity=64>",
    "!spyreop.df16",
    "affine_set<(d0) : (d0 >= 0)>",
    "affine_set<() : ()>",
    "affine_set<(d0)[s0] : (d0 floordiv s0 == 0)>",
    "affine_set<(d0) : (0 <= d0 <= 1000000000000)>",
    "affine_map<(d0, d1) -> (d1 mod 3, d0 ceildiv 2)>",
    "dense<0.0> : tensor<100000x100000xf32>",
    "dense<[1, 2, 3]> : tensor<3xi32>",
    "#ktdp.memory_space<global>",
    "#ktdp.memory_space<ct_local, ct_id = 7>",
    "#ktdp.spyre_memory_space<L0>",
    "loc(unknown)",
    'loc("a.py":1:2)',
    "loc(fused[unknown, #loc9])",
    "{grid = [2, 2, 2]}",
    "{grid = [100000, 100000]}",
    "scf.yield",
    "linalg.yield",
    "return",
    "ktdp.load",
    "ktdp.transfer",
    "arith.addf",
    "cf.br",
    "symbols(%x)",
    "ind(%x[%y])",
    "(" * 3000,
    "-" * 500,
    "[" * 2000 + "]" * 2000,
    "^bb0(%q: index):",
    "^bb7:",
]


def _tokens(text: str) -> list[str]:
    return TOKEN.findall(text)


def drop_token(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Remove a token."""
    tokens = _tokens(text)
    del tokens[rng.randrange(len(tokens))]
    return "".join(tokens)


def repeat_token(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Write a token several times."""
    tokens = _tokens(text)
    at = rng.randrange(len(tokens))
    tokens[at : at + 1] = [tokens[at]] * rng.choice((2, 3, 50))
    return "".join(tokens)


def swap_tokens(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Exchange two tokens."""
    tokens = _tokens(text)
    a, b = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[a], tokens[b] = tokens[b], tokens[a]
    return "".join(tokens)


def alien_token(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Put a token of another program in place of one."""
    tokens = _tokens(text)
    tokens[rng.randrange(len(tokens))] = rng.choice(_tokens(rng.choice(pool)))
    return "".join(tokens)


def other_number(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Change a number."""
    places = [m.span() for m in re.finditer(r"\d+", text)]
    if not places:
        return text
    start, end = rng.choice(places)
    return text[:start] + rng.choice(NUMBERS) + text[end:]


def snippet(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Put a piece of KTIR where a token stands."""
    tokens = _tokens(text)
    at = rng.randrange(len(tokens))
    tokens[at : at + rng.choice((0, 1, 1, 4))] = [rng.choice(SNIPPETS)]
    return "".join(tokens)


def drop_line(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Remove a line."""
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def move_line(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Move or copy a line."""
    lines = text.split("\n")
    line = lines[rng.randrange(len(lines))]
    lines.insert(rng.randrange(len(lines)), line)
    return "\n".join(lines)


def splice(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """The head of one program and the tail of another."""
    other = rng.choice(pool)
    return text[: rng.randrange(len(text))] + other[rng.randrange(len(other)) :]


def cut(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Truncate."""
    return text[: rng.randrange(len(text))]


def flip_bytes(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Change a few characters, control and non-ASCII ones included."""
    chars = list(text)
    for _ in range(rng.choice((1, 1, 2, 8))):
        chars[rng.randrange(len(chars))] = rng.choice(
            [chr(rng.randrange(256)), "\0", '"', "\\", "\u00e9", "\u0663", "\U0001f600", "\n"]
        )
    return "".join(chars)


def insert_bytes(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """Insert random characters."""
    at = rng.randrange(len(text))
    return text[:at] + "".join(chr(rng.randrange(1, 400)) for _ in range(rng.choice((1, 3, 20)))) + text[at:]


MUTATIONS: tuple[Callable[[random.Random, str, Sequence[str]], str], ...] = (
    drop_token,
    repeat_token,
    swap_tokens,
    alien_token,
    alien_token,
    other_number,
    other_number,
    snippet,
    snippet,
    drop_line,
    move_line,
    splice,
    cut,
    flip_bytes,
    insert_bytes,
)


def mutate(rng: random.Random, pool: Sequence[str]) -> str:
    """One text with one to three mutations."""
    text = rng.choice(pool)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(MUTATIONS)(rng, text, pool) or " "
    return text


def outcome(text: str) -> str:
    """What reading, checking and printing the text does: ``loaded`` or ``diagnosed``. Anything else is an exception.

    A text that loads must also survive printing and reading.
    """
    from torch_loom.ktir import KtirError, load
    from torch_loom.ktir.checks import check_program

    try:
        program = load(text, file="<mutated>", verify=False)
    except KtirError as error:
        assert error.diagnostics and all(d.code and d.message for d in error.diagnostics)
        return "diagnosed"
    errors = [d for d in check_program(program) if d.severity == "error"]
    if errors:
        return "diagnosed"
    printed = program.print()
    again = load(printed)
    assert again.module.is_structurally_equivalent(program.module), "printing changed the module"
    return "loaded"
