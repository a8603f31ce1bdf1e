"""Autocast, and the switches that a process is started with."""

import os
import subprocess
import sys

import pytest
import torch


def test_autocast_dtypes():
    a, b = torch.randn(4, 8, device="spyre"), torch.randn(8, 4, device="spyre")
    with torch.autocast("spyre"):
        assert (a @ b).dtype == torch.float16
        assert torch.nn.functional.linear(a, b.t()).dtype == torch.float16
        assert (a @ b).exp().dtype == torch.float32
        assert torch.nn.functional.softmax(a @ b, -1).dtype == torch.float32
        assert (a.half() + b.t().half()).dtype == torch.float16
        assert torch.addcmul(a.half(), a, a).dtype == torch.float32
        with torch.autocast("spyre", enabled=False):
            assert (a @ b).dtype == torch.float32
    with torch.autocast("spyre", dtype=torch.bfloat16):
        assert (a @ b).dtype == torch.bfloat16
    assert (a @ b).dtype == torch.float32


def test_autocast_refuses_what_overflows():
    p = torch.full((3,), 0.5, device="spyre")
    with torch.autocast("spyre"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(p, p)


def run(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True)


def test_poisoned_memory_shows_in_padding_and_nowhere_else():
    done = run(
        "import numpy as np, torch, torch_loom.device\n"
        "torch_loom.device._autoload()\n"
        "from torch_loom import _device\n"
        "host = torch.randn(5, 70)\n"
        "for dtype in (torch.float16, torch.float32):\n"
        "    x = host.to(dtype).to('spyre')\n"
        "    raw = np.frombuffer(_device.device_bytes(x), np.uint16)\n"
        "    assert (raw == 0x7FFF).sum() * 2 == len(raw) * 2 - 5 * 70 * dtype.itemsize\n"
        "    assert torch.equal(x.cpu(), host.to(dtype).to('spyre').cpu())\n"
        "    assert x.cpu().isfinite().all() and torch.empty(4, dtype=dtype, device='spyre').cpu().isnan().all()\n",
        TORCH_LOOM_POISON="1",
    )
    assert done.returncode == 0, done.stderr


def test_blocking_mode_from_the_environment():
    done = run(
        "import torch, torch_loom.device\ntorch_loom.device._autoload()\n"
        "from torch_loom import _device\nassert _device.blocking()\n",
        TORCH_LOOM_BLOCKING="1",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("TORCH_LOOM_NUMERICS", "fp16"), ("TORCH_LOOM_THREADS", "-1"), ("TORCH_LOOM_FALLBACK", "maybe")],
)
def test_wrong_values_are_named(name, value):
    done = run(
        "import torch, torch_loom.device\ntorch_loom.device._autoload()\ntorch.ones(1, device='spyre')\n",
        **{name: value},
    )
    assert done.returncode != 0 and name in done.stderr and value in done.stderr
