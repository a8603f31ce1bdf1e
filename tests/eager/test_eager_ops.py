"""Operators in eager mode: values, strides, in-place and out= forms, against the host."""

import logging

import pytest
import torch
import torch.nn.functional as F
from eager_check import assert_near, check, half, move

from torch_loom import _device

SHAPES = [(65,), (1, 64), (63, 65), (3, 5, 67)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum"])
def test_binary(name, shape):
    check(getattr(torch, name), half(*shape), half(*shape, seed=1) + 3)


@pytest.mark.parametrize(
    "name", ["abs", "neg", "exp", "sigmoid", "tanh", "relu", "sqrt", "rsqrt", "reciprocal", "floor"]
)
def test_unary(name):
    check(getattr(torch, name), half(33, 70).abs() + 0.5, roundings=2)


@pytest.mark.parametrize("fn", [F.gelu, F.silu, F.leaky_relu, F.softplus, F.hardtanh], ids=lambda f: f.__name__)
def test_activations(fn):
    check(fn, half(7, 130), roundings=2, absolute=2e-5)


def test_numbers_on_either_side():
    x = half(9, 65)
    for fn in (lambda t: t * 2.5, lambda t: 3 - t, lambda t: t / 7, lambda t: torch.add(t, t, alpha=0.5)):
        check(fn, x)
    check(lambda t: t.clamp(-0.5, 0.25), x)
    check(lambda t: t**3, x, roundings=2)


def test_broadcasting():
    check(torch.add, half(5, 1, 65), half(7, 1))
    check(torch.mul, half(5, 65), half(65))
    check(torch.mul, half(1, 1), half(6, 65))


def test_comparisons_and_where():
    x, y = half(6, 70), half(6, 70, seed=2)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        check(getattr(torch, name), x, y)
    check(torch.where, x > 0, x, y)
    check(lambda t: t.masked_fill(t > 0, -1.5), x)


def test_integers_stay_exact():
    x = torch.arange(-40, 40, dtype=torch.int32).reshape(8, 10)
    check(torch.add, x, -3)
    check(torch.mul, x, x)
    check(lambda t: t * 70001, x)


@pytest.mark.parametrize("dim", [0, 1, -1, (0, 1)], ids=str)
def test_reductions(dim):
    x = half(7, 9, 66)
    for fn in (torch.sum, torch.amax, torch.mean):
        check(lambda t, fn=fn: fn(t, dim=dim), x, absolute=1e-4)
    check(lambda t: torch.sum(t, dim=dim, keepdim=True), x, absolute=1e-4)


def test_softmax_and_norms():
    x = half(5, 65)
    check(lambda t: torch.softmax(t, -1), x)
    check(lambda t: torch.log_softmax(t, -1), x, roundings=2, absolute=1e-3)
    check(
        lambda t, w, b: F.layer_norm(t, (65,), w, b), x, half(65, seed=3), half(65, seed=4), roundings=2, absolute=1e-3
    )


@pytest.mark.parametrize("m, k, n", [(63, 65, 33), (1, 64, 130), (17, 64, 64)])
def test_products(m, k, n):
    a, b = half(m, k), half(k, n, seed=1)
    check(torch.mm, a, b, absolute=1e-3)
    check(lambda x, w: F.linear(x, w), a, half(n, k, seed=2), absolute=1e-3)
    check(torch.addmm, half(n, seed=5), a, b, roundings=2, absolute=2e-3)
    check(torch.bmm, half(3, m, k), half(3, k, n, seed=1), absolute=1e-3)


def test_embedding():
    check(F.embedding, torch.tensor([[3, 0, 9], [9, 1, 2]]), half(10, 65))


def test_a_place_for_every_element_of_a_lane():
    """Along the sticks of the scores both the lane and its class change from one element to the next."""
    scores, classes = half(2, 3, 70, 1), torch.arange(140).reshape(2, 70, 1) % 3
    check(F.nll_loss, scores, classes, reduction="none")


def test_single_elements_as_places_and_numbers():
    one = torch.zeros(1, dtype=torch.int64)
    check(lambda t, at: t[0].clone().scatter_(0, at[0], 2.5), half(1), one)
    check(lambda t, at: t.clone().scatter_(1, at.reshape(1, 1), 1), half(4, 5) > 0, one)
    check(torch.copysign, half(5, 65), -3.14)
    scores = half(1, 3)
    grads = []
    for device in ("cpu", "spyre"):
        leaf = scores.float().to(device).requires_grad_()
        F.nll_loss(leaf.log_softmax(-1), torch.tensor([1], device=device)).backward()
        grads.append(leaf.grad)
    assert torch.spyre.fallbacks() == {}
    assert_near(grads[1], grads[0], terms=3)


def test_resizing():
    for corners in (False, True):
        check(lambda t, c=corners: F.interpolate(t, size=(7, 9), mode="bilinear", align_corners=c), half(1, 2, 5, 6))
    image = half(1, 2, 5, 6).to(memory_format=torch.channels_last)
    check(lambda t: F.interpolate(t, scale_factor=(1.7, 2.3), mode="bicubic"), image, roundings=2, absolute=2**-9)


def test_means_over_windows_that_reach_past_the_padding():
    x, grads = half(1, 3, 9), []
    for device in ("cpu", "spyre"):
        leaf = x.float().to(device).requires_grad_()
        F.avg_pool1d(leaf, 6, stride=3, padding=2, ceil_mode=True).square().sum().backward()
        grads.append(leaf.grad)
    assert_near(grads[1], grads[0], terms=6)


def test_a_rectangle_with_ones_on_its_diagonal():
    for n, m in ((3, 70), (66, 5), (0, 4), (4, 4)):
        assert torch.equal(torch.eye(n, m, device="spyre").cpu(), torch.eye(n, m))
    into = torch.ones(2, device="spyre")
    torch.eye(5, out=into)
    assert torch.equal(into.cpu(), torch.eye(5))
    with pytest.raises(RuntimeError, match="m must be greater or equal to 0"):
        torch.eye(3, -1, device="spyre")


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
def test_exponential_of_matrices(scale):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(3, 5, 5, generator=generator, dtype=torch.float64) * scale
    x[2] = -(x[2] @ x[2].T) / scale  # far from 0, and yet a small result
    out = torch.linalg.matrix_exp(x.float().to("spyre")).cpu().double()
    for got, want in zip(out, torch.linalg.matrix_exp(x.float().double()), strict=True):
        # Squaring s times multiplies the relative error by about 2 ** s, the norm of the matrix.
        assert (got - want).abs().max() <= 2**-23 * 64 * (1 + 5 * scale) * want.abs().max()


def test_running_logarithms_of_sums():
    x = half(5, 70, scale=3.0)
    check(torch.logcumsumexp, x.float(), 1, absolute=1e-5, terms=70)
    big = torch.tensor([-1e4, 3e4, 3e4, float("-inf")])
    check(torch.logcumsumexp, big, 0)


def test_results_have_the_strides_of_the_host():
    x = half(6, 70)
    check(lambda t: t.t() + 1, x)
    check(lambda t: t.t().exp(), x, roundings=2)
    check(lambda t: t[:, 3:40] * 2, x)
    check(lambda t: t[::2].sum(0), x, absolute=1e-4)
    check(lambda t: t.expand(4, 6, 70) + 1, x)


def test_a_repeated_dim_leaves_the_order_in_memory_to_the_other_tensors():
    row, x = half(70), half(70, 6)
    check(lambda r, t: r.expand(6, 70) * t.t(), row, x)
    check(lambda r, t: t.t() - r.expand(6, 70), row, x)
    check(lambda r: r.as_strided((2, 5, 2, 3), (0, 4, 2, 20)).relu(), row)
    check(lambda r: r.as_strided((2, 2, 1), (1, 0, 4)) + 1, row)  # a dim of size 1 has a place among the others
    leaf = (x.to("spyre").t() * 1).requires_grad_()
    (leaf * leaf.detach()).sum().backward()  # the gradient of the sum is one number, repeated
    assert leaf.grad.stride() == leaf.stride() and leaf.grad._version == 0


def test_in_place():
    for change in (
        lambda t: t.add_(1.5),
        lambda t: t.mul_(t),
        lambda t: t[1:4, 2:].sub_(0.5),
        lambda t: t.t().relu_(),
        lambda t: t.clamp_(min=0.1),
        lambda t: t.copy_(t.softmax(-1)),
    ):
        host = half(6, 70)
        device = host.to("spyre")
        host = device.cpu().float()
        torch.spyre.reset_fallbacks()
        pointer = device.data_ptr()
        change(device), change(host)
        assert torch.spyre.fallbacks() == {} and device.data_ptr() == pointer
        assert_near(device, host)


def test_in_place_results_show_in_every_view():
    base = torch.zeros(4, 66, dtype=torch.float16, device="spyre")
    row, column = base[2], base[:, 5]
    base.add_(1)
    row.mul_(3)
    column.add_(10)
    expected = torch.ones(4, 66)
    expected[2] *= 3
    expected[:, 5] += 10
    assert torch.equal(base.cpu().float(), expected)
    assert row[5].item() == 13 and base._version == 3


def test_out_arguments():
    x, y = (t.to("spyre") for t in (half(5, 65), half(5, 65, seed=1)))
    out = torch.empty(0, dtype=torch.float16, device="spyre")
    pointer = torch.add(x, y, out=out)
    assert pointer is out and torch.equal(out.cpu(), (x + y).cpu())
    wide = torch.empty(5, 130, dtype=torch.float32, device="spyre")
    torch.mul(x, y, out=wide[:, ::2])
    assert_near(wide[:, ::2].half(), x.cpu().float() * y.cpu().float())  # computed in the inputs' dtype
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(x, y, out=torch.empty(5, 65, dtype=torch.int32, device="spyre"))


def test_overlapping_writes_are_refused_as_on_the_host():
    for device in ("cpu", "spyre"):
        x = torch.zeros(8, dtype=torch.float32, device=device)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:1].expand(4).add_(1)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].add_(x[:-1])
        with pytest.raises(RuntimeError, match="broadcast shape"):
            x.add_(torch.zeros(2, 8, device=device))


def test_wrong_arguments_raise_the_error_of_the_host(caplog, capfd):
    for device in ("cpu", "spyre"):
        x = torch.zeros(3, 64, device=device)
        with pytest.raises(RuntimeError, match="must match|size of tensor"):
            x + torch.zeros(3, 65, device=device)
        with pytest.raises(IndexError, match="Dimension out of range"):
            x.softmax(3)
    torch.spyre.reset_fallbacks()
    x + x, x.softmax(1)  # the errors left nothing behind
    assert torch.spyre.fallbacks() == {}
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING] and capfd.readouterr().err == ""


def test_backward_of_a_small_network():
    torch.manual_seed(0)
    x, w1, w2 = (t.to("spyre") for t in (half(9, 66), half(40, 66, scale=0.2), half(5, 40, scale=0.2)))
    parameters = [t.clone().requires_grad_() for t in (w1, w2)]
    host = [t.cpu().float().requires_grad_() for t in (w1, w2)]
    torch.spyre.reset_fallbacks()
    F.linear(F.gelu(F.linear(x, parameters[0])), parameters[1]).softmax(-1).amax(-1).sum().backward()
    assert torch.spyre.fallbacks() == {}, torch.spyre.fallbacks()
    F.linear(F.gelu(F.linear(x.cpu().float(), host[0])), host[1]).softmax(-1).amax(-1).sum().backward()
    for device, reference in zip(parameters, host, strict=True):
        # About ten df16 roundings of intermediates lie between the loss and the first weight.
        scale = reference.grad.abs().max().item()
        assert_near(device.grad, reference.grad, roundings=10, absolute=scale * 2**-7)


def test_sizes_that_the_compiler_must_know():
    """A sum over several dims, a norm, parts side by side: compiled for the sizes at hand if not for all."""
    x = half(2, 3, 5, 66)
    check(torch.sum, x, absolute=2e-3)
    check(torch.linalg.vector_norm, x, absolute=1e-3)
    check(lambda a, b: torch.cat([a, b], 1), half(4, 65), half(4, 3))
    check(lambda t: t.std(-1), x, absolute=1e-4)


def test_convolutions_run_on_the_host_at_worst():
    x, w = half(2, 3, 8, 8).float(), half(4, 3, 3, 3).float().requires_grad_()
    device = w.detach().to("spyre").requires_grad_()
    out = F.conv2d(x.to("spyre"), device, padding=1)
    torch.testing.assert_close(out.cpu(), F.conv2d(x, w, padding=1))
    out.sum().backward()
    F.conv2d(x, w, padding=1).sum().backward()
    torch.testing.assert_close(device.grad.cpu(), w.grad, rtol=1e-5, atol=1e-5)


def test_tensors_without_elements():
    x = torch.zeros(0, 65, dtype=torch.float16)
    torch.spyre.reset_fallbacks()
    assert (move(x, "spyre") + 1).shape == (0, 65)
    assert move(x, "spyre").sum().item() == 0
    assert torch.spyre.fallbacks() == {}


@pytest.mark.parametrize("lengths", [(9, 3, 5, 4), (3, 9, 4, 5)])
def test_a_result_may_shrink_to_one_element_along_a_dim(lengths):
    for n in lengths:
        x = torch.randn(1, 2, n, generator=torch.Generator().manual_seed(n)).half()
        assert torch.equal(F.max_pool1d(x.to("spyre"), 3, 2).cpu(), F.max_pool1d(x.to("spyre").cpu(), 3, 2))
        assert torch.equal(x.to("spyre").unfold(-1, 3, 2).amax(-1).cpu(), F.max_pool1d(x.to("spyre").cpu(), 3, 2))


WITH_EMPTY = {
    "cat": lambda x, e, i: torch.cat([e, x]),
    "cat with the empty list": lambda x, e, i: torch.cat([e if e.numel() else e.reshape(-1), x]),
    "product over nothing": lambda x, e, i: torch.addmm(x, e.T[:5], e),
    "product over nothing, scaled": lambda x, e, i: torch.addmm(x, e.T[:5], e, beta=2, alpha=3),
    "no rows times a matrix": lambda x, e, i: torch.mm(e, x.T),
    "index_add": lambda x, e, i: x.index_add(0, i, e),
    "index_copy": lambda x, e, i: x.index_copy(0, i, e),
    "index_select": lambda x, e, i: x.index_select(0, i),
    "index_fill": lambda x, e, i: x.index_fill(0, i, 3.0),
    "scatter": lambda x, e, i: x.scatter(0, i[:, None].expand(-1, 64), 1.0),
    "scatter_add": lambda x, e, i: x.scatter_add(0, i[:, None].expand(-1, 64), e),
    "gather": lambda x, e, i: x.gather(0, i[:, None].expand(-1, 64)),
    "embedding": lambda x, e, i: F.embedding(i, x),
    "broadcast to nothing": lambda x, e, i: x[:1] + e,
    "assignment": lambda x, e, i: x.clone().index_put_((i,), e),
}


@pytest.mark.parametrize("name", WITH_EMPTY)
def test_one_argument_without_elements_is_no_reason_to_compute_on_the_host(name):
    fn = WITH_EMPTY[name]
    x, e, i = half(5, 64), torch.zeros(0, 64, dtype=torch.float16), torch.zeros(0, dtype=torch.int64)
    before = _device.eager_counts()["launches"]
    check(fn, x, e, i, roundings=2)
    assert _device.eager_counts()["launches"] > before
    for rows in (3, 0, 2):  # programs for more rows must not take calls without any, and the other way round
        e, i = half(rows, 64), torch.arange(rows)
        check(fn, x, e, i, roundings=2, absolute=1e-1)
