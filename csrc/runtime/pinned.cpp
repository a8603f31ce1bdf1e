// Page-aligned host memory that transfers may read later. Locking it is best effort: an unprivileged
// process may have no quota, and the simulated copy engine does not need it.
#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <new>

#include "runtime/runtime.h"

namespace loom::rt {
namespace {

std::mutex mutex;
std::map<std::uintptr_t, std::size_t>& blocks() {
  static auto* b = new std::map<std::uintptr_t, std::size_t>;
  return *b;
}

}  // namespace

void* allocate_pinned(std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  (void)::mlock(p, bytes);
  const std::lock_guard lock(mutex);
  blocks()[reinterpret_cast<std::uintptr_t>(p)] = bytes;
  return p;
}

void free_pinned(void* p) {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex);
    const auto found = blocks().find(reinterpret_cast<std::uintptr_t>(p));
    if (found == blocks().end()) return;
    bytes = found->second;
    blocks().erase(found);
  }
  ::munmap(p, bytes);
}

bool is_pinned(const void* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  const std::lock_guard lock(mutex);
  auto it = blocks().upper_bound(at);
  if (it == blocks().begin()) return false;
  --it;
  return at < it->first + it->second;
}

}  // namespace loom::rt
