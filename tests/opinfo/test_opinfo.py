"""The page of operators says what is true: every operator of PyTorch is on it, and it gives what the page says."""

import pytest
from opinfo_record import PAGE, differences, jobs, key, load, page, spread
from opinfo_workers import Worker

EVERY = 60  # operators from one that runs here to the next; `make test-opinfo` runs all


def test_the_page_is_the_record():
    assert PAGE.read_text() == page(load())


@pytest.mark.parametrize("section", list(load()))
def test_every_operator_is_listed_and_no_other(section):
    dtype = section.split()[1]
    assert set(load()[section]) == {key(*job) for job in jobs(dtype)}


@pytest.mark.parametrize("section", [s for s in load() if not s.endswith("backward")])
def test_operators_give_what_the_page_says(section):
    mode, dtype = section.split()
    record = load()
    listed = record[section]
    tried = [job for job in jobs(dtype) if listed[key(*job)][0] != "untried"]
    worker = Worker()
    rows = {key(*job): worker.run(*job, dtype, listed[key(*job)][3], mode) for job in tried[::EVERY]}
    worker.close()
    found = [line for part, r in spread(mode, dtype, rows).items() for line in differences(record, part, r)]
    assert found == [], "run tests/opinfo/sweep.py and record it"
