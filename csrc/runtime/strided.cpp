// The unit step decides. Where one loop has it on both sides, its elements are runs. Where each side has it
// on another loop, blocks of the two are transposed, so that both sides move whole cache lines. The loops
// around that are cut into patches, which cover some lines in a row on either side, and follow the
// destination from patch to patch.
#include "runtime/strided.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "runtime/blocks.h"
#include "runtime/writer.h"

namespace loom::rt {
namespace {

/// Bytes that a block of a transpose covers along each side, at most: a few cache lines.
constexpr std::int64_t kBlockLine = 256;
/// Rows of the source that lie a multiple of kPage apart share a few sets of the caches: a block takes this
/// many.
constexpr std::int64_t kFewRows = 64;
constexpr std::int64_t kPage = 4096;
/// Bytes of a block between two steps: stays in the first cache beside what is read.
constexpr std::int64_t kStageBytes = 16 << 10;
/// Loops shorter than this are not worth a transpose.
constexpr std::int64_t kShortest = 8;
/// Rows of a block that go to the stage at a time, and how many rows earlier they are fetched.
constexpr std::int64_t kGroup = 8;
constexpr std::int64_t kAhead = 16;
/// Bytes that a patch covers in a row on each side.
constexpr std::int64_t kPatch = 2048;

/// A loop of the final order over a dim, or over the part of it that a loop around this one is at.
struct Level {
  std::size_t dim;
  std::int64_t block;  // indices per step
};

class Runner {
 public:
  Runner(const Nest& nest, Phys dst, Phys src, bool stream)
      : writer_(dst, src, stream), dims_(simplify(nest.loops)), base_{nest.base[0], nest.base[1]} {
    bytes_[0] = writer_.dst_bytes;
    bytes_[1] = writer_.src_bytes;
    constant_ = std::all_of(dims_.begin(), dims_.end(), [](const Loop& l) { return l.step[1] == 0; });
    if (constant_) writer_.convert(value_, base_[1], {.n = 1});
    choose_kernel();
    order();
    extent_.resize(dims_.size());
    for (std::size_t d = 0; d < dims_.size(); ++d) extent_[d] = dims_[d].size;
  }

  void run() {
    level(0, base_[0], base_[1]);
    finish();
  }

 private:
  struct Block {
    std::uint8_t* dst = nullptr;
    const std::uint8_t* src = nullptr;
    std::int64_t rows = 0, columns = 0;
  };

  std::optional<std::size_t> with_unit_step(int side) const {
    for (std::size_t d = dims_.size(); d-- > 0;)
      if (dims_[d].step[side] == 1) return d;
    return std::nullopt;
  }

  void choose_kernel() {
    if (dims_.empty()) return;
    const auto u = with_unit_step(0), v = with_unit_step(1);
    if (u && v && *u != *v && dims_[*u].size >= kShortest && dims_[*v].size >= kShortest) {
      row_ = *u;
      column_ = *v;
      block_sizes();
      return;
    }
    const bool shorter = u && v && dims_[*v].size > dims_[*u].size;
    row_ = u && !shorter ? *u : v ? *v : dims_.size() - 1;
  }

  /// Indices per block of a transpose: `rows_` along the destination, `columns_` along the source.
  void block_sizes() {
    const Loop &u = dims_[*row_], &v = dims_[*column_];
    const bool few = u.step[1] * bytes_[1] % kPage == 0;
    rows_ = std::min(u.size, few ? kFewRows : kBlockLine / bytes_[0]);
    columns_ = std::min(v.size, (few ? 2 * kBlockLine : kBlockLine) / bytes_[1]);
    // The stage holds elements of the narrower side.
    const std::int64_t narrow = std::min(bytes_[0], bytes_[1]);
    while (rows_ * columns_ * narrow > kStageBytes) (rows_ > columns_ && !few ? rows_ : columns_) /= 2;
  }

  /// Indices of a dim that one call of the kernel takes.
  std::int64_t unit(std::size_t dim) const {
    if (dim == row_) return column_ ? rows_ : dims_[dim].size;
    return dim == column_ ? columns_ : 1;
  }

  /// The dims by their step on one side, near ones last.
  std::vector<std::size_t> by_step(int side) const {
    std::vector<std::size_t> out(dims_.size());
    for (std::size_t d = 0; d < out.size(); ++d) out[d] = d;
    std::stable_sort(out.begin(), out.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(dims_[a].step[side]) > std::abs(dims_[b].step[side]);
    });
    return out;
  }

  /// Grows a patch along the near loops of one side until it covers kPatch bytes there.
  void grow(int side, std::vector<std::int64_t>& patch) const {
    std::int64_t bytes = bytes_[side];
    const std::vector<std::size_t> order = by_step(side);
    for (auto d = order.rbegin(); d != order.rend() && bytes < kPatch; ++d) {
      const std::int64_t units = std::max<std::int64_t>(1, kPatch / (bytes * unit(*d)));
      patch[*d] = std::min(dims_[*d].size, std::max(patch[*d], units * unit(*d)));
      if (dims_[*d].step[side] != 0) bytes *= patch[*d];
    }
  }

  /// Loops from patch to patch, which follow the destination, around the loops inside a patch.
  void order() {
    std::vector<std::int64_t> patch(dims_.size());
    for (std::size_t d = 0; d < dims_.size(); ++d) patch[d] = unit(d);
    if (!constant_) {
      grow(0, patch);
      grow(1, patch);
    }
    for (std::size_t d : by_step(0))
      if (patch[d] < dims_[d].size) levels_.push_back({d, patch[d]});
    // Writes past the caches need no neighbours soon after; reads always do.
    for (std::size_t d : by_step(writer_.may_stream() ? 1 : 0))
      if (unit(d) < patch[d]) levels_.push_back({d, unit(d)});
    if (!column_ && !constant_ && !levels_.empty()) {
      rows_dim_ = levels_.back().dim;
      levels_.pop_back();
    }
  }

  void level(std::size_t at, std::uint8_t* dst, const std::uint8_t* src) {
    if (at == levels_.size()) return column_ ? next_block(dst, src) : runs(dst, src);
    const Level& l = levels_[at];
    const Loop& loop = dims_[l.dim];
    const std::int64_t step[2] = {loop.step[0] * bytes_[0], loop.step[1] * bytes_[1]};
    const std::int64_t size = extent_[l.dim];
    for (std::int64_t i = 0; i < size; i += l.block) {
      extent_[l.dim] = std::min(l.block, size - i);
      level(at + 1, dst + i * step[0], src + i * step[1]);
    }
    extent_[l.dim] = size;
  }

  void runs(std::uint8_t* dst, const std::uint8_t* src) const {
    Runs r;
    r.n = 1;
    if (row_) {
      const Loop& loop = dims_[*row_];
      r.n = static_cast<std::size_t>(loop.size);
      r.dst_step = loop.step[0];
      r.src_step = loop.step[1];
    }
    if (constant_) return fill_run(dst, r.dst_step, value_, bytes_[0], r.n);
    if (rows_dim_) {
      const Loop& loop = dims_[*rows_dim_];
      r.rows = static_cast<std::size_t>(extent_[*rows_dim_]);
      r.dst_pitch = loop.step[0];
      r.src_pitch = loop.step[1];
    }
    writer_.write(dst, src, r);
  }

  /// A block runs when the next one is known, so that the first rows of that one can be fetched meanwhile.
  void next_block(std::uint8_t* dst, const std::uint8_t* src) {
    const Block next{dst, src, extent_[*row_], extent_[*column_]};
    if (block_.dst != nullptr) run_block(next);
    block_ = next;
  }

  void finish() {
    if (block_.dst != nullptr) run_block({});
  }

  /// Fetches one row of the block at hand, or of the next one when it lies beyond: rows lie a pitch apart,
  /// which no hardware prefetcher follows.
  void fetch(const Block& next, std::int64_t row) const {
    const Block& b = row < block_.rows ? block_ : next;
    if (row >= block_.rows) row -= block_.rows;
    if (row >= b.rows) return;
    const std::uint8_t* line = b.src + row * dims_[*row_].step[1] * bytes_[1];
    for (std::int64_t at = 0; at < b.columns * bytes_[1]; at += 64) prefetch(line + at);
  }

  /// Moves the rows of the block at hand to the stage, a group at a time while later ones are fetched.
  template <typename Step>
  void each_group(const Block& next, Step step) const {
    const std::int64_t group = bytes_[1] == 1 ? 2 * kGroup : kGroup;  // no fewer than a square of a transpose
    for (std::int64_t r = 0; r < block_.rows; r += group) {
      const std::int64_t n = std::min(group, block_.rows - r);
      for (std::int64_t k = r; k < r + n; ++k) fetch(next, k + kAhead);
      step(r, static_cast<std::size_t>(n));
    }
  }

  void run_block(const Block& next) const {
    const std::int64_t rows = block_.rows, columns = block_.columns;
    const std::int64_t dst_pitch = dims_[*column_].step[0], src_pitch = dims_[*row_].step[1];
    std::uint8_t* dst = block_.dst;
    const std::uint8_t* src = block_.src;
    alignas(64) std::uint8_t stage[kStageBytes];
    // Runs of the result: along the rows of the block, one for each column.
    Runs across{static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), 1, 1, dst_pitch, rows};
    if (bytes_[0] < bytes_[1] || (bytes_[0] == bytes_[1] && !writer_.streams(dst, across))) {
      each_group(next, [&](std::int64_t r, std::size_t n) {
        writer_.convert(stage + r * columns * bytes_[0], src + r * src_pitch * bytes_[1],
                        {static_cast<std::size_t>(columns), n, 1, 1, columns, src_pitch});
      });
      if (!writer_.streams(dst, across))
        return transpose(dst, dst_pitch, stage, columns, across.n, across.rows, bytes_[0], Far::Dst);
      alignas(64) std::uint8_t turned[kStageBytes];
      transpose(turned, rows, stage, columns, across.n, across.rows, bytes_[0], Far::Dst);
      for (std::int64_t c = 0; c < columns; ++c)
        stream_copy(dst + c * dst_pitch * bytes_[0], turned + c * rows * bytes_[0],
                    static_cast<std::size_t>(rows * bytes_[0]));
      return;
    }
    each_group(next, [&](std::int64_t r, std::size_t n) {
      transpose(stage + r * bytes_[1], rows, src + r * src_pitch * bytes_[1], src_pitch, n, across.rows,
                bytes_[1], Far::Src);
    });
    if (dst_pitch == rows) across = {across.n * across.rows, 1, 1, 1, 0, 0};
    writer_.write(dst, stage, across);
  }

  Writer writer_;
  std::vector<Loop> dims_;
  Block block_;  // begins when the next one is known
  std::uint8_t* base_[2];
  std::int64_t bytes_[2];
  std::optional<std::size_t> row_, column_;  // the dims of the kernel
  std::optional<std::size_t> rows_dim_;      // the dim that a call of the kernel repeats its run along
  std::int64_t rows_ = 1, columns_ = 1;
  std::vector<Level> levels_;
  std::vector<std::int64_t> extent_;  // indices of each dim in the loops at hand
  bool constant_ = false;
  alignas(8) std::uint8_t value_[8] = {};
};

}  // namespace

void run_nest(const Nest& nest, Phys dst, Phys src, bool stream) { Runner(nest, dst, src, stream).run(); }

}  // namespace loom::rt
