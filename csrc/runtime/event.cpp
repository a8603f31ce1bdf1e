// A mark is shared between the event and the tasks that set it or wait for it, so an event may be recorded
// again or destroyed while a stream still has to pass it.
#include "runtime/event.h"

#include <chrono>
#include <utility>

namespace loom::rt {

void Event::Mark::wait() {
  std::unique_lock lock(mutex);
  passed.wait(lock, [&] { return done; });
}

std::shared_ptr<Event::Mark> Event::current() const {
  const std::lock_guard lock(mutex_);
  return mark_;
}

void Event::record(Card& card, Stream& stream) {
  auto mark = std::make_shared<Mark>();
  {
    const std::lock_guard lock(mutex_);
    mark_ = mark;
  }
  auto task = [mark, &card] {
    {
      const std::lock_guard lock(mark->mutex);
      mark->wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
      mark->modelled_ns = card.modelled_ns();
      mark->done = true;
    }
    mark->passed.notify_all();
  };
  if (stream.idle()) {
    stream.run(task);
  } else {
    stream.submit(std::move(task));
  }
}

void Event::block(Stream& stream) const {
  const auto mark = current();
  if (!mark || query()) return;
  stream.submit([mark] { mark->wait(); });
}

bool Event::query() const {
  const auto mark = current();
  if (!mark) return true;
  const std::lock_guard lock(mark->mutex);
  return mark->done;
}

void Event::synchronize() const {
  if (const auto mark = current()) mark->wait();
}

void Event::check(const Mark* a, const Mark* b) {
  if (a == nullptr || b == nullptr) throw DeviceError("elapsed_time needs two recorded events");
  for (const Mark* m : {a, b}) {
    const std::lock_guard lock(const_cast<Mark*>(m)->mutex);
    if (!m->done) throw DeviceError("elapsed_time needs two completed events: synchronize first");
  }
}

double Event::wall_ms(const Event& later) const {
  const auto a = current(), b = later.current();
  check(a.get(), b.get());
  return static_cast<double>(b->wall_ns - a->wall_ns) * 1e-6;
}

double Event::modelled_ms(const Event& later) const {
  const auto a = current(), b = later.current();
  check(a.get(), b.get());
  return (b->modelled_ns - a->modelled_ns) * 1e-6;
}

}  // namespace loom::rt
