// Python face of plans and launches.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "runtime/plan.h"

namespace loom::dev {

/// Adds `prepare`, `Plan`, the launch log and the clock to the module.
void bind_launch(pybind11::module_& m);

/// "file:line" of the user's Python line on this thread's stack, or of the `backward` call that this thread
/// works for; null when there is none. Needs the GIL.
rt::Origin python_line();

/// Lends the host's GEMM, thread set-up and thread count to the engine.
void lend_host_services();

}  // namespace loom::dev
