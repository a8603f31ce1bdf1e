// What the units do in the clock: transfers between DDR and LX, copies round the ring, segments.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>

#include "chip/clock_run.h"
#include "chip/ops.h"

namespace loom::chip {

namespace {

int index(Unit u) { return static_cast<int>(u); }

/// What a segment is called in a trace: its number and what it spends most on.
std::string name_of(const Segment& s) {
  std::string text = "segment " + std::to_string(s.number);
  if (s.has_pt) return text + " matmul";
  Cost most = Cost::FREE;
  const char* name = "copy";
  for (const MicroOp& op : s.lane)
    if (info(op.op).cost > most) most = info(op.op).cost, name = info(op.op).name;
  for (const VecOut& out : s.vec.outputs)
    if (out.reduce != Reduce::NONE && most < Cost::DIVIDE) name = "reduction";
  return text + " " + name;
}

}  // namespace

/// The engine takes up a transfer for `engine` cycles; the LX of its core takes part. Returns its number.
int Clock::begin_transfer(CoreState& core, Sequence& s, Unit unit, std::int64_t bytes, double now,
                          double engine) {
  const bool write = unit == Unit::MNISU;
  (write ? lx_read_ : lx_written_) += bytes;
  core.lx_owed += static_cast<double>(bytes);
  s.began = now;
  s.engine_free = now + engine;
  return static_cast<int>(core.core.number) * kSequences + (write ? kStoreSequence : kLoadSequence);
}

/// Starts a transfer. False: nothing moves.
bool Clock::transfer(CoreState& core, Sequence& s, std::uint32_t number, Unit unit, double now) {
  const Dma& dma = p_.dmas[number];
  const bool write = unit == Unit::MNISU;
  if (!args_.empty() && args_[dma.arg].kept())
    return kept_transfer(core, s, number, unit, args_[dma.arg], now);
  const auto& operands = (write ? outline_.stores : outline_.loads)[number];
  const TransferCost& cost =
      known(core, core.transfers[number], operands, [&] { return cost_of(core.core, dma, unit, rates_); });
  if (cost.bytes == 0) return false;
  const int id = begin_transfer(core, s, unit, cost.bytes, now, cost.engine);
  const std::int64_t sharers = dma.shared ? core.core.value(dma.sharers, unit) : 1;
  // What is on its way when the last request goes out arrives a latency later, less what the engine has in
  // flight.
  const double own =
      static_cast<double>(cost.bytes) / static_cast<double>(std::max<std::int64_t>(sharers, 1));
  s.late = write ? 0 : rates_.ddr_latency * (1 - std::min(1.0, own / rates_.window));
  if (record_.on()) s.what = (write ? "store " : "load ") + p_.args[dma.arg].name;
  if (sharers > 1) {
    const auto key = std::make_pair(number, core.core.value(dma.group, unit));
    Shared& waiting = gathering_[key];
    waiting.members.push_back(id);
    waiting.cycles = static_cast<double>(cost.bytes) / rates_.ring_bytes;
    if (static_cast<std::int64_t>(waiting.members.size()) < sharers) return true;
    count_between(dma.arg, cost.bytes, write);
    start_transfer(waiting.members, id, cost, write, now);
    passing_.emplace(id, std::move(waiting));
    gathering_.erase(key);
  } else {
    count_between(dma.arg, cost.bytes, write);
    start_transfer({id}, id, cost, write, now);
  }
  return true;
}

/// Each member asks for an equal part, through the port on its side of the ring.
void Clock::start_transfer(const std::vector<int>& members, int id, const TransferCost& cost, bool write,
                           double now) {
  (write ? written_ : read_) += cost.bytes;
  std::int64_t behind[kMaxPorts] = {};
  for (const int m : members) ++behind[port_of(m / kSequences)];
  int& parts = cores_[static_cast<std::size_t>(id / kSequences)].sequence[id % kSequences].parts;
  for (int port = 0; port < rates_.ports; ++port) {
    if (behind[port] == 0) continue;
    const double part = static_cast<double>(behind[port]) / static_cast<double>(members.size());
    ++parts;
    ddr_.add(now, static_cast<std::size_t>(port), behind[port], part * static_cast<double>(cost.bytes),
             part * cost.ddr, id, write);
  }
  watch_memory(now);
}

/// Record what the memory does when that changes.
void Clock::watch_memory(double now) {
  const int directions = ddr_.directions();
  if (!record_.on() || directions == directions_) return;
  constexpr const char* names[] = {"", "read", "write", "read and write"};
  if (directions_ != 0)
    record_.span(-1, Track::DDR, directions_since_, now, SpanKind::TRANSFER, names[directions_]);
  directions_ = directions;
  directions_since_ = now;
}

/// The end of a transfer for one core; `extra` cycles pass until the bytes are there.
void Clock::complete(int id, double now, double extra) {
  CoreState& core = cores_[static_cast<std::size_t>(id / kSequences)];
  const bool load = id % kSequences == kLoadSequence;
  Sequence& s = core.sequence[id % kSequences];
  const double end = std::max(now, s.engine_free);
  core.unit[index(load ? Unit::MNILU : Unit::MNISU)].busy += end - s.began;
  s.arrival = end + std::max(extra, s.late);
  s.transfers = true;
  events_.push({end, id / kSequences, id % kSequences});
  if (record_.on())
    record_.span(core.core.number, load ? Track::MNILU : Track::MNISU, s.began, end, SpanKind::TRANSFER,
                 s.what);
}

/// Hand what the cores of a group fetched to all of them: once round each way, every link used once. The
/// words stream along while DDR delivers them, so only the links' load and the way add to the time.
void Clock::pass_on(int from, const Shared& shared, double now) {
  const std::int64_t cores = ring_cores(), source = from / kSequences;
  const auto steps = [&](int member) { return (member / kSequences - source + cores) % cores; };
  std::int64_t far[2] = {0, 0};  // clockwise, counter-clockwise
  for (const int member : shared.members) {
    const std::int64_t right = steps(member), left = (cores - right) % cores;
    std::int64_t& reach = right <= left ? far[0] : far[1];
    reach = std::max(reach, std::min(right, left));
  }
  const double begun = now - shared.cycles;
  const Ring::Way ways[2] = {ring_.send(begun, source, (source + far[0]) % cores, shared.cycles),
                             ring_.send(begun, source, (source + cores - far[1]) % cores, shared.cycles)};
  for (const int member : shared.members) {
    const std::int64_t right = steps(member), left = (cores - right) % cores;
    const Ring::Way& way = ways[right <= left ? 0 : 1];
    const double there = way.end + rates_.ring_hop * static_cast<double>(std::min(right, left));
    complete(member, now, member == from ? 0 : std::max(0.0, there - now));
  }
}

/// A copy between cores: when the sender may go on.
double Clock::ring_copy(CoreState& core, Sequence& s, std::uint32_t number, double now) {
  const RingCopy& copy = p_.ring_copies[number];
  const std::int64_t peer = peer_of(core.core, copy.core, Unit::MNISU);
  if (peer < 0) return now;
  const TransferCost& cost = known(core, core.copies[number], outline_.copies[number],
                                   [&] { return cost_of(core.core, copy, rates_); });
  if (cost.bytes == 0) return now;
  const Ring::Way way = ring_.send(now + rates_.dma_issue, core.core.number, peer, cost.engine);
  core.unit[index(Unit::MNISU)].busy += way.end - now;
  lx_read_ += cost.bytes;
  lx_written_ += cost.bytes;
  core.lx_owed += static_cast<double>(cost.bytes);
  cores_[static_cast<std::size_t>(peer)].lx_owed += static_cast<double>(cost.bytes);
  s.arrival = std::max(s.arrival, way.arrival);
  s.transfers = true;
  if (record_.on()) {
    const std::string what = "to core " + std::to_string(peer);
    record_.span(core.core.number, Track::MNISU, now, way.end, SpanKind::TRANSFER, what);
    record_.span(core.core.number, Track::RING, way.start, way.end, SpanKind::TRANSFER, what);
  }
  return way.end;
}

/// A segment streams through L1LU, PT, SFU and L1SU. Each unit starts when it is free and its first operand
/// is there, ends no earlier than the unit before it, and is held up when the queue behind it is full. Its
/// loads wait for what earlier segments store to the same bytes.
void Clock::segment(CoreState& core, std::uint32_t number) {
  const Segment& s = p_.segments[number];
  const SegmentCost& cost = known(core, core.segments[number], outline_.segments[number],
                                  [&] { return cost_of(core.core, s, rates_); });
  double begin[4], end[4];
  const double busy[4] = {cost.load, cost.pt, cost.sfu, cost.store};
  const double lag[4] = {0, rates_.lx_latency, s.has_pt ? rates_.issue : rates_.lx_latency, rates_.start};
  double ready = core.unit[index(Unit::L1LU)].time;
  for (const std::uint32_t block : outline_.sources[number]) ready = std::max(ready, core.written[block]);
  // The banks serve transfer units and both corelets; what transfers took while segments ran is missing to
  // them.
  core.lx_owed = std::max(0.0, core.lx_owed - rates_.lx_banks * std::max(0.0, ready - core.lx_idle_from));
  const double banks = (static_cast<double>(cost.lx_read + cost.lx_written) + core.lx_owed) / rates_.lx_banks;
  core.lx_owed = 0;
  double first = ready, last = ready;  // of the unit before
  for (int u = 0; u < 4; ++u) {
    const bool idle = u == 1 && !s.has_pt;
    UnitState& unit = core.unit[index(kComputeUnits[u])];
    if (idle) {
      begin[u] = first, end[u] = last;
      continue;
    }
    const double out = u == 3 ? cost.first : 0;
    begin[u] = std::max(unit.time, first + lag[u] + out);
    end[u] = std::max(begin[u] + std::max(busy[u], u == 0 ? banks : 0.0), u == 0 ? 0.0 : last + lag[u]);
    first = begin[u], last = end[u];
  }
  // A full queue holds L1LU back: it is at most its depth ahead of the SFU.
  const double held = end[2] - rates_.queue * cost.slot;
  end[0] = std::max(end[0], std::min(held, end[2]));
  for (int u = 0; u < 4; ++u) {
    if (u == 1 && !s.has_pt) continue;
    UnitState& unit = core.unit[index(kComputeUnits[u])];
    unit.wait += std::max(0.0, begin[u] - unit.time) + std::max(0.0, end[u] - begin[u] - busy[u]);
    unit.time = end[u];
    unit.busy += busy[u];
    core.corelet_busy[index(kComputeUnits[u])] += busy[u] / cost.share;
  }
  core.lx_idle_from = end[3];
  for (const std::uint32_t block : outline_.targets[number]) core.written[block] = end[3] + rates_.lx_latency;
  end_ = std::max(end_, end[3] + rates_.lx_latency);
  macs_ += cost.macs;
  sfu_ops_ += cost.sfu_ops;
  lx_read_ += cost.lx_read;
  lx_written_ += cost.lx_written;
  if (record_.on()) show(core, s, begin, end);
}

void Clock::show(const CoreState& core, const Segment& s, const double begin[], const double end[]) {
  const std::string name = name_of(s);
  for (int u = 0; u < 4; ++u)
    if (u != 1 || s.has_pt)
      record_.span(core.core.number, track_of(kComputeUnits[u]), begin[u], end[u], SpanKind::BUSY, name);
}

Outline::Outline(const Program& p, std::span<const ArgValue> args)
    : segments(p.segments.size()),
      loads(p.dmas.size()),
      stores(p.dmas.size()),
      copies(p.ring_copies.size()),
      sources(p.segments.size()),
      targets(p.segments.size()) {
  const auto overlap = [&](std::uint32_t a, std::uint32_t b) {
    const Block &x = p.blocks[a], &y = p.blocks[b];
    return x.address < y.address + y.bytes * y.phases && y.address < x.address + x.bytes * x.phases;
  };
  for (std::size_t i = 0; i < p.segments.size(); ++i) {
    const Segment& s = p.segments[i];
    cost_operands(s, segments[i]);
    for (const Port& port : s.stores) targets[i].push_back(port.lx.block);
    std::vector<std::uint32_t> read;
    for (const Port& port : s.loads) read.push_back(port.lx.block);
    if (s.has_pt) read.insert(read.end(), {s.pt_a.lx.block, s.pt_b.lx.block});
    for (std::uint32_t b = 0; b < p.blocks.size(); ++b)
      if (std::any_of(read.begin(), read.end(), [&](std::uint32_t r) { return overlap(r, b); }))
        sources[i].push_back(b);
  }
  for (std::size_t i = 0; i < p.dmas.size(); ++i) {
    cost_operands(p.dmas[i], Unit::MNILU, loads[i]);
    cost_operands(p.dmas[i], Unit::MNISU, stores[i]);
    if (args.empty() || !args[p.dmas[i].arg].kept() || p.dmas[i].ddr.kind != OperandKind::REG) continue;
    loads[i].emplace_back(p.dmas[i].ddr, Unit::MNILU);  // where a kept buffer is touched decides who holds it
    stores[i].emplace_back(p.dmas[i].ddr, Unit::MNISU);
  }
  for (std::size_t i = 0; i < p.ring_copies.size(); ++i) cost_operands(p.ring_copies[i], copies[i]);

  // Registers that reach a cost, a count or a partner; addresses alone take no time.
  for (auto& used : registers) used.assign(p.registers, 0);
  const auto mark = [&](const Operand& o, Unit unit) {
    if (o.kind == OperandKind::REG) registers[index(unit)][static_cast<std::size_t>(o.value)] = 1;
  };
  for (const auto* group : {&segments, &copies})
    for (const Operands& list : *group)
      for (const auto& [operand, unit] : list) mark(operand, unit);
  for (const auto& code : p.code)
    for (const Instr& in : code) {
      if (in.op == Opcode::DMA) {
        for (const auto& [operand, unit] : (in.unit == Unit::MNISU ? stores : loads)[in.a])
          mark(operand, unit);
        mark(p.dmas[in.a].group, in.unit);
        mark(p.dmas[in.a].sharers, in.unit);
      } else if (in.op == Opcode::RING_COPY) {
        mark(p.ring_copies[in.a].core, in.unit);
      } else {
        mark(in.count, in.unit);
      }
    }
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& code : p.code)
      for (const Instr& in : code) {
        if (in.op != Opcode::LET || !registers[index(in.unit)][in.a]) continue;
        const ExprRef expr = p.lets[in.b];
        for (std::uint32_t t = expr.first; t < expr.first + expr.count; ++t) {
          if (p.tokens[t].op != ExprOp::REG) continue;
          std::uint8_t& used = registers[index(in.unit)][static_cast<std::size_t>(p.tokens[t].value)];
          changed = changed || !used;
          used = 1;
        }
      }
  }
}

}  // namespace loom::chip
