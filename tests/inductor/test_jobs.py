"""Runs of kernels as jobs: values through LX and through the pool, what belongs to a job, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import close, half
from torch._inductor.utils import run_and_get_code

from torch_loom import _device, arch
from torch_loom.inductor import config, job
from torch_loom.profiler import launch_rows, recorded_launches


def held(*shape, **how):
    """Random values that the device holds exactly, and where it does."""
    there = half(*shape, **how).to("spyre")
    return there.cpu(), there


(W1, D1), (W2, D2) = held(96, 160, seed=1, scale=0.1), held(160, 64, seed=2, scale=0.1)


def columns(x, w1, w2):
    """Three kernels: the softmax goes over what the cores divide between them."""
    return torch.softmax(x @ w1, 0) @ w2


def traffic(run):
    """Bytes of buffers between kernels that one call moves, by place."""
    with recorded_launches() as records:
        run()
    torch.spyre.synchronize()
    total = {}
    for row in launch_rows(records, arch.load("spyre")):
        for where, size in row.between_bytes.items():
            total[where] = total.get(where, 0) + size
    return total


def compiled(fn, **options):
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False, **options)


def test_values_pass_through_lx_and_through_ddr_alike():
    x, there = held(200, 96)
    args = there, D1, D2
    with torch.no_grad():
        run = compiled(columns)
        near = run(*args).cpu()
        moved = traffic(lambda: run(*args))
        with config.patch(residency=False):
            run = compiled(columns)
            far = run(*args).cpu()
            stayed = traffic(lambda: run(*args))
    assert torch.equal(near, far)
    # Results of sums over 200 rows of values up to 1 / 200: three roundings on the way, errors of the scores enter exp.
    close(near, columns(x.float(), W1.float(), W2.float()), roundings=6, absolute=2e-4)
    assert moved["LX read"] > 0 and moved["DDR read"] == moved["DDR write"] == 0
    assert stayed["DDR read"] > 0 and stayed["LX read"] == stayed["LX write"] == 0


def test_sizes_are_placed_anew_and_compiled_once():
    def grown(x):
        return columns(x, D1, D2)

    torch._dynamo.reset()
    run = torch.compile(grown, dynamic=True)
    with torch.no_grad():
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for rows in (2, 64, 65, 333, 700):
            x, there = held(rows, 96)
            close(run(there).cpu(), columns(x.float(), W1.float(), W2.float()), 6, 2e-4)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 2


def test_buffers_that_lx_cannot_hold_lie_in_the_pool(monkeypatch):
    x, there = held(200, 96)
    rates, _ = job._clock()
    monkeypatch.setattr(job, "_clock", lambda: (rates, 0))
    with torch.no_grad():
        run = compiled(columns)
        close(run(there, D1, D2).cpu(), columns(x.float(), W1.float(), W2.float()), 6, 2e-4)
        moved = traffic(lambda: run(there, D1, D2))
    assert moved["LX read"] == 0 and moved["DDR read"] > 0


def test_results_and_arguments_are_no_buffers_of_the_job():
    def both(x, w1, w2):
        y = x @ w1
        z = torch.softmax(y, 0)
        x.mul_(0.5)
        return y, z @ w2

    x, there = held(100, 96)
    args = there, D1, D2
    with torch.no_grad():
        (y, out), (code,) = run_and_get_code(compiled(both), *args)
    assert "loom_job_0(" in code
    expected = both(x.float().clone(), W1.float(), W2.float())
    close(y.cpu(), expected[0], 2, 1e-3)
    close(out.cpu(), expected[1], 6, 4e-4)
    assert torch.equal(args[0].cpu(), (x * 0.5).half())


def test_what_the_last_kernel_reads_is_a_buffer_of_the_job_too():
    x, there = held(200, 96)
    with torch.no_grad():
        out, (code,) = run_and_get_code(compiled(columns), there, D1, D2)
    close(out.cpu(), columns(x.float(), W1.float(), W2.float()), 6, 2e-4)
    assert code.count(" = empty_strided_spyre(") == 1  # the result


def test_parts_of_a_concatenation_stay_within_the_job():
    def joined(x, w1):
        parts = torch.cat([x @ w1, torch.softmax(x, 0)], 1)
        return torch.softmax(parts, 0)

    x, there = held(70, 96)
    with torch.no_grad():
        out = compiled(joined)(there, D1).cpu()
    close(out, joined(x.float(), W1.float()), 6, 4e-4)


def test_two_streams_do_not_meet_in_lx():
    args, other = [held(300, 96, seed=seed)[1] for seed in (0, 9)]
    args, other = (args, D1, D2), (other, D1, D2)
    streams = [torch.spyre.Stream() for _ in range(2)]
    with torch.no_grad():
        run = compiled(columns)
        wanted = [run(*args).cpu(), run(*other).cpu()]
        torch.spyre.synchronize()
        found = [[], []]
        for _ in range(10):
            for i, mine in enumerate((args, other)):
                with torch.spyre.stream(streams[i]):
                    found[i].append(run(*mine))
        torch.spyre.synchronize()
    for i in (0, 1):
        assert all(torch.equal(out.cpu(), wanted[i]) for out in found[i])


def test_a_failing_program_ends_its_job_and_leaves_the_stream_usable():
    def pick(x, i, w):
        return torch.softmax(x[i] @ w, 0) + 1

    torch._dynamo.reset()
    x, w = held(40, 96)[1], D1
    good, bad = (torch.tensor(v, dtype=torch.int32).to("spyre") for v in ([1, 2, 3], [1, 400, 3]))
    with torch.no_grad():
        run = torch.compile(pick, dynamic=False)
        first = run(x, good, w).cpu()
        with pytest.raises(RuntimeError, match="DEV-03"):
            run(x, bad, w)
            torch.spyre.synchronize()
        assert torch.equal(run(x, good, w).cpu(), first)


def plan_of_two(rows=8):
    """A prepared y = x + x on 4 cores."""
    from torch_loom import ktir, scheduler, spyrecode
    from torch_loom.ktir.builder import KernelBuilder

    b = KernelBuilder("twice", 4)
    x, y = (b.view(b.buffer(n), [rows, 32], [32, 1], "f32") for n in "xy")
    at = [b.mul(b.tile_id(), rows // 4), 0]
    value = b.load(x, at, [rows // 4, 32])
    b.store(b.op("arith.addf", value, value), y, at, [rows // 4, 32])
    compiled = scheduler.compile(ktir.load(b.text()), "twice", arch.load("spyre"))
    return _device.prepare(spyrecode.encode(compiled.program), "twice")


SIZE = 8 * 32 * 4


@pytest.mark.parametrize(
    ("steps", "own", "pool", "reason"),
    [
        ([("own", 0, "external", 0)], [(0, SIZE, 0)], SIZE, "no step before it writes"),
        ([("external", 0, "own", 0), ("own", 0, "external", 1)], [(0, SIZE, 0)], SIZE - 128, "leaves the pool"),
        ([("external", 0, "own", 0), ("own", 0, "external", 1)], [(0, SIZE, 256)], 0, "uses itself"),
        ([("external", 0, "own", 0), ("own", 0, "external", 1)], [(1 << 21, SIZE, 256)], 0, "does not hold"),
        (
            [("external", 0, "own", 0), ("own", 0, "own", 1), ("own", 1, "external", 1)],
            [(1 << 20, SIZE, 256), (1 << 20, SIZE, 256)],
            0,
            "lives at the same time",
        ),
    ],
)
def test_jobs_with_impossible_places_are_refused(steps, own, pool, reason):
    plan = plan_of_two()
    program = [(plan, [(s[0], s[1]), (s[2], s[3])]) for s in steps]
    with pytest.raises(RuntimeError, match=reason):
        _device.Job(program, own, pool)


def test_kept_bytes_hold_nan_before_they_are_written_and_after_the_job():
    script = Path(__file__).with_name("poisoned_job.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
