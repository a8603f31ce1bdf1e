// Nests of loops with constant steps: what a plan becomes once its stick axes are cut at the ends of sticks.
#pragma once

#include <optional>
#include <vector>

#include "runtime/moves.h"

namespace loom::rt {

/// One loop; steps count elements, [0] of the destination and [1] of the source.
struct Loop {
  std::int64_t size = 1;
  std::int64_t step[2] = {0, 0};
};

/// Loops from the outermost inwards over addresses that start at `base`.
struct Nest {
  std::vector<Loop> loops;
  std::uint8_t* base[2] = {nullptr, nullptr};
};

/// The nests that a plan consists of: whole sticks and what is left before and after them. Empty when the
/// lanes of a stick are walked in another way than evenly (a step that does not divide the stick, a phase
/// that differs between two device sides).
std::vector<Nest> cut(const Moves& plan, const Side& dst, const Side& src);

/// Loops of a nest in the order of the destination, without those of one index and with neighbours merged
/// where both sides move as through one.
std::vector<Loop> simplify(const std::vector<Loop>& loops);

/// A part of a nest: one of `of` parts of about equal size.
struct Share {
  int number = 0, of = 1;
};

/// The share of a nest, nothing when it is empty.
std::optional<Nest> take(const Nest& nest, Share share, Phys dst, Phys src);

}  // namespace loom::rt
