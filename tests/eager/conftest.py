"""Eager tests share one cache of programs per run, apart from the user's; each test starts with fresh counts.

``LOOM_TEST_CACHE`` names a folder that outlives the run, for long runs in parts."""

import os

import pytest
import torch

import torch_loom  # noqa: F401  registers the device where the entry point is not installed


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    before = os.environ.get("TORCH_LOOM_CACHE_DIR")
    os.environ["TORCH_LOOM_CACHE_DIR"] = os.environ.get("LOOM_TEST_CACHE") or str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["TORCH_LOOM_CACHE_DIR"]
    else:
        os.environ["TORCH_LOOM_CACHE_DIR"] = before


@pytest.fixture(autouse=True)
def strict_mode():
    with torch.spyre.use_eager_mode("strict"):
        torch.spyre.reset_fallbacks()
        yield
    torch.spyre.synchronize()
