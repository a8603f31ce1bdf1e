"""Streams and events of the device, thin over ``torch.Stream`` and ``torch.Event``."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_loom import _device
from torch_loom.device.arguments import expect_integer, expect_spyre


def _index(device: Any) -> int:
    from torch_loom.device.module import _index as index

    return index(device)


HIGH_PRIORITY = range(33, 65)
"""Numbers of the streams of the high-priority pool."""


class Stream(torch.Stream):
    """A queue of device work. Any non-zero priority takes a stream of the high-priority pool."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(
            cls,
            device=torch.device("spyre", _index(device)),
            priority=-1 if expect_integer("Stream", priority) else 0,
        )

    @property
    def priority(self) -> int:
        """-1 for a stream of the high-priority pool, else 0."""
        return -1 if self.stream_id in HIGH_PRIORITY else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Lowest and highest priority."""
        return (0, -1)

    def wait_event(self, event: torch.Event) -> None:
        """Make later work of this stream wait for an event."""
        super().wait_event(expect_spyre("wait_event", event, torch.Event, "a spyre event"))

    def wait_stream(self, stream: torch.Stream) -> None:
        """Make later work of this stream wait for what another one holds now."""
        super().wait_stream(expect_spyre("wait_stream", stream, torch.Stream, "a spyre stream"))

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Mark the end of what the stream holds now, with a new event unless one is given."""
        event = Event() if event is None else expect_spyre("record_event", event, torch.Event, "a spyre event")
        event.record(self)
        return event


class Event(torch.Event):
    """A mark in a stream's order."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise RuntimeError("Spyre backend does not support: events shared between processes")
        device = torch.device("spyre", _device.current_device())
        event = super().__new__(cls, device=device, enable_timing=enable_timing, blocking=blocking)
        event._timing = enable_timing
        return event

    _timing: bool
    """Whether the event was made with ``enable_timing=True``."""

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark the end of what a stream (the current one of the event's card, unless given) holds now."""
        if stream is None:
            return super().record()
        super().record(expect_spyre("record", stream, torch.Stream, "a spyre stream"))

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Make later work of a stream (the current one, unless given) wait for the event."""
        if stream is None:
            return super().wait()
        super().wait(expect_spyre("wait", stream, torch.Stream, "a spyre stream"))

    def elapsed_time(self, other: torch.Event) -> float:
        """Milliseconds of wall time from this event to ``other``. Raises RuntimeError unless both were made with
        ``enable_timing=True``, recorded and passed."""
        return self._elapsed("elapsed_time", other, False)

    def modelled_time(self, other: torch.Event) -> float:
        """Milliseconds of modelled device time between the events; grows while launches are timed. Errors as
        ``elapsed_time``."""
        return self._elapsed("modelled_time", other, True)

    def _elapsed(self, call: str, other: torch.Event, modelled: bool) -> float:
        expect_spyre(call, other, torch.Event, "a spyre event")
        # A plain torch.Event does not tell how it was made.
        if not (self._timing and getattr(other, "_timing", True)):
            raise RuntimeError(f"{call}: both events must be created with argument 'enable_timing=True'")
        # An event belongs to a card from its first record on.
        if None not in (self.device.index, other.device.index) and self.device != other.device:
            raise RuntimeError(f"{call}: the events belong to different cards, {self.device} and {other.device}")
        return _device.event_elapsed(self.event_id, other.event_id, modelled)


def current_stream(device: Any = None) -> Stream:
    """Stream that the calling thread submits to on a card."""
    index = _index(device)
    return Stream(stream_id=_device.current_stream(index), device_index=index, device_type=_DEVICE_TYPE)


def default_stream(device: Any = None) -> Stream:
    """Stream 0 of a card."""
    return Stream(stream_id=0, device_index=_index(device), device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream) -> None:
    """Make a stream the current one of its card, for the calling thread."""
    expect_spyre("set_stream", stream, torch.Stream, "a spyre stream")
    _device.set_stream(stream.device_index, stream.stream_id)


class StreamContext:
    """Makes a stream and its card current; None does nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        if stream is not None:
            expect_spyre("stream", stream, torch.Stream, "a spyre stream or None")
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._device = _device.current_device()
        self._stream = _device.current_stream(self.stream.device_index)
        _device.set_device(self.stream.device_index)
        set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is None:
            return
        _device.set_stream(self.stream.device_index, self._stream)
        _device.set_device(self._device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager: work of this thread goes to ``stream``."""
    return StreamContext(stream)


def synchronize(device: Any = None) -> None:
    """Wait for all streams of a card; raises the error of a launch that failed since the last time."""
    if _device.started() or _device.in_bad_fork():
        _device.synchronize(_index(device))


_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1.value)
