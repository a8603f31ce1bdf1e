"""Views and strided copies: whatever chain of views is taken, the device agrees with the host.

Both sides run the same chain on tensors with the same elements; the host is the independent executor.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_loom import _device

EXACT = [torch.float32, torch.int64, torch.int16, torch.int8, torch.uint8, torch.float16, torch.bool]


def numbered(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers that every format holds exactly."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count) % 120).to(dtype).reshape(shape)


@st.composite
def view_chain(draw, max_steps: int = 4):
    """(shape, steps): a shape and functions that make views of a tensor of that shape."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 64, 65, 70, 130]), min_size=0, max_size=4))
    while torch.tensor(shape or [1]).prod() > 20_000:
        shape.pop()
    probe = torch.empty(shape)
    steps = []
    for _ in range(draw(st.integers(0, max_steps))):
        options = ["unsqueeze"]
        if probe.dim() > 0:
            options += ["slice", "select", "transpose", "flip_order", "unfold", "flatten", "as_strided"]
            if any(n == 1 for n in probe.shape):
                options += ["expand", "squeeze"]
        kind = draw(st.sampled_from(options))
        dim = draw(st.integers(0, max(probe.dim() - 1, 0)))
        n = probe.shape[dim] if probe.dim() else 1
        if kind == "slice":
            start = draw(st.integers(0, n))
            stop = draw(st.integers(start, n))
            step = draw(st.integers(1, 3))
            steps.append(lambda t, d=dim, a=start, b=stop, s=step: t[(slice(None),) * d + (slice(a, b, s),)])
        elif kind == "select":
            if n == 0:
                continue
            index = draw(st.integers(0, n - 1))
            steps.append(lambda t, d=dim, i=index: t.select(d, i))
        elif kind == "transpose":
            other = draw(st.integers(0, probe.dim() - 1))
            steps.append(lambda t, a=dim, b=other: t.transpose(a, b))
        elif kind == "flip_order":
            steps.append(lambda t: t.permute(*reversed(range(t.dim()))))
        elif kind == "unfold":
            if n < 2:
                continue
            size = draw(st.integers(1, min(n, 9)))
            step = draw(st.integers(1, 4))
            steps.append(lambda t, d=dim, s=size, k=step: t.unfold(d, s, k))
        elif kind == "flatten":
            if not probe.is_contiguous():
                continue
            steps.append(lambda t: t.view(-1))
        elif kind == "as_strided":
            limit = probe.untyped_storage().nbytes() // 4 - 1
            if limit < 3:
                continue
            offset = draw(st.integers(0, limit // 2))
            rows = draw(st.integers(1, 4))
            stride = draw(st.integers(0, max((limit - offset) // (2 * rows), 0)))
            columns = draw(st.integers(1, max((limit - offset - stride * (rows - 1)) // 2, 1)))
            inner = draw(st.integers(0, 2))
            steps.append(lambda t, s=(rows, columns), k=(stride, inner), o=offset: t.as_strided(s, k, o))
        elif kind == "expand":
            sizes = [3 if m == 1 else m for m in probe.shape]
            steps.append(lambda t, s=sizes: t.expand(s))
        elif kind == "squeeze":
            steps.append(lambda t: t.squeeze())
        else:
            steps.append(lambda t, d=dim: t.unsqueeze(d))
        probe = steps[-1](probe)
        if probe.numel() > 100_000:
            steps.pop()
            break
    return shape, steps


def apply(steps, tensor):
    for step in steps:
        tensor = step(tensor)
    return tensor


@given(chain=view_chain(), dtype=st.sampled_from(EXACT), kind=st.sampled_from(["default", "row_major"]))
def test_a_view_reads_what_the_host_view_reads(chain, dtype, kind):
    shape, steps = chain
    host = numbered(shape, dtype)
    device = _device.empty_strided(host.shape, host.stride(), dtype, 0, kind)
    device.copy_(host)
    view, expected = apply(steps, device), apply(steps, host)
    assert view.shape == expected.shape and view.stride() == expected.stride()
    assert view.storage_offset() == expected.storage_offset()
    assert torch.equal(view.cpu(), expected)
    assert torch.equal(view.contiguous().cpu(), expected)  # device to device


@given(chain=view_chain(3), dtype=st.sampled_from(EXACT), source=st.sampled_from(["host", "device", "strided"]))
def test_a_write_through_a_view_changes_just_that(chain, dtype, source):
    shape, steps = chain
    host, device = numbered(shape, dtype), numbered(shape, dtype).to("spyre")
    target, expected = apply(steps, device), apply(steps, host)
    if expected.numel() != len(set(offsets(expected))):
        return  # several indices of one element: the result of a write is not defined
    values = (torch.arange(expected.numel()) % 90 + 7).to(dtype).reshape(expected.shape)
    expected.copy_(values)
    if source == "host":
        target.copy_(values)
    elif source == "device":
        target.copy_(values.to("spyre"))
    else:
        spread = torch.zeros([*values.shape, 3], dtype=dtype)
        spread[..., 1] = values
        target.copy_(spread.to("spyre")[..., 1])
    assert torch.equal(device.cpu(), host)


def offsets(tensor: torch.Tensor) -> list[int]:
    flat = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[dim] = size
        flat = flat + (torch.arange(size) * stride).reshape(shape)
    return flat.reshape(-1).tolist()


@given(
    size=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    gaps=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    order=st.permutations([0, 1, 2]),
)
def test_allocations_with_any_strides(size, gaps, order):
    stride = [0] * len(size)
    step = 1
    for dim in sorted(range(len(size)), key=lambda d: order[d]):
        stride[dim] = step
        step = step * size[dim] + gaps[dim]
    host = torch.empty_strided(size, stride)
    host.copy_(torch.arange(host.numel(), dtype=torch.float32).reshape(size))
    device = torch.empty_strided(size, stride, device="spyre")
    device.copy_(host)
    assert device.stride() == host.stride()
    assert torch.equal(device.cpu(), host)
    assert torch.equal(host.to("spyre").cpu(), host)


def test_views_share_storage_and_layout():
    x = torch.zeros(4, 6, 70, device="spyre")
    for view in (
        x.view(24, 70),
        x[1],
        x.transpose(0, 2),
        x.reshape(-1),
        x.unsqueeze(0),
        x.detach(),
        x.expand(2, 4, 6, 70),
    ):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert _device.layout(view) == _device.layout(x)
    x[1, 2, 3] = 5
    assert x.view(24, 70)[8, 3].item() == 5


def test_a_view_of_other_bytes_means_what_it_means_on_the_host():
    host = torch.randn(6, 64)
    device = host.to("spyre")
    assert torch.equal(device.view(torch.int32).cpu(), host.view(torch.int32))
    assert torch.equal(device.view(torch.int16).cpu(), host.view(torch.int16))
    assert torch.equal(device[2:4].view(torch.uint8).cpu(), host[2:4].view(torch.uint8))
    half = torch.randn(6, 64).bfloat16()  # survives df16 exactly
    device_half = half.to("spyre")
    assert torch.equal(device_half.view(torch.int16).cpu(), half.view(torch.int16))
    device_half.view(torch.int16)[0, :2] = torch.tensor([0x3F80, 0x4000], dtype=torch.int16)
    assert device_half[0, :2].tolist() == [1.0, 2.0]


def test_view_beyond_the_storage_is_refused():
    x = torch.zeros(10, device="spyre")
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.as_strided((4, 4), (4, 1))


def test_overlapping_copy_is_refused_as_on_the_host():
    host = torch.arange(100, dtype=torch.float32)
    device = host.to("spyre")
    for x in (host, device):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            x[10:90].copy_(x[:80])
    expected = host.clone()
    assert torch.equal(device.cpu(), expected)
    device.view(10, 10).copy_(device.view(10, 10).t().clone())
    assert torch.equal(device.cpu().view(10, 10), expected.view(10, 10).t())


@pytest.mark.parametrize("shape", [(0,), (3, 0, 5), (0, 0)])
def test_empty_tensors(shape):
    x = torch.empty(shape, device="spyre")
    assert x.data_ptr() == 0 and x.cpu().shape == shape
    x.copy_(torch.empty(shape))
    x.fill_(3)
    assert x.clone().shape == shape and x.to(torch.float16).shape == shape
    assert x.transpose(0, -1).contiguous().cpu().numel() == 0


def test_zero_dim_tensors():
    x = torch.tensor(2.5).to("spyre")
    assert x.dim() == 0 and x.item() == 2.5 and float(x) == 2.5
    x.fill_(4)
    assert x.cpu() == 4
    y = torch.zeros(3, device="spyre")
    y[1] = x
    assert y.tolist() == [0, 4, 0]
    y.copy_(x)
    assert y.tolist() == [4, 4, 4]


def test_broadcasting_copies():
    y = torch.zeros(3, 70, device="spyre")
    y.copy_(torch.arange(70.0))
    assert torch.equal(y.cpu(), torch.arange(70.0).expand(3, 70))
    y.copy_(torch.tensor([[1.0], [2.0], [3.0]]).to("spyre"))
    assert torch.equal(y.cpu(), torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 70))
    with pytest.raises(RuntimeError):
        y.copy_(torch.zeros(4, 70))


def test_resize_keeps_elements_in_order():
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3).to("spyre")
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_(3, 70)
    assert x.reshape(-1)[:6].tolist() == [0, 1, 2, 3, 4, 5]
    x.fill_(1)
    assert x.cpu().sum() == 210
    y = torch.empty(0, dtype=torch.float16, device="spyre")
    y.resize_(4, 100)
    assert _device.expect(y, "default")


def test_set_shares_another_storage():
    x, y = torch.zeros(2, device="spyre"), torch.arange(12.0).to("spyre")
    x.set_(y)
    assert x.is_set_to(y) and x.data_ptr() == y.data_ptr()
    x.set_(y.untyped_storage(), 3, (2, 2), (4, 1))
    assert x.tolist() == [[3, 4], [7, 8]]
    x.set_()
    assert x.numel() == 0


def test_storage_resize():
    x = torch.arange(8.0).to("spyre")
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(32)
    x.copy_(torch.arange(8.0))
    assert x.tolist() == list(range(8))


NEGATED = {
    "clone": lambda n: n.clone(),
    "copy from": lambda n: torch.zeros(6, device=n.device).copy_(n),
    "copy to the host": lambda n: torch.zeros(6).copy_(n),
    "copy into": lambda n: n.copy_(torch.arange(6.0, device=n.device)),
    "copy into from the host": lambda n: n.copy_(torch.arange(6.0)),
    "copy into from integers": lambda n: n.copy_(torch.arange(6, device=n.device)),
    "copy between": lambda n: torch._neg_view(torch.zeros(6, device=n.device)).copy_(n),
    "to half": lambda n: n.half(),
    "resolve": lambda n: n.resolve_neg(),
    "add": lambda n: n + 1,
    "add in place": lambda n: n.add_(1),
    "fill": lambda n: n.fill_(3),
    "slice": lambda n: n[2:5] * 2,
    "read": lambda n: torch.tensor(n.tolist()),
}


@pytest.mark.parametrize("name", NEGATED)
@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_views_that_negate(name, mode):
    """A view with the negative bit holds what its storage does not: copies turn the sign, on either side."""
    host = torch._neg_view(torch.arange(6.0) - 2)
    base = (torch.arange(6.0) - 2).to("spyre")
    with torch.spyre.use_eager_mode(mode):
        found = NEGATED[name](torch._neg_view(base))
        expected = NEGATED[name](host)
        assert torch.equal(found.cpu().resolve_neg(), expected.resolve_neg())
        assert torch.equal(torch._neg_view(base).cpu(), host.resolve_neg())  # what was written lies behind the view too


def test_a_view_that_negates_prints_and_moves():
    negated = torch._neg_view(torch.arange(3.0, device="spyre"))
    assert repr(negated) == "tensor([-0., -1., -2.], device='spyre:0')"
    assert torch._neg_view(torch.arange(3.0)).to("spyre").tolist() == [0, -1, -2]
