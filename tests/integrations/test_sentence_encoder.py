"""The sentence encoder on the CPU: pooling and normalisation, loading, tokens, comparison figures."""

import io

import pytest
import torch
from rich.console import Console
from torch import nn

from torch_loom.integrations.huggingface import (
    Encoding,
    SentenceEncoder,
    Tokens,
    batches,
    check_dtype,
    cosines,
    encode,
    load_minilm,
    similarity,
)
from torch_loom.integrations.huggingface.report import Comparison
from torch_loom.layout import UnsupportedDtype
from torch_loom.profiler import KernelPaths, LaunchRow


class Echo(nn.Module):
    """An encoder whose hidden state is a table row per token."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, input_ids, attention_mask):
        class Out:
            last_hidden_state = self.table[input_ids]

        return Out


def test_padding_takes_no_part_in_the_mean():
    encoder = SentenceEncoder(Echo(torch.tensor([[100.0, 100.0], [3.0, 0.0], [3.0, 8.0]])))
    ids = torch.tensor([[1, 2, 0], [1, 0, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert torch.equal(encoder(ids, mask), torch.tensor([[0.6, 0.8], [1.0, 0.0]]))


def test_a_row_of_padding_gives_zeros():
    encoder = SentenceEncoder(Echo(torch.ones(1, 2)))
    assert torch.equal(encoder(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3)), torch.zeros(1, 2))


@pytest.fixture(scope="module")
def model():
    return load_minilm()


def test_the_real_weights_rank_sentences_as_people_do(model):
    tokens = model.tokenize(["The cat sits on the mat.", "A kitten rests on a rug.", "Shares fell on Monday."])
    assert tokens.input_ids.dtype == tokens.attention_mask.dtype == torch.int64
    with torch.no_grad():
        vectors = model.encoder(*tokens.arguments)
    assert vectors.shape == (3, 384)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    close = similarity(vectors)
    assert close[0, 1] > 0.5 > 0.2 > close[0, 2]


def test_weights_ask_for_no_gradient(model):
    assert not any(p.requires_grad for p in model.encoder.parameters())


def test_long_sentences_are_cut_at_the_limit(model):
    assert model.tokenize(["word " * 2000]).input_ids.shape == (1, 512)


def test_no_sentences_are_refused(model):
    with pytest.raises(ValueError, match="no sentences"):
        model.tokenize([])


def test_batches_share_one_length():
    tokens = Tokens(torch.arange(14).view(7, 2), torch.ones(7, 2))
    parts = batches(tokens, 3)
    assert [len(p.input_ids) for p in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([p.input_ids for p in parts]), tokens.input_ids)
    with pytest.raises(ValueError, match="at least one"):
        batches(tokens, 0)


def test_encoding_in_batches_equals_encoding_at_once(model):
    tokens = model.tokenize(["Hello", "A longer sentence than the first.", "Third"])
    whole, _ = encode(model.encoder, batches(tokens, 3), torch.device("cpu"))
    parts, seconds = encode(model.encoder, batches(tokens, 2), torch.device("cpu"))
    torch.testing.assert_close(whole, parts)
    assert seconds > 0


@pytest.mark.parametrize("dtype", ["float16", torch.float16, "bfloat16", "float32"])
def test_encoders_take_these_dtypes(dtype):
    assert check_dtype(dtype) is getattr(torch, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("dtype", ["float64", torch.complex64, "int8", "float8_e4m3fn", "nonsense"])
def test_encoders_take_no_other_dtype(dtype):
    with pytest.raises(UnsupportedDtype, match="dtype"):
        check_dtype(dtype)


def comparison():
    cpu = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    device = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    rows = [LaunchRow("k0", 1.5, 0.5, 0.25, 256, "PT"), LaunchRow("k0", 2.0, 0.5, 0.25, 128, "SFU")]
    return Comparison(
        ["first", "second"],
        Encoding(cpu, 0.25, 0.5),
        Encoding(device, 0.125, 9.0),
        {"aten::foo": 2},
        1,
        rows,
        [],
    )


def test_figures_have_the_public_names_and_values(tmp_path):
    paths = KernelPaths(*(tmp_path / name for name in ("k", "s", "d", "code", "text")))
    figures = comparison().figures({"k0": paths})
    kernels = figures.pop("kernels")
    assert figures.pop("cosine_min") == pytest.approx(0.96)
    assert figures.pop("max_abs_err") == pytest.approx(0.2)
    assert figures == {
        "fallback_ops": 2,
        "modelled_us_total": 3.5,
        "wall_s_compile": 9.0,
        "wall_s_run": 0.125,
        "wall_s_cpu_fp32": 0.25,
        "kernels_compiled": 1,
    }
    assert [k["modelled_us"] for k in kernels] == [1.5, 2.0]
    assert kernels[0] == {
        "name": "k0",
        "modelled_us": 1.5,
        "pt_util": 0.5,
        "sfu_util": 0.25,
        "ddr_bytes": 256,
        "bottleneck": "PT",
        "ktir": str(tmp_path / "k"),
        "dataflow": str(tmp_path / "d"),
        "spyrecode": str(tmp_path / "code"),
    }


def test_the_report_shows_every_figure():
    stream = io.StringIO()
    comparison().print(Console(file=stream, width=120))
    text = stream.getvalue()
    for part in (
        "0.960000",
        "first",
        "k0",
        "3.50 us",
        "CPU fallbacks 2",
        "aten::foo x 2",
        "9.00 s",
        "0.125 s",
    ):
        assert part in text


def test_cosines_are_per_row():
    a = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    b = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(cosines(a, b), torch.tensor([1.0, 0.5**0.5], dtype=torch.float64))
