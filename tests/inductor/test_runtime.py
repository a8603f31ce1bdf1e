"""The kernel cache, sharing of kernels, and launches with sizes that change."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import check, half

from torch_loom.inductor import runtime, workers
from torch_loom.ktir import KtirError
from torch_loom.ktir.builder import KernelBuilder

PROGRAM = """
import json, sys, torch, torch.nn.functional as F
torch.manual_seed(0)
x, w = torch.randn(40, 96).half(), torch.randn(96).half()
fn = torch.compile(lambda x, w: F.rms_norm(x, (96,), w) * 3)
with torch.no_grad():
    out = fn(x.to("spyre"), w.to("spyre")).cpu()
from torch_loom.inductor import runtime
generator = any(m.startswith(("xdsl", "torch_loom.ktir")) for m in sys.modules)
print(json.dumps({"counters": runtime.counters, "sum": out.double().sum().item(), "generator": generator}))
"""


def run_program(folder: Path, *command: str, **environment: str) -> tuple[dict, str]:
    """What a process with its caches in ``folder`` prints last, and its errors; ``command`` as after ``python``."""
    caches = {"TORCH_LOOM_CACHE_DIR": str(folder / "loom"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    command = command or ("-c", PROGRAM)
    env = os.environ | caches | environment
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_second_process_compiles_nothing_and_a_damaged_entry_is_compiled_again(tmp_path):
    first, _ = run_program(tmp_path)
    assert first["counters"]["kernels_compiled"] >= 1
    second, _ = run_program(tmp_path)
    assert second["counters"]["kernels_compiled"] == 0
    assert first["generator"] and not second["generator"]  # neither loaded nor run
    assert second["sum"] == first["sum"]
    image = next(tmp_path.glob("loom/kernels/*/spyreCodeDir/init_binary.bin"))
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 0x10
    image.write_bytes(data)
    third, errors = run_program(tmp_path)
    assert third["sum"] == first["sum"]
    assert "damaged" in errors and third["counters"]["kernels_compiled"] == 1


PRECOMPILED = """
import json, torch, torch.nn.functional as F
from torch._dynamo.utils import compile_times, counters

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(96), torch.nn.Linear(96, 40)
    def forward(self, x):
        return self.out(F.silu(self.norm(x)))

torch.manual_seed(0)
block, x = Block().half().to("spyre"), torch.randn(5, 96).half().to("spyre")
with torch.no_grad():
    sums = [torch.compile(block)(x[:rows]).cpu().double().sum().item() for rows in (5, 3)]
torch.compiler.save_cache_artifacts()
from torch_loom.inductor import runtime
traced = "bytecode_tracing" in compile_times()
print(json.dumps({"compiled": runtime.counters["kernels_compiled"], "sums": sums, "traced": traced}))
"""


def test_programs_precompiled_by_pytorch_start_without_tracing_and_check_their_guards(tmp_path):
    script = tmp_path / "precompiled.py"
    script.write_text(PRECOMPILED)

    def run() -> dict:
        return run_program(tmp_path, str(script), TORCH_CACHING_PRECOMPILE="1")[0]

    first, second = run(), run()
    assert first["traced"] and first["compiled"] >= 1
    assert second == {"compiled": 0, "sums": first["sums"], "traced": False}
    shutil.rmtree(tmp_path / "loom")  # the programs are there, their kernels are not
    third = run()
    assert third["compiled"] >= 1 and third["sums"] == first["sums"] and not third["traced"]


SIZES = range(8, 8 + 2 * workers.WORTH)


def kernel_text(size: int) -> str:
    b = KernelBuilder("kernel", 2)
    x, out = b.buffer("x"), b.buffer("out")
    row = b.mul(b.tile_id(), size)
    tile = b.load(b.view(x, [2 * size, 64], [64, 1], "f16"), [row, 0], [size, 64])
    b.store(b.op("arith.addf", tile, tile), b.view(out, [2 * size, 64], [64, 1], "f16"), [row, 0], [size, 64])
    return b.text()


def test_worker_processes_fill_the_cache_and_give_back_what_they_cannot_compile(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_LOOM_CACHE_DIR", str(tmp_path))
    pool = workers.Pool(1)
    monkeypatch.setattr(runtime, "_pool", lambda: pool)
    events: list[tuple[str, str]] = []
    undo = runtime.on_compile(lambda event, name: events.append((event, name)))
    texts = {f"k{size}": kernel_text(size) for size in SIZES}
    for name, text in texts.items():
        runtime.request(name, text)
    first = next(iter(pool._jobs.values()))
    assert first.finished.wait(120) and first.state == "done"
    made = [runtime._prepare(name, text) for name, text in texts.items()]
    undo()
    assert all(r.compiled and (r.spyrecode_dir / "spyreCodeDir/spyrecode.json").is_file() for r in made)
    assert [n for e, n in events if e == "done"] == list(texts)
    assert sorted(n for e, n in events if e == "start") == sorted(texts)

    broken = [f"module {{ not an operation {i} }}" for i in range(workers.WORTH)]
    for i, text in enumerate(broken):
        runtime.request(f"b{i}", text)
    first = next(iter(pool._jobs.values()))
    assert first.finished.wait(120) and first.state == "failed"
    with pytest.raises(KtirError):
        runtime._prepare("b0", broken[0])


def test_one_dynamic_compile_serves_every_length():
    torch._dynamo.reset()
    fn = torch.compile(lambda a: torch.softmax(a * 2, -1), dynamic=True)
    counts = []
    for rows, columns in [(3, 40), (5, 63), (1000, 64), (2, 65), (7, 512), (130, 2)]:
        x = half(rows, columns)
        out = fn(x.to("spyre")).cpu()
        expected = torch.softmax(x.to("spyre").cpu().float() * 2, -1)
        torch.testing.assert_close(out.float(), expected, rtol=2.0**-9, atol=1e-6)
        counts.append(runtime.counters["kernels_loaded"])
    assert counts[-1] == counts[0], counts


def test_a_size_beyond_the_planned_maximum_compiles_the_kernel_once_more():
    torch._dynamo.reset()
    fn = torch.compile(lambda a: torch.softmax(a, -1), dynamic=True)
    for columns in (40, 3000):
        x = half(6, columns)
        out = fn(x.to("spyre")).cpu()
        expected = torch.softmax(x.to("spyre").cpu().float(), -1)
        torch.testing.assert_close(out.float(), expected, rtol=2.0**-9, atol=1e-6)


def test_identical_layers_share_kernels():
    torch._dynamo.reset()
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(6)]).half().to("spyre")
    before = runtime.counters["kernels_loaded"]
    with torch.no_grad():
        torch.compile(layers, dynamic=False)(half(10, 64).to("spyre")).cpu()
    # The first layer reads an argument, the others an intermediate: two kernels.
    assert runtime.counters["kernels_loaded"] - before <= 2


@pytest.mark.parametrize(
    "view", [lambda a: a.t(), lambda a: a[:, 3:50], lambda a: a[2:], lambda a: a[:, ::2], lambda a: a.expand(4, 60, 70)]
)
def test_inputs_in_any_layout(view):
    x = half(60, 70)
    on_device = view(x.to("spyre"))
    torch._dynamo.reset()
    with torch.no_grad():
        out = torch.compile(lambda a: a + 1, dynamic=False)(on_device).cpu()
    torch.testing.assert_close(out.float(), view(x.to("spyre").cpu()).float() + 1, rtol=2.0**-9, atol=0)


def test_outputs_feed_the_next_graph():
    torch._dynamo.reset()
    first = torch.compile(lambda a: (a * 2).view(4, 15, 70).transpose(0, 1), dynamic=False)
    second = torch.compile(lambda a: a.softmax(-1), dynamic=False)
    x = half(60, 70)
    with torch.no_grad():
        out = second(first(x.to("spyre"))).cpu()
    middle = (x.to("spyre").cpu().float() * 2).view(4, 15, 70).transpose(0, 1)
    torch.testing.assert_close(out.float(), middle.softmax(-1), rtol=2.0**-8, atol=1e-6)


def test_in_place_update_of_an_input():
    torch._dynamo.reset()
    x = half(9, 70)
    on_device = x.to("spyre")
    held = on_device.cpu()

    def update(a):
        a.mul_(2)
        return a + 1

    with torch.no_grad():
        out = torch.compile(update, dynamic=False)(on_device).cpu()
    assert torch.equal(on_device.cpu(), held * 2)
    torch.testing.assert_close(out.float(), held.float() * 2 + 1, rtol=2.0**-9, atol=0)


@pytest.mark.parametrize("rows", [1, 63, 65])
def test_a_graph_updates_in_place_what_another_graph_allocated(rows):
    def start(x):
        kept = torch.zeros(2, rows, 5, dtype=x.dtype, device=x.device)
        kept.copy_(x[..., -5:])
        return kept

    def step(kept, x):
        window = torch.cat([kept, x], -1)
        kept.copy_(window[..., 1:])
        return window.sum(-1)

    x = torch.arange(2 * rows * 9).reshape(2, rows, 9).remainder(13).half()
    more = x[..., :3] + 1
    kept = torch.compile(start)(x.to("spyre"))
    address, compiled = kept.data_ptr(), torch.compile(step)
    for i in range(3):
        before = torch.cat([x[..., i - 5 :], more[..., :i]], -1)
        found = compiled(kept, more[..., i : i + 1].contiguous().to("spyre"))
        assert torch.equal(found.cpu(), (before.sum(-1) + more[..., i]))
        assert torch.equal(kept.cpu(), torch.cat([before[..., 1:], more[..., i : i + 1]], -1))
    assert kept.data_ptr() == address


def test_an_update_in_place_of_elements_that_share_memory_is_refused():
    with pytest.raises(RuntimeError, match="update: argument 0 is written in place .* dimension 0 share memory"):
        runtime.in_layout(half(1, 64).to("spyre").expand(3, 64), "default", True, "update: argument 0")


def test_cores_can_be_limited(monkeypatch):
    monkeypatch.setenv("SENCORES", "3")
    check(lambda a: a * 5 - 1, half(100, 100))
    assert "grid = [3]" in runtime.kernels()[-1].ktir
    monkeypatch.setenv("SENCORES", "33")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="SENCORES must be a number from 1 to 32"):
        torch.compile(lambda a: a * 7 - 1, dynamic=False)(half(100, 100).to("spyre"))


@pytest.mark.parametrize("first", ["torch", "torch_loom"])
def test_the_order_of_imports_does_not_matter(first):
    program = f"import {first}, torch; print(torch.compile(lambda a: a + 1)(torch.ones(3).to('spyre')).cpu())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "tensor([2., 2., 2.])" in done.stdout


def test_equal_kernels_on_inputs_and_intermediates_check_their_own_layouts():
    torch._dynamo.reset()
    x = half(7)
    on_device = x.to("spyre")
    held = on_device.cpu()

    def update(a):
        b = a.view(7, 1) @ a.view(1, 7)  # keeps the updates before and after it apart
        c = b.sum(0).mul(2)
        a.mul_(2)
        return c, b

    with torch.no_grad():
        c, _ = torch.compile(update, dynamic=False)(on_device)
    assert torch.equal(on_device.cpu(), held * 2)
    outer = held.float()[:, None] * held.float()[None]
    torch.testing.assert_close(c.cpu().float(), outer.sum(0) * 2, rtol=2.0**-8, atol=1e-2)


def test_a_cache_folder_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_LOOM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match="no kernel can be kept in .*file/kernels .*TORCH_LOOM_CACHE_DIR"):
        runtime.cache_dir()
