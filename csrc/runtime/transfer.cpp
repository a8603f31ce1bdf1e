// The plan of a transfer: refine the iteration space until every dim advances each device side by a
// constant device stride or walks along its stick axis, then run nested loops whose innermost runs have
// constant strides on both sides and go to one conversion call. Views that cannot be refined (a step
// that jumps between rows unevenly, an unusual layout) are moved element by element.
#include "runtime/transfer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/convert.h"

namespace loom::rt {
namespace {

/// How one iteration dim moves one side: by `step` elements, or, on the stick axis, by `step` lanes.
struct Move {
  bool stick = false;
  std::int64_t step = 0;
};

struct Plan {
  Dims sizes;
  std::vector<Move> moves[2];
};

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

bool refine(Refined& r, const Side* sides[2], Plan& plan) {
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

/// Position of one side inside the loops: bytes come from `element` and the lane coordinate `x`.
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
};

Cursor make_cursor(const Side& s) {
  Cursor c{s.base, phys_bytes(s.phys)};
  if (s.layout == nullptr) {
    c.element = s.offset;
    return c;
  }
  const auto& axes = s.layout->axes;
  c.lanes = lanes(s.layout->format);
  c.lane_bits = std::countr_zero(static_cast<std::uint64_t>(c.lanes));
  c.tile_stride = s.layout->tile_stride;
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

/// Elements until the side's stick ends, at most n.
std::int64_t run_length(const Cursor& c, const Move& m, std::int64_t n) {
  if (!m.stick) return n;
  const std::int64_t left = c.lanes - (c.x & (c.lanes - 1));
  return std::min(n, m.step == 1 ? left : (left + m.step - 1) / m.step);
}

/// Sticks of a row that are moved before the next row's turn; measured, 8 and 32 are slower.
constexpr std::int64_t kRowSticks = 16;

class Loops {
 public:
  Loops(const Plan& plan, const Side& dst, const Side& src)
      : plan_(plan), convert_(converter(dst.phys, src.phys)), dst_(make_cursor(dst)), src_(make_cursor(src)) {
    constant_ =
        std::all_of(plan.moves[1].begin(), plan.moves[1].end(), [](const Move& m) { return m.step == 0; });
    if (constant_ && one(value_, 1, src_.address(), 1, 1)) constant_ = true;
  }

  /// All loops, with the innermost dim cut into pieces that become the outermost loop where that keeps the
  /// working set in the caches. A dim that walks a stick on one side but not consecutive elements on the
  /// other is cut at the stick's ends: the lines that a strided piece touches are then used up by the next
  /// outer index. A long row is cut every few sticks: its sticks lie a power of two apart in memory more
  /// often than not, so touching many of them in turn would evict the first before the next row.
  void run_all() {
    const bool any = !plan_.sizes.empty();
    d_ = any ? plan_.moves[0].back() : Move{};
    s_ = any ? plan_.moves[1].back() : Move{};
    const std::int64_t n = any ? plan_.sizes.back() : 1;
    const bool strided = (d_.stick && s_.step != 1) || (s_.stick && d_.step != 1);
    std::int64_t row = n;
    if (d_.stick) row = std::min(row, kRowSticks * dst_.lanes);
    if (s_.stick) row = std::min(row, kRowSticks * src_.lanes);
    if (strided || row < n) {
      Cursor dst = dst_, src = src_;
      for (std::int64_t left = n; left > 0;) {
        inner_ =
            strided ? std::min(run_length(dst, d_, left), run_length(src, s_, left)) : std::min(row, left);
        dst_ = dst;
        src_ = src;
        run(0);
        dst.advance(d_, inner_);
        src.advance(s_, inner_);
        left -= inner_;
      }
    } else {
      inner_ = n;
      run(0);
    }
  }

 private:
  void run(std::size_t dim) {
    if (dim + 1 >= plan_.sizes.size()) return inner();
    const Move &d = plan_.moves[0][dim], &s = plan_.moves[1][dim];
    const Cursor dst = dst_, src = src_;
    for (std::int64_t i = 0; i < plan_.sizes[dim]; ++i) {
      run(dim + 1);
      dst_ = dst;
      src_ = src;
      dst_.advance(d, i + 1);
      src_.advance(s, i + 1);
    }
    dst_ = dst;
    src_ = src;
  }

  void inner() {
    Cursor dst = dst_, src = src_;
    for (std::int64_t left = inner_; left > 0;) {
      const std::int64_t n = std::min(run_length(dst, d_, left), run_length(src, s_, left));
      if (constant_) {
        fill_run(dst.address(), d_.step, value_, dst.bytes, static_cast<std::size_t>(n));
      } else {
        one(dst.address(), d_.step, src.address(), s_.step, static_cast<std::size_t>(n));
      }
      dst.advance(d_, n);
      src.advance(s_, n);
      left -= n;
    }
  }

  bool one(void* dst, std::int64_t ds, const void* src, std::int64_t ss, std::size_t n) {
    std::int64_t bad = 0;
    if (convert_(dst, ds, src, ss, n, &bad) != n) throw ValueError(bad);
    return true;
  }

  const Plan& plan_;
  Convert convert_;
  Cursor dst_, src_;
  Move d_, s_;              // of the innermost dim
  std::int64_t inner_ = 1;  // its extent, or that of one piece
  bool constant_ = false;
  alignas(8) std::uint8_t value_[8] = {};
};

/// Puts the dim along the destination's stick (else the source's, else the smallest step) innermost and
/// orders the others by descending step on the device, where neighbours are far apart in host terms.
void order_dims(Plan& plan, const Side& dst) {
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
  Plan sorted;
  for (std::size_t d : order) {
    sorted.sizes.push_back(plan.sizes[d]);
    for (int side = 0; side < 2; ++side) sorted.moves[side].push_back(plan.moves[side][d]);
  }
  plan = std::move(sorted);
}

/// Moves element by element, asking the layout for each place.
void by_element(const Dims& sizes, const Side& dst, const Side& src) {
  const Convert convert = converter(dst.phys, src.phys);
  const int dst_bytes = phys_bytes(dst.phys), src_bytes = phys_bytes(src.phys);
  Dims index(sizes.size(), 0);
  std::int64_t h[2] = {dst.offset, src.offset};
  for (;;) {
    const std::int64_t d = dst.layout != nullptr ? dst.layout->at(h[0]) : h[0];
    const std::int64_t s = src.layout != nullptr ? src.layout->at(h[1]) : h[1];
    std::int64_t bad = 0;
    if (convert(dst.base + d * dst_bytes, 1, src.base + s * src_bytes, 1, 1, &bad) != 1)
      throw ValueError(bad);
    std::size_t dim = sizes.size();
    for (;;) {
      if (dim == 0) return;
      --dim;
      h[0] += dst.strides[dim];
      h[1] += src.strides[dim];
      if (++index[dim] < sizes[dim]) break;
      h[0] -= dst.strides[dim] * sizes[dim];
      h[1] -= src.strides[dim] * sizes[dim];
      index[dim] = 0;
    }
  }
}

}  // namespace

void transfer(const Dims& sizes, const Side& dst, const Side& src) {
  Refined r;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return;
    if (sizes[d] == 1) continue;
    r.sizes.push_back(sizes[d]);
    r.strides[0].push_back(dst.strides[d]);
    r.strides[1].push_back(src.strides[d]);
  }
  const Side* sides[2] = {&dst, &src};
  auto regular = [](const Side& s) { return s.layout == nullptr || s.layout->regular; };
  Plan plan;
  if (!regular(dst) || !regular(src) || !refine(r, sides, plan)) return by_element(sizes, dst, src);
  order_dims(plan, dst);
  Loops(plan, dst, src).run_all();
}

}  // namespace loom::rt
