"""Static checks, race detector and deadlock report: right programs pass, each kind of break is found."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scheduler_kernels as kernels
import test_scheduler_control as control
from test_scheduler_values import build, data

from torch_loom import scheduler
from torch_loom.scheduler.check import check
from torch_loom.scheduler.compiled import Compiled, pad_rows
from torch_loom.scheduler.interpret import DataflowError

PROGRAMS = {
    "softmax": kernels.softmax(100, 8),
    "layernorm": kernels.layernorm(100, 8),
    "linear": kernels.linear(100, 128, 8, 64),
    "embedding": kernels.embedding(50, 100, 8),
    "computed": kernels.embedding(50, 100, 8, computed=True),
    "in_place": kernels.in_place(64, 4),
    "merge": kernels.merge_heads(2, 3, 5, 20),
    "attention": kernels.attention(50, 64, 3),
    "row_peak": control.row_peak(),
    "split_k": control.split_k(8, 128, 64, 64),
    "online": control.online_softmax(4, 96, 32),
    "concat": control.concat(3, 32, 32),
    "branch": control.branch(),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_generated_programs_pass(name: str, buffers: int) -> None:
    assert check(build(PROGRAMS[name], buffers=buffers).module) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_is_the_artifact(name: str) -> None:
    c = build(PROGRAMS[name])
    module = scheduler.parse_module(c.dataflow_ir)
    assert scheduler.print_module(module) == c.dataflow_ir
    assert scheduler.lower(module) == c.program
    again = scheduler.parse_module(c.schedule_ir)
    assert scheduler.print_module(again) == c.schedule_ir


def broken(text: str, *edits: tuple[str, str], unit: str = "") -> Compiled:
    """A program whose DataflowIR text is edited; with ``unit`` only inside that unit's stream."""
    c = build(text)
    source = c.dataflow_ir
    start = source.index(f"dataflow.unit {unit} {{") if unit else 0
    end = source.find("\n    dataflow.unit", start + 1) if unit else -1
    part = source[start : end if end > 0 else None]
    for pattern, new in edits:
        part, count = re.subn(pattern, new, part, count=1, flags=re.S)
        assert count == 1, f"{pattern} does not occur in\n{part}"
    edited = source[:start] + part + (source[end:] if end > 0 else "")
    module = scheduler.parse_module(edited)
    return Compiled("", edited, scheduler.lower(module), module=module)


SOFTMAX, LINEAR = PROGRAMS["softmax"], PROGRAMS["linear"]
LINE = r"[^\n]*\n"

BREAKS = {
    "a queue nobody reads": (SOFTMAX, "L1LU", [(r"queue 2", "queue 9")], "S1", "queues"),
    "a queue nobody fills": (SOFTMAX, "SFU", [(r'"r1 -> 4"', '"r1 -> 7"')], "S1", "L1SU reads"),
    "a release that is missing": (SOFTMAX, "MNISU", [(r" *dataflow\.release " + LINE, "")], "S1", "never gives back"),
    "an acquire that is missing": (
        SOFTMAX,
        "MNILU",
        [(r" *dataflow\.acquire " + LINE, "")],
        "S1",
        "without an acquire",
    ),
    "segments in another order": (
        SOFTMAX,
        "L1LU",
        [(r"seg 4 (.*?\n)( *dataflow.seg_load )seg 5", r"seg 5 \1\2seg 4")],
        "S2",
        "order",
    ),
    "ends in loops of different counts": (SOFTMAX, "MNILU", [(r"in %\d+ reg", "in 3 reg")], "S3", "different loops"),
    "credits that come too late": (
        LINEAR,
        "MNILU",
        [(r'( *dataflow\.release "c_b0" "full"\n)(.*)(\n      \}\n    \})', r"\2\n\1\3")],
        "S4",
        "deadlock",
    ),
    "the wrong end of a channel": (
        SOFTMAX,
        "MNILU",
        [(r'release "(\w+)" "full"', r'release "\1" "empty"')],
        "S5",
        "not its end",
    ),
    "a transfer before its credit": (
        SOFTMAX,
        "MNILU",
        [(r'( *dataflow\.acquire[^\n]*\n)( *dataflow\.copy[^\n]*\n)', r"\2\1")],
        "S7",
        "without holding",
    ),
    "a shared block without channel": (
        SOFTMAX,
        "",
        [(r'(channel "c_b0" [^\n]*blocks) "b0"', r'\1 ""')],
        "S7",
        "without a channel",
    ),
    "two tenants at one place": (
        SOFTMAX,
        "",
        [(r'(block "t5" address )(\d+)(.*?block "t2" address )\d+', r"\1\2\3\2")],
        "S9",
        "share LX bytes",
    ),
    "a read of nothing": (SOFTMAX, "L1SU", [(r'lx "t6"', 'lx "t5"')], "S11", "nothing writes"),
    "a block outside LX": (SOFTMAX, "", [(r'(block "t2" address) \d+', r"\1 2097152")], "S12", "in LX"),
    "a block off its stick": (SOFTMAX, "", [(r'(block "t2" address) \d+', r"\1 23570")], "S12", "whole sticks"),
    "a store to an input": (SOFTMAX, "MNISU", [(r'copy "y"', 'copy "x"')], "S12", "read only"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_each_kind_of_break_is_found(name: str) -> None:
    text, unit, edits, code, message = BREAKS[name]
    found = check(broken(text, *edits, unit=unit).module)
    assert any(v.check == code and message in v.message for v in found), found


def softmax_args(rows: int) -> dict[str, object]:
    return {"x": pad_rows(data((rows, 100)), 64), "y": np.zeros((rows, 128), np.float32), "n": rows}


def test_no_races_in_generated_programs() -> None:
    for seed in range(3):
        assert build(SOFTMAX).check_races(seed=seed, **softmax_args(70)) == []
    index = np.arange(20, dtype=np.int32)
    args = {"i": index, "t": pad_rows(data((50, 100)), 64), "y": np.zeros((20, 128), np.float32), "n": 20}
    assert build(PROGRAMS["computed"]).check_races(**args) == []
    assert build(PROGRAMS["in_place"]).check_races(x=data((10, 64)), n=10) == []


def test_a_transfer_that_does_not_wait_is_a_race() -> None:
    swap = (r"( *dataflow\.acquire[^\n]*\n)( *dataflow\.copy[^\n]*\n)", r"\2\1")
    races = broken(SOFTMAX, swap, unit="MNILU").check_races(**softmax_args(200))
    assert any(r.kind == "lx" and "no channel orders them" in r.message for r in races)


def test_one_buffer_under_two_credits_is_a_race() -> None:
    c = broken(SOFTMAX, (r'(block "b0" address \d+ bytes \d+ phases) 2', r"\1 1"))
    assert any(r.kind == "lx" for r in c.check_races(**softmax_args(200)))


def test_reading_what_was_never_written_is_reported() -> None:
    c = broken(SOFTMAX, (r" zero_fill", ""), (r"dims \[\[8, 0, %\d+", "dims [[8, 0, 4"), unit="MNILU")
    assert any(r.kind == "uninitialised" for r in c.check_races(**softmax_args(32)))


def test_two_cores_that_write_the_same_bytes_are_reported() -> None:
    c = broken(SOFTMAX, (r'slot "core" "s1 \+ core \* [^"]*"', 'slot "core" "s1 + core"'))
    assert any(r.kind == "ddr" for r in c.check_races(**softmax_args(64)))


def test_deadlock_names_every_waiting_unit() -> None:
    c = broken(LINEAR, *BREAKS["credits that come too late"][2], unit="MNILU")
    args = {"x": np.zeros((200, 128)), "w": np.zeros((2, 128, 64)), "bias": np.zeros(128), "y": np.zeros((200, 128))}
    with pytest.raises(DataflowError, match="deadlock on core 0: .*MNILU waits for empty of c_b"):
        c.run(engine="dataflow", m=200, **args)


def test_results_do_not_depend_on_the_interleaving() -> None:
    c = build(PROGRAMS["layernorm"])
    args = {"x": pad_rows(data((40, 100)), 64), "g": pad_rows(data((100,), 1), 64), "c": pad_rows(data((100,), 2), 64)}
    runs = [c.run(engine="dataflow", seed=s, y=np.zeros((40, 128), np.float32), n=40, **args)["y"] for s in range(5)]
    for other in runs[1:]:
        np.testing.assert_array_equal(other, runs[0])


def test_cores_that_write_the_same_bytes_break_s8() -> None:
    """The address of the second core is moved onto the rows of the first one; the check sees it without data."""
    edit = (r'slot "core" "s1 \+ core \* [^"]*"', 'slot "core" "s1 + core * 128"')
    found = check(broken(SOFTMAX, edit).module)
    assert [v.check for v in found] == ["S8"]
    assert "core 0 writes and core 1 writes byte 128 of 'y'" in found[0].message and "n = 65" in found[0].message


@pytest.mark.parametrize(
    ("place", "codes"),
    [
        ("core * {rows} + 128", []),  # the right halves of its own rows: nobody loads them
        ("(1 - core) * {rows} + 128", []),  # the right halves of the other core's rows
        ("(1 - core) * {rows}", ["S8"]),  # the left halves, which the other core loads
    ],
)
def test_a_core_that_reads_what_another_one_writes_breaks_s8(place: str, codes: list[str]) -> None:
    """The left halves of the rows of x are loaded; the results are stored back into x."""
    source = build(kernels.columns_out(64, 0, 128, 64, 128, 4)).dataflow_ir
    rows = re.search(r'"s1 \+ core \* (.*) \+ 128"', source)
    assert rows is not None
    edited = source.replace(rows[0], '"s0 + ' + place.format(rows=rows[1]) + '"')
    edited = edited.replace(
        '"x" kind "BUFFER" elem "DF16" access "READ"', '"x" kind "BUFFER" elem "DF16" access "BOTH"'
    )
    found = check(scheduler.parse_module(edited.replace('copy "y"', 'copy "x"')))
    assert [v.check for v in found] == codes, found


def test_iterations_that_overtake_each_other_break_s10() -> None:
    """Without the channel that orders the two passes over a buffer, the second may load what the first has not
    stored yet."""
    text = PROGRAMS["in_place"]
    source = build(text).dataflow_ir
    assert "order_" in source
    unordered = re.sub(r'\n[^\n]*"order_[^\n]*', "", source)
    found = check(scheduler.parse_module(unordered))
    assert [v.check for v in found] == ["S10"]
    assert "of 'x' and nothing orders them" in found[0].message
