"""torch.compile for spyre: an Inductor backend that prints KTIR.

``register`` is called once at start-up and touches only Inductor's registries; the heavy modules load when
Inductor first compiles a graph.
"""

from __future__ import annotations

_classes: dict[str, type] = {}


def register() -> dict[str, type]:
    """Register scheduling, wrapper, graph pass and device statements for device type ``spyre``, once.

    Returns the classes by the names under which Inductor looks for them."""
    if _classes:
        return _classes
    from .compat import register_backend_for_device, register_device_op_overrides
    from .lowerings import GraphPass
    from .scheduling import LoomScheduling
    from .wrapper import LoomDeviceOpOverrides, LoomWrapperCodegen

    register_backend_for_device("spyre", LoomScheduling, LoomWrapperCodegen, device_custom_pass=GraphPass())
    register_device_op_overrides("spyre", LoomDeviceOpOverrides())
    _classes.update(Scheduling=LoomScheduling, PythonWrapperCodegen=LoomWrapperCodegen)
    return _classes
