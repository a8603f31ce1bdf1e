"""Settings for every test: no wall-clock limits on generated examples, and few threads per worker.

Machines of a test run differ in speed and run several workers at once; a test must not fail for that.
"""

import os

# Before torch is imported anywhere: idle OpenMP threads that spin would slow the other workers.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch  # noqa: F401  # a worker's warnings of the device name its classes, which only load after torch
from hypothesis import HealthCheck, settings

settings.register_profile("loom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loom")
