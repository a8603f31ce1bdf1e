// Nested loops over a plan whose innermost runs have constant strides on both sides and go to one
// conversion call. Where one side walks along memory and the other across it, blocks are transposed in
// between; large results are written past the caches. Views without a plan are moved element by element.
#include "runtime/transfer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/blocks.h"
#include "runtime/convert.h"
#include "runtime/moves.h"

namespace loom::rt {
namespace {

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

/// Elements until the side's stick ends, at most n.
std::int64_t run_length(const Cursor& c, const Move& m, std::int64_t n) {
  if (!m.stick) return n;
  const std::int64_t left = c.lanes - (c.x & (c.lanes - 1));
  return std::min(n, m.step == 1 ? left : (left + m.step - 1) / m.step);
}

/// Sticks of a row that are moved before the next row's turn; measured, 8 and 32 are slower.
constexpr std::int64_t kRowSticks = 16;
/// Results from this size on would only push other data out of the caches: they are written past them.
constexpr std::int64_t kStreamBytes = 4 << 20;
/// Bytes of a block between two steps: stays in the first cache beside what is read.
constexpr std::int64_t kStageBytes = 16 << 10;

/// Elements of a block along the side that moves through memory with the innermost dim, at most.
constexpr std::int64_t kBlockSide = 128;

/// Converts runs and writes them, past the caches where the transfer is large.
class Writer {
 public:
  Writer(Phys dst, Phys src, bool stream)
      : convert_(converter(dst, src)),
        streaming_(streaming_converter(dst, src)),
        bytes_(phys_bytes(dst)),
        same_(same_pattern(dst, src)),
        stream_(stream) {}

  bool streams() const { return stream_; }

  void convert(void* dst, std::int64_t ds, const void* src, std::int64_t ss, std::int64_t n) const {
    std::int64_t bad = 0;
    const auto count = static_cast<std::size_t>(n);
    if (convert_(dst, ds, src, ss, count, &bad) != count) throw ValueError(bad);
  }

  void write(void* dst, std::int64_t ds, const std::uint8_t* src, int src_bytes, std::int64_t ss,
             std::int64_t n) const {
    if (!stream_ || ds != 1) return convert(dst, ds, src, ss, n);
    if (same_ && ss == 1) return stream_copy(dst, src, static_cast<std::size_t>(n * bytes_));
    if (streaming_ != nullptr && ss == 1 && reinterpret_cast<std::uintptr_t>(dst) % kStreamAlignment == 0) {
      std::int64_t none = 0;
      (void)streaming_(dst, 1, src, 1, static_cast<std::size_t>(n), &none);
      return;
    }
    alignas(64) std::uint8_t stage[kStageBytes / 4];
    const std::int64_t room = static_cast<std::int64_t>(sizeof stage) / bytes_;
    for (std::int64_t done = 0; done < n; done += room) {
      const std::int64_t now = std::min(room, n - done);
      convert(stage, 1, src + done * ss * src_bytes, ss, now);
      stream_copy(static_cast<std::uint8_t*>(dst) + done * bytes_, stage,
                  static_cast<std::size_t>(now * bytes_));
    }
  }

 private:
  Convert convert_, streaming_;
  int bytes_;
  bool same_, stream_;
};

class Loops {
 public:
  Loops(const Moves& plan, const Side& dst, const Side& src)
      : plan_(plan),
        writer_(dst.phys, src.phys, large(plan, dst)),
        dst_(make_cursor(dst)),
        src_(make_cursor(src)) {
    constant_ =
        std::all_of(plan.moves[1].begin(), plan.moves[1].end(), [](const Move& m) { return m.step == 0; });
    if (constant_) writer_.convert(value_, 1, src_.address(), 1, 1);
    if (!plan_.sizes.empty()) {
      d_ = plan_.moves[0].back();
      s_ = plan_.moves[1].back();
      inner_ = plan_.sizes.back();
    }
  }

  void run_all() {
    if (find_partner()) {
      run(0);
    } else {
      run_pieces();
    }
    if (writer_.streams()) stream_fence();
  }

 private:
  static bool large(const Moves& plan, const Side& dst) {
    std::int64_t bytes = phys_bytes(dst.phys);
    for (std::int64_t n : plan.sizes) bytes *= n;
    return bytes >= kStreamBytes;
  }

  /// All loops, with the innermost dim cut into pieces that become the outermost loop where that keeps the
  /// working set in the caches. A dim that walks a stick on one side but not consecutive elements on the
  /// other is cut at the stick's ends: the lines that a strided piece touches are then used up by the next
  /// outer index. A long row is cut every few sticks: its sticks lie a power of two apart in memory more
  /// often than not, so touching many of them in turn would evict the first before the next row.
  void run_pieces() {
    const bool strided = (d_.stick && s_.step != 1) || (s_.stick && d_.step != 1);
    const std::int64_t n = inner_;
    std::int64_t row = n;
    if (d_.stick && !writer_.streams()) row = std::min(row, kRowSticks * dst_.lanes);
    if (s_.stick) row = std::min(row, kRowSticks * src_.lanes);
    Cursor dst = dst_, src = src_;
    for (std::int64_t left = n; left > 0;) {
      inner_ = strided ? std::min(run_length(dst, d_, left), run_length(src, s_, left)) : std::min(row, left);
      dst_ = dst;
      src_ = src;
      run(0);
      dst.advance(d_, inner_);
      src.advance(s_, inner_);
      left -= inner_;
    }
  }

  /// Looks for the dim that the strided side walks along, and makes it the second innermost. Transposing
  /// blocks of the two dims lets both sides move whole cache lines.
  bool find_partner() {
    const std::size_t last = plan_.sizes.size() - 1;
    if (plan_.sizes.size() < 2 || constant_ || (d_.step == 1) == (s_.step == 1)) return false;
    across_ = d_.step == 1 ? 1 : 0;
    for (std::size_t o = 0; o < last; ++o) {
      if (plan_.moves[across_][o].step != 1 || plan_.sizes[o] < 8) continue;
      auto to_second = [&](auto& v) {
        std::rotate(v.begin() + static_cast<std::ptrdiff_t>(o),
                    v.begin() + static_cast<std::ptrdiff_t>(o) + 1,
                    v.begin() + static_cast<std::ptrdiff_t>(last));
      };
      to_second(plan_.sizes);
      for (auto& moves : plan_.moves) to_second(moves);
      blocks_ = true;
      return true;
    }
    return false;
  }

  void run(std::size_t dim) {
    const std::size_t inner_dims = blocks_ ? 2 : 1;
    if (dim + inner_dims >= plan_.sizes.size()) return blocks_ ? all_blocks() : inner();
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
    if (writer_.streams() && !constant_ && !d_.stick && d_.step == 1 && s_.stick) return gather();
    Cursor dst = dst_, src = src_;
    for (std::int64_t left = inner_; left > 0;) {
      const std::int64_t n = std::min(run_length(dst, d_, left), run_length(src, s_, left));
      if (constant_) {
        fill_run(dst.address(), d_.step, value_, dst.bytes, static_cast<std::size_t>(n));
      } else {
        writer_.write(dst.address(), d_.step, src.address(), src.bytes, s_.step, n);
      }
      dst.advance(d_, n);
      src.advance(s_, n);
      left -= n;
    }
  }

  /// A run of consecutive elements from sticks all over the device: collected, then written in one go, so
  /// that no cache line of the destination is written in two halves.
  void gather() {
    alignas(64) std::uint8_t stage[kStageBytes / 4];
    const std::int64_t room = static_cast<std::int64_t>(sizeof stage) / dst_.bytes;
    Cursor src = src_;
    std::uint8_t* out = dst_.address();
    for (std::int64_t left = inner_; left > 0;) {
      std::int64_t held = 0;
      while (held < std::min(room, left)) {
        const std::int64_t n = run_length(src, s_, std::min(room, left) - held);
        writer_.convert(stage + held * dst_.bytes, 1, src.address(), s_.step, n);
        src.advance(s_, n);
        held += n;
      }
      stream_copy(out, stage, static_cast<std::size_t>(held * dst_.bytes));
      out += held * dst_.bytes;
      left -= held;
    }
  }

  /// The two innermost dims (o, i) in blocks. `across_` is the side that walks along memory with o; the
  /// other does with i.
  void all_blocks() {
    const std::size_t o = plan_.sizes.size() - 2;
    const Move& po = plan_.moves[across_][o];
    const int bytes = across_ == 1 ? src_.bytes : dst_.bytes;
    const Cursor dst = dst_, src = src_;
    std::int64_t done_i = 0;
    while (done_i < inner_) {
      dst_ = dst;
      src_ = src;
      dst_.advance(d_, done_i);
      src_.advance(s_, done_i);
      const std::int64_t left = inner_ - done_i;
      const std::int64_t ni = std::min({run_length(dst_, d_, left), run_length(src_, s_, left), kBlockSide});
      for (std::int64_t left_o = plan_.sizes[o]; left_o > 0;) {
        const std::int64_t room = std::min(left_o, kStageBytes / (ni * bytes));
        const std::int64_t no = run_length(across_ == 1 ? src_ : dst_, po, room);
        across_ == 1 ? block_in(o, no, ni) : block_out(o, no, ni);
        dst_.advance(plan_.moves[0][o], no);
        src_.advance(plan_.moves[1][o], no);
        left_o -= no;
      }
      done_i += ni;
    }
    dst_ = dst;
    src_ = src;
  }

  /// The source lies across: transpose, then convert row by row.
  void block_in(std::size_t o, std::int64_t no, std::int64_t ni) {
    alignas(64) std::uint8_t stage[kStageBytes];
    // The next block's lines lie a row apart, which no hardware prefetcher follows.
    const std::int64_t row_bytes = no * src_.bytes;
    for (std::int64_t b = 0; b < ni; ++b)
      for (std::int64_t at = row_bytes; at < 2 * row_bytes; at += 64)
        __builtin_prefetch(src_.address() + b * s_.step * src_.bytes + at);
    transpose(stage, ni, src_.address(), s_.step, static_cast<std::size_t>(ni), static_cast<std::size_t>(no),
              src_.bytes);
    Cursor dst = dst_;
    for (std::int64_t a = 0; a < no; ++a) {
      writer_.write(dst.address(), 1, stage + a * ni * src_.bytes, src_.bytes, 1, ni);
      dst.advance(plan_.moves[0][o], 1);
    }
  }

  /// The destination lies across: convert row by row, then transpose.
  void block_out(std::size_t o, std::int64_t no, std::int64_t ni) {
    alignas(64) std::uint8_t stage[kStageBytes];
    Cursor src = src_;
    for (std::int64_t a = 0; a < no; ++a) {
      writer_.convert(stage + a * ni * dst_.bytes, 1, src.address(), 1, ni);
      src.advance(plan_.moves[1][o], 1);
    }
    const auto rows = static_cast<std::size_t>(no), columns = static_cast<std::size_t>(ni);
    if (!writer_.streams()) return transpose(dst_.address(), d_.step, stage, ni, rows, columns, dst_.bytes);
    alignas(64) std::uint8_t turned[kStageBytes];
    transpose(turned, no, stage, ni, rows, columns, dst_.bytes);
    for (std::int64_t b = 0; b < ni; ++b)
      stream_copy(dst_.address() + b * d_.step * dst_.bytes, turned + b * no * dst_.bytes,
                  static_cast<std::size_t>(no * dst_.bytes));
  }

  Moves plan_;
  Writer writer_;
  Cursor dst_, src_;
  Move d_, s_;              // of the innermost dim
  std::int64_t inner_ = 1;  // its extent, or that of one piece
  int across_ = 0;
  bool constant_ = false, blocks_ = false;
  alignas(8) std::uint8_t value_[8] = {};
};

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
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
  if (const auto plan = plan_moves(sizes, dst, src)) return Loops(*plan, dst, src).run_all();
  by_element(sizes, dst, src);
}

}  // namespace loom::rt
