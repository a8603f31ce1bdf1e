"""The clock of ``fake_clock.py`` in place of the native one, for tests that ask for it."""

import pytest

from torch_loom.profiler import subject as room


@pytest.fixture
def fake_clock(monkeypatch):
    import fake_clock as fake

    calls = []
    monkeypatch.setattr(room, "native_chip", lambda: fake.native(calls))
    fake.calls = calls
    return fake
