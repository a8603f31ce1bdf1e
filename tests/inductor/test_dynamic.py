"""Sizes and numbers that change between calls: one compile serves them, whatever their sign; data may decide sizes."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import close, half
from torch._dynamo.utils import counters

T = torch.tensor


def serves(fn, *calls, graphs=1, dynamic=None, fallbacks=False, scalars=False, roundings=2):
    """Every call of ``fn``, compiled, gives what the host gives; all share ``graphs`` compiles without a break."""
    torch._dynamo.reset()
    counters.clear()
    torch.spyre.reset_fallbacks()
    compiled = torch.compile(fn, dynamic=dynamic, fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=scalars, capture_dynamic_output_shape_ops=scalars):
        for args in calls:
            placed = [a.to("spyre") if isinstance(a, torch.Tensor) else a for a in args]
            held = [a.cpu() if isinstance(a, torch.Tensor) else a for a in placed]
            held = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in held]
            with torch.no_grad():
                found, wanted = compiled(*placed).cpu(), fn(*held)
            assert found.shape == wanted.shape
            close(found, wanted, roundings, absolute=2e-3)
    assert counters["stats"]["unique_graphs"] <= graphs and not counters["graph_break"]
    assert fallbacks or torch.spyre.fallbacks() == {}


# The first call of a function takes a number as a constant, all others share a second graph.
NUMBERS = {
    "sum": lambda x, k: x + k,
    "product and comparison": lambda x, k: torch.where(x > k, x * k, x - k),
    "index": lambda x, k: x[k] * 2,
    "slice": lambda x, k: x[k:] * 2,
    "roll": lambda x, k: torch.roll(x, k, 0),
    "clamp": lambda x, k: x.clamp(k, 2),
    "quotient": lambda x, k: x * (k / 2) + k**2,
    "arange": lambda x, k: torch.arange(k, k + 10, device=x.device) * 2 - k,
    "arange downwards": lambda x, k: torch.arange(100, 0, k, device=x.device),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_an_integer_argument_may_be_negative(name):
    serves(NUMBERS[name], *((half(50, 3), k) for k in (-3, -4, -7)), graphs=2)


def test_an_integer_argument_of_any_sign():
    serves(NUMBERS["sum"], *((half(70), k) for k in (3, -4, 7, -5, 0)), graphs=2)
    serves(NUMBERS["product and comparison"], *((torch.arange(70), k) for k in (3, -4, 7)), graphs=2)


def test_a_float_argument_may_be_infinite():
    x = half(70)
    fill = torch.compile(lambda x, k: x.masked_fill(x > 0, k), fullgraph=True)
    for k in (-3.0, 4.0, -math.inf):
        assert torch.equal(fill(x.to("spyre"), k).cpu(), x.to("spyre").cpu().masked_fill(x > 0, k))


SIZES = {
    "root": lambda x: x / math.sqrt(x.shape[-1]),
    "arithmetic": lambda x: x * (x.shape[0] // 2 + x.shape[1] % 7) + max(x.shape),
    "quotient": lambda x: x * (x.shape[0] / x.shape[1]) + x.shape[0] ** 0.5,
    "part": lambda x: x[: int(x.shape[0] * 0.5)] * 2,
    "upsample": lambda x: F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear"),
}


@pytest.mark.parametrize("name", SIZES)
def test_values_and_sizes_computed_from_sizes(name):
    serves(SIZES[name], *((half(*s),) for s in ((3, 70), (30, 100), (9, 64))), dynamic=True, graphs=2)


def test_sizes_that_data_decides():
    x = half(100, 3)
    serves(lambda x, n: x[: n.item()] * 2, (x, T(7)), (x, T(100)), (x, T(0)), scalars=True)
    serves(lambda x, s: x * s.item() + 1, (x, T(2)), (x, T(-3)), scalars=True)
    serves(lambda x, s: torch.split(x, s.tolist())[1] * 2, (x, T([30, 70])), (x, T([99, 1])), scalars=True)

    def grown(n, x):
        count = n.item()
        torch._check(count >= 0)
        return torch.zeros(count, 3, device=x.device, dtype=x.dtype) + x

    serves(grown, (T(7), half(3)), (T(65), half(3)), scalars=True)


@pytest.mark.filterwarnings("ignore::torch_loom.device.module.FallbackWarning")
def test_operators_that_find_their_size_run_on_the_host_inside_one_graph():
    y = half(5, 70)
    masks = [T(m) for m in ([0, 1, 0, 2, 3], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1])]
    serves(lambda m, y: y[m.nonzero().squeeze(-1)] * 2, *((m, y) for m in masks), fallbacks=True, scalars=True)
    serves(lambda m, y: torch.masked_select(y, y > 0) * 2, (masks[0], y), fallbacks=True, scalars=True)
    serves(lambda r, y: y.repeat_interleave(r, 0) + 1, *((m, y) for m in masks[::2]), fallbacks=True, scalars=True)


def test_empty_and_one_row_after_many():
    calls = [(half(*s),) for s in ((3, 70), (0, 70), (1, 70))]
    serves(lambda x: torch.cat([x, x * 2], 0).sum(0), *calls, graphs=3, dynamic=True)
    serves(lambda x: x.softmax(-1), *calls, graphs=3, dynamic=True)
    q = [(half(b, 2, 33, 32),) for b in (2, 0)]
    serves(lambda q: F.scaled_dot_product_attention(q, q, q), *q, graphs=2, dynamic=True, roundings=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_offsets_inside_a_stick_in_every_width(dtype):
    """The parts of a row of 130 meet at each kind of boundary: inside, at and behind a stick of 32 or 64."""
    whole = torch.randint(0, 2 if dtype == torch.bool else 99, (3, 130)).to(dtype)

    def parts(x, at):
        turned = torch.cat([x[:, at:], x[:, :at]], 1)
        return torch.cat([turned, F.pad(x.narrow(1, at - 1, 3), (at % 5, 1)), x[:, at - 1 : at + 1]], 1)

    serves(parts, *((whole, at) for at in (31, 33, 64)), graphs=3, dynamic=False)


def test_eight_dims():
    x = half(2, 1, 3, 2, 1, 2, 5, 33)
    serves(lambda x: x.permute(7, 1, 0, 2, 5, 4, 3, 6).contiguous() + 1, (x,), dynamic=True)
    serves(lambda x: x.transpose(0, 7).softmax(2), (x,), (half(2, 1, 3, 2, 1, 2, 4, 65),), dynamic=True)


def _windows(x, k):
    n, c, h, w = x.shape
    return x.as_strided((n, c, k, k, h - k + 1, w - k + 1), (c * h * w, h * w, w, 1, w, 1)).contiguous()


def _columns(w, x):
    return torch.matmul(w, x.reshape(x.shape[0], x.shape[1], -1))


# Column dims of open sizes above a stick, outside of one another; the second call is also larger than a block.
OPEN_COLUMNS = {
    "two open column dims": (_columns, [(half(16, 144), half(n, 144, s, s + 1)) for n, s in ((2, 70), (3, 33))]),
    "three of one size": (_columns, [(half(16, 144), half(n, 144, 32, 32)) for n in (2, 5)]),
    "open batch": (lambda w, x: w @ x, [(half(16, 144), half(n, 144, s)) for n, s in ((2, 100), (3, 1000))]),
    "windows": (lambda x: _windows(x, 3), [(half(2, 16, s, s + 1),) for s in (32, 41)]),
    "windows times": (
        lambda w, x: _columns(w, _windows(x, 3).view(len(x), 144, -1)),
        [(half(16, 144), half(n, 16, 32, 30)) for n in (2, 3)],
    ),
}


@pytest.mark.parametrize("name", OPEN_COLUMNS)
def test_products_with_several_open_column_dims(name):
    fn, calls = OPEN_COLUMNS[name]
    serves(fn, *calls, dynamic=True, roundings=3)


CONVOLUTIONS = {
    "1d": (lambda: torch.nn.Conv1d(80, 128, 3, padding=1), [(2, 80, 60), (3, 80, 77)]),
    "1d stride": (lambda: torch.nn.Conv1d(64, 96, 3, stride=2, padding=1), [(2, 64, 60), (3, 64, 61), (5, 64, 300)]),
    "2d": (lambda: torch.nn.Conv2d(16, 16, 3), [(2, 16, 32, 32), (3, 16, 33, 35)]),
    "2d stride": (lambda: torch.nn.Conv2d(3, 32, 3, stride=2, padding=1), [(2, 3, 32, 32), (3, 3, 33, 35)]),
    "2d groups": (lambda: torch.nn.Conv2d(16, 16, 3, padding=1, groups=16), [(2, 16, 32, 32), (3, 16, 33, 35)]),
    "patches": (lambda: torch.nn.Conv2d(3, 64, 8, stride=8), [(2, 3, 64, 64), (1, 3, 96, 80)]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_open_sizes(name):
    make, shapes = CONVOLUTIONS[name]
    torch.manual_seed(0)
    placed = make().half().to("spyre")
    host = make()
    host.load_state_dict({k: v.cpu().float() for k, v in placed.state_dict().items()})
    torch._dynamo.reset()
    compiled = torch.compile(placed, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for shape in shapes:
            x = half(*shape).to("spyre")
            close(compiled(x).cpu(), host(x.cpu().float()), 2, absolute=2e-3)


# One compile is made for the first sizes; the others are odd where those are even, or do not fill the last window.
PLANES = [(2, 8, 20, 30), (4, 8, 33, 65), (3, 8, 5, 7), (2, 8, 6, 9), (5, 8, 4, 64), (2, 8, 21, 131)]
WINDOWS = {
    "maxima": lambda x: F.max_pool2d(x, 3, 2, 1),
    "maxima of pairs": lambda x: F.max_pool2d(x, 2),
    "maxima of every second": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "means": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "means of pairs": lambda x: F.avg_pool2d(x, 2),
    "means that count no padding": lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 1), count_include_pad=False),
    "padding with zeros": lambda x: F.pad(x, (1, 2, 3, 0)) * 2,
    "padding by reflection": lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect") * 2,
    "every second": lambda x: x[:, :, 1::2, ::2] * 2,
    "maxima of a part": lambda x: F.max_pool2d(F.pad(x[:, :, 1:], (0, 1)), 2),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_open_sizes_do_not_leave_the_plane(name):
    graphs = 2 if name == "maxima of a part" else 1  # PyTorch tells rows of one window apart
    serves(WINDOWS[name], *((half(*sizes),) for sizes in PLANES), dynamic=True, roundings=4, graphs=graphs)
