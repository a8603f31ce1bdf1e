"""`loom ops` and `loom warmup`, and what they stand on."""

import pytest

from torch_loom.cli import main
from torch_loom.eager.routes import ROUTES, routes


@pytest.fixture(scope="module")
def table():
    return {r.name: r for r in routes()}


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("aten::view", "native"),
        ("aten::_copy_from", "native"),
        ("aten::linear", "decomposed"),
        ("aten::select.int", "decomposed"),
        ("aten::view_copy", "decomposed"),
        ("aten::add.Tensor", "compiled"),
        ("aten::add_.Tensor", "compiled"),
        ("aten::add.out", "compiled"),
        ("aten::_softmax_backward_data", "compiled"),
        ("aten::nonzero", "native"),
        ("aten::native_dropout", "native"),
        ("aten::__ilshift__.Tensor", "host"),
    ],
)
def test_each_operator_has_its_route(table, name, route):
    assert table[name].route == route


def test_most_operators_need_no_host(table):
    counts = {route: sum(r.route == route for r in table.values()) for route in ROUTES}
    assert sum(counts.values()) == len(table)
    assert counts["compiled"] > 800 and counts["host"] < 400


def run(capsys, *args):
    status = main.run(args)
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


def test_ops_lists_and_filters(capsys):
    out = run(capsys, "ops", "aten::softmax", "--route", "decomposed")
    lines = out.splitlines()
    assert ["aten::softmax.int", "decomposed"] in [line.split() for line in lines]
    assert len(run(capsys, "ops", "--totals").splitlines()) == len(ROUTES)


def test_ops_refuses_an_unknown_route(capsys):
    assert main.run(["ops", "--route", "magic"]) == 2
    assert "native, decomposed, compiled, host" in capsys.readouterr().err


def test_warmup_compiles_once(capsys):
    words = ["warmup", "--match", "sigmoid of rank 2", "--verbose"]
    first, second = run(capsys, *words), run(capsys, *words)
    assert "sigmoid of rank 2, float16" in first and "1 calls, " in first
    assert second.splitlines()[-1] == "1 calls, 0 programs compiled"


def test_warmup_refuses_an_unknown_dtype(capsys):
    assert main.run(["warmup", "--dtype", "float8"]) == 2
    assert "float16, bfloat16, float32" in capsys.readouterr().err
