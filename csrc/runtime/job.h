// A job: programs that run one after another as one unit, and the buffers that they pass on. These lie in LX,
// a part on every core, or in a pool of DDR that belongs to one launch of the job. Where each lies is decided
// before (torch_loom/inductor/residency.py); here it is checked, once, when the job is made.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan.h"

namespace loom::rt {

/// Argument of a step: a buffer of the caller or of the job, by its position, or a number of the launch.
struct JobArg {
  enum class Kind { External, Own, Number } kind = Kind::Number;
  std::size_t index = 0;
};

struct JobStep {
  std::shared_ptr<const Plan> plan;
  std::vector<JobArg> args;
};

class Job {
 public:
  /// `own` are the job's buffers: kept ones with their place in LX, others with their offset in the pool as
  /// address. Throws LaunchError when a step reads a buffer that no step before it writes, when buffers that
  /// live at the same time overlap, when one lies outside of pool or LX, or in LX that a program uses itself
  /// meanwhile.
  static std::shared_ptr<Job> make(std::vector<JobStep> steps, std::vector<chip::ArgValue> own,
                                   std::uint64_t pool_bytes);

  const std::vector<JobStep>& steps() const { return steps_; }
  std::uint64_t pool_bytes() const { return pool_bytes_; }
  /// Buffers and numbers of the caller that it takes.
  std::size_t externals() const { return externals_; }
  std::size_t numbers() const { return numbers_; }

  /// Queues the job. `numbers` are as in chip::ArgValue, one for each Number argument in order of steps and
  /// arguments. `pool` has pool_bytes() bytes. Throws LaunchError.
  void launch(std::span<const chip::ArgValue> externals, std::span<const std::int64_t> numbers,
              const chip::ArgValue& pool, Stream&, const Origin&) const;

 private:
  Job() = default;
  void check() const;

  struct Life {
    std::size_t first, last;  // steps
  };
  std::vector<JobStep> steps_;
  std::vector<chip::ArgValue> own_;
  std::vector<Life> lives_;
  std::uint64_t pool_bytes_ = 0;
  std::size_t externals_ = 0, numbers_ = 0;
};

}  // namespace loom::rt
