// A wide source costs most of the time, and what it costs depends on how many bytes of a page are read
// together and on fetching the next ones in time. Turning elements around in the second cache costs far less.
#include "runtime/staged.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "runtime/blocks.h"
#include "runtime/convert.h"
#include "runtime/transfer.h"

namespace loom::rt {
namespace {

/// Elements of a patch, at most: its stages stay in the second cache.
constexpr std::int64_t kStage = 128 << 10;
/// Elements below which a patch is not worth its stages.
constexpr std::int64_t kSmallest = 4 << 10;
constexpr std::int64_t kLine = 64;
/// Bytes that a patch covers in a row, where the loops are long enough: pages of the source, for every visit
/// of one costs a look-up of its address, and lines of the destination.
constexpr std::int64_t kSourceRow = 4096;
constexpr std::int64_t kResultRow = 2 * kLine;
/// Bytes of the source that are converted at a time while the next ones are fetched.
constexpr std::int64_t kPiece = 1024;

/// The loops by their step on one side, near ones first.
std::vector<std::size_t> near_first(const std::vector<Loop>& loops, int side) {
  std::vector<std::size_t> out(loops.size());
  for (std::size_t d = 0; d < out.size(); ++d) out[d] = d;
  std::stable_sort(out.begin(), out.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(loops[a].step[side]) < std::abs(loops[b].step[side]);
  });
  return out;
}

std::int64_t product(const Dims& sizes) {
  std::int64_t n = 1;
  for (std::int64_t size : sizes) n *= size;
  return n;
}

/// From one run of elements to another: where they begin, in elements of their sides.
struct Way {
  std::int64_t from, to;
};

class Stager {
 public:
  Stager(const Nest& nest, Phys dst, Phys src)
      : loops_(simplify(nest.loops)),
        near_{near_first(loops_, 0), near_first(loops_, 1)},
        bytes_{phys_bytes(dst), phys_bytes(src)},
        base_{nest.base[0], nest.base[1]},
        convert_(converter(dst, src)),
        patch_(choose_patch()) {}

  bool pays() const {
    return bytes_[0] < bytes_[1] && loops_.size() > 1 && loops_[near_[0][0]].step[0] == 1 &&
           loops_[near_[1][0]].step[1] == 1 && product(patch_) >= kSmallest;
  }

  /// Patches follow the destination.
  void run() {
    for (auto& stage : stages_) stage.resize(static_cast<std::size_t>(product(patch_) * bytes_[0]));
    Dims at(loops_.size(), 0);
    for (bool more = true; more;) {
      patch(at);
      more = false;
      for (std::size_t d : near_[0]) {
        at[d] += patch_[d];
        more = at[d] < loops_[d].size;
        if (more) break;
        at[d] = 0;
      }
    }
  }

 private:
  /// Indices of each loop in a patch: rows on both sides that are as long as the stages allow.
  Dims choose_patch() const {
    std::int64_t rows[2] = {kResultRow, kSourceRow};
    Dims patch = covering(rows);
    while (product(patch) > kStage) {
      rows[rows[0] > kLine ? 0 : 1] /= 2;
      patch = covering(rows);
    }
    for (;;) {
      for (auto& row : rows) row *= 2;
      Dims longer = covering(rows);
      if (product(longer) > kStage || longer == patch) return patch;
      patch = std::move(longer);
    }
  }

  /// The patch that covers about so many bytes in a row on each side.
  Dims covering(const std::int64_t rows[2]) const {
    Dims patch(loops_.size(), 1);
    for (int side : {1, 0}) {
      std::int64_t left = rows[side] / bytes_[side];
      for (std::size_t d : near_[side]) {
        patch[d] = std::max(patch[d], std::clamp<std::int64_t>(left, 1, loops_[d].size));
        left /= patch[d];
      }
    }
    return patch;
  }

  void patch(const Dims& at) {
    Dims sizes(loops_.size());
    std::uint8_t* base[2] = {base_[0], base_[1]};
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      sizes[d] = std::min(patch_[d], loops_[d].size - at[d]);
      for (int k = 0; k < 2; ++k) base[k] += at[d] * loops_[d].step[k] * bytes_[k];
    }
    if (sizes != sizes_) prepare(std::move(sizes));
    gather(base[1]);
    if (turned()) turn();
    for (const Way& way : outs_)
      stream_copy(base[0] + way.to * bytes_[0], stages_[0].data() + way.from * bytes_[0],
                  static_cast<std::size_t>(row_ * bytes_[0]));
  }

  /// Whether neighbours on one side are neighbours on the other: if not, a second stage is packed in the
  /// order of the source.
  bool turned() const { return near_[0][0] != near_[1][0]; }

  /// Steps of a stage that is packed in the order of one side.
  Dims packed(int side) const {
    Dims steps(loops_.size());
    std::int64_t step = 1;
    for (std::size_t d : near_[side]) {
      steps[d] = step;
      step *= sizes_[d];
    }
    return steps;
  }

  /// Lists the ways of a patch of these sizes.
  void prepare(Dims sizes) {
    sizes_ = std::move(sizes);
    by_dst_ = packed(0);
    by_src_ = turned() ? packed(1) : by_dst_;

    const std::size_t v = near_[1][0], w = near_[1][1];
    run_ = {static_cast<std::size_t>(sizes_[v]), 1, 1, 1, by_src_[w], loops_[w].step[1]};
    group_ = std::clamp<std::int64_t>(kPiece / (sizes_[v] * bytes_[1]), 1, sizes_[w]);
    ins_.clear();
    for (std::int64_t i = 0; i < sizes_[w]; i += group_)
      ins_.push_back({i * run_.src_pitch, i * run_.dst_pitch});
    extend(ins_, {near_[1].begin() + 2, near_[1].end()},
           [&](std::size_t d) { return Way{loops_[d].step[1], by_src_[d]}; });

    turns_.assign(1, {0, 0});
    std::vector<std::size_t> others = near_[0];
    std::erase_if(others, [&](std::size_t d) { return d == near_[0][0] || d == v; });
    extend(turns_, others, [&](std::size_t d) { return Way{by_src_[d], by_dst_[d]}; });

    row_ = 1;
    auto beyond = near_[0].begin();
    for (; beyond != near_[0].end() && loops_[*beyond].step[0] == row_; ++beyond) row_ *= sizes_[*beyond];
    outs_.assign(1, {0, 0});
    extend(outs_, {beyond, near_[0].end()},
           [&](std::size_t d) { return Way{by_dst_[d], loops_[d].step[0]}; });
  }

  template <typename Step>
  void extend(std::vector<Way>& ways, const std::vector<std::size_t>& dims, Step step) const {
    for (std::size_t d : dims) {
      const std::size_t n = ways.size();
      const Way by = step(d);
      for (std::int64_t i = 1; i < sizes_[d]; ++i)
        for (std::size_t k = 0; k < n; ++k)
          ways.push_back({ways[k].from + i * by.from, ways[k].to + i * by.to});
    }
  }

  /// Converts the patch, a group of runs at a time while the next is fetched.
  void gather(const std::uint8_t* src) {
    std::uint8_t* stage = stages_[turned() ? 1 : 0].data();
    const std::int64_t rows = sizes_[near_[1][1]];
    auto group_at = [&](std::size_t way) {
      const std::int64_t groups = (rows + group_ - 1) / group_;
      return std::min(group_, rows - static_cast<std::int64_t>(way) % groups * group_);
    };
    for (std::size_t i = 0; i < ins_.size(); ++i) {
      if (i + 1 < ins_.size()) fetch(src + ins_[i + 1].from * bytes_[1], group_at(i + 1));
      run_.rows = static_cast<std::size_t>(group_at(i));
      std::int64_t bad = 0;
      if (!convert_(stage + ins_[i].to * bytes_[0], src + ins_[i].from * bytes_[1], run_, &bad))
        throw ValueError(bad);
    }
  }

  void fetch(const std::uint8_t* from, std::int64_t rows) const {
    const auto bytes = static_cast<std::int64_t>(run_.n) * bytes_[1];
    for (std::int64_t r = 0; r < rows; ++r, from += run_.src_pitch * bytes_[1])
      for (std::int64_t k = 0; k < bytes; k += kLine) prefetch(from + k);
  }

  void turn() {
    const std::size_t u = near_[0][0], v = near_[1][0];
    for (const Way& way : turns_)
      transpose(stages_[0].data() + way.to * bytes_[0], by_dst_[v], stages_[1].data() + way.from * bytes_[0],
                by_src_[u], static_cast<std::size_t>(sizes_[u]), static_cast<std::size_t>(sizes_[v]),
                static_cast<int>(bytes_[0]), Far::Dst);
  }

  std::vector<Loop> loops_;
  std::vector<std::size_t> near_[2];
  std::int64_t bytes_[2];
  std::uint8_t* base_[2];
  Convert convert_;
  Dims patch_;
  std::vector<std::uint8_t> stages_[2];  // in the order of the destination, of the source
  // Of the patch at hand:
  Dims sizes_, by_dst_, by_src_;
  Runs run_;                // one group of runs
  std::int64_t group_ = 1;  // runs in a group
  std::int64_t row_ = 1;    // elements in a row of the destination
  std::vector<Way> ins_, turns_, outs_;
};

}  // namespace

bool run_staged(const Nest& nest, Phys dst, Phys src) {
  Stager stager(nest, dst, src);
  if (!stager.pays()) return false;
  stager.run();
  return true;
}

}  // namespace loom::rt
