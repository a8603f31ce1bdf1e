"""SpyreCode: the program of a kernel as data, bytes, text and a directory with a plan."""

from torch_loom.spyrecode.codec import decode, encode
from torch_loom.spyrecode.directory import read_dir, write_dir
from torch_loom.spyrecode.errors import SpyreCodeError
from torch_loom.spyrecode.parse import assemble
from torch_loom.spyrecode.text import disassemble
from torch_loom.spyrecode.validate import validate

__all__ = [
    "SpyreCodeError",
    "assemble",
    "decode",
    "disassemble",
    "encode",
    "read_dir",
    "validate",
    "write_dir",
]
