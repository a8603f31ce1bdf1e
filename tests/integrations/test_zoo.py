"""Model families of Transformers on the simulated chip: right, in one graph, without a fallback.

Each is built small with random weights, run in fp16 on ``spyre`` and compared with fp32 on the CPU.
"""

from pathlib import Path

import pytest

from torch_loom.integrations.huggingface.zoo import ZOO, build, member, sample
from torch_loom.integrations.huggingface.zoo_run import HEADER, decode, forward, markdown, table_row, tolerance

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.parametrize("name", [m.name for m in ZOO if not m.needs])
def test_family(name):
    one = member(name)
    first = forward(one)
    assert first.error < tolerance()
    assert (first.graphs, first.breaks, first.fallbacks) == (1, 0, {})
    steps = decode(one) if one.kind == "decoder" else None
    if steps is not None:
        assert steps.error < tolerance()
        assert steps.agreed == steps.decided > 0
        assert (steps.breaks, steps.fallbacks) == (0, {})
    assert markdown(table_row(one, first, steps)) in PAGE.read_text().splitlines(), "docs/models.md is not true"


def test_the_page_lists_every_family_once():
    lines = PAGE.read_text().splitlines()
    assert markdown(HEADER) in lines
    first = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    known = {m.name for m in ZOO}
    assert [n for n in first if n in known] == [m.name for m in sorted(ZOO, key=lambda m: bool(m.needs))]
    assert all(markdown((m.name, m.needs)) in lines for m in ZOO if m.needs)


def test_models_are_the_same_for_the_same_seed():
    one = member("Llama 3")
    a, b = (build(one).state_dict() for _ in range(2))
    assert all((a[k] == b[k]).all() for k in a)
    assert (sample(one)["input_ids"] == sample(one)["input_ids"]).all()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(KeyError, match="BERT"):
        member("nonsense")
