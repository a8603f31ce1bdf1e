// Runs one nest of constant steps: the order of its loops, and the kernel inside them.
#pragma once

#include "runtime/nests.h"

namespace loom::rt {

/// Converts the elements of the nest. With `stream` results are written past the caches where that
/// pays; call stream_fence afterwards. Throws ValueError.
void run_nest(const Nest& nest, Phys dst, Phys src, bool stream);

}  // namespace loom::rt
