// Transfers to and from buffers that are kept in LX: no DDR, but the LX of whoever holds the bytes and the
// ring between. A load asks the holder (one way round the ring and an access to its LX pass before the first
// word comes), a store sends; words of several holders come in together as far as the links allow.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>

#include "chip/clock_run.h"

namespace loom::chip {

namespace {

/// More pieces than this are taken to be spread evenly over the holders they lie between.
constexpr double kMaxPieces = 1 << 16;

struct Loop {
  std::int64_t low, count, stride;
};

/// The box of a transfer as loops over pieces of `run` contiguous bytes, from `start` on.
struct Box {
  std::vector<Loop> loops;
  std::int64_t start = 0, run = 0;
  double pieces = 1;
};

Box box_of(const Core& core, const Dma& dma, Unit unit) {
  const auto value = [&](const Operand& o) { return core.value(o, unit); };
  Box box;
  box.start = value(dma.ddr);
  box.run = dma.leaf;
  bool open = true;
  for (std::size_t d = dma.dims.size(); d-- > 0;) {
    const DmaDim& dim = dma.dims[d];
    std::int64_t low = std::max<std::int64_t>(value(dim.lo), 0),
                 high = std::min(value(dim.hi), value(dim.extent));
    if (dma.masked && d + 1 == dma.dims.size()) {
      low = std::max(low, value(dma.byte_lo) / 128);
      high = std::min(high, (value(dma.byte_hi) + 127) / 128);
    }
    const std::int64_t step = value(dim.ddr_stride);
    if (high <= low) return {};
    box.start += low * step;
    if (high - low == 1) continue;
    open = open && step == box.run;
    if (open) {
      box.run *= high - low;
    } else {
      box.loops.insert(box.loops.begin(), {0, high - low, step});
      box.pieces *= static_cast<double>(high - low);
    }
  }
  return box;
}

/// Adds `bytes` from `from` on to the holders of a buffer with this share.
void add(std::vector<std::int64_t>& held, std::int64_t from, std::int64_t bytes, std::int64_t share) {
  while (bytes > 0) {
    const auto holder = static_cast<std::size_t>(from / share);
    const std::int64_t part = std::min(bytes, share - from % share);
    if (holder >= held.size()) held.resize(holder + 1, 0);
    held[holder] += part;
    from += part, bytes -= part;
  }
}

}  // namespace

KeptCost kept_cost(const Core& core, const Dma& dma, Unit unit, const Rates& r, const ArgValue& arg) {
  const TransferCost plain = cost_of(core, dma, unit, r);
  KeptCost cost{plain.bytes, plain.engine, {}};
  if (cost.bytes == 0) return cost;
  const auto share = static_cast<std::int64_t>(arg.share), whole = static_cast<std::int64_t>(arg.bytes);
  std::vector<std::int64_t> held;
  const Box box = box_of(core, dma, unit);
  if (!dma.gathers.empty() || dma.has_lanes ||
      box.pieces > kMaxPieces) {  // places that data decide: anywhere
    const std::int64_t holders = (whole + share - 1) / share;
    for (std::int64_t h = 0; h < holders; ++h) {
      const std::int64_t part = cost.bytes * (h + 1) / holders - cost.bytes * h / holders;
      if (part > 0) cost.parts.push_back({h, part});
    }
    return cost;
  }
  std::vector<std::int64_t> at(box.loops.size(), 0);
  for (std::int64_t place = box.start;;) {
    const std::int64_t low = std::max<std::int64_t>(place, 0), high = std::min(place + box.run, whole);
    if (low < high) add(held, low, high - low, share);
    std::size_t d = box.loops.size();
    for (; d > 0; --d) {
      const Loop& loop = box.loops[d - 1];
      place += loop.stride;
      if (++at[d - 1] < loop.count) break;
      place -= loop.stride * loop.count;
      at[d - 1] = 0;
    }
    if (d == 0) break;
  }
  for (std::size_t h = 0; h < held.size(); ++h)
    if (held[h] > 0) cost.parts.push_back({static_cast<std::int64_t>(h), held[h]});
  return cost;
}

/// Starts a transfer of a kept buffer. False: nothing moves.
bool Clock::kept_transfer(CoreState& core, Sequence& s, std::uint32_t number, Unit unit, const ArgValue& arg,
                          double now) {
  const Dma& dma = p_.dmas[number];
  const bool write = unit == Unit::MNISU;
  const KeptCost& cost = known(core, core.kept[number], (write ? outline_.stores : outline_.loads)[number],
                               [&] { return kept_cost(core.core, dma, unit, rates_, arg); });
  if (cost.bytes == 0) return false;
  const int id = begin_transfer(core, s, unit, cost.bytes, now, cost.engine);
  s.late = 0;
  if (record_.on()) s.what = (write ? "store " : "load ") + p_.args[dma.arg].name + " (LX)";
  std::vector<int> members = {id};
  const std::int64_t sharers = dma.shared ? core.core.value(dma.sharers, unit) : 1;
  if (sharers > 1) {
    const auto key = std::make_pair(number, core.core.value(dma.group, unit));
    Shared& waiting = gathering_[key];
    waiting.members.push_back(id);
    if (static_cast<std::int64_t>(waiting.members.size()) < sharers) return true;
    members = std::move(waiting.members);
    gathering_.erase(key);
  }
  count_between(dma.arg, cost.bytes, write);
  exchange(members, cost, write, now);
  return true;
}

/// Move the parts between their holders and the cores that asked for them (one, or a group that all get the
/// same).
void Clock::exchange(const std::vector<int>& members, const KeptCost& cost, bool write, double now) {
  const std::int64_t cores = ring_cores();
  std::vector<double> sent(members.size(), now), there(members.size(), now);
  (write ? lx_written_ : lx_read_) += cost.bytes;
  for (const KeptCost::Part& part : cost.parts) {
    const double cycles = static_cast<double>(part.bytes) / rates_.ring_bytes;
    if (part.core < static_cast<std::int64_t>(cores_.size()))
      cores_[static_cast<std::size_t>(part.core)].lx_owed += static_cast<double>(part.bytes);
    std::int64_t far[2] = {0, 0}, near = cores;  // clockwise, counter-clockwise; the closest that asks
    const auto right_of = [&](int member) { return (member / kSequences - part.core + cores) % cores; };
    for (const int member : members) {
      const std::int64_t right = right_of(member), left = (cores - right) % cores;
      std::int64_t& reach = right <= left ? far[0] : far[1];
      reach = std::max(reach, std::min(right, left));
      near = std::min({near, right, left});
    }
    Ring::Way ways[2];
    if (write) {
      const std::int64_t from = members.front() / kSequences;
      ways[0] = ways[1] = ring_.send(now + rates_.lx_latency, from, part.core, cycles);
    } else {
      const double begin = now + rates_.lx_latency + rates_.ring_hop * static_cast<double>(near);
      ways[0] = ring_.send(begin, part.core, (part.core + far[0]) % cores, cycles);
      ways[1] =
          far[1] == 0 ? ways[0] : ring_.send(begin, part.core, (part.core + cores - far[1]) % cores, cycles);
    }
    for (std::size_t m = 0; m < members.size(); ++m) {
      const std::int64_t right = right_of(members[m]), left = (cores - right) % cores;
      const Ring::Way& way = ways[right <= left ? 0 : 1];
      sent[m] = std::max(sent[m], way.end);
      there[m] = std::max(there[m], way.end + rates_.ring_hop * static_cast<double>(std::min(right, left)));
    }
  }
  for (std::size_t m = 0; m < members.size(); ++m) complete(members[m], sent[m], there[m] - sent[m]);
}

/// Bytes of a buffer that lies between the programs of a job, by where it lies.
void Clock::count_between(std::uint32_t arg, std::int64_t bytes, bool write) {
  if (!args_.empty() && args_[arg].between) between_[args_[arg].kept()][write] += bytes;
}

}  // namespace loom::chip
