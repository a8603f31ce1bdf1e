// Best fit by size, lowest address among equals, neighbours merged at once: compact, so that the host
// pages behind freed tensors are the first to be used again.
#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace loom::rt {
namespace {

std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

std::string readable(std::uint64_t bytes) {
  char text[48];
  if (bytes >= kGiB) {
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
  } else if (bytes >= (1u << 20)) {
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  } else {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  }
  return text;
}

}  // namespace

void Counter::add(std::int64_t n) {
  current += n;
  increased += n;
  peak = std::max(peak, current);
}

void Counter::sub(std::int64_t n) {
  current -= n;
  decreased += n;
}

Memory::Memory(int card, Passed passed, void* context) : card_(card), passed_(passed), context_(context) {
  void* p = ::mmap(nullptr, kAddressSpace, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw std::runtime_error(
        "Failed to initialize Spyre runtime: cannot reserve 128 GiB of address space for card " +
        std::to_string(card) + ": " + std::strerror(errno));
  base_ = static_cast<std::uint8_t*>(p);
  ::madvise(base_, kAddressSpace, MADV_HUGEPAGE);
  // Address 0 stays unused, so that no live block has it.
  give(pools_[0], kAlignment, kProgramBase - kAlignment);
  give(pools_[1], kProgramBase, kSegmentBytes);
}

Memory::~Memory() { ::munmap(base_, kAddressSpace); }

void Memory::give(Pool& pool, std::uint64_t address, std::uint64_t bytes) {
  auto next = pool.free.lower_bound(address);
  if (next != pool.free.end() && address + bytes == next->first) {
    bytes += next->second;
    pool.by_size.erase({next->second, next->first});
    next = pool.free.erase(next);
  }
  if (next != pool.free.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == address) {
      address = before->first;
      bytes += before->second;
      pool.by_size.erase({before->second, before->first});
      pool.free.erase(before);
    }
  }
  pool.free[address] = bytes;
  pool.by_size.insert({bytes, address});
}

bool Memory::take(Pool& pool, std::uint64_t bytes, std::uint64_t* address) {
  auto fit = pool.by_size.lower_bound({bytes, 0});
  if (fit == pool.by_size.end()) return false;
  const auto [size, start] = *fit;
  pool.by_size.erase(fit);
  pool.free.erase(start);
  if (size > bytes) {
    pool.free[start + bytes] = size - bytes;
    pool.by_size.insert({size - bytes, start + bytes});
  }
  pool.top = std::max(pool.top, start + bytes);
  *address = start;
  return true;
}

std::uint64_t Memory::held() const {
  return static_cast<std::uint64_t>(stats_.reserved_bytes.current) + stats_.programs_bytes;
}

std::uint64_t Memory::capacity(Arena arena) const {
  return limit_ != 0 && arena == Arena::Tensors ? std::min(limit_, kCapacity) : kCapacity;
}

void Memory::reclaim() {
  auto done = [&](const Pending& p) {
    return std::all_of(p.after.begin(), p.after.end(),
                       [&](const StreamPoint& at) { return passed_(context_, at); });
  };
  std::erase_if(pending_, [&](const Pending& p) {
    if (!done(p)) return false;
    give(pools_[0], p.address, p.bytes);
    stats_.reserved_bytes.sub(static_cast<std::int64_t>(p.bytes));
    return true;
  });
}

std::uint64_t Memory::allocate(std::uint64_t bytes, Arena arena) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0 || bytes > kAddressSpace) refuse(bytes, arena);
  const std::uint64_t rounded = round_up(bytes, kAlignment);
  if (!pending_.empty()) reclaim();
  Pool& pool = pools_[static_cast<int>(arena)];
  const auto tensors = static_cast<std::uint64_t>(stats_.reserved_bytes.current);
  const bool limited = arena == Arena::Tensors && tensors + rounded > capacity(arena);
  std::uint64_t address = 0;
  if (limited || held() + rounded > kCapacity || !take(pool, rounded, &address)) refuse(bytes, arena);
  pool.live[address] = {rounded, bytes};
  if (arena == Arena::Programs) {
    stats_.programs_bytes += rounded;
  } else {
    stats_.allocated_bytes.add(static_cast<std::int64_t>(rounded));
    stats_.reserved_bytes.add(static_cast<std::int64_t>(rounded));
    stats_.requested_bytes.add(static_cast<std::int64_t>(bytes));
    stats_.allocations.add(1);
  }
  return address;
}

void Memory::free(std::uint64_t address, std::vector<StreamPoint> after) {
  const std::lock_guard lock(mutex_);
  const bool program = address >= kProgramBase;
  Pool& pool = pools_[program ? 1 : 0];
  const auto block = pool.live.find(address);
  if (block == pool.live.end()) throw std::logic_error("free of a device address that is not allocated");
  const auto [bytes, requested] = block->second;
  pool.live.erase(block);
  if (program) {
    stats_.programs_bytes -= bytes;
    return give(pool, address, bytes);
  }
  stats_.allocated_bytes.sub(static_cast<std::int64_t>(bytes));
  stats_.requested_bytes.sub(static_cast<std::int64_t>(requested));
  stats_.allocations.sub(1);
  std::erase_if(after, [&](const StreamPoint& at) { return passed_(context_, at); });
  if (!after.empty()) {
    pending_.push_back({address, bytes, std::move(after)});
    return;
  }
  stats_.reserved_bytes.sub(static_cast<std::int64_t>(bytes));
  give(pool, address, bytes);
}

void Memory::trim() {
  const std::lock_guard lock(mutex_);
  reclaim();
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  for (Pool& pool : pools_) {
    for (const auto& [address, bytes] : pool.free) {
      const std::uint64_t first = round_up(address, page);
      const std::uint64_t last = std::min(address + bytes, round_up(pool.top, page)) / page * page;
      if (last > first) ::madvise(base_ + first, last - first, MADV_DONTNEED);
    }
  }
}

void Memory::refuse(std::uint64_t bytes, Arena arena) {
  ++stats_.ooms;
  const Pool& pool = pools_[static_cast<int>(arena)];
  const std::uint64_t largest = pool.by_size.empty() ? 0 : pool.by_size.rbegin()->first;
  std::map<std::uint64_t, std::uint64_t> counts;
  for (const auto& [address, block] : pool.live) ++counts[block.bytes];
  std::vector<std::pair<std::uint64_t, std::uint64_t>> rows(counts.begin(), counts.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.first * a.second > b.first * b.second; });
  std::string text =
      "Spyre out of memory. Tried to allocate " + readable(bytes) +
      (arena == Arena::Programs ? " for a program" : "") + " on card " + std::to_string(card_) +
      ": capacity " + readable(capacity(arena)) + ", held by tensors " +
      readable(static_cast<std::uint64_t>(stats_.allocated_bytes.current)) + ", waiting for streams " +
      readable(held() - stats_.programs_bytes - static_cast<std::uint64_t>(stats_.allocated_bytes.current)) +
      ", programs " + readable(stats_.programs_bytes) + ", largest free block " + readable(largest) + ".";
  if (!rows.empty()) text += "\n  blocks x size = total";
  for (std::size_t i = 0; i < std::min<std::size_t>(rows.size(), 5); ++i)
    text += "\n  " + std::to_string(rows[i].second) + " x " + readable(rows[i].first) + " = " +
            readable(rows[i].first * rows[i].second);
  throw OutOfMemory(text);
}

void Memory::set_limit(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

std::uint64_t Memory::limit() const {
  const std::lock_guard lock(mutex_);
  return capacity(Arena::Tensors);
}

MemoryStats Memory::stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats out = stats_;
  const Pool& pool = pools_[0];
  out.largest_free = pool.by_size.empty() ? 0 : pool.by_size.rbegin()->first;
  out.free_blocks = pool.free.size();
  return out;
}

void Memory::reset_peak() {
  const std::lock_guard lock(mutex_);
  for (Counter* c :
       {&stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.requested_bytes, &stats_.allocations})
    c->peak = c->current;
}

void Memory::reset_accumulated() {
  const std::lock_guard lock(mutex_);
  for (Counter* c :
       {&stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.requested_bytes, &stats_.allocations})
    c->increased = c->decreased = 0;
  stats_.ooms = stats_.retries = 0;
}

std::vector<BlockInfo> Memory::snapshot() const {
  const std::lock_guard lock(mutex_);
  std::vector<BlockInfo> out;
  for (const auto& [address, block] : pools_[0].live) out.push_back({address, block.bytes, true});
  for (const auto& [address, bytes] : pools_[0].free)
    if (address < pools_[0].top) out.push_back({address, std::min(bytes, pools_[0].top - address), false});
  std::sort(out.begin(), out.end(),
            [](const BlockInfo& a, const BlockInfo& b) { return a.address < b.address; });
  return out;
}

bool Memory::live(std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto& live = pools_[address >= kProgramBase ? 1 : 0].live;
  auto it = live.upper_bound(address);
  if (it == live.begin()) return false;
  --it;
  return address + bytes <= it->first + it->second.bytes;
}

}  // namespace loom::rt
