"""``torch.spyre`` and what PyTorch's own machinery asks of a device."""

import copy
import gc
import io
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_loom import _device


def run(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True)


# ---- registration ----


def test_importing_starts_nothing_and_leaves_dynamo_alone():
    done = run(
        "import sys, torch, torch_loom.device\n"
        "torch_loom.device._autoload(); torch_loom.device._autoload()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "assert not torch.spyre.is_initialized() and torch.spyre.is_available()\n"
        "torch.zeros(3) + 1\n"
        "assert not torch.spyre.is_initialized()\n"
        "torch.zeros(3, device='spyre')\n"
        "assert torch.spyre.is_initialized()\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["module", "dynamo", "memory"])
def test_any_module_of_the_device_may_be_imported_first(name):
    done = run(f"import torch_loom.device.{name}\nimport torch\ntorch.ones(1, device='cpu')\n")
    assert done.returncode == 0, done.stderr


def test_dynamo_knows_the_device_once_it_is_imported():
    from torch._dynamo.device_interface import get_interface_for_device

    for name in ("spyre", "spyre:0"):
        interface = get_interface_for_device(name)
        assert interface.device_count() == 1 and interface.get_raw_stream(0) == 0
        assert interface.get_device_properties(0).multi_processor_count == 32
        assert not interface.is_dtype_supported(torch.float64)


def test_the_conformance_suite_skips_without_an_accelerator():
    folder = Path(__file__).parent / "conformance"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-c", os.devnull, f"--rootdir={folder}", f"--confcutdir={folder}"]
        + ["-p", "no:cacheprovider", str(folder)],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ skipped in", done.stdout, re.M) and re.search(
        "knows no accelerator here|has no device here", done.stdout
    )
    sources = "".join(file.read_text() for file in folder.glob("*.py"))
    imported = set(re.findall(r"^(?:import|from) (\w+)", sources, re.M))
    assert imported == {"copy", "gc", "io", "pickle", "pytest", "torch"}


def test_names_and_generated_methods():
    x = torch.ones(2)
    assert x.spyre().is_spyre and not x.is_spyre
    assert torch.nn.Linear(2, 2).spyre().weight.is_spyre
    assert str(x.to("spyre").device) == "spyre:0"
    assert torch.device("spyre").type == "spyre"


def test_accelerator_api():
    accelerator = torch.accelerator
    assert accelerator.current_accelerator().type == "spyre" and accelerator.is_available()
    assert accelerator.device_count() == 1 and accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    accelerator.synchronize()
    before = accelerator.memory_allocated()
    x = torch.empty(1000, dtype=torch.float16, device="spyre")
    assert accelerator.memory_allocated() - before == 2048
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert accelerator.current_stream().device == x.device


def test_devices():
    assert torch.spyre.device_count() == 1 and torch.spyre.current_device() == 0
    torch.spyre.set_device(0)
    torch.spyre.set_device("spyre:0")
    with (
        torch.spyre.device(0),
        torch.spyre.device_of(torch.empty(1, device="spyre")),
        torch.spyre.device(None),
    ):
        assert torch.spyre.current_device() == 0
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.empty(1, device="spyre:3")
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.spyre.set_device(3)
    properties = torch.spyre.get_device_properties()
    assert properties.multi_processor_count == 32 and properties.lx_bytes == 2 << 20
    assert properties.total_memory == 112 << 30
    assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


def test_several_cards():
    done = run(
        "import torch, torch_loom\n"
        "assert torch.spyre.device_count() == 3\n"
        "x = torch.arange(5.0, device='spyre:2'); y = x.to('spyre:1')\n"
        "assert y.device.index == 1 and y.tolist() == [0, 1, 2, 3, 4]\n"
        "with torch.spyre.device(1):\n"
        "    assert torch.empty(1, device='spyre').device.index == 1\n"
        "torch.spyre.manual_seed_all(5)\n"
        "assert torch.equal(torch.rand(3, device='spyre:0').cpu(), torch.rand(3, device='spyre:2').cpu())\n"
        "one = torch.rand(3, device='spyre:0').cpu()  # each card has a generator of its own\n"
        "assert torch.equal(torch.rand(3, device='spyre:2').cpu(), one)\n"
        "place = torch.tensor([1], device='spyre:1')\n"
        "for work in (lambda: x + y, lambda: x.normal_(generator=torch.Generator('spyre:1')), lambda: x[place],\n"
        "             lambda: torch.add(x, 1, out=y), lambda: x.record_stream(torch.spyre.Stream('spyre:1'))):\n"
        "    try:\n        work()\n    except RuntimeError as e:\n        print(e)\n",
        TORCH_LOOM_CARDS="3",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Expected all tensors to be on the same device, but aten::add.Tensor got tensors on spyre:2 and spyre:1",
        "Expected a 'spyre:2' generator device but found 'spyre:1'",
        "indices should be either on cpu or on the same device as the indexed tensor (spyre:2), not on spyre:1",
        "Expected all tensors to be on the same device, but the result is to go to spyre:1 and an argument is on "
        "spyre:2",
        "record_stream: the stream is of spyre:1, the tensor is on spyre:2",
    ]
    assert "FallbackWarning" not in done.stderr  # nothing ran on the CPU


def test_bad_environment_is_named():
    done = run("import torch, torch_loom; torch.ones(1, device='spyre')", TORCH_LOOM_CARDS="many")
    assert done.returncode != 0 and "TORCH_LOOM_CARDS must be a whole number" in done.stderr


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({"SPYRE_DEVICES": "0,2,5"}, 3),
        ({"SPYRE_DEVICES": "1", "TORCH_LOOM_CARDS": "4"}, 1),
        ({"AIU_WORLD_SIZE": "2"}, 2),
        ({"AIU_WORLD_SIZE": "2", "TORCH_LOOM_CARDS": "3"}, 3),
        ({"SPYRE_DEVICES": "", "TORCH_LOOM_CARDS": "2"}, 2),
    ],
)
def test_visible_cards_from_the_public_variables(env, count):
    done = run("import torch, torch_loom; print(torch.spyre.device_count())", **env)
    assert done.returncode == 0 and done.stdout.strip() == str(count), done.stderr


@pytest.mark.parametrize("text", ["0,0", "a", "1,", ",1", "-1", "4", "0 1", "0;1"])
def test_bad_card_lists_are_named(text):
    done = run("import torch, torch_loom; torch.ones(1, device='spyre')", SPYRE_DEVICES=text, TORCH_LOOM_CARDS="4")
    assert done.returncode != 0
    assert (
        f"SPYRE_DEVICES must list different card numbers from 0 to 3, separated by commas, got '{text}'" in done.stderr
    )


def test_forked_child_gets_a_clear_error():
    done = run(
        "import os, torch, torch_loom\n"
        "x = torch.ones(3, device='spyre')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    assert torch.spyre._is_in_bad_fork()\n"
        "    try:\n        torch.ones(3, device='spyre')\n"
        "    except RuntimeError as e:\n        assert 'spawn' in str(e); os._exit(7)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "assert x.sum().item() == 3\n"
    )
    assert done.returncode == 0, done.stderr


def test_fork_before_first_use_works_in_the_child():
    done = run(
        "import os, torch, torch_loom\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(int(torch.ones(3, device='spyre').sum().item()))\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3\n"
    )
    assert done.returncode == 0, done.stderr


# ---- tokens ----


def test_data_ptr_is_a_unique_opaque_token():
    tensors = [torch.empty(n, dtype=d, device="spyre") for n in (1, 64, 1000) for d in (torch.int64, torch.bool)]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert all(t.data_ptr() != _device.layout(t)["address"] for t in tensors)
    assert torch.empty(0, device="spyre").data_ptr() == 0
    x = torch.empty(10, device="spyre")
    assert x[3:].data_ptr() - x.data_ptr() == 12


def test_the_token_cannot_be_dereferenced():
    done = run(
        "import ctypes, torch, torch_loom\n"
        "x = torch.ones(64, device='spyre'); x.cpu()\n"
        "ctypes.string_at(x.data_ptr(), 1)\n"
    )
    assert done.returncode == -11


def test_a_dlpack_capsule_stays_on_the_device():
    x = torch.arange(6.0, device="spyre").reshape(2, 3)
    shared = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert shared.device == x.device and torch.equal(shared.cpu(), x.cpu())
    shared.add_(1)
    shared.record_stream(torch.spyre.Stream())
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    del x
    assert (shared * 2).tolist() == [[2, 4, 6], [8, 10, 12]]


def test_numpy_and_dlpack_refuse_device_memory():
    x = torch.ones(3, device="spyre")
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()
    with pytest.raises((BufferError, RuntimeError, ValueError)):
        torch.from_dlpack(x.__dlpack__(dl_device=(1, 0), copy=False))
    with pytest.raises(ValueError, match="spyre for Dlpack"):
        torch.from_dlpack(x)
    host = torch.from_dlpack(x.__dlpack__(dl_device=(1, 0)))
    x.zero_()
    assert host.device.type == "cpu" and host.tolist() == [1, 1, 1]


# ---- modules, copies, files ----


def test_modules_move_and_convert():
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.LayerNorm(20), torch.nn.Linear(20, 5))
    x = torch.randn(3, 10)
    expected = copy.deepcopy(model).half()(x.half())
    moved = copy.deepcopy(model).half().to("spyre")
    with torch.no_grad():
        torch.testing.assert_close(moved(x.half().to("spyre")).cpu(), expected, atol=0.02, rtol=0.02)
    with torch.inference_mode():
        assert moved(x.half().to("spyre")).is_inference()
    clone = copy.deepcopy(moved)
    assert clone[0].weight.data_ptr() != moved[0].weight.data_ptr()
    assert torch.equal(clone[0].weight.cpu(), moved[0].weight.cpu())
    assert _device.layout(clone[0].weight)["device_size"] == _device.layout(moved[0].weight)["device_size"]


@pytest.mark.parametrize("map_location", [None, "cpu", "spyre"])
def test_save_and_load(map_location):
    tensors = {
        "half": torch.randn(5, 70).bfloat16().half().to("spyre"),
        "ints": torch.arange(-5, 100).to("spyre"),
        "flags": (torch.arange(70) % 3 == 0).to("spyre"),
        "transposed": torch.randn(4, 65).to("spyre").t(),
        "none": torch.empty(0, 4, device="spyre"),
    }
    tensors["part"] = tensors["half"][1:3]
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    loaded = torch.load(file, map_location=map_location, weights_only=True)
    for name, tensor in tensors.items():
        assert loaded[name].device.type == (map_location or "spyre")
        assert torch.equal(loaded[name].cpu(), tensor.cpu())
        assert loaded[name].stride() == tensor.stride()
    if map_location != "cpu":
        assert _device.layout(loaded["half"])["format"] == "SEN169_FP16"
        assert loaded["part"].data_ptr() - loaded["half"].data_ptr() == 140
        assert _device.expect(loaded["transposed"], "default")


def test_state_dict_from_a_cpu_file_loads_onto_the_device():
    source, target = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).to("spyre")
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, map_location="spyre"))
    assert torch.equal(target.weight.cpu(), source.weight)


def test_printing_shows_values_and_device():
    x = torch.tensor([1.5, 2.0], device="spyre")
    assert str(x) == "tensor([1.5000, 2.0000], device='spyre:0')"
    assert "device='spyre:0'" in repr(torch.arange(3, device="spyre").half())
    assert f"{torch.tensor(3, device='spyre')}" == "3"


def test_fake_tensors():
    with FakeTensorMode():
        x = torch.empty(2, 3, device="spyre")
        y = torch.empty(3, 4, device="spyre", dtype=torch.float32)
        z = x @ y
        assert z.device.type == "spyre" and z.shape == (2, 4)
        assert x.t().contiguous().stride() == (2, 1)
    assert torch.empty(2, 3, device="meta").shape == (2, 3)


# ---- random numbers ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_seed_gives_the_values_of_the_cpu(dtype):
    fills = [
        lambda t, g: t.normal_(generator=g),
        lambda t, g: t.uniform_(-1, 1, generator=g),
        lambda t, g: t.random_(0, 100, generator=g),
    ]
    for fill in fills:
        host = fill(torch.empty(100, dtype=dtype), torch.Generator().manual_seed(3))
        device = fill(torch.empty(100, dtype=dtype, device="spyre"), torch.Generator("spyre").manual_seed(3))
        assert torch.equal(device.cpu(), host.to("spyre").cpu())


def test_unbounded_draws_keep_step_with_the_cpu():
    for dtype in (torch.int64, torch.int32, torch.int16, torch.float32):
        cpu, device = torch.Generator().manual_seed(3), torch.Generator("spyre").manual_seed(3)
        host = torch.empty(100, dtype=dtype).random_(generator=cpu)
        there = torch.empty(100, dtype=dtype, device="spyre").random_(generator=device).cpu()
        assert torch.equal(there, host & 0x7FFFFFFF if dtype == torch.int64 else host)
        host, there = torch.rand(5, generator=cpu), torch.rand(5, generator=device, device="spyre")
        assert torch.equal(there.cpu(), host)


@pytest.mark.parametrize("bounds", [(2**33,), (0, 2**31 + 1), (-(2**31) - 1, 0), (5, None)])
def test_draws_that_the_device_cannot_hold_are_refused(bounds):
    x = torch.zeros(3, dtype=torch.int64, device="spyre")
    with pytest.raises(RuntimeError, match=r"random_ of torch.int64 in \[.*2\*\*31"):
        x.random_(*bounds)
    assert x.random_(-(2**31), 2**31).shape == (3,) and x.random_(2**31).min() >= 0


def test_generator_state():
    torch.manual_seed(11)
    state = torch.spyre.get_rng_state()
    first = torch.rand(5, device="spyre").cpu()
    torch.spyre.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="spyre").cpu(), first)
    torch.manual_seed(11)
    assert torch.equal(torch.rand(5, device="spyre").cpu(), first)
    assert torch.spyre.initial_seed() == 11
    with torch.random.fork_rng(devices=[0], device_type="spyre"):
        torch.rand(50, device="spyre")
    torch.manual_seed(11)
    assert torch.equal(torch.rand(5, device="spyre").cpu(), first)


def test_copies_of_a_generator_go_on_where_it_stands():
    generator = torch.Generator("spyre").manual_seed(21)
    torch.rand(7, generator=generator, device="spyre")
    copies = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)), generator.clone_state()]
    expected = torch.rand(9, generator=generator, device="spyre").cpu()
    for other in copies:
        assert other.device == generator.device and other.initial_seed() == 21
        assert torch.equal(torch.rand(9, generator=other, device="spyre").cpu(), expected)
    with pytest.raises(RuntimeError, match="no offset but 0, got 4"):
        generator.set_offset(4)


@pytest.mark.parametrize(
    "draw",
    [
        lambda t, g: t.normal_(generator=g),
        lambda t, g: torch.bernoulli(t, generator=g),
        lambda t, g: torch.multinomial(t, 2, generator=g),
        lambda t, g: torch.randperm(5, generator=g, device=t.device),
        lambda t, g: torch.rand(0, generator=g, device=t.device),
    ],
)
def test_generators_of_other_devices_are_refused(draw):
    with pytest.raises(RuntimeError, match="Expected a 'spyre' device type for generator but found 'cpu'"):
        draw(torch.ones(4, device="spyre"), torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'spyre'"):
        draw(torch.ones(4), torch.Generator("spyre"))


def test_random_operators_without_a_generator_follow_the_device_seed():
    x = torch.ones(200, device="spyre")
    torch.spyre.manual_seed(4)
    cpu_state = torch.get_rng_state()
    first = torch.nn.functional.dropout(x, 0.5).cpu()
    assert torch.equal(torch.get_rng_state(), cpu_state)
    second = torch.nn.functional.dropout(x, 0.5).cpu()
    torch.spyre.manual_seed(4)
    assert torch.equal(torch.nn.functional.dropout(x, 0.5).cpu(), first)
    assert not torch.equal(first, second)


# ---- memory ----


def test_statistics_follow_tensors():
    gc.collect()
    torch.spyre.reset_peak_memory_stats()
    before = torch.spyre.memory_allocated()
    x = torch.empty(1000, device="spyre")
    assert torch.spyre.memory_allocated() - before == 4096
    y = torch.empty(1, device="spyre")
    assert torch.spyre.memory_allocated() - before == 4096 + 128
    del x, y
    torch.spyre.synchronize()
    assert torch.spyre.memory_allocated() == before
    assert torch.spyre.max_memory_allocated() >= before + 4224
    assert torch.spyre.memory_stats()["allocation.all.allocated"] >= 2
    free, total = torch.spyre.mem_get_info()
    assert total == 112 << 30 and 0 < free <= total
    torch.spyre.empty_cache()
    assert "allocated_bytes" in torch.spyre.memory_summary()


def test_out_of_memory_is_an_error_with_sizes():
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 128.00 GiB .*capacity 112.00 GiB"):
        torch.empty(1 << 36, dtype=torch.float16, device="spyre")
    assert torch.ones(3, device="spyre").sum().item() == 3


def test_a_huge_tensor_costs_nothing_until_touched():
    x = torch.empty(20 << 30, dtype=torch.float16, device="spyre")
    x[-3:].fill_(2)
    assert x[-3:].tolist() == [2, 2, 2]


def test_memory_fraction_limits_and_names_what_is_held():
    held = torch.empty(1 << 20, device="spyre")
    torch.spyre.set_per_process_memory_fraction(1e-4)  # about 11.5 MiB
    try:
        with pytest.raises(torch.OutOfMemoryError, match="1 x 4.00 MiB"):
            torch.empty(1 << 22, device="spyre")
    finally:
        torch.spyre.set_per_process_memory_fraction(1.0)
    assert held.numel() == 1 << 20


def test_garbage_is_collected_before_giving_up():
    class Cycle:
        pass

    gc.disable()
    try:
        c = Cycle()
        c.me, c.tensor = c, torch.empty(2 << 20, device="spyre")
        del c
        torch.spyre.set_per_process_memory_fraction(1e-4)
        torch.empty(2 << 20, device="spyre")
    finally:
        torch.spyre.set_per_process_memory_fraction(1.0)
        gc.enable()


def test_snapshot_lists_blocks_in_order():
    x = torch.empty(100, device="spyre")
    blocks = torch.spyre.memory_snapshot()
    address = _device.layout(x)["address"]
    assert {"address": address, "size": 512, "state": "active_allocated"} in blocks
    ends = [b["address"] + b["size"] for b in blocks]
    assert all(end <= b["address"] for end, b in zip(ends, blocks[1:], strict=False))


# ---- streams, events, pinned memory ----


def test_streams_and_events():
    low, high = torch.spyre.Stream(), torch.spyre.Stream(priority=-1)
    assert 1 <= low.stream_id <= 32 and 33 <= high.stream_id <= 64
    assert (low.priority, high.priority, torch.spyre.default_stream().priority) == (0, -1, 0)
    assert torch.spyre.Stream.priority_range() == (0, -1)
    assert torch.spyre.current_stream().stream_id == 0 == torch.spyre.default_stream().stream_id
    with torch.spyre.stream(high):
        assert torch.spyre.current_stream() == high == torch.accelerator.current_stream()
        assert torch.spyre.current_stream().priority == -1
        x = torch.ones(10, device="spyre")
        done = torch.spyre.Event(enable_timing=True)
        done.record()
    low.wait_event(done)
    later = torch.spyre.Event(enable_timing=True)
    later.record(low)
    later.synchronize()
    assert done.query() and low.query()
    assert done.elapsed_time(later) >= 0 and done.modelled_time(later) >= 0
    assert x.sum().item() == 10
    with pytest.raises(RuntimeError, match="recorded"):
        torch.spyre.Event(enable_timing=True).elapsed_time(done)


def test_large_pinned_copies_keep_their_order_and_their_memory():
    """Such copies are queued even on an idle stream; here their host memory is let go at once."""
    n = 1 << 20
    back = [torch.empty(n).pin_memory() for _ in range(4)]
    for i, result in enumerate(back):
        there = torch.full((n,), float(i)).pin_memory().to("spyre", non_blocking=True)
        there += 1
        result.copy_(there, non_blocking=True)
    torch.spyre.synchronize()
    assert [(float(t.min()), float(t.max())) for t in back] == [(i + 1, i + 1) for i in range(4)]


def test_pinned_memory():
    x = torch.ones(1000).pin_memory()
    assert x.is_pinned() and not torch.ones(3).is_pinned()
    assert torch.equal(x.to("spyre", non_blocking=True).cpu(), torch.ones(1000))
    loader = torch.utils.data.DataLoader(torch.arange(6.0), batch_size=3, pin_memory=True)
    assert all(batch.is_pinned() for batch in loader)
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(3, device="spyre", pin_memory=True)
