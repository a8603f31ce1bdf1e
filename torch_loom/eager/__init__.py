"""Eager operators on a device without kernels of its own: compiled once per structure, run natively.

The native recorder (``csrc/torch_device/eager*.cpp``) computes the structural key of each dispatched operator and
runs its op program; for an unknown key it asks ``compiler.program``, which traces the operator, hands the graph to a
target and keeps the answer in memory and on disk. The room knows no device: a target compiles graphs and prepares
kernels. ``modes`` decides when work runs.
"""
