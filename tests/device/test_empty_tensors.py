"""Tensors without elements: in every family of operators, as input, as output and as what is summed over nothing."""

import pytest
import torch
import torch.nn.functional as F

EMPTY = torch.zeros(0, 3)


def ones(t: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.ones(*shape).to(t.device)


def nothing(t: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long).to(t.device)


WORK = {
    "add": lambda t: t + 1,
    "matmul": lambda t: t @ ones(t, 3, 2),
    "sum": lambda t: t.sum(),
    "sum of columns": lambda t: t.sum(0),
    "transpose": lambda t: t.t().contiguous(),
    "fill": lambda t: t.clone().fill_(3).zero_(),
    "cat": lambda t: torch.cat([t, t]),
    "convert": lambda t: t.half().float(),
    "slice": lambda t: t[:, 1:],
    "reshape": lambda t: t.reshape(3, 0),
    "expand": lambda t: t.expand(2, 0, 3).contiguous(),
    "copy": lambda t: torch.empty_like(t).copy_(t),
    "resize": lambda t: t.new_zeros(0).resize_(2, 0),
    "normal": lambda t: t.clone().normal_(),
    "nonzero": lambda t: t.nonzero(),
    "stack": lambda t: torch.stack([t, t]).permute(2, 0, 1),
    "softmax": lambda t: t.softmax(1),
    "compare": lambda t: t > 1,
    "where": lambda t: torch.where(t > 0, t, t + 1),
    "masked_fill": lambda t: t.masked_fill(t > 0, 2.0),
    "clamp": lambda t: t.clamp(0, 1),
    "unary": lambda t: torch.exp(t).sqrt(),
    "gelu": lambda t: F.gelu(t),
    "mean": lambda t: t.mean(),
    "prod": lambda t: t.prod(0),
    "all": lambda t: (t > 0).all(),
    "any": lambda t: (t > 0).any(1),
    "amax": lambda t: t.amax(1),
    "argmax": lambda t: t.argmax(1),
    "std": lambda t: t.std(1),
    "cumsum": lambda t: t.cumsum(0),
    "mm k=0": lambda t: t.t() @ t,
    "bmm": lambda t: torch.bmm(t.reshape(0, 1, 3), t.reshape(0, 3, 1)),
    "bmm k=0": lambda t: torch.bmm(t.reshape(3, 2, 0), t.reshape(3, 0, 4)),
    "linear": lambda t: F.linear(t, ones(t, 5, 3), ones(t, 5)),
    "addmm k=0": lambda t: torch.addmm(ones(t, 3, 3), t.t(), t),
    "layer_norm": lambda t: F.layer_norm(t, (3,)),
    "embedding": lambda t: F.embedding(nothing(t, 0), ones(t, 4, 3)),
    "index_select": lambda t: ones(t, 4, 3).index_select(0, nothing(t, 0)),
    "gather": lambda t: t.gather(1, nothing(t, 0, 2)),
    "index": lambda t: ones(t, 4, 3)[nothing(t, 0)],
    "index_put": lambda t: ones(t, 4, 3).index_put((nothing(t, 0),), t),
    "scatter": lambda t: ones(t, 4, 3).scatter(0, nothing(t, 0, 3), t),
    "arange": lambda t: torch.arange(0, device=t.device),
    "eye": lambda t: torch.eye(0, device=t.device),
    "linspace": lambda t: torch.linspace(0, 1, 0, device=t.device),
    "full": lambda t: torch.full((2, 0), 3.0, device=t.device),
    "randn": lambda t: torch.randn(0, 4, device=t.device),
    "tril": lambda t: t.tril(),
    "flip": lambda t: t.flip(1),
    "roll": lambda t: t.roll(1, 0),
    "repeat": lambda t: t.repeat(2, 2),
    "pad": lambda t: F.pad(t, (1, 1)),
    "pad rows": lambda t: F.pad(t, (0, 0, 1, 1)),
    "cat empties": lambda t: torch.cat([t, ones(t, 2, 3), t]),
    "split": lambda t: t.split(1, 1)[0],
    "sort": lambda t: t.sort(1)[0],
    "sort0": lambda t: t.sort(0)[0],
    "topk": lambda t: t.topk(2, 1)[1],
    "unique": lambda t: t.unique(),
    "mse": lambda t: F.mse_loss(t, t),
    "attention": lambda t: F.scaled_dot_product_attention(t.reshape(1, 0, 3), t.reshape(1, 0, 3), t.reshape(1, 0, 3)),
    "attention batch": lambda t: F.scaled_dot_product_attention(*[t.reshape(0, 1, 3)] * 3),
    "softmax0": lambda t: t.softmax(0),
    "logsoftmax": lambda t: t.log_softmax(1),
    "conv": lambda t: F.conv1d(t.reshape(0, 3, 1), ones(t, 2, 3, 1)),
    "add_": lambda t: t.clone().add_(1),
    "int": lambda t: t.long() + 1,
    "bool": lambda t: t.bool() | t.bool(),
    "half": lambda t: t.half() * 2,
    "inplace row": lambda t: ones(t, 4, 3)[:, :0].mul_(2),
    "norm": lambda t: t.norm(),
}
REFUSED = {
    "max": lambda t: t.max(),
    "amax": lambda t: t.amax(0),
    "argmax": lambda t: t.argmax(0),
}
RESULTS_WITH_ELEMENTS = ("mm k=0", "addmm k=0", "prod", "all", "mean", "pad rows", "cat empties", "index_put")


def check(name):
    got, wanted = WORK[name](EMPTY.to("spyre")), WORK[name](EMPTY)
    assert got.device.type == "spyre" and got.dtype == wanted.dtype
    torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", WORK)
def test_the_result_is_the_cpus(name):
    check(name)


@pytest.mark.parametrize("name", RESULTS_WITH_ELEMENTS)
def test_compiled_operators_too(name):
    with torch.spyre.use_eager_mode("strict"):
        check(name)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_value_is_refused_as_on_the_cpu(name):
    for t in (EMPTY, EMPTY.to("spyre")):
        with pytest.raises((RuntimeError, IndexError), match="reduction dim"):
            REFUSED[name](t)
    assert torch.ones(3, device="spyre").tolist() == [1, 1, 1]
