// What a process launched, counted: one entry per plan and set of numbers. Unlike the launch log it is always
// on and bounded by the number of different launches, so a report can be asked for after the fact.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "chip/chip.h"
#include "runtime/layout.h"

namespace loom::rt {

/// Adds to `key` what a launch's time depends on: numbers, and which buffers lie in LX and where.
inline void timing_key(const chip::ArgInfo& info, const chip::ArgValue& arg, std::size_t position,
                       Dims& key) {
  if (info.kind != 0) {
    key.push_back(arg.number);
  } else if (arg.between) {
    for (const std::uint64_t x : {std::uint64_t{position}, arg.share, arg.kept() ? arg.address : 0})
      key.push_back(static_cast<std::int64_t>(x));
  }
}

/// Equal launches of one plan. The image is kept so that an entry outlives its plan.
struct LaunchCount {
  std::string name;
  std::shared_ptr<const std::string> image;
  std::vector<chip::ArgInfo> infos;
  std::vector<chip::ArgValue> args;           // of the first launch
  std::shared_ptr<const std::string> origin;  // of the first launch, may be null
  std::atomic<std::int64_t> launches{0};
};

/// The entries of one plan. Counting a launch that was seen before allocates nothing.
class Tally {
 public:
  /// `image` is called for the first launch only.
  template <typename Image>
  void count(const std::string& name, const std::vector<chip::ArgInfo>& infos,
             std::span<const chip::ArgValue> args, const std::shared_ptr<const std::string>& origin,
             const Image& image) {
    thread_local Dims key;
    key.clear();
    for (std::size_t i = 0; i < args.size(); ++i) timing_key(infos[i], args[i], i, key);
    const std::lock_guard lock(mutex_);
    forget_if_cleared();
    auto found = entries_.find(key);
    if (found == entries_.end()) {
      if (!image_) image_ = std::make_shared<const std::string>(image());
      found = entries_.emplace(key, enter(name, image_, infos, args, origin)).first;
    }
    found->second->launches.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  static std::shared_ptr<LaunchCount> enter(const std::string& name, std::shared_ptr<const std::string> image,
                                            const std::vector<chip::ArgInfo>& infos,
                                            std::span<const chip::ArgValue> args,
                                            std::shared_ptr<const std::string> origin);
  void forget_if_cleared();

  std::mutex mutex_;
  std::map<Dims, std::shared_ptr<LaunchCount>> entries_;
  std::shared_ptr<const std::string> image_;
  std::int64_t generation_ = 0;
};

/// Entries of the process in order of their first launch.
std::vector<std::shared_ptr<const LaunchCount>> launch_counts();
/// Starts counting anew, copies included.
void clear_launch_counts();

/// Copies inside the device (views made contiguous, inputs moved to another layout) and the bytes they read.
/// They are no launches, so no clock sees them; a report must say that they are there.
struct CopyCount {
  std::int64_t copies, bytes;
};
void count_copy(std::int64_t bytes);
CopyCount copy_counts();

}  // namespace loom::rt
