"""Processes that die while they compile or launch."""

import killed


def test_caches_stay_usable_and_clean(tmp_path):
    counts = killed.kill_and_recover(tmp_path, kills=2, seed=1, compile_seconds=1.0)
    assert sum(counts[f"killed in {phase}"] for phase in ("compile", "launch")) == 2
