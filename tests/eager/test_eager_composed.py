"""Operators made of others: batch norm in training, masks and counts, random draws, gradients of resizing."""

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture(autouse=True)
def no_fallback():
    yield
    assert torch.spyre.fallbacks() == {}


def same(fn, *args):
    """``fn`` gives on the device what it gives on the host, exactly; ``args`` hold small integers."""
    got = fn(*(a.to("spyre") for a in args))
    want = fn(*args)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        assert torch.equal(a.cpu(), b) if isinstance(b, torch.Tensor) else a == b


WHOLE = torch.tensor([[3, 0, -1, 0], [0, 3, 3, 7], [-1, 0, 0, 3]])


def test_results_whose_size_depends_on_data():
    same(torch.nonzero, WHOLE)
    same(torch.nonzero, torch.zeros(3, 2, dtype=torch.int64))
    same(lambda x: torch.masked_select(x, x > 0), WHOLE)
    same(lambda x: x[x > 0], WHOLE)
    same(lambda x: x[:, x[0] == 0], WHOLE)
    same(lambda x: torch.bincount(x.reshape(-1) + 1, minlength=12), WHOLE)
    same(torch.repeat_interleave, torch.tensor([2, 0, 3]))


def test_runs_of_equal_elements():
    same(lambda x: torch.unique(x, return_inverse=True, return_counts=True), WHOLE)
    same(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), WHOLE.reshape(-1))
    same(lambda x: torch.unique_consecutive(x, dim=0), torch.tensor([[1, 2], [1, 2], [2, 1]]))


def test_equality_of_tensors():
    x = WHOLE.to("spyre")
    assert torch.equal(x, x.clone())
    assert not torch.equal(x, x + 1)
    assert not torch.equal(x, x[:2])


def test_assignments_under_a_mask_and_by_places_of_the_host():
    x = WHOLE.float()
    y = x.to("spyre")
    for t in (x, y):
        t[t < 0] = 5
        t[torch.tensor([0, 2])] += 1
    assert torch.equal(y.cpu(), x)


def test_the_first_places_of_what_is_not_zero():
    x = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    for t in (x, x[0, 1], torch.zeros(0, 3)):
        for size in (0, 2, 5):
            got = torch.nonzero_static(t.to("spyre"), size=size, fill_value=-7)
            assert torch.equal(got.cpu(), torch.nonzero_static(t, size=size, fill_value=-7))


def test_batch_norm_that_keeps_its_statistics_has_gradients():
    x = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(5)).half()
    results = []
    for device, dtype in (("cpu", torch.float32), ("spyre", torch.float16)):
        held = [t.to(device, dtype).requires_grad_() for t in (x, torch.tensor([1.0, 0.5, -2.0]), torch.ones(3))]
        running = [torch.zeros(3, dtype=dtype, device=device), torch.ones(3, dtype=dtype, device=device)]
        out = torch.ops.aten._batch_norm_with_update(*held, *running, 0.1, 1e-5)[0]
        weights = torch.arange(out.numel(), device=device).reshape(out.shape) % 7 / 8
        grads = torch.autograd.grad((out * weights).sum(), held)
        results.append([t.detach().cpu().float() for t in (out, *running, *grads)])
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want, rtol=2**-8, atol=2**-8 * want.abs().max().item())


def test_running_extremes_and_sequences():
    same(lambda x: torch.cummax(x, 1), WHOLE)
    same(lambda x: torch.cummin(x, 0), WHOLE)
    assert torch.equal(torch.linspace(0, 3, 7, device="spyre").cpu(), torch.linspace(0, 3, 7))
    assert torch.equal(torch.logspace(0, 2, 3, device="spyre").cpu(), torch.logspace(0, 2, 3))


def test_batch_norm_in_training_updates_the_running_statistics():
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "spyre"):
        norm = torch.nn.BatchNorm1d(3).to(device)
        held = x.detach().to(device).requires_grad_()
        out = norm(held)
        out.pow(3).sum().backward()
        norm.eval()
        results.append([out, held.grad, norm.running_mean, norm.running_var, norm(held)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-5, atol=1e-5)


DRAWS = {
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "exponential_": lambda x: x.exponential_(2.0),
    "geometric_": lambda x: x.geometric_(0.4),
    "cauchy_": lambda x: x.cauchy_(),
    "log_normal_": lambda x: x.log_normal_(),
    "randperm": lambda x: torch.randperm(50, device=x.device),
    "normal": lambda x: torch.normal(x.fill_(1.0), 2.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_follow_the_seed_and_are_those_of_the_host(name):
    torch.spyre.manual_seed(11)
    first = DRAWS[name](torch.empty(40, device="spyre")).cpu()
    again = DRAWS[name](torch.empty(40, device="spyre")).cpu()
    torch.spyre.manual_seed(11)
    assert torch.equal(first, DRAWS[name](torch.empty(40, device="spyre")).cpu()) and not torch.equal(first, again)
    torch.manual_seed(11)
    torch.testing.assert_close(first, DRAWS[name](torch.empty(40)), rtol=1e-6, atol=1e-6)


def test_dropout_keeps_and_scales():
    x = torch.ones(4000, device="spyre")
    kept = F.dropout(x, 0.25).cpu()
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((kept > 0).float().mean().item() - 0.75) < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_multinomial_draws_what_has_weight():
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0], device="spyre")
    many = torch.multinomial(weights, 600, replacement=True).cpu()
    assert set(many.tolist()) == {1, 2}
    assert abs((many == 2).float().mean().item() - 0.75) < 5 * (0.25 * 0.75 / 600) ** 0.5
    assert sorted(torch.multinomial(weights, 2).tolist()) == [1, 2]
    with pytest.raises(RuntimeError, match="cannot sample n_sample > prob_dist"):
        torch.multinomial(weights, 5)


PLACES = [2, 0, 3, 3, 1, 4]


def bag(x, **kwargs):
    weight = x.reshape(5, -1)
    return F.embedding_bag(
        torch.tensor(PLACES, device=x.device), weight, torch.tensor([0, 2, 2], device=x.device), **kwargs
    )


def margins(x, target, loss, **kwargs):
    return loss(x.reshape(2, 15), torch.tensor(target, device=x.device), **kwargs)


LISTED = [[3, 0, -1, 2] + 11 * [-1], [14] + 14 * [-1]]
GRADIENTS = {
    "embedding": lambda x: F.embedding(torch.tensor(PLACES, device=x.device), x.reshape(5, -1), padding_idx=3),
    "embedding by frequency": lambda x: F.embedding(
        torch.tensor(PLACES, device=x.device), x.reshape(5, -1), scale_grad_by_freq=True
    ),
    "largest of a bag": lambda x: bag(x, mode="max"),
    "softshrink": lambda x: F.softshrink(x, 0.4),
    "hardshrink": lambda x: F.hardshrink(x, 0.4),
    "margins": lambda x: margins(x, [3, 14], F.multi_margin_loss),
    "squared margins": lambda x: margins(x, [3, 14], F.multi_margin_loss, p=2, margin=0.5, reduction="none"),
    "margins of labels": lambda x: margins(x, LISTED, F.multilabel_margin_loss),
    "margins of labels, each": lambda x: margins(x, LISTED, F.multilabel_margin_loss, reduction="none"),
    "sgn": lambda x: x.sgn() + x,
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, -1), mode="replicate"),
    "adaptive": lambda x: F.adaptive_max_pool1d(x, 2),
    "attention": lambda x: F.scaled_dot_product_attention(x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0)),
    "distance": lambda x: torch.cdist(x[0], x[1]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(3))
    grads = []
    for device in ("cpu", "spyre"):
        held = x.detach().to(device).requires_grad_()
        out = GRADIENTS[name](held)
        (out * torch.arange(out.numel(), device=device).reshape(out.shape)).sum().backward()
        grads.append(held.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-5, atol=1e-5)


def test_gradients_of_a_bag_are_divided_by_how_often_a_row_was_taken():
    # Computed here: PyTorch 2.13 divides by the count of another row on the CPU when rows repeat.
    weight = torch.ones(5, 6, device="spyre", requires_grad=True)
    seeds = torch.arange(18.0).reshape(3, 6)
    bag(weight, mode="sum", scale_grad_by_freq=True).backward(seeds.to("spyre"))
    bags = [0, 0, 2, 2, 2, 2]
    expected = torch.zeros(5, 6)
    for row, own in zip(PLACES, bags, strict=True):
        expected[row] += seeds[own] / PLACES.count(row)
    torch.testing.assert_close(weight.grad.cpu(), expected)
