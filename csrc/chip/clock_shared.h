// What the cores share, as the clock sees it: the memory, and the links of the ring.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

#include "chip/clock_cost.h"

namespace loom::chip {

inline constexpr double kNever = 1e300;

/// DDR as a processor-sharing server: n active transfers each get 1/n of it.
class Ddr {
 public:
  explicit Ddr(double turnaround) : turnaround_(turnaround) {}

  void add(double now, double work, int id, bool write) {
    advance(now);
    heap_.push({done_ + work, id, write});
    ++(write ? writes_ : reads_);
  }
  /// When the next transfer ends if nothing else arrives.
  double next(double now) const {
    if (heap_.empty()) return kNever;
    return std::max(now, last_ + (heap_.top().end - done_) * static_cast<double>(heap_.size()) * slowdown());
  }
  /// Take the transfer that ends at `now`.
  int pop(double now) {
    advance(now);
    const Item item = heap_.top();
    heap_.pop();
    done_ = item.end;  // exact, whatever the divisions lost
    --(item.write ? writes_ : reads_);
    return item.id;
  }
  double busy() const { return busy_; }

 private:
  struct Item {
    double end;  // in work per transfer
    int id;
    bool write;
    bool operator<(const Item& o) const { return end != o.end ? end > o.end : id > o.id; }
  };
  double slowdown() const {
    const double n = static_cast<double>(heap_.size());
    return 1 + turnaround_ * static_cast<double>(std::min(reads_, writes_)) / n;
  }
  void advance(double now) {
    if (!heap_.empty()) {
      done_ += (now - last_) / (static_cast<double>(heap_.size()) * slowdown());
      busy_ += now - last_;
    }
    last_ = now;
  }

  double turnaround_, last_ = 0, done_ = 0, busy_ = 0;
  std::int64_t reads_ = 0, writes_ = 0;
  std::priority_queue<Item> heap_;
};

/// The links of the ring: when each is free, per direction. Link i leads from core i to core i + 1
/// (clockwise) or from core i + 1 to core i.
class Ring {
 public:
  Ring(std::size_t cores, const Rates& rates)
      : free_{}, cores_(static_cast<std::int64_t>(cores)), hop_(rates.ring_hop) {
    for (auto& direction : free_) direction.assign(cores, 0);
  }

  struct Way {
    double start, end, arrival;
  };
  /// Send for `cycles` from one core to another over the shorter way, clockwise when both are equal.
  Way send(double now, std::int64_t from, std::int64_t to, double cycles) {
    const std::int64_t right = (to - from + cores_) % cores_, left = cores_ - right;
    if (right == 0) return {now, now + cycles, now + cycles};
    return right <= left ? pass(now, from, right, 0, cycles) : pass(now, from, left, 1, cycles);
  }
  double busy() const { return busy_; }  // cycles, summed over the links

 private:
  Way pass(double now, std::int64_t from, std::int64_t hops, int direction, double cycles) {
    double start = now;
    const auto link = [&](std::int64_t k) -> double& {
      const std::int64_t at = direction ? from - 1 - k : from + k;
      return free_[direction][static_cast<std::size_t>((at + cores_) % cores_)];
    };
    for (std::int64_t k = 0; k < hops; ++k) start = std::max(start, link(k));
    for (std::int64_t k = 0; k < hops; ++k) link(k) = start + cycles;
    busy_ += cycles * static_cast<double>(hops);
    return {start, start + cycles, start + cycles + hop_ * static_cast<double>(hops)};
  }

  std::vector<double> free_[2];
  std::int64_t cores_;
  double hop_, busy_ = 0;
};

}  // namespace loom::chip
