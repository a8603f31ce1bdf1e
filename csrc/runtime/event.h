// Events: a mark in a stream's order. The host can ask or wait for it, other streams can wait for it
// without blocking the host. It carries the wall time and the modelled device time at which it was passed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "runtime/runtime.h"

namespace loom::rt {

class Event {
 public:
  /// Marks the end of what the stream holds now; an earlier mark is forgotten.
  void record(Card&, Stream&);
  /// Makes later work of `stream` wait for the current mark; nothing when never recorded.
  void block(Stream& stream) const;
  /// True when never recorded or passed.
  bool query() const;
  /// Waits for the mark.
  void synchronize() const;
  /// Milliseconds of wall time from this mark to the later one. Throws DeviceError unless both passed.
  double wall_ms(const Event& later) const;
  /// Milliseconds of modelled device time between the marks, on the same terms.
  double modelled_ms(const Event& later) const;

 private:
  struct Mark {
    std::mutex mutex;
    std::condition_variable passed;
    bool done = false;
    std::int64_t wall_ns = 0;
    double modelled_ns = 0;
    void wait();
  };
  static void check(const Mark* a, const Mark* b);

  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
  std::shared_ptr<Mark> current() const;
};

}  // namespace loom::rt
