"""What is compiled, when, and what is remembered: keys leave sizes and numbers open, caches survive the process."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from eager_check import half
from reference_target import ReferenceTarget, installed
from torch._C._dynamo import eval_frame

from torch_loom import _device
from torch_loom.eager import compiler


def compiled():
    return compiler.counts.compiled


def test_another_size_compiles_nothing():
    def use(*shape):
        x = half(*shape).to("spyre")
        return (x * x).sum(-1), x.softmax(-1), x @ x.t()

    use(9, 65)
    before = compiled()
    for shape in [(2, 64), (63, 127), (130, 700), (5, 3)]:
        total, soft, product = use(*shape)
        assert total.shape == shape[:1] and soft.shape == shape and product.shape == (shape[0],) * 2
        rows = soft.cpu().float().sum(-1)
        torch.testing.assert_close(rows, torch.ones(shape[0]), rtol=2**-6, atol=0)
    assert compiled() == before


def test_numbers_are_arguments():
    x = half(4, 65).to("spyre")
    x.mul(0.5)
    before = compiled()
    for i in range(1000):
        x.mul(i * 0.25)
    assert compiled() == before
    torch.testing.assert_close(x.mul(3.25).cpu().float(), x.cpu().float() * 3.25, rtol=2**-10, atol=0)


def test_sizes_given_as_arguments_are_open_too():
    x = half(4, 65).to("spyre")
    torch.nn.functional.layer_norm(x, (65,))
    before = compiled()
    torch.nn.functional.layer_norm(half(3, 130).to("spyre"), (130,))
    assert compiled() == before


def test_size_one_and_the_order_of_dims_are_structure():
    x = half(6, 70).to("spyre")
    x.cos()
    before = compiled()
    x.t().cos()
    assert compiled() == before + 1
    half(1, 70).to("spyre").cos()
    assert compiled() == before + 2


def run(code, cache, **variables):
    env = {**os.environ, "TORCH_LOOM_CACHE_DIR": str(cache), **variables}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


USE = """
    import json, sys, torch, torch_loom
    from torch_loom.eager import compiler
    x = torch.ones(3, 65, dtype=torch.float16, device="spyre")
    y = (x * 2 + x).softmax(-1)
    x.cumsum(0)
    print(json.dumps([compiler.counts.compiled, compiler.counts.loaded, compiler.counts.refused,
                      "torch._inductor" in sys.modules, y.cpu()[0, 0].item()]))
"""


def test_a_fresh_process_compiles_nothing_and_does_not_load_the_compiler(tmp_path):
    first = run(USE, tmp_path, TORCH_LOOM_FALLBACK="silent")
    second = run(USE, tmp_path, TORCH_LOOM_FALLBACK="silent")
    assert first[0] >= 3 and second[0] == 0
    assert second[1] == first[0] and second[2] == first[2]
    assert second[3] is False and second[4] == first[4]


def test_a_damaged_entry_is_compiled_again(tmp_path):
    first = run(USE, tmp_path, TORCH_LOOM_FALLBACK="silent")
    for entry in (tmp_path / "operators").glob("*.json"):
        entry.write_text(entry.read_text()[:40])
    again = run(USE, tmp_path, TORCH_LOOM_FALLBACK="silent")
    assert again[0] == first[0] and again[4] == first[4]


def test_printing_and_reading_compile_nothing():
    x = half(6, 70).to("spyre")
    before = compiled()
    repr(x), str(x[0]), x.tolist(), x[0, 0].item(), x.clone(), x.float(), x.t().contiguous()
    assert compiled() == before


def test_the_mode_belongs_to_the_thread_inside_its_block():
    assert torch.spyre.eager_mode() == "strict"
    with torch.spyre.use_eager_mode("host"):
        assert torch.spyre.eager_mode() == "host"
        torch.ones(3, device="spyre") + 1
        assert sum(torch.spyre.fallbacks().values()) == 1
    assert torch.spyre.eager_mode() == "strict"
    with pytest.raises(ValueError, match="host, debug, strict"):
        torch.spyre.set_eager_mode("lazy")


def test_modes_give_equal_results():
    x = half(7, 66).to("spyre")
    results = []
    for mode in ("strict", "debug"):
        with torch.spyre.use_eager_mode(mode):
            results.append((x.softmax(-1) @ x.t()).cpu())
    assert torch.equal(*results)


def test_the_mode_from_the_environment(tmp_path):
    code = "import json, torch, torch_loom; print(json.dumps(torch.spyre.eager_mode()))"
    assert run(code, tmp_path, TORCH_LOOM_EAGER="debug") == "debug"


def test_launches_carry_the_line_of_the_operator():
    x = half(7, 66).to("spyre")
    x.exp()
    _device.clear_launch_log()
    _device.enable_launch_log(True)
    try:
        x.exp()
    finally:
        _device.enable_launch_log(False)
    assert [os.path.basename(r.origin).partition(":")[0] for r in _device.launch_log()] == ["test_eager_programs.py"]


def test_a_refused_operator_falls_back_and_says_why():
    x = half(7, 66).to("spyre")
    torch.spyre.reset_fallbacks()
    x.cumsum(0)
    if torch.spyre.fallbacks():
        assert compiler.refusals["aten::cumsum"]


def test_memory_of_a_long_loop_is_flat():
    x = half(8, 64).to("spyre")
    y = x + x
    torch.spyre.synchronize()
    torch.spyre.reset_peak_memory_stats()
    base = torch.spyre.memory_allocated()
    for _ in range(10000):
        y = y.mul(0.5)
    torch.spyre.synchronize()
    assert torch.spyre.max_memory_allocated() - base < 600 * 1024  # at most 256 launches in flight, 1 KiB each


@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize(
    ("operator", "work"),
    [
        ("index", lambda x, i: x[i]),
        ("embedding", lambda x, i: torch.nn.functional.embedding(i, x.reshape(5, 1))),
    ],
)
def test_an_operator_that_fails_on_the_device_is_named_with_its_line(operator, work, mode):
    x, good, bad = (t.to("spyre") for t in (torch.arange(5.0), torch.tensor([4, 0]), torch.tensor([0, 9])))
    with torch.spyre.use_eager_mode(mode):
        work(x, bad)
        expected = rf"kernel '\w*{operator}\w*': DEV-.*index 9 .*test_eager_programs.py:\d+"
        with pytest.raises(RuntimeError, match=expected):
            torch.spyre.synchronize()
        assert work(x, good).flatten().tolist() == [4, 0]


class Watched(ReferenceTarget):
    """Notes what Dynamo has set to be called for new frames while an operator is compiled."""

    watchers = ()

    def compile_graph(self, gm, inputs, numbers):
        self.watchers = (*self.watchers, eval_frame.get_eval_frame_callback())
        return super().compile_graph(gm, inputs, numbers)


def test_dynamo_does_not_trace_the_recorder(tmp_path):
    @torch.compile(backend="eager")
    def work(x, wrong):
        y = x * 3
        if wrong:
            raise ValueError("as wanted")  # a function that raises is not compiled
        return y + 1

    with installed(Watched(tmp_path)) as target:
        x = torch.ones(4, device="spyre")
        with pytest.raises(ValueError, match="as wanted"):
            work(x, True)
        assert target.watchers == (None,)
        assert work(x, False).tolist() == [4] * 4
