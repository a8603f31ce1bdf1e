"""The device interface of Dynamo and Inductor. Importing this module registers it, for ``spyre`` and each card."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import (
    DeviceInterface,
    caching_worker_current_devices,
    register_interface_for_device,
)

from torch_loom.device import (
    layout_op,  # noqa: F401  graphs may hold layouts
    module,
    streams,
)


class SpyreInterface(DeviceInterface):
    """All of it works in the process that owns the card; ``Worker`` also in compile workers."""

    device = module.device  # type: ignore[assignment]
    Event = streams.Event  # type: ignore[assignment]
    Stream = streams.Stream  # type: ignore[assignment]

    class Worker:
        @staticmethod
        def set_device(device: int) -> None:
            caching_worker_current_devices["spyre"] = device

        @staticmethod
        def current_device() -> int:
            return caching_worker_current_devices.get("spyre", module.current_device())

        @staticmethod
        def get_device_properties(device: Any = None) -> module.DeviceProperties:
            return module.get_device_properties(device)

    current_device = staticmethod(module.current_device)
    set_device = staticmethod(module.set_device)
    device_count = staticmethod(module.device_count)
    is_available = staticmethod(module.is_available)
    exchange_device = staticmethod(module._exchange_device)
    maybe_exchange_device = staticmethod(module._maybe_exchange_device)
    stream = staticmethod(streams.stream)  # type: ignore[assignment]
    current_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    synchronize = staticmethod(streams.synchronize)
    get_device_properties = staticmethod(module.get_device_properties)  # type: ignore[assignment]
    memory_allocated = staticmethod(module.memory_allocated)
    is_bf16_supported = staticmethod(module.is_bf16_supported)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        module.set_device(device_index)
        streams.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Always 0: compiled code takes the calling thread's current stream at launch."""
        return 0

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ""

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return dtype not in (torch.float64, torch.complex64, torch.complex128, torch.complex32)


register_interface_for_device("spyre", SpyreInterface)
for index in range(module.device_count()):
    register_interface_for_device(f"spyre:{index}", SpyreInterface)
