// Streams: queues of work that run one after another, each on its own host thread once it needs one.
//
// Work that the caller waits for runs on the calling thread when the stream is idle, so a program that
// never overlaps anything never switches threads. A task that throws fails alone: its error is kept and
// raised once, at the next synchronisation of the stream, and the stream goes on with the next task.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace loom::rt {

/// A recorded point; shared by the stream that will reach it and those that wait for it.
class Event;

class Stream {
 public:
  Stream(std::uint64_t id, int priority) : id_(id), priority_(priority) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::uint64_t id() const { return id_; }
  int priority() const { return priority_; }

  /// Queues a task; returns its ticket.
  std::uint64_t submit(std::function<void()> task);
  /// Runs a task in order and returns when it is done; its error is thrown here, earlier ones are kept.
  void run(const std::function<void()>& task);
  /// True when everything submitted so far is done.
  bool idle() const {
    return done_.load(std::memory_order_acquire) >= issued_.load(std::memory_order_acquire);
  }
  bool passed(std::uint64_t ticket) const { return done_.load(std::memory_order_acquire) >= ticket; }
  std::uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
  /// Waits for everything submitted so far, then throws the first kept error, if any, and forgets it.
  void synchronize();
  /// Waits without raising.
  void drain();
  /// Waits until at most `n` submitted tasks are unfinished.
  void throttle(std::uint64_t n);

 private:
  void work();
  void wait_for(std::uint64_t ticket);

  const std::uint64_t id_;
  const int priority_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::deque<std::function<void()>> queue_;
  std::exception_ptr error_;
  std::atomic<std::uint64_t> issued_{0}, done_{0};
  bool busy_ = false, stop_ = false;
  std::thread worker_;
};

}  // namespace loom::rt
