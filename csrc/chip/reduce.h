// Folds of reductions: fp32 or int32 accumulators, vectorised along a row and across rows.
#pragma once

#include <cstdint>

#include "chip/program.h"

namespace loom::chip {

struct Fold {
  float (*neutral)();
  /// to = join(to, fold of from[0..n)).
  void (*row)(float* to, const float* from, std::int64_t n);
  /// to[i] = join(to[i], from[i]).
  void (*lanes)(float* to, const float* from, std::int64_t n);
};

/// The fold of a reduction other than NONE.
const Fold& fold_of(Reduce reduce);

}  // namespace loom::chip
