"""Timelines, their Chrome trace, the life of LX blocks, and the page: against a launch made by hand."""

import base64
import json
import re
import struct

import fake_clock as fake
import pytest
from chrome_format import problems

from torch_loom.profiler import chrome_text, html_page, lx_uses, report_of, timeline

US = 1e6 / 1.5e9  # of a cycle


@pytest.fixture
def one(fake_clock):
    return timeline([fake.subject()], fake.CHIP)


def events(found, ph):
    return [e for e in json.loads(chrome_text(found))["traceEvents"] if e["ph"] == ph]


def test_the_trace_keeps_the_format(one):
    assert problems(chrome_text(one)) == []


def test_the_checker_sees_broken_traces(one):
    data = json.loads(chrome_text(one))
    slices = [e for e in data["traceEvents"] if e["ph"] == "X" and e["pid"] >= 2]
    slices[0]["dur"] += 50 * US
    assert any("overlap" in p for p in problems(json.dumps(data)))
    data = json.loads(chrome_text(one))
    data["traceEvents"].remove(next(e for e in data["traceEvents"] if e["ph"] == "f"))
    assert any("not a pair" in p for p in problems(json.dumps(data)))


def test_one_track_per_unit_grouped_by_core(one):
    names = {(e["pid"], e["args"]["name"]) for e in events(one, "M") if e["name"] == "process_name"}
    assert names == {(0, "launches"), (1, "chip"), (2, "core 0"), (3, "core 1")}
    threads = {(e["pid"], e["args"]["name"]) for e in events(one, "M") if e["name"] == "thread_name"}
    assert threads == {(0, "kernels"), (1, "DDR"), *((p, u) for p in (2, 3) for u in ("MNILU", "SFU"))}


def test_slices_have_names_kinds_and_modelled_times(one):
    mine = [e for e in events(one, "X") if e["pid"] == 2]
    waits = [e for e in mine if e["cat"] == "wait"]
    assert [(e["name"], e["ts"], e["dur"]) for e in waits] == [
        ("c0", pytest.approx(90 * US, abs=1e-6), pytest.approx(120 * US, abs=2e-6))
    ]
    assert {e["cat"] for e in mine} == {"busy", "wait", "transfer"}
    launch = next(e for e in events(one, "X") if e["cat"] == "launch")
    assert (launch["name"], launch["dur"]) == ("kernel", pytest.approx(480 * US, abs=1e-6))


def test_credits_are_arrows_between_the_units(one):
    starts, ends = events(one, "s"), events(one, "f")
    assert len(starts) == len(ends) == 6
    first = min(starts, key=lambda e: (e["pid"], e["ts"]))
    end = next(e for e in ends if e["id"] == first["id"])
    assert first["name"] == "c0.full" and first["pid"] == end["pid"] == 2
    # Sent when the fill of 100..200 ends (the last ns left out), seen where the segment of 210..260 begins.
    assert first["ts"] == pytest.approx(200 * US - 1e-3, abs=1e-3) or first["ts"] == pytest.approx(200 * US, abs=1e-3)
    assert end["ts"] == pytest.approx(210 * US, abs=1e-3)


def test_launches_follow_one_another(fake_clock):
    found = timeline([fake.subject("a", 2), fake.subject("b")], fake.CHIP)
    assert [(s.figures.name, s.begin, s.end) for s in found.sections] == [
        ("a", 0, 480),
        ("a", 480, 960),
        ("b", 960, 1440),
    ]
    assert found.notice == ""
    assert problems(chrome_text(found)) == []


@pytest.mark.parametrize("limit", [1, 5, 13, 14, 20, 27])
def test_a_limit_of_spans_is_kept_and_said(fake_clock, limit):
    found = timeline([fake.subject("a", 3)], fake.CHIP, limit)
    assert sum(len(s.spans) for s in found.sections) == limit
    assert found.notice.startswith(f"cut at {limit} spans: ")
    assert ("launches are missing" in found.notice) == (limit <= 26)
    text = chrome_text(found)
    assert problems(text) == []
    assert found.notice in [e["name"] for e in json.loads(text)["traceEvents"] if e["ph"] == "i"]


def test_blocks_live_from_fill_to_last_use(one):
    uses = lx_uses(one, one.sections[0], 1)
    life = [(u.phase, u.address, u.begin, u.end, u.state) for u in uses if u.block == "bx"]
    assert life == [
        (0, 128, 0.0, 200.0, "filling"),
        (0, 128, 200.0, 260.0, "used"),
        (1, 384, 200.0, 300.0, "filling"),
        (1, 384, 300.0, 480.0, "used"),
    ]
    assert [(u.address, u.bytes, u.begin, u.end, u.state) for u in uses if u.block == "scratch"] == [
        (1024, 128, 0.0, 480.0, "temporary")
    ]


def page_of(subjects, limit=1000):
    return html_page(report_of(subjects, fake.CHIP), timeline(subjects, fake.CHIP, limit))


def test_the_page_needs_nothing_from_outside(fake_clock):
    page = page_of([fake.subject("a</script><b>", 2)])
    assert not re.search(r"""(src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest|https?://""", page)
    assert page.count("</script>") == 2  # the data does not end its element
    assert "<title>2 launches" in page_of([fake.subject("a"), fake.subject("b")])
    assert "<title>a&lt;b&gt; - " in page_of([fake.subject("a<b>")])


def test_the_page_holds_spans_and_kernels(fake_clock):
    page = page_of([fake.subject("a", 2)], limit=14)
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    begins = base64.b64decode(data["spans"]["begin"])
    assert struct.unpack(f"<{len(begins) // 8}d", begins)[:2] == (100.0, 100.0)
    assert len(begins) // 8 == 14
    assert data["report"]["kernels"][0]["name"] == "a"
    assert data["notice"].startswith("cut at 14 spans")
    assert set(data["lx"]) == {"0", "1"}
