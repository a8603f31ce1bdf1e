"""``torch.spyre``: the surface users of ``torch.cuda`` expect of an accelerator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from torch_loom import _device
from torch_loom.device import memory, settings
from torch_loom.device.arguments import expect, expect_tensor
from torch_loom.device.layouts import (
    DataFormats,
    ElementArrangement,
    SpyreTensorLayout,
    as_strided_with_layout,
    copy_tensor,
    device_tensor_layout,
    empty_with_layout,
    encode_constant,
    get_device_dtype,
    get_elem_in_stick,
    get_spyre_tensor_layout,
    reinterpret_tensor,
    reinterpret_tensor_with_layout,
    set_spyre_tensor_layout,
    to_layout,
)
from torch_loom.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_loom.device.rng import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_loom.device.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "DataFormats",
    "ElementArrangement",
    "Event",
    "FallbackWarning",
    "JobPlan",
    "SpyreTensorLayout",
    "Stream",
    "as_strided_with_layout",
    "copy_tensor",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "device_tensor_layout",
    "empty_cache",
    "empty_with_layout",
    "encode_constant",
    "fallbacks",
    "free_runtime",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_dtype",
    "get_device_name",
    "get_device_properties",
    "get_downcast_warning",
    "get_elem_in_stick",
    "get_rng_state",
    "get_rng_state_all",
    "get_spyre_tensor_layout",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "launch_jobplan",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "prepare_kernel",
    "reinterpret_tensor",
    "reinterpret_tensor_with_layout",
    "reset_accumulated_memory_stats",
    "reset_fallbacks",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_downcast_warning",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_spyre_tensor_layout",
    "set_stream",
    "start_runtime",
    "stream",
    "synchronize",
    "to_layout",
]


class FallbackWarning(UserWarning):
    """An operator without a device kernel ran on the CPU."""


@dataclass(frozen=True)
class DeviceProperties:
    """What ``get_device_properties`` tells of a card."""

    name: str
    type: str
    index: int
    multi_processor_count: int
    """Cores."""
    corelets: int
    """Per core."""
    lx_bytes: int
    """Scratchpad per core."""
    stick_bytes: int
    total_memory: int
    """Device memory usable for tensors and programs, bytes."""
    clock_hz: float
    major: int = 1
    minor: int = 0
    warp_size: int = 64


def _index(device: Any = None, optional: bool = True) -> int:
    """Card number of an int, string or ``torch.device``; None means the current card."""
    if device is None:
        if not optional:
            raise ValueError("a device is required")
        return current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        index: int | None = device
    elif not isinstance(device, (str, torch.device)):
        raise TypeError(f"a device is a number, a string or a torch.device, got {type(device).__name__}")
    else:
        parsed = torch.device(device)
        if parsed.type != "spyre":
            raise ValueError(f"expected a spyre device, got {parsed}")
        index = parsed.index
    if index is None or index == -1:
        return current_device()
    if not 0 <= index < device_count():
        raise RuntimeError(f"spyre device {index} does not exist: {device_count()} visible (TORCH_LOOM_CARDS)")
    return index


# ---- device ----


def is_available() -> bool:
    """True when at least one card is visible and this process may use it."""
    return not _device.in_bad_fork() and device_count() > 0


def is_initialized() -> bool:
    """True once a card has been used."""
    return _device.started()


def init() -> None:
    """Start the current card now instead of at its first use."""
    _device.start(current_device())


def _lazy_init() -> None:
    init()


def start_runtime() -> None:
    """Start the runtime of the current card."""
    init()


def free_runtime() -> None:
    """Stop the runtime; every tensor on the device must be gone."""
    _device.stop()


def _is_compiled() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return _device.in_bad_fork()


def device_count() -> int:
    """Number of simulated cards (``TORCH_LOOM_CARDS``, 1 unless set)."""
    return _device.device_count()


def current_device() -> int:
    """Card of the calling thread."""
    return _device.current_device()


def set_device(device: Any) -> None:
    """Make a card the current one of the calling thread; a negative number does nothing."""
    if isinstance(device, int) and device < 0:
        return
    _device.set_device(_index(device))


def _exchange_device(device: int) -> int:
    before = current_device()
    if device >= 0:
        _device.set_device(device)
    return before


_maybe_exchange_device = _exchange_device


class device:
    """Context manager that makes a card current; None or a negative number does nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the card of a tensor current; does nothing for other devices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        expect_tensor("device_of", tensor)
        super().__init__(tensor.device.index if tensor.device.type == "spyre" else -1)


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Properties of a card, from the chip description."""
    from torch_loom import arch

    chip = arch.load("spyre")
    return DeviceProperties(
        name=get_device_name(device),
        type="spyre",
        index=_index(device),
        multi_processor_count=chip.cores,
        corelets=chip.corelets,
        lx_bytes=chip.lx_bytes,
        stick_bytes=chip.stick_bytes,
        total_memory=_device.capacity(),
        clock_hz=chip.clock_hz,
    )


def get_device_name(device: Any = None) -> str:
    """Name of a card."""
    _index(device)
    return "Spyre (simulated by torch-loom)"


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Generation of the modelled chip."""
    _index(device)
    return (1, 0)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes of ``torch.autocast('spyre')``."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 tensors live on the device as df16."""
    return True


# ---- programs ----

JobPlan = _device.Plan


def prepare_kernel(program: Any, name: str = "") -> Any:
    """Load a program (a SpyreCode directory or the bytes of an image) to the current card; returns its plan."""
    kinds = (str, bytes, os.PathLike)
    return _device.prepare(expect("prepare_kernel", program, kinds, "a directory or the bytes of an image"), name)


def launch_jobplan(plan: Any, args: Sequence[Any]) -> None:
    """Queue a launch of a plan with tensors and numbers in the program's order."""
    expect("launch_jobplan", plan, JobPlan, "a JobPlan").launch(args)


# ---- dtype warning ----


def get_downcast_warning() -> bool:
    """Whether the first int64 tensor that moves to a card warns that it lies there as 32-bit integers."""
    return _device.downcast_warning()


def set_downcast_warning(warn: bool) -> None:
    """Turn that warning on or off (``TORCH_SPYRE_DOWNCAST_WARN``, off unless set: a value that does not fit is
    an error in any case)."""
    _device.set_downcast_warning(expect("set_downcast_warning", warn, bool, "a bool"))


# ---- fallbacks ----


def fallbacks() -> dict[str, int]:
    """Calls per operator that ran on the CPU for want of a device kernel."""
    return _device.fallbacks()


def reset_fallbacks() -> None:
    """Set all fallback counts to zero."""
    _device.reset_fallbacks()


class _Utils:
    """``torch.spyre._utils``: what ``torch.load`` asks of a device module."""

    @staticmethod
    def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
        return _index(device, optional=True)


_utils = _Utils


# ---- torch.compile ----


_initial_device = settings.default_device()
if 0 < _initial_device < device_count():
    _device.set_device(_initial_device)
