"""The host program that Inductor generates around our kernels."""

from __future__ import annotations

from typing import Any

import sympy

from .access import geometry, public_layout
from .compat import DeviceOpOverrides, PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from .domain import product
from .jobs import make_jobs
from .layouts import chosen_layouts
from .options import current as options


class DeviceLines(PythonWrapperCodegen):
    """What a host program writes for ``spyre``, in graphs and in their subgraphs."""

    def make_allocation(
        self,
        name: str,
        device: Any,
        dtype: Any,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        """Intermediates on the device are allocated in rows of sticks, public outputs in the default layout."""
        if device.type != "spyre":
            return super().make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)
        if name in chosen_layouts():  # only kernels see it: as large as its rows of sticks
            dims = geometry(name).dims
            rows, lanes = product(d.extent for d in dims[:-1]), dims[-1].extent
            shape, stride = (rows, lanes), (lanes, sympy.Integer(1))
        size = self.codegen_python_shape_tuple(tuple(shape))
        steps = self.codegen_python_shape_tuple(tuple(stride))
        kind = ", 'default'" if public_layout(name) else ""
        return f"{name} = empty_strided_spyre({size}, {steps}, {dtype}, {device.index or 0}{kind})"

    def make_buffer_reuse(self, old: Any, new: Any, delete_old: bool) -> str:
        """A device buffer of another shape has another layout, so memory goes back to the allocator."""
        if old.get_device().type != "spyre":
            return super().make_buffer_reuse(old, new, delete_old)
        line = self.make_buffer_allocation(new)
        return f"del {old.get_name()}; {line}" if delete_old and old.get_name() not in _outputs() else line

    def _generate_kernel_call_helper(self, kernel_name: str, call_args: Any, **kwargs: Any) -> None:
        device = kwargs.get("device")
        if device is not None and device.type != "spyre":
            super()._generate_kernel_call_helper(kernel_name, call_args, **kwargs)
            return
        self.writeline(self.wrap_kernel_call(kernel_name, call_args))


class LoomWrapperCodegen(DeviceLines):
    """Python wrapper: allocations carry the compiler's layout, kernels are called as functions."""

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: str | None, parent_wrapper: Any, partition_signatures: Any = None
    ) -> PythonWrapperCodegen:
        """Wrapper of a graph, or of a subgraph: a branch of ``cond``, the body of ``while_loop``."""
        if is_subgraph:
            assert subgraph_name is not None
            return LoomSubgraphCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return LoomWrapperCodegen()

    def write_header(self) -> None:
        """Add what kernels and allocations need."""
        super().write_header()
        self.imports.splice("from torch_loom.inductor.runtime import loom_kernel, empty_strided_spyre")
        self.imports.splice("from torch_loom.inductor.job import loom_job")

    def run_wrapper_ir_passes(self, is_inference: bool) -> None:
        """After Inductor's own: runs of kernels become jobs, except for the recorder, which keeps single launches."""
        super().run_wrapper_ir_passes(is_inference)
        if not options().public_outputs:
            self.lines = make_jobs(self, self.lines)


class LoomSubgraphCodegen(DeviceLines, SubgraphPythonWrapperCodegen):
    """A function of the host program; its kernels are defined in the graph's own module and launched one by one."""


def _outputs() -> set[str]:
    from .compat import V

    return set(V.graph.get_output_names())


class LoomDeviceOpOverrides(DeviceOpOverrides):
    """Host statements about the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch_loom.inductor.runtime import get_raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.spyre.device({device_idx})"
