"""Host <-> device transfers: time of each conversion beside a plain copy and a plain conversion on the host.

The reference is a plain memcpy of the host bytes plus a plain loop over the same number of elements with
the same conversion, which is what the transfer of a flat tensor is (its sticks are consecutive).
Run: ``python benchmarks/transfers.py [--mib 16] [--repeat 20]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import torch_loom  # noqa: F401  registers the device


def best(work: Callable[[], object], repeat: int) -> float:
    """Shortest of ``repeat`` runs, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


CASES: list[tuple[str, torch.dtype, Callable[[int], tuple[int, ...]], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("float16 [n/1024, 1024]", torch.float16, lambda n: (n // 1024, 1024), lambda t: t),
    ("float16 [n/1000, 1000] ragged", torch.float16, lambda n: (n // 1000, 1000), lambda t: t),
    ("float16 [32, n/12288, 384]", torch.float16, lambda n: (32, n // 12288, 384), lambda t: t),
    ("float16 flat", torch.float16, lambda n: (n,), lambda t: t),
    ("bfloat16 [n/1024, 1024]", torch.bfloat16, lambda n: (n // 1024, 1024), lambda t: t),
    ("float32 [n/1024, 1024]", torch.float32, lambda n: (n // 1024, 1024), lambda t: t),
    ("int64 [n/1024, 1024]", torch.int64, lambda n: (n // 1024, 1024), lambda t: t),
    ("bool [n/1024, 1024]", torch.bool, lambda n: (n // 1024, 1024), lambda t: t),
    ("float16 transposed view", torch.float16, lambda n: (n // 1024, 1024), lambda t: t.t()),
    ("float16 sliced [:, 32:992]", torch.float16, lambda n: (n // 1024, 1024), lambda t: t[:, 32:992]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=16, help="host size of each tensor")
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.mib} MiB on the host, best of {options.repeat}, one thread, ms")
    head = ("case", "memcpy", "+loop", "to spyre", "ratio", "+loop", "to cpu", "ratio", "GB/s")
    print(f"{head[0]:32}" + "".join(f"{h:>10}" for h in head[1:]))
    for name, dtype, shape, view in CASES:
        n = (options.mib << 20) // dtype.itemsize
        host = view(torch.ones(shape(n), dtype=dtype))
        back = torch.empty_like(host)
        device = torch.empty(host.shape, dtype=dtype, device="spyre")
        same = torch.empty_like(host)
        plain = best(lambda h=host, s=same: s.copy_(h), options.repeat)
        flat = torch.ones(host.numel(), dtype=dtype)
        flat_device = torch.empty(host.numel(), dtype=dtype, device="spyre")
        reference = plain + best(lambda a=flat, b=flat_device: b.copy_(a), options.repeat)
        reference_back = plain + best(lambda a=flat_device, b=flat: b.copy_(a), options.repeat)
        to = best(lambda h=host, d=device: d.copy_(h), options.repeat)
        fro = best(lambda d=device, b=back: b.copy_(d), options.repeat)
        cells = [plain * 1e3, reference * 1e3, to * 1e3, to / reference]
        cells += [reference_back * 1e3, fro * 1e3, fro / reference_back]
        rate = host.numel() * dtype.itemsize / to / 1e9
        print(f"{name:32}" + "".join(f"{c:>10.2f}" for c in [*cells, rate]))


if __name__ == "__main__":
    main()
