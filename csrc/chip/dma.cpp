// Transfers between DDR and LX. A transfer is normalised once (clip, drop single indices, merge what is
// contiguous into longer leaves), checked as a whole, then copied; gathers and lane splits are checked
// element by element before the first byte moves.
#include <algorithm>
#include <cstring>

#include "chip/execute.h"

namespace loom::chip {

namespace {

struct Loop {
  std::int64_t low, high;  // indices that move
  std::int64_t extent;
  std::int64_t ddr, lx;  // strides in bytes
  std::int64_t gather[limits::kGathers];
  std::int64_t lane;
};

/// One transfer with all operands read.
class Transfer {
 public:
  Transfer(Core& core, const Dma& dma, Unit unit)
      : core_(core), dma_(dma), unit_(unit), lx_(core.window(dma.lx, unit)) {
    const auto get = [&](const Operand& o) { return core.value(o, unit); };
    ddr_ = get(dma.ddr);
    leaf_ = tail_ = dma.leaf;
    bounded(ddr_, 1);
    for (std::size_t d = 0; d < dma.dims.size(); ++d) {
      const DmaDim& dim = dma.dims[d];
      Loop& l = loops_[rank_++];
      l.extent = get(dim.extent);
      if (l.extent < 0)
        fail(core, unit, "DEV-06", "transfer extent " + std::to_string(l.extent) + " is negative");
      l.low = std::max<std::int64_t>(get(dim.lo), 0);
      l.high = std::min(get(dim.hi), l.extent);
      l.ddr = get(dim.ddr_stride);
      l.lx = get(dim.lx_stride);
      for (std::size_t g = 0; g < dma.gathers.size(); ++g) l.gather[g] = get(dma.gathers[g].strides[d]);
      l.lane = dma.has_lanes ? get(dma.lanes.strides[d]) : 0;
      for (std::int64_t stride : {l.ddr, l.lx, l.lane}) bounded(stride, l.extent);
      for (std::size_t g = 0; g < dma.gathers.size(); ++g) bounded(l.gather[g], l.extent);
      clipped_ |= l.low > 0 || l.high < l.extent;
      empty_ |= l.high <= l.low;
      none_ |= l.extent == 0;
    }
  }

  void run() {
    if (none_) return;
    if (dma_.zero_fill && clipped_) zero_fill();
    if (empty_) return;
    if (dma_.masked && !mask()) return;
    if (dma_.gathers.empty() && !dma_.has_lanes)
      plain();
    else
      indirect();
  }

 private:
  /// Zero every point of the box in LX; the transferred points are overwritten afterwards.
  void zero_fill() {
    Wide low = lx_.origin, high = lx_.origin;
    for (int d = 0; d < rank_; ++d) span(loops_[d].lx, 0, loops_[d].extent, low, high);
    check_lx(core_, unit_, dma_.lx, lx_, low, high + leaf_);
    Wide bytes = leaf_;
    for (int d = 0; d < rank_; ++d) bytes = capped(bytes, loops_[d].extent);
    spend(core_, bytes);
    Loop box[limits::kRank];
    int rank = 0;
    std::int64_t leaf = leaf_;
    for (int d = 0; d < rank_; ++d)
      if (loops_[d].extent > 1) box[rank++] = loops_[d];
    while (rank && box[rank - 1].lx == leaf) leaf *= box[--rank].extent;
    std::int64_t at[limits::kRank] = {}, lx = lx_.origin;
    for (;;) {
      std::memset(core_.lx + lx, 0, static_cast<std::size_t>(leaf));
      int d = rank - 1;
      for (; d >= 0; --d) {
        lx += box[d].lx;
        if (++at[d] < box[d].extent) break;
        lx -= box[d].lx * box[d].extent;
        at[d] = 0;
      }
      if (d < 0) return;
    }
  }

  /// A product of sizes, kept small enough to be multiplied once more.
  static Wide capped(Wide size, std::int64_t count) { return std::min(size * count, Wide{1} << 62); }

  /// Pay for what moves.
  void pay() {
    Wide bytes = leaf_;
    for (int d = 0; d < rank_; ++d) bytes = capped(bytes, loops_[d].high - loops_[d].low);
    spend(core_, bytes);
  }

  /// Keeps every product and every sum of a walk far inside 64 bits.
  void bounded(std::int64_t stride, std::int64_t count) const {
    const Wide reach = Wide{stride} * count;
    if (reach > kReach || reach < -kReach)
      fail(core_, unit_, "DEV-06", "a transfer reaches beyond 2^58 bytes");
  }

  static void span(std::int64_t stride, std::int64_t from, std::int64_t to, Wide& low, Wide& high) {
    const Wide a = Wide{stride} * from, b = Wide{stride} * (to - 1);
    low += std::min(a, b);
    high += std::max(a, b);
  }

  /// Cut the innermost dim to the sticks that the byte mask touches. False: nothing is left.
  bool mask() {
    const Loop& inner = loops_[rank_ - 1];
    const std::int64_t lo = std::max(core_.value(dma_.byte_lo, unit_), inner.low * 128);
    const std::int64_t hi = std::min(core_.value(dma_.byte_hi, unit_), inner.high * 128);
    if (hi <= lo) return false;
    Loop& cut = loops_[rank_ - 1];
    cut.low = lo / 128;
    cut.high = (hi + 127) / 128;
    head_ = lo % 128;                   // bytes to skip in the first stick
    tail_ = hi - (cut.high - 1) * 128;  // bytes to write in the last one
    return true;
  }

  void check_ddr(Wide low, Wide high) const {
    const ArgValue& arg = core_.args[dma_.arg];
    const Wide base = arg.base();
    if (low >= base && high <= base + arg.bytes) return;
    const Wide from = low - base, to = high - base;
    const auto show = [](Wide v) { return std::to_string(static_cast<std::int64_t>(v)); };
    fail(core_, unit_, "DEV-01",
         "DDR access to bytes " + show(from) + ".." + show(to) + " of argument " +
             core_.program->args[dma_.arg].name + ", which has " + std::to_string(arg.bytes));
  }

  /// `ddr` of a kept buffer counts from its first byte; its parts lie in the LX of their cores.
  void copy(std::int64_t ddr, std::int64_t lx, std::int64_t bytes) {
    const ArgValue& arg = core_.args[dma_.arg];
    if (!arg.kept()) return move(core_.ddr + ddr, core_.lx + lx, bytes);
    const auto share = static_cast<std::int64_t>(arg.share);
    while (bytes > 0) {
      const std::int64_t at = ddr % share, part = std::min(bytes, share - at);
      move(core_.peers[ddr / share].lx + arg.address + at, core_.lx + lx, part);
      ddr += part, lx += part, bytes -= part;
    }
  }

  void move(std::uint8_t* far, std::uint8_t* near, std::int64_t bytes) const {
    std::uint8_t* to = dma_.store ? far : near;
    const std::uint8_t* from = dma_.store ? near : far;
    switch (bytes) {
      case 2:
        std::memcpy(to, from, 2);
        break;
      case 4:
        std::memcpy(to, from, 4);
        break;
      case 128:
        std::memcpy(to, from, 128);
        break;
      default:
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
  }

  void plain() {
    // Whole-transfer bounds first. Edge sticks of a masked store count with the bytes they write.
    Wide ddr_low = ddr_, ddr_high = ddr_, lx_low = lx_.origin, lx_high = lx_.origin;
    for (int d = 0; d < rank_; ++d) {
      span(loops_[d].ddr, loops_[d].low, loops_[d].high, ddr_low, ddr_high);
      span(loops_[d].lx, loops_[d].low, loops_[d].high, lx_low, lx_high);
    }
    check_lx(core_, unit_, dma_.lx, lx_, lx_low, lx_high + leaf_);
    const bool forward = rank_ && loops_[rank_ - 1].ddr > 0;
    check_ddr(ddr_low + (forward ? head_ : 0), ddr_high + (forward ? tail_ : leaf_));
    pay();

    std::int64_t ddr = ddr_, lx = lx_.origin;
    Loop box[limits::kRank];
    int rank = 0;
    const bool edges = head_ != 0 || tail_ != leaf_;
    for (int d = 0; d < rank_; ++d) {
      const Loop& l = loops_[d];
      ddr += l.low * l.ddr;
      lx += l.low * l.lx;
      if (l.high - l.low > 1 || (edges && d == rank_ - 1)) box[rank++] = l;
    }
    std::int64_t leaf = leaf_;
    if (edges) {  // the mask belongs to the innermost dim: make it one run, or copy its sticks one by one
      const Loop inner = box[--rank];
      const std::int64_t count = inner.high - inner.low;
      const bool run = inner.ddr == leaf && inner.lx == leaf;
      each(box, rank, ddr, lx, [&](std::int64_t far, std::int64_t near) {
        if (run) return copy(far + head_, near + head_, (count - 1) * leaf + tail_ - head_);
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t from = i == 0 ? head_ : 0, to = i == count - 1 ? tail_ : leaf;
          copy(far + i * inner.ddr + from, near + i * inner.lx + from, to - from);
        }
      });
      return;
    }
    while (rank && box[rank - 1].ddr == leaf && box[rank - 1].lx == leaf) {
      leaf *= box[rank - 1].high - box[rank - 1].low;
      --rank;
    }
    if (rank) {  // the innermost loop without the odometer
      const Loop inner = box[--rank];
      const std::int64_t count = inner.high - inner.low;
      each(box, rank, ddr, lx, [&](std::int64_t far, std::int64_t near) {
        for (std::int64_t i = 0; i < count; ++i) copy(far + i * inner.ddr, near + i * inner.lx, leaf);
      });
    } else {
      copy(ddr, lx, leaf);
    }
  }

  template <class Fn>
  static void each(const Loop* box, int rank, std::int64_t ddr, std::int64_t lx, Fn fn) {
    std::int64_t at[limits::kRank];
    for (int d = 0; d < rank; ++d) at[d] = box[d].low;
    for (;;) {
      fn(ddr, lx);
      int d = rank - 1;
      for (; d >= 0; --d) {
        ddr += box[d].ddr;
        lx += box[d].lx;
        if (++at[d] < box[d].high) break;
        const std::int64_t count = box[d].high - box[d].low;
        ddr -= box[d].ddr * count;
        lx -= box[d].lx * count;
        at[d] = box[d].low;
      }
      if (d < 0) return;
    }
  }

  void indirect() {
    const std::size_t gathers = dma_.gathers.size();
    for (std::size_t g = 0; g < gathers; ++g) {
      const Gather& gather = dma_.gathers[g];
      windows_[g] = core_.window(gather.index, unit_);
      scale_[g] = core_.value(gather.scale, unit_);
      bound_[g] = core_.value(gather.bound, unit_);
      Wide low = windows_[g].origin, high = windows_[g].origin;
      for (int d = 0; d < rank_; ++d) span(loops_[d].gather[g], loops_[d].low, loops_[d].high, low, high);
      check_lx(core_, unit_, gather.index, windows_[g], low, high + 4);
    }
    Wide low = lx_.origin, high = lx_.origin;
    for (int d = 0; d < rank_; ++d) span(loops_[d].lx, loops_[d].low, loops_[d].high, low, high);
    check_lx(core_, unit_, dma_.lx, lx_, low, high + leaf_);
    pay();
    if (dma_.has_lanes) {
      lane_start_ = core_.value(dma_.lanes.start, unit_);
      bounded(lane_start_, 1);
      tile_ = core_.value(dma_.lanes.tile_stride, unit_);
    } else if (rank_ && head_ == 0 && tail_ == leaf_) {
      // The innermost dims that no index depends on and that are contiguous become one leaf.
      while (rank_) {
        const Loop& inner = loops_[rank_ - 1];
        const bool steady =
            std::all_of(inner.gather, inner.gather + gathers, [](std::int64_t s) { return s == 0; });
        if (!steady || inner.ddr != leaf_ || inner.lx != leaf_) break;
        ddr_ = narrow(core_, unit_, Wide{ddr_} + Wide{inner.low} * leaf_);
        lx_.origin += inner.low * leaf_;
        leaf_ *= inner.high - inner.low;
        tail_ = leaf_;
        --rank_;
      }
    }
    walk<false>();
    walk<true>();
  }

  /// Visit every point in ascending order and check it. The copying walk checks again, because a transfer
  /// may overwrite the indices it is still going to read.
  template <bool Copy>
  void walk() {
    std::int64_t at[limits::kRank];
    for (int d = 0; d < rank_; ++d) at[d] = loops_[d].low;
    for (;;) {
      point<Copy>(at);
      int d = rank_ - 1;
      for (; d >= 0; --d) {
        if (++at[d] < loops_[d].high) break;
        at[d] = loops_[d].low;
      }
      if (d < 0) return;
    }
  }

  template <bool Copy>
  void point(const std::int64_t* at) {
    std::int64_t ddr = ddr_, lane = lane_start_;
    std::int64_t lx = lx_.origin, index[limits::kGathers];
    for (std::size_t g = 0; g < dma_.gathers.size(); ++g) index[g] = windows_[g].origin;
    for (int d = 0; d < rank_; ++d) {
      const Loop& l = loops_[d];
      ddr += at[d] * l.ddr;
      lx += at[d] * l.lx;
      lane += at[d] * l.lane;
      for (std::size_t g = 0; g < dma_.gathers.size(); ++g) index[g] += at[d] * l.gather[g];
    }
    Wide address = ddr;
    for (std::size_t g = 0; g < dma_.gathers.size(); ++g) {
      std::int32_t v;
      std::memcpy(&v, core_.lx + index[g], 4);
      if (v < 0 || v >= bound_[g])
        fail(core_, unit_, "DEV-03",
             "index " + std::to_string(v) + " read from LX block " +
                 core_.program->blocks[dma_.gathers[g].index.block].name + " is outside 0.." +
                 std::to_string(bound_[g] - 1) + " (argument " + core_.program->args[dma_.arg].name + ")");
      if (dma_.gathers[g].lane)
        lane += v;
      else
        address += Wide{v} * scale_[g];
    }
    if (dma_.has_lanes) {
      const std::int64_t elems = dma_.lanes.elems;
      std::int64_t stick = lane / elems, rest = lane % elems;
      if (rest < 0) --stick, rest += elems;
      address += Wide{stick} * tile_ + rest * dma_.leaf;
    }
    std::int64_t from = 0, to = leaf_;
    if (rank_ && dma_.masked) {
      const Loop& inner = loops_[rank_ - 1];
      if (at[rank_ - 1] == inner.low) from = head_;
      if (at[rank_ - 1] == inner.high - 1) to = tail_;
    }
    check_ddr(address + from, address + to);
    if (Copy) copy(static_cast<std::int64_t>(address) + from, lx + from, to - from);
  }

  Core& core_;
  const Dma& dma_;
  Unit unit_;
  Core::Window lx_;
  std::int64_t ddr_ = 0, leaf_ = 0;
  std::int64_t head_ = 0, tail_ = 128;
  Loop loops_[limits::kRank];
  static constexpr std::int64_t kReach = std::int64_t{1} << 58;
  int rank_ = 0;
  bool clipped_ = false, empty_ = false, none_ = false;
  Core::Window windows_[limits::kGathers];
  std::int64_t scale_[limits::kGathers], bound_[limits::kGathers], lane_start_ = 0, tile_ = 0;
};

}  // namespace

void run_dma(Core& core, const Dma& dma, Unit unit) { Transfer(core, dma, unit).run(); }

}  // namespace loom::chip
