// One mutex per stream guards queue and error; tickets are atomics so that queries never block.
#include "runtime/stream.h"

#include <utility>

namespace loom::rt {

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (worker_.joinable()) worker_.join();
}

std::uint64_t Stream::submit(std::function<void()> task) {
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    queue_.push_back(std::move(task));
    ticket = issued_.fetch_add(1, std::memory_order_acq_rel) + 1;
  }
  wake_.notify_one();
  return ticket;
}

void Stream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return (!queue_.empty() && !busy_) || (stop_ && queue_.empty()); });
    if (queue_.empty()) return;
    auto task = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    task = nullptr;
    lock.lock();
    busy_ = false;
    if (error && !error_) error_ = std::move(error);
    done_.fetch_add(1, std::memory_order_acq_rel);
    finished_.notify_all();
  }
}

void Stream::run(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  issued_.fetch_add(1, std::memory_order_acq_rel);
  const std::uint64_t before = issued_.load(std::memory_order_acquire) - 1;
  if (!queue_.empty() || busy_) {
    // In order behind what is queued: the worker runs it, the caller waits and takes its error.
    std::exception_ptr error;
    queue_.push_back([&] {
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
    });
    const bool start = !worker_.joinable();
    if (start) worker_ = std::thread([this] { work(); });
    lock.unlock();
    wake_.notify_one();
    wait_for(before + 1);
    if (error) std::rethrow_exception(error);
    return;
  }
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    task();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  done_.fetch_add(1, std::memory_order_acq_rel);
  lock.unlock();
  wake_.notify_one();
  finished_.notify_all();
  if (error) std::rethrow_exception(error);
}

void Stream::wait_for(std::uint64_t ticket) {
  if (passed(ticket)) return;
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return passed(ticket); });
}

void Stream::throttle(std::uint64_t n) {
  const std::uint64_t issued = this->issued();
  if (issued > n) wait_for(issued - n);
}

void Stream::drain() { wait_for(issued()); }

void Stream::synchronize() {
  drain();
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace loom::rt
