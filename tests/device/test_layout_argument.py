"""``device_layout=`` as programs for the card write it, and layouts that survive copies, files and pickles."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

from torch_loom import _device
from torch_loom.layout import DataFormats, SpyreTensorLayout

SHAPE = (5, 100)
# Stick on dim 0: [sticks of dim 0, dim 1, lanes] with 64 lanes of 2 bytes.
LAYOUT = SpyreTensorLayout(list(SHAPE), [100, 1], torch.float16, [1, 0])
EXPECTED = ([1, 100, 64], [6400, 1, 100])


def host() -> torch.Tensor:
    return torch.arange(500).reshape(SHAPE).half()


def placed() -> torch.Tensor:
    return host().to("spyre", device_layout=LAYOUT)


def in_layout(t: torch.Tensor) -> bool:
    got = t.device_tensor_layout()
    return (got.device_size, got.stride_map) == EXPECTED


def test_the_layout_is_what_the_rules_say():
    assert in_layout(placed())
    codes = _device.device_bytes(placed())
    # Element (row 2, column 7) lies in stick 7, lane 2; a half and its df16 agree for small integers up to rounding.
    two_seven = int.from_bytes(codes[(7 * 64 + 2) * 2 : (7 * 64 + 2) * 2 + 2], "little")
    assert two_seven == torch.spyre.encode_constant(207.0, DataFormats.SEN169_FP16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(5, 100, dtype=torch.float16, device="spyre", device_layout=LAYOUT),
        lambda: torch.ones(SHAPE, dtype=torch.float16, device="spyre", device_layout=LAYOUT),
        lambda: torch.full(SHAPE, 3.0, dtype=torch.float16, device="spyre", device_layout=LAYOUT),
        lambda: torch.tensor(host().tolist(), dtype=torch.float16, device="spyre", device_layout=LAYOUT),
        lambda: torch.zeros_like(placed(), device_layout=LAYOUT),
    ],
)
def test_factories_place_their_values(make):
    t = make()
    assert in_layout(t) and not t.requires_grad
    plain = torch.empty(SHAPE, dtype=torch.float16, device="spyre").copy_(t)
    assert torch.equal(t.cpu(), plain.cpu())
    assert torch.isfinite(t.cpu()).all()


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_random_factories_follow_the_seed(name):
    torch.manual_seed(3)
    t = getattr(torch, name)(SHAPE, dtype=torch.float16, device="spyre", device_layout=LAYOUT)
    torch.manual_seed(3)
    assert in_layout(t)
    assert torch.equal(t.cpu(), getattr(torch, name)(SHAPE, dtype=torch.float16, device="spyre").cpu())


def test_empty_and_gradients():
    t = torch.empty(SHAPE, dtype=torch.float16, device="spyre", requires_grad=True, device_layout=LAYOUT)
    assert in_layout(t) and t.requires_grad and t.is_leaf
    assert in_layout(torch.empty_strided(SHAPE, (100, 1), dtype=torch.float16, device="spyre", device_layout=LAYOUT))
    assert in_layout(torch.empty_like(t, device_layout=LAYOUT))
    weight = host().requires_grad_()
    weight.to("spyre", device_layout=LAYOUT).sum().backward()
    assert torch.equal(weight.grad, torch.ones(SHAPE, dtype=torch.float16))


def test_to_returns_the_tensor_itself_when_nothing_changes():
    t = placed()
    assert t.to(device_layout=LAYOUT) is t
    back = t.to(device_layout=SpyreTensorLayout(list(SHAPE), torch.float16))
    assert not in_layout(back) and torch.equal(back.cpu(), host())
    assert t.to("cpu", device_layout=None).device.type == "cpu"
    assert host().to(torch.float32).dtype == torch.float32  # no keyword: PyTorch's own method


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: torch.empty(3, device_layout=LAYOUT), ValueError, "empty: device_layout needs a tensor on spyre"),
        (lambda: host().to("cpu", device_layout=LAYOUT), ValueError, "to: .*on cpu"),
        (lambda: placed().to(device_layout=[1, 2]), TypeError, "must be a SpyreTensorLayout, got list"),
        (lambda: torch.zeros(SHAPE, device="spyre", device_layout=LAYOUT), ValueError, "float32 lies on the device"),
        (
            lambda: torch.zeros(5, 200, dtype=torch.float16, device="spyre", device_layout=LAYOUT),
            ValueError,
            "layout|stride_map",
        ),
        (lambda: torch.zeros(3, device_leyout=1), TypeError, "unexpected keyword argument"),
    ],
)
def test_wrong_uses_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_functions_keep_their_identity_and_kind():
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.empty(2)
        torch.ones(2).to(torch.float16)
    assert seen[0] is torch.empty and seen[1] is torch.ones and seen[2] is torch.Tensor.to
    assert type(torch.empty) is type(torch.add) and type(torch.Tensor.to) is type(torch.Tensor.add)
    assert torch.empty.__name__ == "empty" and torch.empty.__doc__.startswith("\nempty(")
    assert pickle.loads(pickle.dumps(torch.empty)) is torch.empty


def test_default_devices_and_fake_tensors():
    with torch.device("spyre"):
        assert in_layout(torch.zeros(SHAPE, dtype=torch.float16, device_layout=LAYOUT))
        assert torch.empty(3).device.type == "spyre" and torch.tensor([1]).device.type == "spyre"
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        t = torch.zeros(SHAPE, dtype=torch.float16, device="spyre", device_layout=LAYOUT)
        assert t.shape == SHAPE and t.device.type == "spyre"


def test_compilers_still_know_the_functions():
    @torch.compile(backend="eager", fullgraph=True)
    def f(x):
        return torch.zeros(3) + x.to(torch.float32) + torch.ones_like(x)

    assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))

    @torch.jit.script
    def g(n: int):
        return torch.zeros([n]).to(torch.int32)

    assert g(2).tolist() == [0, 0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_layouts_in_compiled_functions(backend):
    other = SpyreTensorLayout(list(SHAPE), torch.float16)

    def f(x, layout):
        placed = x.to(device_layout=layout)
        ones = torch.ones(SHAPE, dtype=torch.float16, device="spyre", device_layout=LAYOUT)
        return placed, ones, placed * 2 + ones, torch.empty_like(x, device_layout=LAYOUT)

    compiled = torch.compile(f, backend=backend, fullgraph=True)
    for layout in (LAYOUT, other, LAYOUT):
        placed, made, total, empty = compiled(host().to("spyre"), layout)
        assert placed.device_tensor_layout() == layout
        assert in_layout(made) and in_layout(empty)
        assert torch.equal(placed.cpu(), host()) and torch.equal(made.cpu(), torch.ones(SHAPE).half())
        assert torch.equal(total.cpu(), (host() * 2 + 1).to("spyre").cpu())


def test_gradients_go_through_layouts_in_compiled_functions():
    weight = host().requires_grad_()
    torch.compile(lambda w: w.to("spyre").to(device_layout=LAYOUT).sum(), fullgraph=True)(weight).backward()
    assert torch.equal(weight.grad, torch.ones(SHAPE, dtype=torch.float16))


def test_uninstalling_gives_back_the_originals():
    code = (
        "import torch\nbefore = torch.empty, torch.Tensor.to\n"
        "import torch_loom\nfrom torch_loom.device import layout_argument\n"
        "layout_argument.uninstall()\n"
        "import pytest\n"
        "with pytest.raises(TypeError, match='device_layout'):\n    torch.empty(3, device_layout=None)\n"
        "with pytest.raises(TypeError, match='device_layout'):\n    torch.ones(3).to(device_layout=None)\n"
        "assert torch.zeros(2).to('spyre').tolist() == [0, 0]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def roundtrips():
    def through_file(value, **options):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return torch.load(file, **options)

    return {
        "deepcopy": copy.deepcopy,
        "pickle": lambda v: pickle.loads(pickle.dumps(v)),
        "file": lambda v: through_file(v, weights_only=True),
        "old file": lambda v: through_file(v, weights_only=False),
    }


@pytest.mark.parametrize("how", roundtrips())
def test_layouts_survive(how):
    before = {"whole": placed(), "plain": host().to("spyre"), "bytes": torch.arange(70, dtype=torch.uint8).to("spyre")}
    before["part"] = before["whole"][1:3, 10:]
    before["parameter"] = torch.nn.Parameter(placed())
    after = roundtrips()[how](before)
    for name, t in before.items():
        assert torch.equal(after[name].cpu(), t.cpu()), name
        assert after[name].device_tensor_layout().device_size[-1] in (64, 128, 32)
    for name in ("whole", "part", "parameter"):
        assert in_layout(after[name]), name
    assert not in_layout(after["plain"])
    assert isinstance(after["parameter"], torch.nn.Parameter)
    if how == "pickle":  # plain pickles never share storages
        return
    assert after["part"].untyped_storage().data_ptr() == after["whole"].untyped_storage().data_ptr()


def test_a_module_keeps_its_layouts():
    module = torch.nn.Linear(100, 5).half()
    module.weight = torch.nn.Parameter(module.weight.data.to("spyre", device_layout=LAYOUT))
    module.bias = torch.nn.Parameter(module.bias.data.to("spyre"))
    assert in_layout(copy.deepcopy(module).weight)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    for location, there in ((None, True), ("cpu", False)):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert torch.equal(loaded["weight"].cpu(), module.weight.detach().cpu())
        assert there == (loaded["weight"].device.type == "spyre")
        assert not there or in_layout(loaded["weight"])


def test_damaged_saved_layouts_are_refused():
    t = host().to("spyre")
    for key in (
        "spyre_layout 1 size 2 5",
        "spyre_layout 1 size 2 5 100 stride 2 100 1 device_size 2 1 64 stride_map",
        "spyre_layout 1 size 1 7 stride 1 1 device_size 2 1 64 stride_map 2 64 1",
    ):
        with pytest.raises((RuntimeError, ValueError), match="layout"):
            torch._utils.set_tensor_metadata(t, {key: True})
    assert torch.equal(t.cpu(), host())


def test_public_launch_names():
    import programs

    plan = torch.spyre.prepare_kernel(programs.scale())
    assert isinstance(plan, torch.spyre.JobPlan)
    a, out = torch.ones(64, 64).half().to("spyre"), torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    torch.spyre.launch_jobplan(plan, [a, out, 64, 3.0])
    assert (out.cpu() == 3).all()


def test_the_downcast_warning_can_be_asked_for():
    code = (
        "import warnings, torch, torch_loom\nassert not torch.spyre.get_downcast_warning()\n"
        "torch.spyre.set_downcast_warning(True)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    torch.tensor([1, 2]).to('spyre'), torch.tensor([1, 2]).to('spyre')\n"
        "assert len(seen) == 1 and '32-bit' in str(seen[0].message), seen\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
