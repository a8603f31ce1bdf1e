#include "runtime/tally.h"

#include <utility>

namespace loom::rt {
namespace {

struct Counts {
  std::mutex mutex;
  std::vector<std::shared_ptr<LaunchCount>> entries;
  std::atomic<std::int64_t> generation{0};
  std::atomic<std::int64_t> copies{0}, copied_bytes{0};
};
Counts& counts() {
  static Counts* c = new Counts;
  return *c;
}

}  // namespace

std::shared_ptr<LaunchCount> Tally::enter(const std::string& name, std::shared_ptr<const std::string> image,
                                          const std::vector<chip::ArgInfo>& infos,
                                          std::span<const chip::ArgValue> args,
                                          std::shared_ptr<const std::string> origin) {
  auto entry = std::make_shared<LaunchCount>();
  entry->name = name;
  entry->image = std::move(image);
  entry->infos = infos;
  entry->args.assign(args.begin(), args.end());
  entry->origin = std::move(origin);
  Counts& c = counts();
  const std::lock_guard lock(c.mutex);
  c.entries.push_back(entry);
  return entry;
}

void Tally::forget_if_cleared() {
  const std::int64_t now = counts().generation.load(std::memory_order_relaxed);
  if (now == generation_) return;
  entries_.clear();
  generation_ = now;
}

std::vector<std::shared_ptr<const LaunchCount>> launch_counts() {
  Counts& c = counts();
  const std::lock_guard lock(c.mutex);
  return {c.entries.begin(), c.entries.end()};
}

void clear_launch_counts() {
  Counts& c = counts();
  const std::lock_guard lock(c.mutex);
  c.entries.clear();
  c.generation.fetch_add(1);
  c.copies.store(0);
  c.copied_bytes.store(0);
}

void count_copy(std::int64_t bytes) {
  counts().copies.fetch_add(1, std::memory_order_relaxed);
  counts().copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

CopyCount copy_counts() { return {counts().copies.load(), counts().copied_bytes.load()}; }

}  // namespace loom::rt
