"""Builds the two native modules: ``_chip`` (engine and clock, no torch) and ``_device`` (PrivateUse1).

``LOOM_EXT=chip`` or ``LOOM_EXT=device`` builds one of them, ``none`` leaves them to a later step (an
editable install compiles from scratch each time, ``build_ext --inplace`` does not); ``LOOM_MARCH``
overrides the instruction set.
"""

import os
import platform
from pathlib import Path

from setuptools import setup

# The backend that is being built would load itself here, without its native modules.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent


def sources(*folders: str) -> list[str]:
    """C++ files of the given folders, relative to the root, in a stable order."""
    return sorted(str(p.relative_to(ROOT)) for f in folders for p in (ROOT / "csrc" / f).glob("*.cpp"))


def march() -> list[str]:
    """AVX2 code where this machine can run it, baseline code elsewhere."""
    chosen = os.environ.get("LOOM_MARCH")
    if chosen:
        return [f"-march={chosen}"]
    if platform.machine() != "x86_64":
        return []
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    return ["-march=x86-64-v3"] if {"avx2", "fma", "bmi2"} <= set(flags) else []


FLAGS = ["-std=c++20", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter", *march()]
# Reassociation-safe speed-ups only: no -ffast-math, NaN and infinity keep their meaning.
CHIP_FLAGS = [*FLAGS, "-fno-math-errno", "-fno-trapping-math"]

EXTENSIONS = {
    "chip": CppExtension(
        "torch_loom._chip",
        sources("chip") + ["csrc/bindings/chip_module.cpp"],
        include_dirs=[str(ROOT / "csrc")],
        extra_compile_args=CHIP_FLAGS,
    ),
    "device": CppExtension(
        "torch_loom._device",
        sources("chip", "runtime", "torch_device"),
        include_dirs=[str(ROOT / "csrc")],
        extra_compile_args=CHIP_FLAGS,
    ),
}

CHOICES = {"all": list(EXTENSIONS.values()), "none": [], **{name: [ext] for name, ext in EXTENSIONS.items()}}
setup(
    ext_modules=CHOICES[os.environ.get("LOOM_EXT") or "all"],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
)
