// Copies between cores. Both sides are checked as a whole before the first byte moves.
#include <algorithm>
#include <cstring>

#include "chip/execute.h"

namespace loom::chip {

namespace {
constexpr std::int64_t kReach = std::int64_t{1} << 40;  // no LX is larger; keeps sums inside 64 bits

struct Loop {
  std::int64_t extent, source, target;
};

/// The bytes that a nest of leaves touches from `origin` on, on one side.
void check_side(const Core& core, const LxRef& ref, const Core::Window& w, const Loop* loops,
                std::size_t rank, std::int64_t Loop::*stride, std::int64_t leaf) {
  Wide low = w.origin, high = w.origin;
  for (std::size_t d = 0; d < rank; ++d) {
    const Wide reach = Wide{loops[d].*stride} * (loops[d].extent - 1);
    (reach < 0 ? low : high) += reach;
  }
  check_lx(core, Unit::MNISU, ref, w, low, high + leaf);
}
}  // namespace

std::int64_t peer_of(const Core& core, const Operand& o, Unit unit) {
  const std::int64_t peer = core.value(o, unit);
  if (peer >= core.program->cores)
    fail(core, unit, "DEV-06",
         "core " + std::to_string(peer) + " of " + std::to_string(core.program->cores) + " does not exist");
  return peer < 0 ? -1 : peer;
}

void run_ring_copy(Core& core, const RingCopy& copy) {
  const std::int64_t peer = peer_of(core, copy.core, Unit::MNISU);
  if (peer < 0) return;
  Core& other = core.peers[peer];
  Loop loops[limits::kRank];
  std::size_t rank = 0;
  std::int64_t leaf = copy.leaf;
  for (const RingDim& dim : copy.dims) {
    const Loop l{core.value(dim.extent, Unit::MNISU), core.value(dim.source_stride, Unit::MNISU),
                 core.value(dim.target_stride, Unit::MNISU)};
    if (l.extent < 0) fail(core, Unit::MNISU, "DEV-06", "a ring copy has a negative extent");
    if (l.extent == 0) return;
    for (std::int64_t v : {l.extent, l.source, l.target})
      if (v > kReach || v < -kReach) fail(core, Unit::MNISU, "DEV-06", "a ring copy reaches beyond LX");
    if (l.extent > 1) loops[rank++] = l;
  }
  const Core::Window from = core.window(copy.source, Unit::MNISU);
  Core::Window to = other.window(copy.target, Unit::MNISU);
  to.origin = to.begin + core.value(copy.target.offset, Unit::MNISU);
  check_side(core, copy.source, from, loops, rank, &Loop::source, leaf);
  check_side(core, copy.target, to, loops, rank, &Loop::target, leaf);
  Wide work = leaf;
  for (std::size_t d = 0; d < rank; ++d) work = std::min(work * loops[d].extent, Wide{1} << 62);
  spend(core, work);
  while (rank && loops[rank - 1].source == leaf && loops[rank - 1].target == leaf)
    leaf *= loops[--rank].extent;
  std::int64_t at[limits::kRank] = {}, source = from.origin, target = to.origin;
  for (;;) {
    std::memmove(other.lx + target, core.lx + source, static_cast<std::size_t>(leaf));
    std::size_t d = rank;
    for (; d-- > 0;) {
      source += loops[d].source;
      target += loops[d].target;
      if (++at[d] < loops[d].extent) break;
      source -= loops[d].source * loops[d].extent;
      target -= loops[d].target * loops[d].extent;
      at[d] = 0;
    }
    if (d == static_cast<std::size_t>(-1)) return;
  }
}

}  // namespace loom::chip
