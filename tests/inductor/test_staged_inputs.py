"""Inputs that kernels read in windows: copied once to a buffer that may stay in LX."""

import pytest
import torch
import torch.nn.functional as F
from helpers import close, half

from torch_loom import arch
from torch_loom.inductor import config
from torch_loom.profiler import launch_rows, recorded_launches

READERS = {
    "maxima": lambda x, w: F.max_pool2d(x, 3, 2, 1),
    "means": lambda x, w: F.avg_pool2d(x, 2),
    "filters": lambda x, w: F.conv2d(x, w),
    "filters and maxima": lambda x, w: F.conv2d(x, w) + F.max_pool2d(x, 3, 1),
}


def modelled(fn, *args):
    """(Modelled us, kernels, result) of a call of ``fn`` that was compiled before."""
    torch._dynamo.reset()
    run = torch.compile(fn, dynamic=False, fullgraph=True)
    with torch.no_grad():
        run(*args)
        with recorded_launches() as log:
            out = run(*args).cpu()
    rows = launch_rows(log, arch.load("spyre"))
    return sum(r.modelled_us for r in rows), len(rows), out


@pytest.mark.parametrize("name", READERS)
def test_windows_of_an_input_are_read_from_a_copy(name):
    x, w = half(2, 16, 40, 44).to("spyre"), half(16, 16, 3, 3, seed=1, scale=0.1).to("spyre")
    us, kernels, out = modelled(READERS[name], x, w)
    close(out, READERS[name](x.cpu().float(), w.cpu().float()), 2, absolute=2e-3)
    with config.patch(residency=False):
        slow, fewer, _ = modelled(READERS[name], x, w)
    assert kernels > fewer and us * 5 < slow


@pytest.mark.parametrize("channels_last", [False, True])
def test_an_input_that_the_graph_writes_is_copied_before(channels_last):
    def fn(x):
        out = F.max_pool2d(x, 3, 2)
        x.mul_(2)
        return out + F.max_pool2d(x, 3, 2)

    x = half(2, 16, 21, 30)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    placed = x.to("spyre")
    held = placed.cpu()
    with torch.no_grad():
        found = torch.compile(fn, dynamic=False)(placed)
    assert torch.equal(placed.cpu(), held * 2)
    close(found.cpu(), 3 * F.max_pool2d(held.float(), 3, 2), 2)


def test_what_the_graph_makes_is_not_copied_again():
    x = half(2, 16, 40, 44).to("spyre")
    _, kernels, out = modelled(lambda x: F.max_pool2d(x * 2, 3, 2, 1), x)
    close(out, F.max_pool2d(x.cpu().float() * 2, 3, 2, 1), 1)
    assert kernels <= 2


def test_an_input_without_elements():
    out = torch.compile(lambda x: F.max_pool2d(x, 3), dynamic=False)(torch.zeros(0, 4, 9, 9).half().to("spyre"))
    assert out.shape == (0, 4, 3, 3)
