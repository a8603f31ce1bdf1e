"""Wrong arguments of ``torch.spyre``: one sentence that names the call and what was passed."""

import pytest
import torch

from torch_loom.layout import SpyreTensorLayout

LAYOUT = SpyreTensorLayout((3,), torch.float32)


def recorded(**options) -> torch.spyre.Event:
    event = torch.spyre.Event(**options)
    event.record()
    event.synchronize()
    return event


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, e, t: e.elapsed_time(None), TypeError, "elapsed_time takes a spyre event, got NoneType"),
        (lambda s, e, t: e.modelled_time(3), TypeError, "modelled_time takes a spyre event, got int"),
        (lambda s, e, t: e.elapsed_time(recorded()), RuntimeError, "both events .* 'enable_timing=True'"),
        (lambda s, e, t: recorded().elapsed_time(e), RuntimeError, "both events .* 'enable_timing=True'"),
        (lambda s, e, t: e.elapsed_time(torch.spyre.Event(enable_timing=True)), RuntimeError, "two recorded events"),
        (lambda s, e, t: e.wait(3), TypeError, "wait takes a spyre stream, got int"),
        (lambda s, e, t: e.record("x"), TypeError, "record takes a spyre stream, got str"),
        (lambda s, e, t: s.wait_event(None), TypeError, "wait_event takes a spyre event, got NoneType"),
        (lambda s, e, t: s.wait_event(torch.Event("cpu")), ValueError, "wait_event takes a spyre event, .* of cpu"),
        (lambda s, e, t: s.wait_stream(None), TypeError, "wait_stream takes a spyre stream, got NoneType"),
        (lambda s, e, t: s.record_event(3), TypeError, "record_event takes a spyre event, got int"),
        (lambda s, e, t: torch.spyre.set_stream(None), TypeError, "set_stream takes a spyre stream, got NoneType"),
        (lambda s, e, t: torch.spyre.stream(3), TypeError, "stream takes a spyre stream or None, got int"),
        (lambda s, e, t: torch.spyre.synchronize(1.5), TypeError, "a device is a number, .* got float"),
        (lambda s, e, t: torch.spyre.memory_allocated([]), TypeError, "a device is a number, .* got list"),
        (lambda s, e, t: torch.spyre.device_of(3), TypeError, "device_of takes a tensor, got int"),
        (lambda s, e, t: torch.spyre.set_per_process_memory_fraction("a"), TypeError, "a number from 0 to 1, got str"),
        (lambda s, e, t: torch.spyre.manual_seed(1.5), TypeError, "manual_seed takes a whole number, got float"),
        (lambda s, e, t: torch.spyre.manual_seed_all(None), TypeError, "manual_seed_all takes a whole number"),
        (lambda s, e, t: torch.spyre.manual_seed(2**70), ValueError, "manual_seed takes a number from .*, got 11805"),
        (lambda s, e, t: torch.spyre.manual_seed_all(-(2**64)), ValueError, "manual_seed_all takes a number from"),
        (lambda s, e, t: torch.spyre.set_rng_state_all(3), TypeError, "set_rng_state_all takes one state .*, got int"),
        (lambda s, e, t: torch.spyre.set_rng_state_all([]), ValueError, "one state for each of 1 cards, got 0"),
        (lambda s, e, t: torch.spyre.set_rng_state_all([1]), TypeError, "set_rng_state_all takes a tensor, got int"),
        (lambda s, e, t: torch.spyre.prepare_kernel(9), TypeError, "prepare_kernel takes a directory .*, got int"),
        (lambda s, e, t: torch.spyre.Stream(priority="x"), TypeError, "Stream takes a whole number, got str"),
        (lambda s, e, t: torch.spyre.set_rng_state(None), TypeError, "set_rng_state takes a tensor, got NoneType"),
        (lambda s, e, t: torch.spyre.launch_jobplan(None, []), TypeError, "launch_jobplan takes a JobPlan"),
        (lambda s, e, t: torch.spyre.set_downcast_warning("x"), TypeError, "takes a bool, got str"),
        (lambda s, e, t: torch.spyre.empty_with_layout((3,), None), TypeError, "takes a SpyreTensorLayout, got None"),
        (lambda s, e, t: torch.spyre.to_layout(t.cpu(), None), TypeError, "to_layout takes a SpyreTensorLayout"),
        (lambda s, e, t: torch.spyre.set_spyre_tensor_layout(t, 3), TypeError, "takes a SpyreTensorLayout, got int"),
        (lambda s, e, t: torch.spyre.set_spyre_tensor_layout(3, LAYOUT), TypeError, "takes a tensor, got int"),
        (lambda s, e, t: torch.spyre.device_tensor_layout(3), TypeError, "takes a tensor, got int"),
        (lambda s, e, t: torch.spyre.copy_tensor(t, None), TypeError, "copy_tensor takes a tensor, got NoneType"),
        (
            lambda s, e, t: torch.spyre.reinterpret_tensor_with_layout(t, (1,), (1,), 2**63 - 1, LAYOUT),
            (RuntimeError, ValueError),
            "overflow|beyond every storage|too large|layout",
        ),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.spyre.Stream(), recorded(enable_timing=True), torch.ones(3, device="spyre"))
    assert torch.ones(3, device="spyre").tolist() == [1, 1, 1]


def test_events_take_and_give_themselves():
    stream, event = torch.spyre.Stream(), torch.spyre.Event(enable_timing=True)
    assert stream.record_event(event) is event
    later = torch.spyre.Event(enable_timing=True)
    later.record(stream)
    later.wait()
    stream.wait_stream(torch.spyre.current_stream())
    later.synchronize()
    assert event.elapsed_time(later) >= 0
    assert stream.record_event().query() in (True, False)


@pytest.mark.parametrize("size", [(2**62, 2**62), (2**56, 2), (2**63,)])
def test_layouts_beyond_63_bits_are_refused(size):
    with pytest.raises(ValueError, match="must fit 63 bits"):
        SpyreTensorLayout(size, torch.float16)
    with pytest.raises(ValueError, match="must fit 63 bits"):
        SpyreTensorLayout([2, 64], [2**63, 1], torch.spyre.DataFormats.SEN169_FP16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2**56, 2, dtype=torch.float16, device="spyre"),
        lambda: torch.empty(2**62, 2**62, dtype=torch.float16, device="spyre"),
        lambda: torch.empty_strided((2, 2), (2**62, 2**61), device="spyre"),
        lambda: torch.ones(3, device="spyre").resize_(2**61),
        lambda: torch.ones(3, device="spyre").untyped_storage().resize_(2**62),
        lambda: torch.ones(3, device="spyre").as_strided((2,), (2**62,)),
        lambda: torch.ones(3, device="spyre").expand(2**40, 3).contiguous(),
    ],
)
def test_sizes_beyond_63_bits_are_refused(make):
    with pytest.raises((torch.OutOfMemoryError, RuntimeError), match="overflow|out of memory"):
        make()
    assert torch.ones(3, device="spyre").tolist() == [1, 1, 1]


def test_negative_device_sizes_are_refused():
    from torch_loom import _device

    with pytest.raises(ValueError, match="negative entry: -1"):
        _device.empty_with_layout([3], [1], torch.float16, 0, [-1, 64], [64, 1])
