// The state of one simulation: cores with their units and credits, the shared memory and ring, the event
// queue. clock.cpp holds the control flow, clock_units.cpp what units do, clock_report.cpp the results.
#pragma once

#include <algorithm>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "chip/clock_memory.h"
#include "chip/clock_trace.h"

namespace loom::chip {

/// Times at which credits become visible, in order of their release.
class Credits {
 public:
  bool empty() const { return head_ == times_.size(); }
  void give(double time) { times_.push_back(time); }
  double take() {
    const double time = times_[head_++];
    if (head_ == times_.size() || head_ == 64) {
      times_.erase(times_.begin(), times_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    return time;
  }

 private:
  std::vector<double> times_;
  std::size_t head_ = 0;
};

/// Registers and operands that matter for time, and the blocks whose contents segments hand on. Per program.
struct Outline {
  Outline(const Program&, std::span<const ArgValue> args);
  using Operands = std::vector<std::pair<Operand, Unit>>;
  std::vector<Operands> segments, loads, stores,
      copies;                                       // what the costs depend on; loads, stores: by DMA number
  std::vector<std::vector<std::uint32_t>> sources;  // per segment: blocks that overlap what it loads
  std::vector<std::vector<std::uint32_t>> targets;  // per segment: blocks it stores to
  std::vector<std::uint8_t> registers[kUnits];      // 1: read by something that takes time
};

/// A cost with the numbers it was worked out for.
template <typename Cost>
struct Known {
  bool valid = false;
  std::vector<std::int64_t> key;
  Cost cost;
};

class Clock {
 public:
  Clock(const Program&, std::span<const std::int64_t> table, const ClockParams&,
        std::span<const ArgValue> args, Recorder&);
  Timing run();

 private:
  struct Event {
    double time;
    int core, sequence;
    bool operator<(const Event& o) const {
      if (time != o.time) return time > o.time;
      if (core != o.core) return core > o.core;
      return sequence > o.sequence;
    }
  };
  static constexpr int kNothing = -1, kWoken = -2;  // of Sequence::awaited
  struct Frame {
    std::int64_t index, count;
  };
  struct Sequence {
    std::size_t pc = 0;
    std::vector<Frame> frames;
    int awaited = kNothing;  // the credit it is blocked on
    double since = 0;        // when a transfer unit began to wait
    // Transfer units only.
    double began = 0, engine_free = 0, arrival = 0, late = 0;
    int parts = 0;  // of the transfer under way, one per port
    bool transfers = false;
    std::string what;
  };
  struct UnitState {
    double time = 0;  // its stream has come to here
    double busy = 0, wait = 0;
  };
  struct CoreState {
    Core core;
    Sequence sequence[kSequences];
    UnitState unit[kUnits];                // busy: of the corelet that works most
    double corelet_busy[kUnits] = {};      // summed over corelets
    std::vector<Credits> credits;          // channels, then ring channels by peer
    std::vector<double> written;           // per block: when the compute group's last store is in LX
    double lx_owed = 0, lx_idle_from = 0;  // bytes other units moved; end of the last segment
    std::vector<Known<SegmentCost>> segments;
    std::vector<Known<TransferCost>> transfers, copies;
    std::vector<Known<KeptCost>> kept;
  };
  struct Shared {  // a load that several cores share
    std::vector<int> members;
    double cycles = 0;  // that it occupies a link of the ring
  };

  // clock.cpp
  void step(const Event&);
  bool run_control(CoreState&, Sequence&, const Instr&, const std::vector<Instr>& code);
  void pass_time(CoreState&, const Instr&, double& now);
  bool acquire(CoreState&, Sequence&, const Instr&, std::size_t credit, double& now);
  void release(CoreState&, Sequence&, const Instr&, double now);
  void ring_release(CoreState&, Sequence&, const Instr&, double now);
  void give(std::int64_t to, std::size_t credit, double time, const Instr&, std::int64_t from, double sent);
  void finish_transfer(int id, double now);
  std::size_t ring_credit(const Instr&, std::int64_t peer) const;
  void later(const Event& e, double now) { events_.push({now, e.core, e.sequence}); }

  // clock_units.cpp
  template <typename Cost, typename Work>
  const Cost& known(CoreState&, Known<Cost>&, const Outline::Operands&, const Work&);
  bool transfer(CoreState&, Sequence&, std::uint32_t number, Unit, double now);
  int begin_transfer(CoreState&, Sequence&, Unit, std::int64_t bytes, double now, double engine);
  void start_transfer(const std::vector<int>& members, int id, const TransferCost&, bool write, double now);
  void pass_on(int from, const Shared&, double now);
  void complete(int id, double now, double extra);
  double ring_copy(CoreState&, Sequence&, std::uint32_t number, double now);
  void segment(CoreState&, std::uint32_t number);
  void watch_memory(double now);
  void show(const CoreState&, const Segment&, const double begin[], const double end[]);
  /// Cores round the ring, whether they run the program or not.
  std::int64_t ring_cores() const { return std::max<std::int64_t>(rates_.cores, p_.cores); }
  std::size_t port_of(std::int64_t core) const {
    return static_cast<std::size_t>(core * rates_.ports / ring_cores());
  }

  // clock_kept.cpp
  bool kept_transfer(CoreState&, Sequence&, std::uint32_t number, Unit, const ArgValue&, double now);
  void exchange(const std::vector<int>& members, const KeptCost&, bool write, double now);
  void count_between(std::uint32_t arg, std::int64_t bytes, bool write);

  // clock_report.cpp
  Timing report() const;
  std::map<std::string, UnitTime> unit_times(double cycles) const;

  const Program& p_;
  const ClockParams& params_;
  std::span<const ArgValue> args_;  // empty: all buffers are in DDR
  Rates rates_;
  Recorder& record_;
  Outline outline_;
  Ddr ddr_;
  Ring ring_;
  std::vector<CoreState> cores_;
  std::map<std::pair<std::uint32_t, std::int64_t>, Shared> gathering_;  // by transfer and group
  std::map<int, Shared> passing_;                                       // by the member that fetches
  std::priority_queue<Event> events_;
  double launch_ = 0, end_ = 0, now_ = 0;
  std::int64_t read_ = 0, written_ = 0, lx_read_ = 0, lx_written_ = 0, macs_ = 0, steps_ = 0;
  std::int64_t between_[2][2] = {{0, 0}, {0, 0}};  // bytes in DDR, LX; read, written
  double sfu_ops_ = 0;
  int directions_ = 0;  // of the memory as last recorded, since when
  double directions_since_ = 0;
};

/// The kept cost if the numbers it depends on are unchanged.
template <typename Cost, typename Work>
const Cost& Clock::known(CoreState& core, Known<Cost>& kept, const Outline::Operands& operands,
                         const Work& work) {
  bool same = kept.valid;
  if (!kept.valid) kept.key.resize(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::int64_t value = core.core.value(operands[i].first, operands[i].second);
    same = same && kept.key[i] == value;
    kept.key[i] = value;
  }
  if (!same) kept.cost = work();
  kept.valid = true;
  return kept.cost;
}

}  // namespace loom::chip
