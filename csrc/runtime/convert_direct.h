// Direct conversions of the pairs that carry models: half, bfloat16 and bool to their device forms and back.
#pragma once

#include "runtime/convert.h"

namespace loom::rt {

/// The direct form of a pair, with `stream` the one that writes past the caches; null for other pairs.
Convert direct_converter(Phys dst, Phys src, bool stream);

}  // namespace loom::rt
