// The plan of a transfer: an iteration space in which every dim advances each side by a constant step or
// walks along its stick axis.
#pragma once

#include <optional>
#include <vector>

#include "runtime/transfer.h"

namespace loom::rt {

/// How one iteration dim moves one side: by `step` elements, or, on the stick axis, by `step` lanes.
struct Move {
  bool stick = false;
  std::int64_t step = 0;
};

/// Dims from the outermost inwards; moves[0] belongs to the destination, moves[1] to the source.
struct Moves {
  Dims sizes;
  std::vector<Move> moves[2];
};

/// The plan, innermost dim last; nothing when a side cannot be refined (a step that jumps between rows
/// unevenly, an unusual layout).
std::optional<Moves> plan_moves(const Dims& sizes, const Side& dst, const Side& src);

}  // namespace loom::rt
