"""``loom time``, ``trace`` and ``report`` on KTIR and SpyreCode: figures against hand counts, files whole or absent."""

import json
import sys
from pathlib import Path

import pytest

from torch_loom.cli import main

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "ktir" / "programs"
sys.path.insert(0, str(ROOT / "tests" / "profiler"))

from chrome_format import problems  # noqa: E402


def loom(capsys, *args):
    status = main.run([str(a) for a in args])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def matmul(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spyrecode") / "matmul"
    assert main.run(["schedule", str(PROGRAMS / "matmul.ktir"), "-o", str(folder)]) == 0
    return folder


def test_time_of_ktir_counts_what_the_program_does(capsys):
    status, out, err = loom(capsys, "time", PROGRAMS / "matmul.ktir", "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    (kernel,) = report["kernels"]
    assert kernel["macs"] == 128 * 192 * 64
    # Every core needs all of b: read once and shared over the ring, or read by each of the 32 cores.
    a, b, c = 128 * 192 * 2, 192 * 64 * 2, 128 * 64 * 2
    assert kernel["link_bytes"]["DDR write"] == c
    assert kernel["link_bytes"]["DDR read"] in (a + b, a + 32 * b)
    assert kernel["cores"] == 32
    assert kernel["roofline"]["operations_per_byte"] == pytest.approx(2 * kernel["macs"] / kernel["ddr_bytes"])
    assert sum(kernel["energy_pj"].values()) == pytest.approx(kernel["energy_uj"] * 1e6)
    assert 0 < len(kernel["changes"]) <= 3
    assert set(report["energy_sources"]) == set(kernel["energy_pj"])


def test_ktir_and_its_spyrecode_take_the_same_time(capsys, matmul):
    ns = [
        json.loads(loom(capsys, "time", path, "--json")[1])["ns"]
        for path in (PROGRAMS / "matmul.ktir", matmul, matmul / "spyreCodeDir" / "init_binary.bin")
    ]
    assert ns[0] == ns[1] == ns[2] > 0


def test_time_says_why_and_what_would_help(capsys):
    status, out, err = loom(capsys, "time", PROGRAMS / "vector_add_dynamic.ktir", "--size", "n=1024")
    assert (status, err) == (0, "")
    for part in ("vector_add_dynamic: ", "critical ", "DDR read 4 KiB", "DDR write 2 KiB", "roofline ", "(assumed: "):
        assert part in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["vector_add_dynamic.ktir"], "vector_add_dynamic: give argument 'n' a value"),
        (["vector_add_dynamic.ktir", "--size", "n=5000"], "vector_add_dynamic: SC-E"),
        (["vector_add_dynamic.ktir", "--size", "n=1.5"], "argument 'n' is an integer, not 1.5"),
        (["vector_add_dynamic.ktir", "--size", "n=nan"], "--size 'n=nan' is not NAME=NUMBER"),
        (["matmul.ktir", "-f", "other"], "no function 'other' in"),
        (["matmul.ktir", "--chip", "abacus"], "abacus: neither a preset"),
        (["absent.ktir"], "absent.ktir"),
        (["absent"], "cannot read"),
    ],
)
@pytest.mark.parametrize("command", ["time", "trace"])
def test_what_cannot_be_timed_is_one_line(capsys, tmp_path, command, args, message):
    more = ["-o", tmp_path / "out.json"] if command == "trace" else []
    status, out, err = loom(capsys, command, PROGRAMS / args[0], *args[1:], *more)
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_trace_of_every_program_keeps_the_format(capsys, tmp_path):
    for name in ("matmul", "softmax_online", "exchange_permute", "gather_rows"):
        status, _, err = loom(capsys, "trace", PROGRAMS / f"{name}.ktir", "-o", tmp_path / "t.json", "--launches", 2)
        assert (status, err) == (0, ""), name
        text = (tmp_path / "t.json").read_text()
        assert problems(text) == [], name
        events = json.loads(text)["traceEvents"]
        assert [e["name"] for e in events if e.get("cat") == "launch"] == [name, name]
        assert any(e["ph"] == "s" for e in events), name


def test_a_cut_trace_says_so(capsys, tmp_path):
    status, _, err = loom(
        capsys, "trace", PROGRAMS / "softmax_online.ktir", "-o", tmp_path / "t.json", "--max-spans", 50
    )
    assert status == 0
    assert err.startswith("loom trace: cut at 50 spans: ") and "--max-spans" in err
    assert problems((tmp_path / "t.json").read_text()) == []


def test_a_report_is_a_page_a_table_or_json(capsys, tmp_path, matmul):
    status, out, err = loom(capsys, "report", PROGRAMS / "slices.ktir", matmul, "-o", tmp_path / "page.html")
    assert (status, out, err) == (0, "", "")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and '"matmul"' in page and '"slices"' in page
    assert "http://" not in page and "https://" not in page
    status, out, _ = loom(capsys, "report", PROGRAMS / "slices.ktir", matmul)
    assert status == 0 and "kernels by time" in out and "matmul" in out
    status, out, _ = loom(capsys, "report", PROGRAMS / "vector_add_dynamic.ktir", matmul, "--size", "n=64", "--json")
    assert status == 0 and json.loads(out)["launches"] == 2


def test_a_trace_can_be_a_page(capsys, tmp_path):
    assert loom(capsys, "trace", PROGRAMS / "matmul.ktir", "-o", tmp_path / "p.html", "--html")[0] == 0
    assert "<canvas" in (tmp_path / "p.html").read_text()
