"""Fused mode: what is held back, when it runs, that it means the same, and what is left when it fails."""

import os
import threading

import pytest
import torch
import torch.nn.functional as F
from eager_check import half
from reference_target import ReferenceTarget, installed, patience

from torch_loom import _device
from torch_loom.eager import compiler, graph
from torch_loom.inductor.eager_target import SpyreTarget
from torch_loom.inductor.op_program import Program


@pytest.fixture(autouse=True)
def fused():
    with torch.spyre.use_eager_mode("fused"):
        yield


@pytest.fixture
def at_once():
    """Compile a graph when it is first seen."""
    with patience(0):
        yield


@pytest.fixture
def reference(tmp_path):
    with installed(ReferenceTarget(tmp_path)) as target, patience(0):
        yield target


def counts():
    return _device.eager_counts()


def since(before, *names):
    after = counts()
    return tuple(after[n] - before[n] for n in names)


def test_operators_run_at_the_first_read(at_once):
    x = half(6, 70).to("spyre")
    before = counts()
    y = (x * 2 + x).relu()
    assert since(before, "recorded", "launches") == (3, 0)
    value = y.cpu()
    assert since(before, "launches", "fused") == (1, 1)
    with torch.spyre.use_eager_mode("strict"):
        assert torch.equal(value, (x * 2 + x).relu().cpu())


def test_what_nobody_can_see_gets_no_memory(at_once):
    x = torch.ones(256, 256, device="spyre")
    torch.spyre.synchronize()
    torch.spyre.reset_peak_memory_stats()
    base = torch.spyre.memory_allocated()
    y = x
    for _ in range(8):
        y = y.mul(0.5)
    assert torch.spyre.memory_allocated() == base
    assert y[0, 0].item() == 0.5**8
    assert torch.spyre.max_memory_allocated() - base < 3 * x.nbytes


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item(),
        lambda t: t.cpu(),
        lambda t: repr(t),
        lambda t: t.nonzero(),
        lambda t: torch.equal(t, t),
        lambda t: torch.spyre.synchronize(),
        lambda t: torch.spyre.current_stream().synchronize(),
        lambda t: torch.spyre.Event().record(),
        lambda t: torch.spyre.set_stream(torch.spyre.Stream()) or torch.spyre.set_stream(torch.spyre.default_stream()),
        lambda t: torch.spyre.set_eager_mode("strict"),
        lambda t: t.untyped_storage().resize_(4096),
        lambda t: torch.randn(2, device="spyre") if t.cumsum(0) is None else t.cumsum(0).cpu(),
    ],
)
def test_reads_and_synchronisation_run_what_is_held_back(reference, read):
    torch.spyre.set_eager_mode("strict")
    x = torch.ones(3, 5, device="spyre")
    y = x + 1
    assert counts()["recorded"] > 0
    before = counts()
    read(y)
    assert since(before, "launches")[0] >= 1
    assert y.flatten()[:3].tolist() == [2, 2, 2]


def test_leaving_the_block_runs_everything(reference):
    with torch.spyre.use_eager_mode("fused"):
        before = counts()
        y = torch.ones(3, device="spyre") + 1
        assert since(before, "launches") == (0,)
    assert since(before, "launches") == (1,)
    assert y.tolist() == [2, 2, 2]


def test_the_mode_goes_with_the_backward_pass(reference):
    x = torch.arange(6.0).reshape(2, 3)
    device = x.to("spyre").requires_grad_()
    before = counts()
    (device * device).sum().backward()
    assert since(before, "launches") == (0,)
    assert torch.equal(device.grad.cpu(), 2 * x)


def test_views_and_writes_mean_what_they_mean_on_the_host(at_once):
    def program(device):
        x = torch.arange(24.0, device=device).reshape(4, 6)
        row, column, part = x[2], x[:, 1], x[1:3, 2:5]
        x.add_(1)
        row.mul_(3)
        column.copy_(x[:, 5])
        part.t().sub_(part.t() * 0.5)
        x[::2, ::3].fill_(7)
        y = x.t().clone()
        x.neg_()
        return x, y, row, part

    for a, b in zip(program("spyre"), program("cpu"), strict=True):
        assert torch.equal(a.cpu(), b) and a.stride() == b.stride() and a._version == b._version


def test_changed_operands_of_autograd_raise_the_error_of_the_host(reference):
    for device in ("cpu", "spyre"):
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        z = (y * y).sum()
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


def test_wrong_calls_raise_at_their_own_line(reference):
    for device in ("cpu", "spyre"):
        x = torch.zeros(8, device=device)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:1].expand(4).add_(1)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].add_(x[:-1])
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].copy_(x[:-1])
        with pytest.raises(RuntimeError, match="broadcast shape"):
            x.add_(torch.zeros(2, 8, device=device))
        with pytest.raises(RuntimeError, match="must match|size of tensor"):
            x + torch.zeros(9, device=device)
        with pytest.raises(RuntimeError, match="can't be cast"):
            x.to(torch.int32).add_(0.5)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5)).to("spyre")
    data = [torch.randn(7, n).to("spyre") for n in (12, 5)]
    return model, torch.optim.SGD(model.parameters(), lr=0.05), *data


def training(mode, steps):
    with torch.spyre.use_eager_mode(mode):
        model, *rest = network()
        losses = [step(model, *rest) for _ in range(steps)]
        return [t.cpu() for t in (*losses, *model.parameters())]


def test_a_loop_without_reads_repeats_one_graph(reference):
    before, graphs = counts(), compiler.counts.graphs
    losses = training("fused", 3)
    known = compiler.counts.graphs
    assert known - graphs <= 3
    fused = training("fused", 12)
    assert compiler.counts.graphs - known <= 2
    assert since(before, "fused")[0] >= 10
    for a, b in zip(fused, training("strict", 12), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(losses[0], fused[0])


def test_a_training_step_is_one_launch_from_the_third_on():
    results = training("strict", 3)
    model, *rest = network()
    losses = []
    for turn in range(3):
        before, compiled = counts(), (compiler.counts.compiled, compiler.counts.graphs)
        losses.append(step(model, *rest))
        torch.spyre.synchronize()
        if turn == 2:
            assert since(before, "launches", "fused", "replayed") == (1, 1, 0)
            assert (compiler.counts.compiled, compiler.counts.graphs) == compiled
    for a, b in zip([*losses, *model.parameters()], results, strict=True):
        # The same operators in float32; products may be summed in another order.
        torch.testing.assert_close(a.cpu(), b, rtol=2**-18, atol=2**-20)


def test_numbers_stay_arguments_of_a_graph(reference):
    x = torch.arange(5.0, device="spyre")
    graphs = compiler.counts.graphs
    for i in range(6):
        assert torch.equal((x * (0.5 * i) + i).cpu(), torch.arange(5.0) * (0.5 * i) + i)
    assert compiler.counts.graphs - graphs <= 2  # an addition of zero may be its own case


def test_a_graph_seen_once_is_not_compiled():
    x = half(6, 70).to("spyre")
    (x + x, x * x)
    torch.spyre.synchronize()
    before, graphs = counts(), compiler.counts.graphs
    (x + x).mul(x).sum().item()
    assert compiler.counts.graphs == graphs and since(before, "fused", "replayed") == (0, 1)


def test_an_operator_that_does_not_fit_splits_its_graph(reference):
    x = torch.arange(12.0, device="spyre")
    windows = x.unfold(0, 4, 2)
    y = (x * 2 + 1, windows.mul(3), x - 1)
    z = y[1].sum() + y[0].sum()
    host = torch.arange(12.0)
    assert z.item() == (host.unfold(0, 4, 2) * 3).sum() + (host * 2 + 1).sum()
    assert torch.equal(y[2].cpu(), host - 1)


def test_a_graph_without_a_tensor_to_begin_with():
    for _ in range(3):
        a = torch.full((4,), 3.0, device="spyre")
        b = a * 0.5 + a
        assert b.tolist() == [4.5] * 4 and a.tolist() == [3.0] * 4


def test_a_number_that_is_too_wide_is_refused_in_its_own_call():
    n, f = torch.ones(4, dtype=torch.int64).to("spyre"), torch.ones(4).to("spyre")
    a = f * 2
    with pytest.raises(RuntimeError, match="1099511627776"):
        n + 2**40
    assert (f * 3).tolist() == [3] * 4 and a.tolist() == [2] * 4


def test_what_does_not_need_the_failing_operator_is_computed(tmp_path):
    with installed(Failing(tmp_path)), patience(1):
        x = torch.ones(4, device="spyre")
        bad = (x * 2).log()
        worse = bad + 1
        other = x * 3
        with pytest.raises(ValueError, match="overheated"):
            other.cpu()
        assert other.tolist() == [3] * 4
        for t in (bad, worse):
            with pytest.raises(RuntimeError, match="overheated"):
                t.cpu()


def test_a_failing_graph_is_computed_one_by_one(tmp_path):
    with installed(Failing(tmp_path)), patience(0):
        x = torch.ones(4, device="spyre")
        bad, other = x.log(), x * 3
        with pytest.raises(ValueError, match="overheated"):
            torch.spyre.synchronize()
        assert other.tolist() == [3] * 4
        with pytest.raises(RuntimeError, match="overheated"):
            bad.cpu()


class Interrupted(ReferenceTarget):
    """The user presses Ctrl-C while a graph is compiled."""

    times = 0

    def compile_graph(self, gm, inputs, numbers):
        if len(list(gm.graph.nodes)) > 4:
            self.times += 1
            raise KeyboardInterrupt
        return super().compile_graph(gm, inputs, numbers)


def test_an_interrupt_of_the_compiler_arrives_and_costs_no_value(tmp_path):
    with installed(Interrupted(tmp_path)) as target, patience(0):
        x = torch.ones(4, device="spyre")
        y = x * 2 + x
        x.add_(y)
        with pytest.raises(KeyboardInterrupt):
            y.cpu()
        assert target.times == 1
        assert y.tolist() == [3] * 4 and x.tolist() == [4] * 4


def test_graphs_keep_the_programs_that_name_them(reference):
    """An operator compiled later must not be taken for one whose place in memory it got."""
    x = torch.arange(1.0, 5.0, device="spyre")
    for operator in (torch.sqrt, torch.neg, torch.exp, torch.abs, torch.sin) * 4:
        y = operator(x) + 1
        torch.testing.assert_close(y.cpu(), operator(x.cpu()) + 1)
        _device.clear_eager_programs()


class Failing(ReferenceTarget):
    """Kernels of graphs that take logarithms fail."""

    def prepare(self, kernel):
        run = super().prepare(kernel)
        if not any("log" in str(n.target) for n in self.graphs[kernel.name].graph.nodes):
            return run

        def fail(*operands):
            raise ValueError("the unit overheated")

        return fail


def test_a_failing_graph_names_its_lines_and_leaves_other_tensors_usable(tmp_path):
    with installed(Failing(tmp_path)), patience(1):
        x = torch.ones(4, device="spyre")
        good = x + 1
        bad = good.log()
        with pytest.raises(ValueError, match="overheated"):
            bad.cpu()
        with pytest.raises(RuntimeError, match=r"test_eager_fused\.py:\d+.*overheated"):
            (bad + 1).cpu()
        assert torch.equal(x.cpu(), torch.ones(4)) and good.tolist() == [2] * 4
        assert (good * x).tolist() == [2] * 4


def test_launches_carry_the_lines_of_their_operators(at_once):
    x = half(7, 66).to("spyre")
    torch.spyre.synchronize()
    _device.clear_launch_log()
    _device.enable_launch_log(True)
    try:
        y = x * 3
        z = y + x
        z.cpu()
    finally:
        _device.enable_launch_log(False)
    (record,) = _device.launch_log()
    file, _, line = record.origin.partition(" fused with ")
    assert os.path.basename(file).startswith("test_eager_fused.py:") and "test_eager_fused.py:" in line


def test_lines_in_backward_are_those_of_its_caller():
    w = half(5, 66).to("spyre").requires_grad_()
    loss = F.relu(w).sum()
    _device.clear_launch_log()
    _device.enable_launch_log(True)
    try:
        with torch.spyre.use_eager_mode("strict"):
            loss.backward()
    finally:
        _device.enable_launch_log(False)
    assert {os.path.basename(r.origin).partition(":")[0] for r in _device.launch_log()} == {"test_eager_fused.py"}


def test_memory_of_a_long_loop_is_flat(reference):
    x = torch.ones(8, 64, device="spyre")
    y = x + x
    torch.spyre.synchronize()
    torch.spyre.reset_peak_memory_stats()
    base, graphs = torch.spyre.memory_allocated(), compiler.counts.graphs
    for _ in range(10000):
        y = y.mul(0.99)
    torch.spyre.synchronize()
    assert torch.spyre.max_memory_allocated() - base < 64 * 1024
    assert compiler.counts.graphs - graphs <= 4


def test_threads_share_what_they_compute(reference):
    x = torch.ones(16, device="spyre")
    results = [None] * 4

    def work(i):
        with torch.spyre.use_eager_mode("fused"):
            y = x
            for _ in range(50):
                y = y + i
            results[i] = y.sum().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert results == [16 * (1 + 50 * i) for i in range(4)]


def test_streams_wait_for_each_other(reference):
    x = torch.ones(4, device="spyre")
    other = torch.spyre.Stream()
    y = x + 1
    with torch.spyre.stream(other):
        z = y * 2
    y.add_(1)
    assert z.tolist() == [4] * 4 and y.tolist() == [3] * 4


def test_fills_and_copies_are_recorded(reference):
    before = counts()
    x = torch.empty(4, 6, device="spyre")
    x.zero_()
    x[1].fill_(2)
    y = x.half().clone()
    x.copy_(y.t().reshape(6, 4).t())
    assert since(before, "launches") == (0,)
    host = torch.zeros(4, 6)
    host[1] = 2
    assert torch.equal(y.cpu(), host.half())
    assert torch.equal(x.cpu(), host.t().reshape(6, 4).t())


def test_a_graph_of_which_nothing_is_left_is_a_program_without_steps():
    made = graph.Inputs(special=True)
    block = made.block((3, 5), torch.float32, torch.device("spyre", 0))
    with made.mode:
        module = graph.traced(lambda x: [], [block], SpyreTarget().decompositions())
    program = SpyreTarget().compile_graph(module, [block], [])
    assert isinstance(program, Program) and (program.steps, program.outputs, program.kernels) == ([], [], [])
