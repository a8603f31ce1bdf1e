"""Plans and launches: values, arguments, errors, streams, the log and the clock."""

import random
import threading

import programs
import pytest
import torch

from torch_loom import _device, arch, spyrecode


@pytest.fixture(scope="module")
def scale():
    return _device.prepare(programs.scale())


@pytest.fixture(scope="module")
def gather():
    return _device.prepare(programs.gather())


@pytest.fixture
def log():
    _device.clear_launch_log()
    _device.enable_launch_log(True)
    yield _device.launch_log
    _device.enable_launch_log(False)
    _device.clear_launch_log()


def rows(n: int = 64, seed: int = 0) -> torch.Tensor:
    return torch.randint(-8, 9, (n, 64), generator=torch.Generator().manual_seed(seed)).half()


# ---- values ----


def test_one_plan_serves_every_size(scale):
    a = rows()
    for n in (0, 1, 7, 64):
        out = torch.zeros(64, 64, dtype=torch.float16, device="spyre")
        scale.launch([a.to("spyre"), out, n, 2.5])
        expected = torch.zeros(64, 64, dtype=torch.float16)
        expected[:n] = a[:n] * 2.5
        assert torch.equal(out.cpu(), expected)


def test_arguments_as_a_call_or_a_list(scale):
    a, out = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    scale(a, out, 1, 2)
    scale.launch((a, out, 1, 2.0))
    assert torch.equal(out[0].cpu(), a[0].cpu() * 2)
    assert scale.launches >= 2


def test_a_plan_knows_its_arguments(scale):
    assert scale.name == "scale"
    assert [a[0] for a in scale.args] == ["a", "out", "n", "k"]
    assert [a[1] for a in scale.args] == [0, 0, 1, 2]
    assert scale.address >= 7 * (16 << 30)  # segment 7


def test_a_directory_is_a_program_too(tmp_path):
    program = spyrecode.decode(programs.scale())
    spyrecode.write_dir(tmp_path / "k", program)
    plan = _device.prepare(str(tmp_path / "k"), "renamed")
    assert plan.name == "renamed"
    a, out = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    plan(a, out, 64, 3.0)
    assert torch.equal(out.cpu(), a.cpu() * 3)


def test_program_memory_is_given_back():
    before = torch.spyre.memory_stats()["programs_bytes"]
    plan = _device.prepare(programs.scale())
    assert torch.spyre.memory_stats()["programs_bytes"] > before
    del plan
    assert torch.spyre.memory_stats()["programs_bytes"] == before


def test_the_three_stages_of_a_launch_are_separate_events(scale, log):
    a, out = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    scale(a, out, 64, 2.0)
    torch.spyre.synchronize()
    (record,) = log()
    assert [name for name, _, _ in record.stages] == ["correction", "transfer", "execution"]
    times = [t for _, begin, end in record.stages for t in (begin, end)]
    assert times == sorted(times) and times[0] > 0


def test_stages_that_have_not_happened_are_not_listed(gather, log):
    table = torch.zeros(16, 64, dtype=torch.float16, device="spyre")
    out = torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    index = torch.zeros(4, dtype=torch.int32, device="spyre")
    stream = torch.spyre.Stream()
    with torch.spyre.stream(stream):
        for _ in range(3):
            gather(index, table, out)
    assert all(record.stages[0][0] == "correction" for record in log())
    stream.synchronize()
    assert [len(record.stages) for record in log()] == [3, 3, 3]


# ---- errors ----


def test_damaged_images_are_refused():
    image = programs.scale()
    for position in range(0, len(image), 97):
        damaged = bytearray(image)
        damaged[position] ^= 0x40
        with pytest.raises(RuntimeError, match="SC-E"):
            _device.prepare(bytes(damaged), "damaged")
    with pytest.raises(RuntimeError, match="empty"):
        _device.prepare(b"", "nothing")


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises((OSError, RuntimeError, spyrecode.SpyreCodeError), match="absent"):
        _device.prepare(str(tmp_path / "absent"), "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[:-1], r"takes 4 arguments \(a, out, n, k\), got 3"),
        (lambda a: [*a, 1], "got 5"),
        (lambda a: [a[0].cpu(), *a[1:]], r"argument 0 \('a'\) must be a spyre tensor, got one on cpu"),
        (lambda a: [3, *a[1:]], r"argument 0 \('a'\) must be a spyre tensor, got int"),
        (lambda a: [a[0].float(), *a[1:]], r"argument 0 \('a'\) has device format IEEE_FP32"),
        (lambda a: [*a[:2], 1.5, a[3]], r"argument 2 \('n'\) must be an int, got float"),
        (lambda a: [*a[:3], "x"], r"argument 3 \('k'\) must be a float, got str"),
        (lambda a: [*a[:2], 65, a[3]], r"argument n = 65, must be in 0..64"),
        (lambda a: [*a[:2], -1, a[3]], r"argument n = -1"),
    ],
)
def test_wrong_arguments_are_named(scale, change, message):
    a, out = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    with pytest.raises(RuntimeError, match=message) as error:
        scale.launch(change([a, out, 1, 2.0]))
    assert "kernel 'scale'" in str(error.value)
    scale(a, out, 64, 2.0)
    assert torch.equal(out.cpu(), a.cpu() * 2)


def test_a_failing_launch_fails_alone_and_names_its_line(gather):
    table = torch.arange(16 * 64).reshape(16, 64).half().to("spyre")
    out = torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    bad = torch.tensor([1, 2, 99, 3], dtype=torch.int32).to("spyre")
    good = torch.tensor([3, 0, 15, 3], dtype=torch.int32).to("spyre")
    gather(bad, table, out)
    gather(good, table, out)
    with pytest.raises(RuntimeError, match=r"kernel 'gather': DEV-.*test_launch.py:\d+") as error:
        torch.spyre.synchronize()
    assert "99" in str(error.value)
    torch.spyre.synchronize()  # raised once
    assert torch.equal(out.cpu(), table.cpu()[good.cpu().long()])


def test_blocking_mode_raises_at_the_launch(gather):
    table = torch.zeros(16, 64, dtype=torch.float16, device="spyre")
    out = torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    bad = torch.tensor([-1, 0, 0, 0], dtype=torch.int32).to("spyre")
    _device.set_blocking(True)
    try:
        with pytest.raises(RuntimeError, match="kernel 'gather'"):
            gather(bad, table, out)
    finally:
        _device.set_blocking(False)
    torch.spyre.synchronize()


def test_an_error_of_one_stream_leaves_others_alone(gather, scale):
    table = torch.zeros(16, 64, dtype=torch.float16, device="spyre")
    out = torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    bad = torch.tensor([16, 0, 0, 0], dtype=torch.int32).to("spyre")
    a, scaled = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    one, two = torch.spyre.Stream(), torch.spyre.Stream()
    with torch.spyre.stream(one):
        gather(bad, table, out)
    with torch.spyre.stream(two):
        scale(a, scaled, 64, 2.0)
    two.synchronize()
    assert torch.equal(scaled.cpu(), a.cpu() * 2)
    with pytest.raises(RuntimeError, match="gather"):
        one.synchronize()
    one.synchronize()


# ---- order ----


def test_launches_of_a_stream_run_in_order(scale):
    x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    y = torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    for _ in range(12):  # 2 ** 12 in the end, exact
        scale(x, y, 64, 2.0)
        x, y = y, x
    assert (x.cpu() == 4096).all()


def test_a_stream_waits_for_the_event_of_another(scale):
    one, two = torch.spyre.Stream(), torch.spyre.Stream()
    x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(50):
        with torch.spyre.stream(one):
            for _ in range(8):
                scale(x, y, 64, 3.0)
            done = one.record_event()
        with torch.spyre.stream(two):
            two.wait_event(done)
            scale(y, z, 64, 2.0)
            back = two.record_event()
        one.wait_event(back)
        with torch.spyre.stream(one):
            y.zero_()
    two.synchronize()
    assert (z.cpu() == 6).all()


def test_memory_freed_right_after_a_launch_is_not_reused_too_early(scale):
    x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    results = []
    for i in range(200):
        temporary = torch.empty(64, 64, dtype=torch.float16, device="spyre")
        out = torch.empty(64, 64, dtype=torch.float16, device="spyre")
        scale(x, temporary, 64, float(i % 16))
        scale(temporary, out, 64, 2.0)
        del temporary
        results.append(out)
    for i, out in enumerate(results):
        assert (out.cpu() == 2 * (i % 16)).all()


def test_one_plan_in_flight_on_many_streams_from_many_threads(scale):
    failures: list[str] = []

    def work(thread: int) -> None:
        rng = random.Random(thread)
        streams = [torch.spyre.Stream() for _ in range(2)]
        inputs = [rows(64, seed=thread * 10 + i).to("spyre") for i in range(2)]
        outs = [torch.zeros(64, 64, dtype=torch.float16, device="spyre") for _ in range(2)]
        torch.spyre.synchronize()
        for i in range(250):
            k = i % 2
            n, factor = rng.randint(1, 64), float(rng.randint(1, 8))
            with torch.spyre.stream(streams[k]):
                scale(inputs[k], outs[k], n, factor)
                if rng.random() < 0.1:
                    got = outs[k][:n].cpu()
                    if not torch.equal(got, inputs[k][:n].cpu() * factor):
                        failures.append(f"thread {thread} launch {i}")

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


# ---- log and clock ----


def test_the_log_keeps_name_numbers_and_line(scale, log):
    a, out = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    scale(a, out, 5, 1.5)
    (record,) = log()
    assert record.name == "scale" and record.plan is scale
    assert record.args[2:] == [5, 1.5]
    assert record.args[0] == _device.layout(a)["address"]
    assert record.origin.endswith(f"test_launch.py:{record.origin.split(':')[-1]}")
    del out
    assert scale.time(record, arch.load("spyre").clock_params()).ns > 0


def test_timing_needs_no_run_and_is_deterministic(scale):
    params = arch.load("spyre").clock_params()
    a, out = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    before = scale.launches
    small, large = scale.time([a, out, 1, 2.0], params), scale.time([a, out, 64, 2.0], params)
    assert scale.launches == before
    assert 0 < small.ns <= large.ns
    assert large.ddr_read_bytes == large.ddr_write_bytes == 64 * 128
    assert scale.time([a, out, 64, 2.0], params).cycles == large.cycles


def test_events_read_modelled_time(scale):
    params = arch.load("spyre").clock_params()
    a, out = rows().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    _device.set_clock(params)
    try:
        start, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
        start.record()
        for _ in range(3):
            scale(a, out, 64, 2.0)
        end.record()
        end.synchronize()
    finally:
        _device.set_clock({})
    expected = 3 * scale.time([a, out, 64, 2.0], params).ns * 1e-6
    assert start.modelled_time(end) == pytest.approx(expected, rel=1e-9)
