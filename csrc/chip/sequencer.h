// The control side of a core: three instruction sequences that run in turn until each waits for a credit.
// The state is a plain object, so a core can stop in the middle of a program and go on later.
#pragma once

#include <string>
#include <vector>

#include "chip/execute.h"

namespace loom::chip {

class CoreRun {
 public:
  /// Prepare to run `program` on `core`, whose memories are set.
  void start(Core& core, const Program& program, std::int64_t max_steps);

  /// Run until nothing can move. True: finished. False: blocked, see waits(). Throws Error.
  bool advance(Workspace& work);

  /// True if the last advance() executed something.
  bool moved() const { return moved_; }

  /// What the blocked sequences wait for, with the counters.
  std::string waits() const;

 private:
  struct Frame {
    std::int64_t index, count;
  };
  struct State {
    std::size_t pc = 0;
    std::vector<Frame> frames;
  };

  bool step_sequence(int sequence, Workspace& work);
  std::int64_t loop_count(const Instr& in) const;
  void set_loop_register(const Instr& in, std::int64_t index);

  Core* core_ = nullptr;
  const Program* program_ = nullptr;
  State state_[kSequences];
  bool moved_ = false;
};

}  // namespace loom::chip
