"""Parameters that kernels read in another layout than the public one: copied once, again when they change."""

import gc

import pytest
import torch
from helpers import close, half

from torch_loom import _device
from torch_loom.inductor import layout_cost
from torch_loom.inductor.relaid import counts, held_bytes, relaid, run_of, written


def test_a_layout_is_written_as_text():
    assert run_of(written((1, 3))) == (1, 3)
    assert run_of("default") is None and run_of("rows") is None


@pytest.mark.parametrize("run", [(0, 1), (1, 2), (0, 2), (1, 3)])
def test_a_copy_lies_in_rows_along_its_run(run):
    x = half(6, 1, 5, 3)
    sizes, order = (6, 5, 3), [*range(run[0]), *range(run[1], 3), *range(*run)]
    rows = x.reshape(sizes).permute(order).reshape(-1, torch.Size(sizes[run[0] : run[1]]).numel())
    weight = torch.nn.Parameter(x.to("spyre"))
    copy = relaid(weight, run)
    assert _device.expect(copy, "row_major") and not copy.requires_grad
    assert torch.equal(copy.cpu(), rows.to("spyre").cpu())
    assert relaid(weight, run) is copy


@pytest.mark.parametrize("run", [(0, 1), (1, 2)])
def test_a_copy_of_a_matrix_lies_along_its_rows(run):
    x = half(130, 70)
    copy = relaid(torch.nn.Parameter(x.to("spyre")), run)
    rows = (x.t() if run == (0, 1) else x).contiguous().to("spyre")
    assert copy.is_contiguous() and torch.equal(copy.cpu(), rows.cpu())


@pytest.fixture
def chosen(monkeypatch):
    """Every parameter takes the last of its candidates, whatever it costs; what was taken."""
    taken = {}

    def everything(wanted, users, kernels, time):
        taken.update(wanted)
        return dict(wanted)

    monkeypatch.setattr(layout_cost, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(layout_cost, "_options", lambda kernels, private: {})
    monkeypatch.setattr(layout_cost, "solve", lambda options, factors: {b: runs[-1] for b, runs in options.items()})
    monkeypatch.setattr(layout_cost, "with_gain", lambda choice, options, factors: choice)
    monkeypatch.setattr(layout_cost, "judged", everything)
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
        yield taken


def expected(module, x):
    other = torch.nn.Conv1d(6, 10, 3)
    other.load_state_dict({k: v.cpu().float() for k, v in module.state_dict().items()})
    with torch.no_grad():
        return torch.relu(other(x.cpu().float()))


def through_changes():
    """Run a module, change its weight in every way, and run it again."""
    module = torch.nn.Conv1d(6, 10, 3).half().to("spyre")
    x = half(2, 6, 20).to("spyre")
    run = torch.compile(lambda a: torch.relu(module(a)), dynamic=False)
    double = torch.compile(lambda w: w.mul_(2), dynamic=False)
    before = held_bytes()
    changes = [
        lambda: None,
        lambda: None,
        lambda: module.weight.mul_(-1),
        lambda: double(module.weight),
        lambda: module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()}),
        lambda: setattr(module.weight, "data", half(10, 6, 3, seed=5).to("spyre")),
        lambda: module.weight.data.mul_(3),
        lambda: module.weight.data[1].zero_(),
        lambda: module.weight.detach().view(-1)[7:11].copy_(half(4, seed=6)),
    ]
    with torch.no_grad():
        for change in changes:
            change()
            close(run(x).cpu(), expected(module, x), 1, 1e-5)
    assert held_bytes() > before


def test_a_parameter_is_copied_once_and_again_when_it_changes(chosen):
    before, kept = (counts.made, counts.made_again), held_bytes()
    through_changes()
    assert chosen and (counts.made - before[0], counts.made_again - before[1]) == (1, 7)
    torch._dynamo.reset()
    gc.collect()
    assert held_bytes() == kept


@pytest.mark.parametrize("sizes", [(130, 70), (70, 130), (160, 128)])
def test_a_transposed_weight_is_read_as_it_was_laid_out(chosen, sizes):
    k, n = sizes
    x, w = half(40, k), half(n, k, seed=1, scale=k**-0.5)
    weight = torch.nn.Parameter(w.to("spyre"))
    with torch.no_grad():
        found = torch.compile(lambda a: a @ weight.t(), dynamic=False)(x.to("spyre")).cpu()
    assert chosen
    close(found, x.to("spyre").cpu().float() @ w.to("spyre").cpu().float().t(), 1, 1e-3)


def test_every_stream_reads_the_finished_copy():
    x = half(96, 64, 5)
    for _ in range(4):
        weight = torch.nn.Parameter(x.to("spyre"))
        with torch.spyre.stream(torch.Stream(device="spyre")):
            copy = relaid(weight, (1, 3))
        with torch.spyre.stream(torch.Stream(device="spyre")):
            assert torch.equal(copy.cpu(), x.reshape(96, 320).to("spyre").cpu())


def test_a_tensor_of_inference_mode_is_copied_once_and_again_when_it_changes(chosen):
    before = (counts.made, counts.made_again)
    with torch.inference_mode():
        module = torch.nn.Conv1d(6, 10, 3).half().to("spyre")
        x = half(2, 6, 20).to("spyre")
        run = torch.compile(lambda a: torch.relu(module(a)), dynamic=False)
        for factor in (1, None, -1):
            if factor is not None:
                module.weight.mul_(factor)
            close(run(x).cpu(), expected(module, x), 1, 1e-5)
    assert (counts.made - before[0], counts.made_again - before[1]) == (1, 1)


@pytest.mark.parametrize("mode", ["debug", "strict", "fused"])
def test_every_write_gives_a_storage_another_content(mode):
    base = half(4, 6, 70).to("spyre")
    other = half(4, 6, 70, seed=1).to("spyre")
    bits = torch.zeros(4, 6, 70, dtype=torch.int16)
    alias = base.view(torch.int16)
    writes = [
        lambda: base.mul_(2),
        lambda: base.data.add_(1),
        lambda: base[1].zero_(),
        lambda: base.view(-1)[3:5].fill_(7),
        lambda: base.copy_(other),
        lambda: base.copy_(half(4, 6, 70, seed=2)),
        lambda: base.normal_(),
        lambda: torch.add(other, 1, out=base),
        lambda: alias.copy_(bits),
        lambda: base.index_copy_(0, torch.tensor([2], device="spyre"), other[:1]),
        lambda: base.resize_(5, 6, 70),
        lambda: base.set_(other.clone()),
    ]
    reads = [lambda: base.sum(), lambda: base * 2, lambda: base.cpu(), lambda: base[0]]
    with torch.spyre.use_eager_mode(mode):
        seen = {_device.content_of(base)}
        for write in writes:
            write()
            content = _device.content_of(base)
            assert content not in seen
            seen.add(content)
            for read in reads:
                read()
            assert _device.content_of(base) == content


def test_training_reads_parameters_as_they_lie(chosen):
    module = torch.nn.Conv1d(6, 10, 3).half().to("spyre")
    torch.compile(module, dynamic=False)(half(2, 6, 20).to("spyre")).sum().backward()
    assert not chosen and module.weight.grad is not None
