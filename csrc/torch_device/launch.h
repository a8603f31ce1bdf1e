// Python face of plans and launches.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace loom::dev {

/// Adds `prepare`, `Plan`, the launch log and the clock to the module.
void bind_launch(pybind11::module_& m);

/// Lends the host's GEMM, thread set-up and thread count to the engine.
void lend_host_services();

}  // namespace loom::dev
