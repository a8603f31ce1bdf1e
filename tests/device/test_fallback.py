"""Operators that run on the CPU: what is counted, and how to forbid it. Here that is every operator without a kernel
of the device (eager mode ``host``); ``tests/eager`` is about those that are compiled instead."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from torch_loom import _device


@pytest.fixture(autouse=True)
def fresh_counts():
    torch.spyre.reset_fallbacks()


def test_a_fallback_gives_the_host_result_on_the_device():
    x, y = torch.randn(5, 70), torch.randn(5, 70)
    z = x.to("spyre") + y.to("spyre")
    assert z.device.type == "spyre"
    torch.testing.assert_close(z.cpu(), x + y)


def test_fallbacks_are_counted_by_operator():
    x = torch.ones(3, device="spyre")
    x.cos()
    x.cos()
    x.sigmoid_()
    counts = torch.spyre.fallbacks()
    assert sum(n for op, n in counts.items() if op.startswith("aten::cos")) == 2
    assert sum(counts.values()) == 3
    torch.spyre.reset_fallbacks()
    assert torch.spyre.fallbacks() == {}


def test_moves_fills_views_and_random_fills_are_not_fallbacks():
    x = torch.zeros(4, 70, dtype=torch.float16).to("spyre")
    x.fill_(2)
    x.zero_()
    x[1:3, 5:9].copy_(x[0:2, 1:5])
    x.float().to(torch.int32).clone().contiguous()
    x[0, 0].item()
    torch.zeros(3, device="spyre"), torch.ones(3, device="spyre"), torch.full((2, 2), 7, device="spyre")
    torch.arange(10, device="spyre")
    torch.tensor([1, 2, 3], device="spyre")
    torch.rand(5, device="spyre"), torch.randn(5, device="spyre"), torch.randint(0, 9, (5,), device="spyre")
    x.view(-1).unsqueeze(0).expand(2, -1).transpose(0, 1)
    x.cpu()
    assert torch.spyre.fallbacks() == {}


def test_the_warning_comes_once_per_operator():
    code = (
        "import warnings, torch, torch_loom\n"
        "x = torch.ones(3, device='spyre')\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    x.cos(), x.cos(), x.sin()\n"
        "for w in seen:\n"
        "    assert w.category is torch.spyre.FallbackWarning, w\n"
        "    print(str(w.message).split()[0])\n"
    )
    env = {**os.environ, "TORCH_LOOM_EAGER": "host"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    named = done.stdout.split()
    assert len(named) == 2 and named[0].startswith("aten::cos") and named[1].startswith("aten::sin")


def test_a_warning_turned_into_an_error_is_raised():
    _device.set_fallback_mode("warn")
    x = torch.ones(3, device="spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch.spyre.FallbackWarning, match="aten::erfinv"):
            x.erfinv()
    assert x.tolist() == [1, 1, 1]


def test_error_mode_refuses_and_leaves_the_device_usable():
    _device.set_fallback_mode("error")
    x = torch.ones(3, device="spyre")
    with pytest.raises(NotImplementedError, match="does not support: aten::tan"):
        x.tan()
    assert x.cpu().tolist() == [1, 1, 1]


def test_error_mode_from_the_environment():
    env = {**os.environ, "TORCH_LOOM_FALLBACK": "error", "TORCH_LOOM_EAGER": "host"}
    code = "import torch, torch_loom; torch.ones(2, device='spyre') + 1"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode != 0 and "TORCH_LOOM_FALLBACK=error" in done.stderr


def test_in_place_and_out_results_arrive():
    x = torch.arange(6.0).to("spyre")
    x += 1
    assert x.tolist() == [1, 2, 3, 4, 5, 6]
    x[::2].mul_(10)
    assert x.tolist() == [10, 2, 30, 4, 50, 6]
    out = torch.empty(0, device="spyre")
    torch.add(x, 1, out=out)
    assert out.tolist() == [11, 3, 31, 5, 51, 7]


def test_autograd_runs_through_fallbacks():
    w = torch.randn(4, 3)
    x = torch.randn(5, 4)
    host = w.clone().requires_grad_()
    (x @ host).tanh().sum().backward()
    device = w.to("spyre").requires_grad_()
    (x.to("spyre") @ device).tanh().sum().backward()
    torch.testing.assert_close(device.grad.cpu(), host.grad)


def test_mixed_devices_are_refused():
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device="spyre") + torch.ones(3)
