"""Recurrent modules and cells, and their gradients, against float32 on the host."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

MODULES = {
    "lstm": lambda: nn.LSTM(6, 5),
    "lstm of two layers": lambda: nn.LSTM(6, 5, num_layers=2),
    "lstm in both directions": lambda: nn.LSTM(6, 5, bidirectional=True),
    "lstm without bias, batch first": lambda: nn.LSTM(6, 5, bias=False, batch_first=True),
    "gru": lambda: nn.GRU(6, 5),
    "gru in both directions, without bias": lambda: nn.GRU(6, 5, bidirectional=True, bias=False),
    "lstm cell": lambda: nn.LSTMCell(6, 5),
    "gru cell": lambda: nn.GRUCell(6, 5),
    "gru cell without bias": lambda: nn.GRUCell(6, 5, bias=False),
}


def run(module, x):
    """Results, and gradients of the input and of the parameters."""
    x = x.detach().requires_grad_()
    results = tree_leaves(module(x))
    # Not all results count: some gradients stay undefined.
    weights = [(torch.arange(r.numel()) % 5 - 1.5).reshape(r.shape).to(r) for r in results[:2]]
    grads = torch.autograd.grad(results[:2], [x, *module.parameters()], weights)
    return [t.detach().cpu().float() for t in (*results, *grads)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize("name", MODULES)
def test_recurrent_modules(name, mode, dtype):
    torch.manual_seed(3)
    module = MODULES[name]()
    x = torch.randn(*(() if "cell" in name else (3,)), 4, 6)
    if dtype == torch.float16:  # the values that the device holds
        module, x = module.half().float(), x.half().float()
    want = run(module, x)
    with torch.spyre.use_eager_mode(mode):
        got = run(module.to("spyre", dtype), x.to("spyre", dtype))
    assert torch.spyre.fallbacks() == {}
    step = 2**-8 if dtype == torch.float16 else 1e-5
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=step, atol=4 * step * max(w.abs().max().item(), 0.25))


def test_a_cell_of_which_only_the_state_counts():
    torch.manual_seed(4)
    cell, x = nn.LSTMCell(6, 5), torch.randn(4, 6)
    weights = torch.arange(20.0).reshape(4, 5) / 8
    want = torch.autograd.grad(cell(x)[1], list(cell.parameters()), weights)
    cell.to("spyre")
    got = torch.autograd.grad(cell(x.to("spyre"))[1], list(cell.parameters()), weights.to("spyre"))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-5, atol=1e-5)
    assert torch.spyre.fallbacks() == {}


def test_gates_and_states_must_fit():
    gates = torch.zeros(4, 20, device="spyre")
    with pytest.raises(RuntimeError, match="do not fit"):
        torch.ops.aten._thnn_fused_lstm_cell(gates, gates, torch.zeros(4, 6, device="spyre"))
    with pytest.raises(RuntimeError, match="same sizes"):
        torch.ops.aten._thnn_fused_lstm_cell(gates, gates[:2], torch.zeros(4, 5, device="spyre"))
