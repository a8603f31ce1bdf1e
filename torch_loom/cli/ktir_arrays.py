"""Array arguments of ``loom ktir run``: numbers, files, and short specifications for trying things out."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import write_bytes

_DTYPES = {"f16": np.float16, "f32": np.float32, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}
_SPEC = re.compile(r"(zeros|ones|randn|arange):((?:\d+x)*)([a-z]\d+)")


def read_value(name: str, text: str, seed: int) -> Any:
    """A number, an array from a file, or an array from a specification like ``zeros:64x128xf16``."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text in ("true", "false"):
        return text == "true"
    match = _SPEC.fullmatch(text)
    if match is not None:
        return _made(name, match[1], match[2], match[3], seed)
    return read_array(Path(text))


def _made(name: str, kind: str, dims: str, dtype: str, seed: int) -> Any:
    if dtype not in _DTYPES:
        raise Usage(f"--arg {name}: unknown element type '{dtype}'; known: {', '.join(_DTYPES)}")
    shape = tuple(int(d) for d in dims.split("x") if d)
    if kind == "arange":
        return np.arange(int(np.prod(shape)), dtype=_DTYPES[dtype]).reshape(shape)
    if kind == "randn":
        # The name takes part so that two arguments of one run differ.
        generator = np.random.default_rng([seed, *name.encode()])
        return generator.standard_normal(shape).astype(_DTYPES[dtype])
    return np.full(shape, 1 if kind == "ones" else 0, _DTYPES[dtype])


def read_array(path: Path) -> Any:
    """An array from a ``.npy`` file."""
    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise Usage(f"{path} is not a .npy array: {error}") from None


def write_arrays(output: Path, arrays: dict[Any, Any]) -> dict[str, str]:
    """Write one file per array into a folder, or all into one ``.npz``; each file appears whole or not at all."""
    plain = {str(name): np.asarray(array) for name, array in arrays.items()}
    try:
        if output.suffix == ".npz":
            buffer = io.BytesIO()
            np.savez(buffer, **plain)  # type: ignore[arg-type]
            write_bytes(output, buffer.getvalue())
            return dict.fromkeys(plain, str(output))
        output.mkdir(parents=True, exist_ok=True)
        paths = {}
        for name, array in plain.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            path = output / f"{name}.npy"
            write_bytes(path, buffer.getvalue())
            paths[name] = str(path)
        return paths
    except OSError as error:
        raise Usage(f"cannot write {output}: {error.strerror}") from None
