// Transfers whose results are narrower than what they are made of and lie in another order, through a stage.
#pragma once

#include "runtime/nests.h"

namespace loom::rt {

/// Converts the elements of the nest as run_nest does, past the caches, patch by patch: the source in the
/// order in which it lies there, to a stage; from the stage in the order of the destination. Returns false,
/// with nothing done, where that does not pay. Call stream_fence afterwards. Throws ValueError.
bool run_staged(const Nest& nest, Phys dst, Phys src);

}  // namespace loom::rt
