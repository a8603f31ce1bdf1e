// What recording and running of pending work share.
#pragma once

#include <mutex>
#include <string>

#include "runtime/runtime.h"
#include "torch_device/eager_fused.h"

namespace loom::dev::eager {

/// Kept with the record of a storage that a pending graph uses or has failed to compute.
struct Mention final : rt::Promise {
  Pending* graph = nullptr;
  std::int32_t slot = -1;
  std::string failure;  // why there is no value
};

/// Guards all pending graphs. A thread that waits for it does not hold the GIL, so whoever holds it may
/// take the GIL.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

/// True on a thread that is running pending work: what it touches is ready or made ready by that work.
bool is_running();

FusedCounts& mutable_fused_counts();

}  // namespace loom::dev::eager
