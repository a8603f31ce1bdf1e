// Evaluation of postfix integer expressions. Signed 64-bit; overflow is an error (SC-E17).
#pragma once

#include <algorithm>
#include <cstdint>

#include "chip/program.h"

namespace loom::chip {

/// What the leaves of an expression read. Unused members may be null.
struct Leaves {
  const std::int64_t* symbols = nullptr;
  const std::int64_t* slots = nullptr;
  const std::int64_t* regs = nullptr;
  std::int64_t core = 0;
};

/// The expression was checked by validate(): shape, depth and leaf numbers hold.
std::int64_t evaluate(const Program& p, ExprRef expr, const Leaves& leaves);

}  // namespace loom::chip
