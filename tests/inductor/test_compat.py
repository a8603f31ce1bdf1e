"""What this room relies on in PyTorch's Inductor, checked where it can be checked without compiling a model."""

import inspect

import pytest
from torch._inductor.codegen import wrapper as host_program
from torch._inductor.codegen.common import device_codegens, get_scheduling_for_device
from torch._inductor.scheduler import BaseScheduling

from torch_loom.inductor import compat, register


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_every_name_that_other_files_take_exists():
    missing = [name for name in compat.__all__ if not hasattr(compat, name)]
    assert not missing and len(set(compat.__all__)) == len(compat.__all__)


def test_the_backend_is_registered_for_the_device_with_its_pass():
    classes = register()
    assert get_scheduling_for_device("spyre") is classes["Scheduling"]
    assert device_codegens["spyre"].wrapper_codegen is classes["PythonWrapperCodegen"]
    assert device_codegens["spyre"].fx_wrapper_codegen is None


@pytest.mark.parametrize("name", ["make_allocation", "make_buffer_reuse", "_generate_kernel_call_helper", "create"])
def test_host_statements_take_the_arguments_that_we_override(name):
    classes = register()
    theirs = getattr(host_program.PythonWrapperCodegen, name)
    ours = getattr(classes["PythonWrapperCodegen"], name)
    assert ours is not theirs
    taken = parameters(theirs)
    variadic = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(ours).parameters.values())
    assert variadic or parameters(ours) == taken


@pytest.mark.parametrize("name", [n for n in vars(BaseScheduling) if not n.startswith("__")])
def test_scheduling_overrides_keep_their_parameters(name):
    ours, theirs = getattr(register()["Scheduling"], name), getattr(BaseScheduling, name)
    if callable(ours) and ours is not theirs:
        assert len(parameters(ours)) == len(parameters(theirs))


def test_jobs_are_made_from_lines_of_the_host_program():
    lines = [compat.host_lines.KernelCallLine, compat.host_lines.AllocateLine, compat.host_lines.FreeIfNotReusedLine]
    assert all(issubclass(line, host_program.WrapperLine) for line in lines)


def test_fused_reductions_are_asked_for_by_type():
    assert "reduction_type" in parameters(compat.Reduction.create)
