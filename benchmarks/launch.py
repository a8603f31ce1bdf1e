"""Host time of a launch: ten tensors and four sizes, measured until the call returns.

The kernel does nothing (its size argument is 0), so that what is left is the launch path: arguments, value
table, queue. Rows: the call from Python, the same work inside C++, torch CPU's dispatch of a one-element
``add`` in the same run, and a launch that prepares its plan anew, to show what preparing once gives.
Run: ``python benchmarks/launch.py [--launches 2000]``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import torch_loom  # noqa: F401  registers the device
from torch_loom import _device

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "device"))
import programs
from host_time import per_call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=200, help="launches in a row (fewer than fit in flight)")
    calls = parser.parse_args().launches
    image = programs.scale(buffers=10, ints=4)
    plan = _device.prepare(image)
    tensors = [torch.zeros(64, 64, dtype=torch.float16, device="spyre") for _ in range(10)]
    args = [*tensors, 0, 1, 2, 3, 1.0]
    one, two = torch.ones(1), torch.ones(1)
    rows = [
        ("launch from Python, list of arguments", per_call(lambda: plan.launch(args), calls)),
        ("launch from Python, call", per_call(lambda: plan(*args), calls)),
        ("launch in C++", _device.measure_launch(plan, args, calls)),
        ("torch CPU add of one element", per_call(lambda: torch.add(one, two), calls)),
        ("prepare and launch", per_call(lambda: _device.prepare(image).launch(args), max(calls // 10, 1))),
    ]
    torch.spyre.synchronize()
    print(f"{'us until return':44}{'us':>10}")
    for name, us in rows:
        print(f"{name:44}{us:>10.2f}")
    print(f"preparing once: {rows[-1][1] / rows[0][1]:.1f}x at the launch of one kernel")
    print("(published, for whole models: 1.7x in prefill, 2.4x in decode)")
    _device.set_blocking(True)
    done = per_call(lambda: plan.launch(args), calls)
    _device.set_blocking(False)
    print(f"{'launch and execute an empty kernel':44}{done:>10.2f}")


if __name__ == "__main__":
    main()
