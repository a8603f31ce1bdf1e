"""Run by test_jobs.py in a process of its own, as the device reads the switch once: kept bytes are poisoned."""

import os

os.environ["TORCH_LOOM_POISON"] = "1"

import torch
from test_jobs import SIZE, plan_of_two

from torch_loom import _device


def launch(first, second, x, y):
    """y = 4 x through a kept buffer of 16 rows."""
    steps = [(first, [("external", 0), ("own", 0)]), (second, [("own", 0), ("external", 1)])]
    _device.Job(steps, [(1 << 20, 2 * SIZE, SIZE // 2)], 0).launch([x, y], [], None)
    return y.cpu()


whole = torch.arange(512, dtype=torch.float32).view(16, 32)
x, y = whole.to("spyre"), torch.zeros(16, 32).to("spyre")
assert torch.equal(launch(plan_of_two(16), plan_of_two(16), x, y), 4 * whole)
# Half of the buffer is written now: the other half is NaN, not what the job before left there.
found = launch(plan_of_two(8), plan_of_two(16), whole[:8].to("spyre"), y)
assert torch.equal(found[:8], 4 * whole[:8])
assert found[8:].isnan().all()
