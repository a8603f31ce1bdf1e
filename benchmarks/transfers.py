"""Host <-> device transfers beside a plain loop of the same dtype.

The plain loop copies the dense host bytes to a staging buffer and converts that buffer in one call of the same
conversion, on one thread. It knows no strides, sticks or layouts, so for a view that is not dense it is less than the
job at hand: no loop that walks such a view in the order of the destination comes near it. A ratio at or below 1.05 is
the goal. Transfers use up to ``--threads`` host threads (torch's number unless given); plain and transfer alternate,
so that both meet the same load of the machine.
Run: ``python benchmarks/transfers.py [--mib 16] [--repeat 20] [--threads N] [--only TEXT]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import torch_loom  # noqa: F401  registers the device
from torch_loom import _device


def best(work: Callable[[], object], repeat: int) -> float:
    """Shortest of ``repeat`` runs, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


Shape = Callable[[int], tuple[int, ...]]
View = Callable[[torch.Tensor], torch.Tensor]

DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.bool,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
)


def rows_of(n: int) -> tuple[int, ...]:
    return (n // 1024, 1024)


def same(t: torch.Tensor) -> torch.Tensor:
    return t


EVERY: list[tuple[str, Shape, View]] = [
    ("[n/1024, 1024]", rows_of, same),
    ("transposed view", rows_of, lambda t: t.t()),
]
"""Rows that are measured for each dtype."""

LAYOUTS: list[tuple[str, Shape, View]] = [
    ("[n/1000, 1000] ragged", lambda n: (n // 1000, 1000), same),
    ("flat", lambda n: (n,), same),
    ("[32, n/12288, 384]", lambda n: (32, n // 12288, 384), same),
    ("[8, 16, n/8192, 64]", lambda n: (8, 16, n // 8192, 64), same),
    ("ragged, transposed", lambda n: (n // 1000, 1000), lambda t: t.t()),
    ("sliced [:, 32:992]", rows_of, lambda t: t[:, 32:992]),
    ("[b, s, h, d] to [b, h, s, d]", lambda n: (8, n // 6144, 12, 64), lambda t: t.permute(0, 2, 1, 3)),
    ("[b, h, s, d] to [b, h, d, s]", lambda n: (8, 12, n // 6144, 64), lambda t: t.transpose(2, 3)),
    ("[b, r, 384] to [b, 384, r]", lambda n: (32, n // 12288, 384), lambda t: t.transpose(1, 2)),
    ("NCHW to NHWC", lambda n: (16, 64, n // 32768, 32), lambda t: t.permute(0, 2, 3, 1)),
]
"""Layouts by rank and views of them, measured for a two-byte and a four-byte dtype and for bytes that lie on the device
in two and in four bytes."""


def cases() -> list[tuple[str, torch.dtype, Shape, View, Callable[[torch.Tensor], torch.Tensor]]]:
    """(name, dtype, host shape, view of it, how the device tensor is made) of every row."""

    def default(host: torch.Tensor) -> torch.Tensor:
        return torch.empty(host.shape, dtype=host.dtype, device="spyre")

    def stick_on_rows(host: torch.Tensor) -> torch.Tensor:
        layout = torch.spyre.SpyreTensorLayout(list(host.shape), [host.shape[1], 1], host.dtype, [1, 0])
        return torch.spyre.empty_with_layout(host.shape, layout, host.dtype)

    def row_major(host: torch.Tensor) -> torch.Tensor:
        return _device.empty_strided(list(host.shape), [host.shape[1], 1], host.dtype, 0, "row_major")

    out: list[tuple[str, torch.dtype, Shape, View, Callable[[torch.Tensor], torch.Tensor]]] = []
    for dtype in DTYPES:
        short = str(dtype).removeprefix("torch.")
        out += [(f"{short} {name}", dtype, shape, view, default) for name, shape, view in EVERY]
        out.append((f"{short} stick on dim 0", dtype, rows_of, same, stick_on_rows))
        if dtype in (torch.float16, torch.float32, torch.bool, torch.uint8):
            out.append((f"{short} row-major", dtype, rows_of, same, row_major))
            out += [(f"{short} {name}", dtype, shape, view, default) for name, shape, view in LAYOUTS]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=16, help="host size of each tensor")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="host threads of a transfer")
    parser.add_argument("--only", default="", help="only rows whose name holds this text")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.mib} MiB on the host, best of {options.repeat}, {options.threads} threads, ms")
    head = ("case", "plain", "to spyre", "ratio", "plain", "to cpu", "ratio", "GB/s", "GB/s")
    print(f"{head[0]:44}" + "".join(f"{h:>10}" for h in head[1:]))
    slow = []
    for name, dtype, shape, view, make in cases():
        if options.only not in name:
            continue
        n = (options.mib << 20) // dtype.itemsize
        host = view(torch.ones(shape(n), dtype=dtype))
        back = torch.empty_strided(host.shape, host.stride(), dtype=dtype)
        device = make(host)
        flat = torch.ones(host.numel(), dtype=dtype)
        times = [float("inf")] * 4
        for _ in range(options.repeat):
            once = (
                _device.measure_plain_loop(flat, True, 1),
                best(lambda h=host, d=device: d.copy_(h), 1),
                _device.measure_plain_loop(flat, False, 1),
                best(lambda d=device, b=back: b.copy_(d), 1),
            )
            times = [min(a, b) for a, b in zip(times, once, strict=True)]
        plain_to, to, plain_fro, fro = times
        cells = [plain_to * 1e3, to * 1e3, to / plain_to, plain_fro * 1e3, fro * 1e3, fro / plain_fro]
        rates = [host.numel() * dtype.itemsize / seconds / 1e9 for seconds in (to, fro)]
        print(f"{name:44}" + "".join(f"{c:>10.2f}" for c in [*cells, *rates]), flush=True)
        slow += [f"{name} ({way})" for way, r in (("to spyre", cells[2]), ("to cpu", cells[5])) if r > 1.05]
    print("above 1.05: " + (", ".join(slow) if slow else "none"))


if __name__ == "__main__":
    main()
