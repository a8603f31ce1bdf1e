// Refinement: a dim of the view that covers several dims of a layout, or crosses the end of one, is split
// until each piece moves through a single axis of each side.
#include "runtime/moves.h"

#include <algorithm>
#include <utility>

namespace loom::rt {
namespace {

struct Refined {
  Dims sizes;
  Dims strides[2];
};

/// Geometry position of a device side: start index on every axis and what the dims may still add.
class Placement {
 public:
  Placement(const Layout& l, std::int64_t offset) : layout_(l), used_(l.axes.size()) {
    for (std::size_t j = 0; j < used_.size(); ++j) used_[j] = offset / l.axes[j].host_stride % l.axes[j].size;
  }

  /// Places a dim of extent n and host stride s. Returns 0 when done, m > 1 when the dim must first be
  /// split into (n / m, m), -1 when the view does not follow the geometry.
  std::int64_t place(std::int64_t n, std::int64_t s, Move* move) {
    if (s == 0) {
      *move = {};
      return 0;
    }
    std::size_t j = 0;
    while (j < used_.size() && layout_.axes[j].host_stride > s) ++j;
    if (j == used_.size()) return -1;
    const AxisMap& axis = layout_.axes[j];
    if (s % axis.host_stride != 0) return -1;
    const std::int64_t k = s / axis.host_stride;
    const std::int64_t last = used_[j] + (n - 1) * k;
    if (last >= axis.size) {
      const std::int64_t m = axis.size / k;
      return used_[j] == 0 && axis.size % k == 0 && m > 1 && m < n && n % m == 0 ? m : -1;
    }
    used_[j] = last;
    const bool stick = static_cast<int>(j) == layout_.stick_axis;
    *move = {stick, stick ? k : k * axis.digits[0].stride};
    return 0;
  }

 private:
  const Layout& layout_;
  Dims used_;
};

bool refine(Refined& r, const Side* sides[2], Moves& plan) {
  for (bool changed = true; changed;) {
    changed = false;
    plan.sizes = r.sizes;
    for (int side = 0; side < 2 && !changed; ++side) {
      auto& moves = plan.moves[side];
      moves.assign(r.sizes.size(), {});
      if (sides[side]->layout == nullptr) {
        for (std::size_t d = 0; d < r.sizes.size(); ++d) moves[d].step = r.strides[side][d];
        continue;
      }
      Placement placement(*sides[side]->layout, sides[side]->offset);
      // Small steps first: a large step may only use what they leave of its axis.
      std::vector<std::size_t> order(r.sizes.size());
      for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return r.strides[side][a] < r.strides[side][b]; });
      for (std::size_t d : order) {
        const std::int64_t m = placement.place(r.sizes[d], r.strides[side][d], &moves[d]);
        if (m < 0) return false;
        if (m == 0) continue;
        r.sizes[d] /= m;
        r.sizes.insert(r.sizes.begin() + static_cast<std::ptrdiff_t>(d) + 1, m);
        for (auto& strides : r.strides) {
          const std::int64_t s = strides[d];
          strides[d] = s * m;
          strides.insert(strides.begin() + static_cast<std::ptrdiff_t>(d) + 1, s);
        }
        changed = true;
        break;
      }
    }
  }
  return true;
}

/// Puts the dim along the destination's stick (else the source's, else the smallest step) innermost and
/// orders the others by descending step on the device, where neighbours are far apart in host terms.
void order_dims(Moves& plan, const Side& dst) {
  const std::size_t r = plan.sizes.size();
  const int by = dst.layout != nullptr ? 0 : 1;
  std::vector<std::size_t> order(r);
  for (std::size_t d = 0; d < r; ++d) order[d] = d;
  auto rank = [&](std::size_t d) {
    const Move &a = plan.moves[by][d], &b = plan.moves[1 - by][d];
    const std::int64_t step = std::max<std::int64_t>(a.step, 1);
    if (a.stick) return std::pair{0, step};
    if (b.stick) return std::pair{1, std::max<std::int64_t>(b.step, 1)};
    return std::pair{2, step};
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
  Moves sorted;
  for (std::size_t d : order) {
    sorted.sizes.push_back(plan.sizes[d]);
    for (int side = 0; side < 2; ++side) sorted.moves[side].push_back(plan.moves[side][d]);
  }
  plan = std::move(sorted);
}

}  // namespace

std::optional<Moves> plan_moves(const Dims& sizes, const Side& dst, const Side& src) {
  Refined r;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    r.sizes.push_back(sizes[d]);
    r.strides[0].push_back(dst.strides[d]);
    r.strides[1].push_back(src.strides[d]);
  }
  const Side* sides[2] = {&dst, &src};
  auto regular = [](const Side& s) { return s.layout == nullptr || s.layout->regular; };
  Moves plan;
  if (!regular(dst) || !regular(src) || !refine(r, sides, plan)) return std::nullopt;
  order_dims(plan, dst);
  return plan;
}

}  // namespace loom::rt
