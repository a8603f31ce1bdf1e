"""Single operations and small fusions, compiled for spyre through every layer."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, half


@pytest.mark.parametrize("shape", [(1,), (7,), (64,), (65,), (5, 150), (3, 1, 70), (2, 3, 4, 100), (3000, 77)])
def test_add_of_any_shape(shape):
    check(lambda a, b: a + b, half(*shape), half(*shape, seed=1))


def test_zero_dimensional_tensor():
    check(lambda a: a * 2 + 1, torch.tensor(3.0).half())


@pytest.mark.parametrize("columns", [1, 31, 64, 130])
def test_broadcast_of_row_and_column(columns):
    check(lambda a, r, c: a * r + c, half(33, columns), half(columns), half(33, 1, seed=2), absolute=4e-3)


UNARY = {
    "exp": torch.exp,
    "gelu": F.gelu,
    "gelu_tanh": lambda a: F.gelu(a, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "neg": torch.neg,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "floor": torch.floor,
    "sign": torch.sign,
    "sin": torch.sin,
    "softplus": F.softplus,
    "where": lambda a: torch.where(a > 0.5, a, -a),
    "clamp": lambda a: a.clamp(-0.5, 0.75),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(UNARY[name], half(17, 200))


def test_sqrt_and_rsqrt_of_positive_values():
    check(lambda a: torch.sqrt(a) + torch.rsqrt(a), half(9, 100).abs() + 0.1)


@pytest.mark.parametrize("size", [1, 33, 64, 200, 384])
def test_softmax_over_the_last_dim(size):
    check(lambda a: torch.softmax(a, -1), half(3, 5, size))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sums_over_any_dim(dim):
    check(lambda a: a.sum(dim), half(6, 40, 70), absolute=1e-4)


def test_reductions_to_one_value():
    check(lambda a: a.sum(), half(100, 150), absolute=1e-2)
    check(lambda a: a.mean(), half(100, 150), absolute=1e-5)


@pytest.mark.parametrize("fn", [torch.amax, torch.amin])
def test_extremes(fn):
    check(lambda a: fn(a, -1), half(70, 500))


def test_variance():
    check(lambda a: a.var(-1), half(80, 500), absolute=1e-5)


def test_layer_norm():
    check(
        lambda x, w, b: F.layer_norm(x, (384,), w, b),
        half(64, 384),
        half(384),
        half(384, seed=3),
        absolute=1e-5,
    )


def test_rms_norm():
    def rms(a, w):
        return a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    check(rms, half(20, 500), half(500), absolute=1e-5)


@pytest.mark.parametrize("m,k,n", [(1, 384, 384), (7, 70, 90), (64, 64, 64), (130, 384, 200), (33, 33, 33)])
def test_matmul_of_any_size(m, k, n):
    check(lambda a, b: a @ b, half(m, k), half(k, n), absolute=1e-4)


def test_linear_with_gelu_epilogue():
    # The product is rounded nowhere before the activation: one kernel, one rounding.
    fn = lambda x, w, b: F.gelu(F.linear(x, w, b))  # noqa: E731
    check(fn, half(8, 32, 384), half(256, 384, scale=0.1), half(256), absolute=1e-4)


def test_batched_and_transposed_products():
    check(lambda a, b: a @ b, half(6, 20, 70), half(6, 70, 90), absolute=1e-4)
    check(lambda a, b: a.t() @ b, half(40, 30), half(40, 50), absolute=1e-4)
    check(lambda a, b: a @ b.transpose(-1, -2), half(2, 3, 17, 40), half(2, 3, 29, 40), absolute=1e-4)


def test_transpose_and_permute():
    check(lambda a: a.t() + 1, half(70, 130))
    check(lambda a: a.view(2, 16, 12, 32).permute(0, 2, 1, 3).contiguous() + 0, half(32, 384))


def test_embedding():
    ids = torch.randint(0, 500, (8, 33), generator=torch.Generator().manual_seed(5))
    check(lambda i, w: F.embedding(i, w), ids, half(500, 384))


def test_embedding_index_out_of_range_is_an_error_and_the_device_goes_on():
    ids = torch.tensor([[1, 2, 700]])
    table = half(500, 64)
    fn = torch.compile(lambda i, w: F.embedding(i, w), dynamic=False)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"700|index|bound"):
        fn(ids.to("spyre"), table.to("spyre")).cpu()
    check(lambda a: a + 1, half(5, 5))


def test_attention_with_a_mask():
    q, k, v = (half(2, 4, 33, 32, seed=s) for s in range(3))
    mask = torch.ones(2, 1, 33, 33, dtype=torch.bool)
    mask[1, :, :, 20:] = False
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        q, k, v, mask, roundings=4, absolute=4e-3,
    )  # fmt: skip


def test_float32_stays_float32():
    a, b = torch.randn(50, 70), torch.randn(50, 70)
    check(lambda a, b: a * b + 1, a, b)


def test_integers_are_exact():
    check(lambda a: a * 3 + 7, torch.randint(-1000, 1000, (50, 60)))
    check(lambda a, b: torch.where(a > b, a, b), torch.arange(100), torch.arange(100).flip(0))


@pytest.mark.parametrize("widths", [(64, 64), (50, 30), (3, 130)])
def test_cat_at_any_column(widths):
    check(lambda a, b: torch.cat([a, b], -1), half(8, widths[0]), half(8, widths[1], seed=4))


@pytest.mark.parametrize("start,stop", [(0, 64), (3, 40), (63, 66), (65, 130)])
def test_slices_inside_sticks(start, stop):
    check(lambda a: a[:, start:stop] * 2, half(8, 130))


def test_pad():
    check(lambda a: F.pad(a, (3, 5, 1, 2)), half(8, 50))


def test_comparison_gives_bool():
    out = check(lambda a, b: a > b, half(9, 70), half(9, 70, seed=9))
    assert out.dtype == torch.bool


def test_unsupported_dtype_names_it():
    with pytest.raises(RuntimeError, match="does not support dtype"):
        torch.randn(4, dtype=torch.float64).to("spyre")


@pytest.mark.parametrize("length", [7, 33, 70])
def test_partial_tiles_do_not_run_into_the_next_batch(length):
    # The rows of a batch are not a multiple of the row block, and batches follow one another in memory.
    x, w = half(5, length, 12, 32), half(384, 384, scale=0.05)
    check(
        lambda a, w: F.linear(a.transpose(1, 2).contiguous().transpose(1, 2).reshape(5, length, 384), w),
        x,
        w,
        absolute=1e-4,
    )
    check(lambda a: (a.transpose(1, 2) + 1).softmax(-1), x)


def test_products_over_one_or_no_element():
    check(lambda a, b: a @ b, half(5, 1), half(1, 70))
    check(lambda a, b: a @ b, half(5, 0), half(0, 70))
    q = half(3, 4, 1, 32)
    check(lambda q: F.scaled_dot_product_attention(q, q, q), q, roundings=2)


def test_empty_tensors():
    check(lambda a: a + 1, half(0, 70))
    check(lambda a: a.sum(0), half(0, 70))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_reductions_too_long_for_one_tile(dim):
    x = half(30001, 70) if dim == 0 else half(3, 200001) if dim == 1 else half(2001, 777)
    over = (lambda f: lambda a: f(a)) if dim is None else (lambda f: lambda a: f(a, dim))
    check(over(torch.sum), x, absolute=2e-1)
    check(over(torch.amax), x)
    check(lambda a: (a * 2 + 1).mean() if dim is None else (a * 2 + 1).mean(dim), x, absolute=1e-4)


def test_matmul_with_a_k_too_long_for_one_tile():
    check(lambda a, b: a @ b, half(40, 20001, scale=0.1), half(20001, 70, scale=0.1), absolute=1e-3)
    check(lambda a, w: F.gelu(F.linear(a, w)), half(70, 9000, scale=0.1), half(33, 9000, scale=0.1), absolute=1e-3)


def rotate_half(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)


@pytest.mark.parametrize("shape", [(2, 3, 64), (2, 8, 32), (2, 2, 8, 64), (3, 65)])
def test_parts_written_side_by_side(shape):
    a, b = half(*shape), half(*shape, seed=1)
    check(lambda a, b: torch.cat([a, b], -1), a, b)
    check(lambda a, b: torch.stack([a, b], -1), a, b)
    check(lambda a, b: torch.cat([a, b], 0), a, b)
    check(lambda a: F.pad(a, (1, 0)), a)
    if shape[-1] % 2 == 0:
        check(rotate_half, a)


def test_causal_attention_and_rows_without_keys():
    q = half(2, 4, 33, 32)
    check(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q, roundings=4, absolute=4e-3)
    mask = torch.ones(2, 1, 33, 33, dtype=torch.bool)
    mask[1, :, 5] = False
    out = check(lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), q, mask, roundings=4, absolute=4e-3)
    assert (out[1, :, 5] == 0).all()


def test_integer_arguments_may_change():
    torch._dynamo.reset()
    fn = torch.compile(lambda x, k: x * k + k)
    x = torch.arange(70.0)
    for k in (3, 4, 5, 2):
        assert torch.equal(fn(x.to("spyre"), k).cpu(), x * k + k)


def test_infinities_read_back_as_infinities():
    x = torch.tensor([1.0, -1.0, 0.0, 2.0]).half()
    out = torch.compile(lambda x: x / 0, dynamic=False)(x.to("spyre")).cpu()
    assert torch.equal(
        out.nan_to_num(7.0), torch.tensor([torch.inf, -torch.inf, 7.0, torch.inf]).half().nan_to_num(7.0)
    )
    assert torch.compile(lambda x: x.log(), dynamic=False)(x.abs().to("spyre")).cpu()[2] == -torch.inf
    assert torch.compile(lambda x: (x / 0).isinf(), dynamic=False)(x.to("spyre")).cpu().tolist() == [
        True,
        True,
        False,
        True,
    ]


def test_very_many_paths_lead_from_a_value_to_the_result():
    def fold(a):
        for _ in range(40):
            a = torch.maximum(a, 0.5 - a)
        return a

    check(fold, half(3, 70), roundings=2)
