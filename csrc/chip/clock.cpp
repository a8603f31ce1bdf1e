// The clock: a discrete-event model over the linked program. It moves no data; it needs the value table.
//
// The transfer units of a core run in event time and meet at the shared memory and ring. The compute group
// runs ahead: each of its units has a time of its own, a segment takes every unit from when it is free, and
// credits carry the time at which they become visible. Events are ordered by (time, core, sequence), so the
// result is the same everywhere.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cstdlib>

#include "chip/clock_run.h"
#include "chip/expr.h"

namespace loom::chip {

namespace {

/// Steps of all cores; real launches need thousands.
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 26;

int index(Unit u) { return static_cast<int>(u); }

}  // namespace

Clock::Clock(const Program& p, std::span<const std::int64_t> table, const ClockParams& params,
             std::span<const ArgValue> args, Recorder& recorder)
    : p_(p),
      params_(params),
      args_(args),
      rates_(params),
      record_(recorder),
      outline_(p, args),
      ddr_(rates_),
      ring_(static_cast<std::size_t>(ring_cores()), rates_),
      cores_(static_cast<std::size_t>(p.cores)) {
  const auto words = static_cast<double>(p.table_words);
  launch_ = rates_.launch + words * rates_.correction + 8 * words / rates_.table_bytes +
            static_cast<double>(p.slots.size()) * rates_.prologue;  // each core applies its own numbers
  for (std::size_t c = 0; c < cores_.size(); ++c) {
    CoreState& core = cores_[c];
    core.core.start(p, static_cast<std::int64_t>(c), table);
    for (UnitState& u : core.unit) u.time = launch_;
    core.lx_idle_from = launch_;
    core.credits.resize(2 * p.channels.size() + 2 * p.rings * cores_.size());
    for (std::size_t i = 0; i < core.credits.size(); i += 2) {
      const bool ring = i >= 2 * p.channels.size();
      const std::int64_t phases = ring ? 1 : p.channels[i / 2].phases;
      for (std::int64_t n = 0; n < phases; ++n) core.credits[i].give(launch_);
    }
    core.written.assign(p.blocks.size(), 0);
    core.segments.resize(p.segments.size());
    core.transfers.resize(p.dmas.size());
    core.copies.resize(p.ring_copies.size());
    core.kept.resize(p.dmas.size());
    for (int s = 0; s < kSequences; ++s) events_.push({launch_, static_cast<int>(c), s});
  }
  end_ = launch_;
  if (record_.on()) record_.span(-1, Track::LAUNCH, 0, launch_, SpanKind::BUSY, "launch");
}

Timing Clock::run() {
  now_ = launch_;
  for (;;) {
    const double ddr = ddr_.next(now_);
    if (events_.empty() && ddr == kNever) break;
    ++steps_;
    if (!events_.empty() && events_.top().time <= ddr) {
      const Event e = events_.top();
      events_.pop();
      now_ = std::max(now_, e.time);
      step(e);
    } else {
      now_ = ddr;
      const int id = ddr_.pop(now_);
      watch_memory(now_);
      finish_transfer(id, now_);
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

void Clock::finish_transfer(int id, double now) {
  Sequence& s = cores_[static_cast<std::size_t>(id / kSequences)].sequence[id % kSequences];
  if (--s.parts > 0) return;
  const auto shared = passing_.find(id);
  if (shared == passing_.end()) return complete(id, now, 0);
  const Shared done = std::move(shared->second);
  passing_.erase(shared);
  pass_on(id, done, now);
}

/// Run a sequence from an event on until it waits for a credit, a transfer or, when it is about to touch what
/// cores share, for its own time.
void Clock::step(const Event& e) {
  CoreState& core = cores_[static_cast<std::size_t>(e.core)];
  Sequence& s = core.sequence[e.sequence];
  const std::vector<Instr>& code = p_.code[e.sequence];
  double now = e.time;
  while (s.pc < code.size()) {
    if (++steps_ > kMaxSteps) throw Error("DEV-07", p_.name + ": exceeds the step limit of the clock");
    const Instr& in = code[s.pc];
    switch (in.op) {
      case Opcode::ACQUIRE:
        if (!acquire(core, s, in, 2 * in.a + in.b, now)) return;
        break;
      case Opcode::RING_ACQUIRE: {
        const std::int64_t peer = peer_of(core.core, in.count, in.unit);
        if (peer >= 0 && !acquire(core, s, in, ring_credit(in, peer), now)) return;
        break;
      }
      case Opcode::RELEASE:
        pass_time(core, in, now);
        release(core, s, in, now);
        break;
      case Opcode::RING_RELEASE:
        pass_time(core, in, now);
        ring_release(core, s, in, now);
        break;
      case Opcode::DMA:
        if (now > e.time) return later(e, now);
        ++s.pc;
        if (transfer(core, s, in.a, in.unit, now)) return;
        continue;
      case Opcode::RING_COPY:
        if (now > e.time) return later(e, now);
        now = ring_copy(core, s, in.a, now);
        break;
      case Opcode::SEG_VEC:
        segment(core, in.a);
        break;
      default:
        pass_time(core, in, now);
        if (run_control(core, s, in, code)) continue;
    }
    ++s.pc;
  }
  end_ = std::max({end_, now, s.arrival});
}

/// Loops and lets. True: the program counter is set.
bool Clock::run_control(CoreState& core, Sequence& s, const Instr& in, const std::vector<Instr>& code) {
  const auto set = [&](const Instr& loop, std::int64_t value) {
    if (!is_compute(loop.unit)) {
      core.core.regs[index(loop.unit)][loop.a] = value;
      return;
    }
    for (Unit u : kComputeUnits) core.core.regs[index(u)][loop.a] = value;
  };
  switch (in.op) {
    case Opcode::LOOP: {
      const std::int64_t count = core.core.value(in.count, in.unit);
      if (count <= 0) {
        s.pc = in.b + 1;
        return true;
      }
      s.frames.push_back({0, count});
      set(in, 0);
      return false;
    }
    case Opcode::END_LOOP: {
      Frame& f = s.frames.back();
      if (++f.index >= f.count) {
        s.frames.pop_back();
        return false;
      }
      set(code[in.b], f.index);
      s.pc = in.b + 1;
      return true;
    }
    case Opcode::LET: {
      auto& regs = core.core.regs[index(in.unit)];
      if (!outline_.registers[index(in.unit)][in.a]) return false;
      Leaves leaves;
      leaves.slots = core.core.slots.data();
      leaves.regs = regs.data();
      regs[in.a] = evaluate(p_, p_.lets[in.b], leaves);
      return false;
    }
    default:
      return false;
  }
}

/// One instruction is issued: loops by every stream of the compute group, others by one.
void Clock::pass_time(CoreState& core, const Instr& in, double& now) {
  if (in.op == Opcode::LET) return;  // worked out beside the stream
  if (!is_compute(in.unit)) {
    now += rates_.issue;
    return;
  }
  if (in.op != Opcode::LOOP && in.op != Opcode::END_LOOP) {
    core.unit[index(in.unit)].time += rates_.issue;
    return;
  }
  for (Unit u : kComputeUnits) core.unit[index(u)].time += rates_.issue;
}

/// False: there is no credit yet, the sequence is woken when one is given.
bool Clock::acquire(CoreState& core, Sequence& s, const Instr& in, std::size_t credit, double& now) {
  Credits& credits = core.credits[credit];
  UnitState& unit = core.unit[index(in.unit)];
  double& time = is_compute(in.unit) ? unit.time : now;
  if (s.awaited == kNothing) s.since = time;
  if (credits.empty()) {
    s.awaited = static_cast<int>(credit);
    return false;
  }
  s.awaited = kNothing;
  const double seen = credits.take();
  if (seen > s.since) {
    unit.wait += seen - s.since;
    if (record_.on())
      record_.span(core.core.number, track_of(in.unit), s.since, seen, SpanKind::WAIT,
                   "wait " + p_.channels[in.a].name + (in.b ? ".full" : ".empty"));
  }
  time = std::max(time, seen) + rates_.issue;
  return true;
}

/// Make a credit visible at `time` and wake who waits for it.
void Clock::give(std::int64_t to, std::size_t credit, double time, const Instr& in, std::int64_t from,
                 double sent) {
  CoreState& core = cores_[static_cast<std::size_t>(to)];
  core.credits[credit].give(time);
  for (int s = 0; s < kSequences; ++s)
    if (core.sequence[s].awaited == static_cast<int>(credit)) {
      core.sequence[s].awaited = kWoken;
      events_.push({std::max(time, now_), static_cast<int>(to), s});
    }
  if (!record_.on()) return;
  const Channel& c = p_.channels[in.a];
  const Unit other = in.unit == c.producer ? c.consumer : c.producer;
  record_.flow({from, track_of(in.unit), sent}, {to, track_of(other), time},
               c.name + (in.b ? ".full" : ".empty"));
}

/// A release stands behind what its unit has done: transfers that have arrived, stores that are in LX.
void Clock::release(CoreState& core, Sequence& s, const Instr& in, double now) {
  double done = now;
  if (is_compute(in.unit)) {
    done = core.unit[index(in.unit)].time;
    if (in.unit == Unit::L1SU) done += rates_.lx_latency;
  } else if (s.transfers) {
    done = std::max(now, s.arrival);
    s.transfers = false;
  }
  ++core.core.releases[index(in.unit)][in.a];
  give(core.core.number, 2 * in.a + in.b, done + rates_.credit, in, core.core.number, done);
}

void Clock::ring_release(CoreState& core, Sequence& s, const Instr& in, double now) {
  const std::int64_t peer = peer_of(core.core, in.count, in.unit);
  if (peer < 0) return;
  const std::int64_t distance = std::abs(peer - core.core.number);
  const double way = rates_.ring_hop * static_cast<double>(std::min(distance, ring_cores() - distance));
  double sent = is_compute(in.unit) ? core.unit[index(in.unit)].time : now, there = sent + way;
  if (!is_compute(in.unit) && s.transfers) there = std::max(there, s.arrival);
  give(peer, ring_credit(in, core.core.number), there + rates_.credit, in, core.core.number, sent);
}

std::size_t Clock::ring_credit(const Instr& in, std::int64_t peer) const {
  const std::int64_t pair = p_.channels[in.a].ring_number * p_.cores + peer;
  return 2 * p_.channels.size() + static_cast<std::size_t>(2 * pair) + in.b;
}

namespace {
Timing run(const Program& p, std::span<const std::int64_t> table, const ClockParams& params,
           std::span<const ArgValue> args, Recorder& recorder) {
  if (table.size() != p.table_words)
    throw Error("SC-E11", p.name + ": the value table does not belong to this program");
  if (!args.empty() && args.size() != p.args.size())
    throw Error("SC-E11", p.name + ": the arguments do not belong to this program");
  check_kept(p, args, static_cast<int>(std::max<double>(parameter(params, "core.count"), p.cores)),
             p.lx_bytes);
  return Clock(p, table, params, args, recorder).run();
}
}  // namespace

Timing time(const Program& p, std::span<const std::int64_t> table, const ClockParams& params,
            std::span<const ArgValue> args) {
  Recorder nothing(nullptr, 0);
  return run(p, table, params, args, nothing);
}

Trace trace(const Program& p, std::span<const std::int64_t> table, const ClockParams& params,
            std::size_t max_spans, std::span<const ArgValue> args) {
  Trace found;
  Recorder recorder(&found, max_spans);
  found.timing = run(p, table, params, args, recorder);
  return found;
}

}  // namespace loom::chip
