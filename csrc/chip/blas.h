// Finds a single-precision GEMM that the process already holds (libtorch brings one).
#pragma once

#include "chip/chip.h"

namespace loom::chip {

/// The `sgemm_` of libtorch_cpu when it is loaded, else one visible in the process, else nullptr.
Sgemm find_sgemm();

/// For MachineOptions::thread_init: this thread's BLAS calls use one thread.
void single_threaded_blas();

}  // namespace loom::chip
