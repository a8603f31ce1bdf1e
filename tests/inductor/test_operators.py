"""The page of operators says what is true: every operator of PyTorch is on it, and it gives what the page says."""

import json

import pytest
from sweep import PAGE, RECORD, Worker, jobs, page

EVERY = 60  # operators from one that runs here to the next; the sweep runs all


def record():
    return json.loads(RECORD.read_text())


def key(name, variant):
    return f"{name}.{variant}" if variant else name


def test_the_page_is_the_record():
    assert PAGE.read_text() == page(record())


@pytest.mark.parametrize("dtype", list(record()))
def test_every_operator_is_listed_and_no_other(dtype):
    assert set(record()[dtype]["operators"]) == {key(*job) for job in jobs(dtype, "")}


@pytest.mark.parametrize("dtype", list(record()))
def test_operators_give_what_the_page_says(dtype):
    worker, run, differ = Worker(), record()[dtype], {}
    rows = run["operators"]
    tried = [job for job in jobs(dtype, "") if rows[key(*job)][0] != "untried"]
    for name, variant in tried[::EVERY]:
        status, reason, _ = worker.run(name, variant, dtype, run["samples"])
        if status != rows[key(name, variant)][0]:
            differ[key(name, variant)] = (rows[key(name, variant)][0], status, reason)
    worker.close()
    assert differ == {}, "run tests/inductor/sweep.py and record it"
