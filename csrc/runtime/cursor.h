// A position on one side of a transfer, for moves that walk a stick axis.
#pragma once

#include <algorithm>
#include <bit>

#include "runtime/moves.h"

namespace loom::rt {

/// Position inside the loops: bytes come from `element` and the lane coordinate `x`.
struct Cursor {
  std::uint8_t* base;
  int bytes;
  std::int64_t element = 0;
  std::int64_t x = 0;
  std::int64_t lanes = 1;
  int lane_bits = 0;
  std::int64_t tile_stride = 0;

  std::uint8_t* address() const {
    const std::int64_t stick = (x >> lane_bits) * tile_stride + (x & (lanes - 1));
    return base + (element + stick) * bytes;
  }
  void advance(const Move& m, std::int64_t n) { (m.stick ? x : element) += m.step * n; }
  /// Elements of a run that moves by `m` until the stick ends, at most n.
  std::int64_t run_length(const Move& m, std::int64_t n) const {
    if (!m.stick) return n;
    const std::int64_t left = lanes - (x & (lanes - 1));
    return std::min(n, m.step == 1 ? left : (left + m.step - 1) / m.step);
  }
};

/// The cursor at the first element of a side.
inline Cursor make_cursor(const Side& s) {
  Cursor c{s.base, phys_bytes(s.phys)};
  if (s.layout == nullptr) {
    c.element = s.offset;
    return c;
  }
  const auto& axes = s.layout->axes;
  c.lanes = lanes(s.layout->format);
  c.tile_stride = s.layout->tile_stride;
  // Sticks that follow one another are one long stick.
  if (c.tile_stride == c.lanes) c.lanes = std::int64_t{1} << 56;
  c.lane_bits = std::countr_zero(static_cast<std::uint64_t>(c.lanes));
  for (std::size_t j = 0; j < axes.size(); ++j) {
    const std::int64_t index = s.offset / axes[j].host_stride % axes[j].size;
    if (static_cast<int>(j) == s.layout->stick_axis) {
      c.x = index;
    } else {
      c.element += index * axes[j].digits[0].stride;
    }
  }
  return c;
}

}  // namespace loom::rt
