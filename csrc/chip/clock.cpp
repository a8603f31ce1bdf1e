// The clock: a discrete-event model over the linked program. It moves no data; it needs the value table.
//
// Per core the three sequences run as in the functional engine and meet at credits. A transfer queues at
// the shared DDR, which serves all active transfers with equal shares and slows down while reads and
// writes mix (bus turnaround); the core's engine bounds it from below. A segment occupies the compute
// group for the time of its slowest unit. A copy between cores takes the shorter way round the ring and holds
// every link of it for the time its bytes need. A transfer that several cores share is read once, when the
// last of them has asked for it, and passed on over the ring. A release becomes visible when earlier
// transfers have arrived. Events are ordered by (time, core, sequence), so the result is the same everywhere.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cstdlib>
#include <map>
#include <queue>

#include "chip/clock_cost.h"
#include "chip/clock_shared.h"
#include "chip/clock_trace.h"
#include "chip/expr.h"

namespace loom::chip {

namespace {

/// Instructions of all cores; real launches need thousands.
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 26;

/// `what`: sequence 0..2, else 3 + the number of an arriving credit; those between cores come after the
/// channels'.
struct Event {
  double time;
  int core, what;
  bool operator<(const Event& o) const {
    if (time != o.time) return time > o.time;
    if (core != o.core) return core > o.core;
    return what > o.what;
  }
};

class Clock {
 public:
  Clock(const Program& p, std::span<const std::int64_t> table, const ClockParams& params, Recorder& recorder)
      : p_(p),
        rates_(params),
        record_(recorder),
        params_(params),
        ddr_(rates_.ddr_turnaround),
        cores_(static_cast<std::size_t>(p.cores)),
        ring_(cores_.size(), rates_) {
    launch_ = rates_.launch + static_cast<double>(8 * p.table_words) / rates_.table_bytes;
    for (std::size_t c = 0; c < cores_.size(); ++c) {
      cores_[c].core.start(p, static_cast<std::int64_t>(c), table);
      for (int s = 0; s < kSequences; ++s) events_.push({launch_, static_cast<int>(c), s});
    }
  }

  Timing run() {
    double now = launch_;
    for (;;) {
      const double ddr = ddr_.next(now);
      if (events_.empty() && ddr == kNever) break;
      if (!events_.empty() && events_.top().time <= ddr) {
        const Event e = events_.top();
        events_.pop();
        now = e.time;
        e.what < kSequences ? step(e) : arrive(e);
      } else {
        now = ddr;
        const int id = ddr_.pop(now);
        const auto shared = passing_.find(id);
        if (shared == passing_.end()) {
          complete(id, now, 0);
        } else {
          pass_on(id, shared->second, now);
          passing_.erase(shared);
        }
      }
    }
    for (std::size_t c = 0; c < cores_.size(); ++c)
      for (int s = 0; s < kSequences; ++s)
        if (cores_[c].sequence[s].pc < p_.code[s].size())
          throw Error("DEV-04", p_.name + ": deadlock on core " + std::to_string(c) + " while timing it");
    if (!gathering_.empty())
      throw Error("DEV-04", p_.name + ": a shared transfer waits for cores that never ask for it");
    return report();
  }

 private:
  struct Frame {
    std::int64_t index, count;
  };
  struct Shared {  // a load that several cores share
    std::vector<int> members;
    double cycles = 0;  // that it occupies a link of the ring
  };
  struct SequenceTime {
    std::size_t pc = 0;
    std::vector<Frame> frames;
    double began = 0, engine_free = 0, arrival = 0, busy = 0, wait = 0, blocked_since = 0, finished = 0;
    std::string what;  // the transfer under way
    bool blocked = false, woken = false, transfers = false;
    int awaited = -1;  // the credit it is blocked on, as in Event::what
  };
  struct CoreTime {
    Core core;
    SequenceTime sequence[kSequences];
    SegmentCost busy;                             // sums over the segments, of the corelet that works most
    double load = 0, pt = 0, sfu = 0, store = 0;  // sums over all corelets
    double wait_load = 0, wait_store = 0;         // of the compute group

    void add(const SegmentCost& cost) {
      busy.load += cost.load;
      busy.pt += cost.pt;
      busy.sfu += cost.sfu;
      busy.store += cost.store;
      load += cost.load * cost.corelets;
      pt += cost.pt * cost.corelets;
      sfu += cost.sfu * cost.corelets;
      store += cost.store * cost.corelets;
    }
  };

  void step(const Event& e) {
    CoreTime& core = cores_[static_cast<std::size_t>(e.core)];
    SequenceTime& s = core.sequence[e.what];
    const std::vector<Instr>& code = p_.code[e.what];
    double now = e.time;
    while (s.pc < code.size()) {
      if (++steps_ > kMaxSteps) throw Error("DEV-07", p_.name + ": exceeds the step limit of the clock");
      const Instr& in = code[s.pc];
      switch (in.op) {
        case Opcode::LOOP: {
          const std::int64_t count = core.core.value(in.count, in.unit);
          now += rates_.issue;
          if (count <= 0) {
            s.pc = in.b + 1;
          } else {
            s.frames.push_back({0, count});
            set_register(core.core, in, 0);
            ++s.pc;
          }
          break;
        }
        case Opcode::END_LOOP: {
          Frame& f = s.frames.back();
          now += rates_.issue;
          if (++f.index < f.count) {
            set_register(core.core, code[in.b], f.index);
            s.pc = in.b + 1;
          } else {
            s.frames.pop_back();
            ++s.pc;
          }
          break;
        }
        case Opcode::LET: {
          Leaves leaves;
          leaves.slots = core.core.slots.data();
          auto& regs = core.core.regs[static_cast<int>(in.unit)];
          leaves.regs = regs.data();
          regs[in.a] = evaluate(p_, p_.lets[in.b], leaves);
          ++s.pc;
          break;
        }
        case Opcode::ACQUIRE: {
          // What this sequence is about to see happened at or before `now` only if events up to then ran.
          if (now > e.time) return later(e, now);
          std::int64_t& credit = core.core.credits[2 * in.a + in.b];
          if (credit == 0) {
            if (!s.blocked) s.blocked_since = now;
            s.blocked = true;
            s.woken = false;
            s.awaited = kSequences + static_cast<int>(2 * in.a + in.b);
            return;
          }
          if (s.blocked) end_wait(core, s, in, now);
          --credit;
          now += rates_.issue;
          ++s.pc;
          break;
        }
        case Opcode::RELEASE: {
          now += rates_.issue;
          double visible = now + rates_.credit;
          if (s.transfers) visible = std::max(now, s.arrival) + rates_.credit;
          s.transfers = false;
          ++core.core.releases[static_cast<int>(in.unit)][in.a];
          events_.push({visible, e.core, kSequences + static_cast<int>(2 * in.a + in.b)});
          if (record_.on()) send(e.core, in, now, e.core, visible);
          ++s.pc;
          break;
        }
        case Opcode::DMA: {
          if (now > e.time) return later(e, now);
          ++s.pc;
          if (transfer(core, s, in.a, in.unit, now, e)) return;
          break;
        }
        case Opcode::RING_ACQUIRE: {
          const std::int64_t peer = peer_of(core.core, in.count, in.unit);
          if (peer >= 0) {
            if (now > e.time) return later(e, now);
            std::int64_t& credit = core.core.ring_credit(p_.channels[in.a], peer, in.b);
            if (credit == 0) {
              if (!s.blocked) s.blocked_since = now;
              s.blocked = true;
              s.woken = false;
              s.awaited = ring_number(in, peer);
              return;
            }
            if (s.blocked) end_wait(core, s, in, now);
            --credit;
          }
          now += rates_.issue;
          ++s.pc;
          break;
        }
        case Opcode::RING_RELEASE: {
          const std::int64_t peer = peer_of(core.core, in.count, in.unit);
          now += rates_.issue;
          if (peer >= 0) {
            const std::int64_t distance = std::abs(peer - core.core.number);
            const auto hops = static_cast<double>(std::min(distance, p_.cores - distance));
            const double sent = s.transfers ? std::max(now, s.arrival) : now + hops * rates_.ring_hop;
            events_.push({sent + rates_.credit, static_cast<int>(peer), ring_number(in, core.core.number)});
            if (record_.on()) send(e.core, in, now, peer, sent + rates_.credit);
          }
          ++s.pc;
          break;
        }
        case Opcode::RING_COPY: {
          if (now > e.time) return later(e, now);
          now = ring_copy(core, s, p_.ring_copies[in.a], now);
          ++s.pc;
          break;
        }
        case Opcode::SEG_VEC: {
          const SegmentCost cost = cost_of(core.core, p_.segments[in.a], rates_);
          core.add(cost);
          macs_ += cost.macs;
          sfu_ops_ += cost.sfu_ops;
          lx_read_ += cost.lx_read;
          lx_written_ += cost.lx_written;
          if (record_.on()) show(e.core, p_.segments[in.a], cost, now);
          s.busy += cost.cycles;
          now += cost.cycles;
          ++s.pc;
          break;
        }
        default:
          ++s.pc;
      }
    }
    s.finished = std::max(now, s.arrival);
    end_ = std::max(end_, s.finished);
  }

  /// The end of a transfer for one core; `extra` cycles pass until the bytes are there.
  void complete(int id, double now, double extra) {
    SequenceTime& s = cores_[static_cast<std::size_t>(id / kSequences)].sequence[id % kSequences];
    const double end = std::max(now, s.engine_free);
    s.busy += end - s.began;
    if (record_.on())
      record_.span(id / kSequences, id % kSequences == kLoadSequence ? Track::MNILU : Track::MNISU, s.began,
                   end, SpanKind::TRANSFER, s.what);
    s.arrival = end + extra + (id % kSequences == kLoadSequence ? rates_.ddr_latency : 0);
    s.transfers = true;
    events_.push({end, id / kSequences, id % kSequences});
  }

  /// Hand what one core fetched to all that share it: once round each way, every link used once. The words
  /// stream along while DDR delivers them, so only the links' load and the way add to the time.
  void pass_on(int from, const Shared& shared, double now) {
    const std::int64_t cores = p_.cores, source = from / kSequences;
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
  double ring_copy(CoreTime& core, SequenceTime& s, const RingCopy& copy, double now) {
    const std::int64_t peer = peer_of(core.core, copy.core, Unit::MNISU);
    const TransferCost cost = cost_of(core.core, copy, rates_);
    if (peer < 0 || cost.bytes == 0) return now;
    const Ring::Way way = ring_.send(now + rates_.dma_issue, core.core.number, peer, cost.engine);
    s.busy += way.end - now;
    lx_read_ += cost.bytes;
    lx_written_ += cost.bytes;
    if (record_.on())
      record_.span(core.core.number, Track::MNISU, now, way.end, SpanKind::TRANSFER,
                   "to core " + std::to_string(peer));
    s.arrival = std::max(s.arrival, way.arrival);
    s.transfers = true;
    return way.end;
  }

  int ring_number(const Instr& in, std::int64_t peer) const {
    const auto before = static_cast<std::int64_t>(2 * p_.channels.size());
    const std::int64_t pair = p_.channels[in.a].ring_number * p_.cores + peer;
    return kSequences + static_cast<int>(before + 2 * pair + in.b);
  }

  /// Starts a transfer. False: nothing moves.
  bool transfer(CoreTime& core, SequenceTime& s, std::uint32_t number, Unit unit, double now,
                const Event& e) {
    const Dma& dma = p_.dmas[number];
    const TransferCost cost = cost_of(core.core, dma, unit, rates_);
    if (cost.bytes == 0) return false;
    const bool write = unit == Unit::MNISU;
    const int id = e.core * kSequences + e.what;
    s.began = now;
    (write ? lx_read_ : lx_written_) += cost.bytes;
    if (record_.on()) s.what = (write ? "store " : "load ") + p_.args[dma.arg].name;
    s.engine_free = now + cost.engine;
    const std::int64_t sharers = dma.shared ? core.core.value(dma.sharers, unit) : 1;
    if (sharers > 1) {
      const auto key = std::make_pair(number, core.core.value(dma.group, unit));
      Shared& waiting = gathering_[key];
      waiting.members.push_back(id);
      waiting.cycles = static_cast<double>(cost.bytes) / rates_.ring_bytes;
      if (static_cast<std::int64_t>(waiting.members.size()) < sharers) return true;
      passing_.emplace(id, std::move(waiting));
      gathering_.erase(key);
    }
    (write ? written_ : read_) += cost.bytes;
    ddr_.add(now, cost.ddr, id, write);
    return true;
  }

  void later(const Event& e, double now) { events_.push({now, e.core, e.what}); }

  void arrive(const Event& e) {
    CoreTime& core = cores_[static_cast<std::size_t>(e.core)];
    const auto credit = static_cast<std::size_t>(e.what - kSequences);
    if (credit < 2 * p_.channels.size())
      ++core.core.credits[credit];
    else
      ++core.core.ring[credit - 2 * p_.channels.size()];
    for (int s = 0; s < kSequences; ++s) {
      SequenceTime& waiting = core.sequence[s];
      if (!waiting.blocked || waiting.woken) continue;
      if (waiting.awaited != e.what) continue;
      waiting.woken = true;
      events_.push({e.time, e.core, s});
    }
  }

  void end_wait(CoreTime& core, SequenceTime& s, const Instr& in, double now) {
    const Unit unit = in.unit;
    s.blocked = false;
    if (record_.on())
      record_.span(core.core.number, track_of(unit), s.blocked_since, now, SpanKind::WAIT,
                   "wait " + p_.channels[in.a].name + (in.b ? ".full" : ".empty"));
    const double waited = now - s.blocked_since;
    s.wait += waited;
    if (is_compute(unit)) (unit == Unit::L1SU ? core.wait_store : core.wait_load) += waited;
  }

  static void set_register(Core& core, const Instr& in, std::int64_t index) {
    if (!is_compute(in.unit)) {
      core.regs[static_cast<int>(in.unit)][in.a] = index;
      return;
    }
    for (Unit u : kComputeUnits) core.regs[static_cast<int>(u)][in.a] = index;
  }

  /// A credit on its way.
  void send(std::int64_t from, const Instr& in, double sent, std::int64_t to, double seen) {
    const Channel& c = p_.channels[in.a];
    const Unit other = in.unit == c.producer ? c.consumer : c.producer;
    record_.flow({from, track_of(in.unit), sent}, {to, track_of(other), seen},
                 c.name + (in.b ? ".full" : ".empty"));
  }

  void show(std::int64_t core, const Segment& s, const SegmentCost& cost, double begin) {
    const std::string name = "segment " + std::to_string(s.number);
    const auto span = [&](Track t, double busy) {
      record_.span(core, t, begin, begin + busy, SpanKind::BUSY, name);
    };
    span(Track::L1LU, cost.load);
    span(Track::PT, cost.pt);
    span(Track::SFU, cost.sfu);
    span(Track::L1SU, cost.store);
  }

  double param(const char* name) const { return params_.at(name); }

  Timing report() const {
    Timing t;
    t.cycles = std::max(end_, launch_);
    t.ns = t.cycles * 1e9 / rates_.hz;
    t.ddr_read_bytes = read_;
    t.ddr_write_bytes = written_;
    UnitTime load, store, l1lu, pt, sfu, l1su;
    for (const CoreTime& c : cores_) {
      load.busy_cycles += c.sequence[kLoadSequence].busy;
      load.wait_cycles += c.sequence[kLoadSequence].wait;
      store.busy_cycles += c.sequence[kStoreSequence].busy;
      store.wait_cycles += c.sequence[kStoreSequence].wait;
      l1lu.busy_cycles += c.load;
      l1lu.wait_cycles += c.wait_load;
      pt.busy_cycles += c.pt;
      sfu.busy_cycles += c.sfu;
      l1su.busy_cycles += c.store;
      l1su.wait_cycles += c.wait_store;
    }
    t.units = {{"MNILU", load},
               {"MNISU", store},
               {"L1LU", l1lu},
               {"PT", pt},
               {"SFU", sfu},
               {"L1SU", l1su},
               {"DDR", {ddr_.busy(), t.cycles - ddr_.busy()}}};
    if (ring_.busy() > 0)  // summed over all links of both directions
      t.units["ring"] = {ring_.busy(), 2 * static_cast<double>(cores_.size()) * t.cycles - ring_.busy()};
    const double all = t.cycles * rates_.cores * rates_.corelets;
    t.pt_util = pt.busy_cycles / all;
    t.sfu_util = sfu.busy_cycles / all;
    // The part that is busiest on the cores at work, on their busier corelet, names the bottleneck.
    SegmentCost sum;
    for (const CoreTime& c : cores_) {
      sum.load += c.busy.load;
      sum.pt += c.busy.pt;
      sum.sfu += c.busy.sfu;
      sum.store += c.busy.store;
    }
    const double used = t.cycles * static_cast<double>(cores_.size());
    const double moved = static_cast<double>(std::max<std::int64_t>(read_ + written_, 1));
    t.shares = {{"PT", sum.pt / used},
                {"SFU", sum.sfu / used},
                {"LX", std::max(sum.load, sum.store) / used},
                {"DDR read", ddr_.busy() / t.cycles * static_cast<double>(read_) / moved},
                {"DDR write", ddr_.busy() / t.cycles * static_cast<double>(written_) / moved},
                {"ring", ring_.busy() / (2 * used)},
                {"launch", launch_ / t.cycles}};
    double top = 0;
    for (const auto& [name, share] : t.shares)
      if (share > top) top = share, t.bottleneck = name;
    t.shares["wait"] = std::max(0.0, 1 - top);
    if (top < 0.4) t.bottleneck = "wait";
    t.launch_cycles = launch_;
    t.macs = macs_;
    t.events = steps_;
    const double ring_bytes = ring_.busy() * rates_.ring_bytes;
    t.link_bytes = {{"DDR read", read_},
                    {"DDR write", written_},
                    {"LX read", lx_read_},
                    {"LX write", lx_written_},
                    {"ring", static_cast<std::int64_t>(ring_bytes)}};
    t.energy_pj = {{"PT", static_cast<double>(macs_) * param("energy.mac_pj")},
                   {"SFU", sfu_ops_ * param("energy.sfu_op_pj")},
                   {"LX", static_cast<double>(lx_read_ + lx_written_) * param("energy.lx_byte_pj")},
                   {"DDR", static_cast<double>(read_ + written_) * param("energy.ddr_byte_pj")},
                   {"ring", ring_bytes * param("energy.ring_byte_pj")},
                   {"idle", param("energy.idle_w") * t.ns * 1e3}};
    return t;
  }

  const Program& p_;
  Rates rates_;
  Recorder& record_;
  const ClockParams& params_;
  Ddr ddr_;
  std::vector<CoreTime> cores_;
  Ring ring_;
  std::map<std::pair<std::uint32_t, std::int64_t>, Shared> gathering_;  // by transfer and group
  std::map<int, Shared> passing_;                                       // by the member that fetches
  std::priority_queue<Event> events_;
  double launch_ = 0, end_ = 0;
  std::int64_t read_ = 0, written_ = 0, lx_read_ = 0, lx_written_ = 0, macs_ = 0, steps_ = 0;
  double sfu_ops_ = 0;
};

}  // namespace

namespace {
Timing run(const Program& p, std::span<const std::int64_t> table, const ClockParams& params,
           Recorder& recorder) {
  if (table.size() != p.table_words)
    throw Error("SC-E11", p.name + ": the value table does not belong to this program");
  return Clock(p, table, params, recorder).run();
}
}  // namespace

Timing time(const Program& p, std::span<const std::int64_t> table, const ClockParams& params) {
  Recorder nothing(nullptr, 0);
  return run(p, table, params, nothing);
}

Trace trace(const Program& p, std::span<const std::int64_t> table, const ClockParams& params,
            std::size_t max_spans) {
  Trace found;
  Recorder recorder(&found, max_spans);
  found.timing = run(p, table, params, recorder);
  return found;
}

}  // namespace loom::chip
