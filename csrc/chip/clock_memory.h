// What the cores share: DDR behind its ports, and the links of the ring.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <vector>

#include "chip/clock_cost.h"

namespace loom::chip {

inline constexpr double kNever = 1e300;

/// DDR as a fluid: every requester with a transfer under way gets bytes at the same rate, as far as the
/// memory, its port and its own window of outstanding requests allow (max-min fair). While both directions
/// are under way the controller serves them in groups and loses the bus twice per pair of groups.
class Ddr {
 public:
  explicit Ddr(const Rates& r)
      : base_(r.ddr_base),
        turnaround_(r.turnaround),
        draw_(r.draw()),
        port_(r.port_bytes),
        classes_(static_cast<std::size_t>(r.ports)) {}

  /// `members` requesters behind one port share a transfer of `bytes` that keeps the whole memory for
  /// `cycles`.
  void add(double now, std::size_t port, std::int64_t members, double bytes, double cycles, int id,
           bool write) {
    advance(now);
    Class& c = classes_[port];
    const double cost = std::max(cycles / (bytes * base_), 1e-3);
    const auto weight = static_cast<std::int64_t>(std::llround(cost * kUnit * static_cast<double>(members)));
    c.heap.push({c.served + bytes / static_cast<double>(members), id, write, weight, members});
    change(c, weight, members, write);
  }
  /// When the next transfer ends if nothing else arrives.
  double next(double now) const {
    double first = kNever;
    for (const Class& c : classes_)
      if (!c.heap.empty()) first = std::min(first, last_ + (c.heap.top().end - c.served) / c.rate);
    return first == kNever ? kNever : std::max(now, first);
  }
  /// Take the transfer that ends at `now`.
  int pop(double now) {
    std::size_t best = 0;
    double first = kNever;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const Class& c = classes_[i];
      if (c.heap.empty()) continue;
      const double end = (c.heap.top().end - c.served) / c.rate;
      if (end < first) first = end, best = i;
    }
    advance(now);
    Class& c = classes_[best];
    const Item item = c.heap.top();
    c.heap.pop();
    c.served = std::max(c.served, item.end);  // exact, whatever the divisions lost
    change(c, -item.weight, -item.members, item.write);
    return item.id;
  }
  /// Directions with a transfer under way: bit 0 reads, bit 1 writes.
  int directions() const { return (askers_[0] > 0) | (askers_[1] > 0) << 1; }
  /// Cycles the memory was at work, by direction; the turnarounds count for both alike.
  double busy_read() const { return busy_[0]; }
  double busy_write() const { return busy_[1]; }
  /// Cycles in which a transfer was under way.
  double active() const { return active_; }

 private:
  static constexpr double kUnit = 4096;  // weights are whole numbers, so that sums are exact

  struct Item {
    double end;  // bytes per requester of the class
    int id;
    bool write;
    std::int64_t weight, members;
    bool operator<(const Item& o) const { return end != o.end ? end > o.end : id > o.id; }
  };
  struct Class {
    std::priority_queue<Item> heap;
    double served = 0, rate = 0;  // bytes per requester; bytes per cycle and requester
    std::int64_t weight = 0, members = 0;
  };

  void change(Class& c, std::int64_t weight, std::int64_t members, bool write) {
    c.weight += weight;
    c.members += members;
    sums_[write] += weight;
    askers_[write] += members;
    share();
  }

  /// Memory time that one byte per cycle of every requester of a class takes: to move it, and its part of the
  /// turns.
  double load(const Class& c, double turns) const {
    return static_cast<double>(c.weight) / kUnit * base_ + static_cast<double>(c.members) * turns;
  }

  void share() {
    const std::int64_t all = sums_[0] + sums_[1];
    if (all == 0) {
      used_ = 0;
      return;
    }
    const double smaller = static_cast<double>(std::min(askers_[0], askers_[1]));
    const double turns = turnaround_ * smaller / static_cast<double>(askers_[0] + askers_[1]);
    // Water-filling: classes that their own limit stops first leave the rest to the others.
    double left = 1;
    std::size_t open = 0;
    for (Class& c : classes_) {
      c.rate = 0;
      open += c.members > 0;
    }
    while (open > 0) {
      double wanted = 0;
      for (const Class& c : classes_)
        if (!(c.rate > 0)) wanted += load(c, turns);
      const double level = left / wanted;
      const std::size_t before = open;
      for (Class& c : classes_) {
        if (c.members == 0 || c.rate > 0) continue;
        const double limit = std::min(draw_, port_ / static_cast<double>(c.members));
        if (limit > level) continue;
        c.rate = limit;
        left -= limit * load(c, turns);
        --open;
      }
      if (open < before) continue;
      for (Class& c : classes_)
        if (c.members > 0 && !(c.rate > 0)) c.rate = level;
      left = 0;
      open = 0;
    }
    used_ = std::max(0.0, 1 - left);
  }

  void advance(double now) {
    const double passed = now - last_;
    last_ = now;
    const std::int64_t all = sums_[0] + sums_[1];
    if (all == 0 || !(passed > 0)) return;
    for (Class& c : classes_) c.served += passed * c.rate;
    for (int d = 0; d < 2; ++d)
      busy_[d] += passed * used_ * static_cast<double>(sums_[d]) / static_cast<double>(all);
    active_ += passed;
  }

  double base_, turnaround_, draw_, port_;
  std::vector<Class> classes_;
  std::int64_t sums_[2] = {0, 0};    // weights of reads and writes
  std::int64_t askers_[2] = {0, 0};  // requesters that read and write
  double last_ = 0, used_ = 0, active_ = 0, busy_[2] = {0, 0};
};

/// The links of the ring: when each is free, per direction. Link i leads from core i to core i + 1
/// (clockwise) or from core i + 1 to core i.
class Ring {
 public:
  Ring(std::size_t cores, const Rates& rates)
      : cores_(static_cast<std::int64_t>(cores)), hop_(rates.ring_hop) {
    for (int d = 0; d < 2; ++d) {
      free_[d].assign(cores, 0);
      busy_[d].assign(cores, 0);
    }
  }

  struct Way {
    double start, end, arrival;
  };
  /// Send for `cycles` from one core to another over the shorter way, clockwise when both are equal. Words
  /// follow one another through the links: each link is taken a hop later than the one before, and waits
  /// until it is free.
  Way send(double now, std::int64_t from, std::int64_t to, double cycles) {
    const std::int64_t right = (to - from + cores_) % cores_, left = cores_ - right;
    if (right == 0) return {now, now + cycles, now + cycles};
    return right <= left ? pass(now, from, right, 0, cycles) : pass(now, from, left, 1, cycles);
  }
  double busy() const {  // cycles, summed over the links
    double sum = 0;
    for (const auto& direction : busy_)
      for (const double b : direction) sum += b;
    return sum;
  }
  double busiest() const {  // cycles of the busiest link
    double most = 0;
    for (const auto& direction : busy_)
      for (const double b : direction) most = std::max(most, b);
    return most;
  }

 private:
  Way pass(double now, std::int64_t from, std::int64_t hops, int direction, double cycles) {
    double head = now, start = now;
    for (std::int64_t k = 0; k < hops; ++k) {
      const std::int64_t at = direction ? from - 1 - k : from + k;
      const auto link = static_cast<std::size_t>((at + cores_) % cores_);
      head = std::max(head, free_[direction][link]);
      if (k == 0) start = head;
      free_[direction][link] = head + cycles;
      busy_[direction][link] += cycles;
      head += hop_;
    }
    return {start, start + cycles, head + cycles};
  }

  std::vector<double> free_[2], busy_[2];
  std::int64_t cores_;
  double hop_;
};

}  // namespace loom::chip
