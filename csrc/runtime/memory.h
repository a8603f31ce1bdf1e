// Device memory of one card: a virtual reservation of the whole address space, backed by host pages only
// where touched, and a best-fit allocator over it.
//
// Device addresses are bytes from the start of the reservation: segment * 16 GiB + offset. Segments 0..6
// hold tensors, segment 7 programs. ECC takes 16 GiB of the 128, so the capacity counts what both hold.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace loom::rt {

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kSegmentBytes = 16 * kGiB;
inline constexpr int kSegments = 8;
inline constexpr std::uint64_t kAddressSpace = kSegments * kSegmentBytes;
inline constexpr std::uint64_t kCapacity = kAddressSpace - 16 * kGiB;
inline constexpr std::uint64_t kProgramBase = 7 * kSegmentBytes;
inline constexpr std::uint64_t kAlignment = 128;

/// Thrown when an allocation does not fit; the message holds sizes and what is held.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Current value, highest value since the last reset, and totals since start.
struct Counter {
  std::int64_t current = 0, peak = 0, increased = 0, decreased = 0;
  void add(std::int64_t n);
  void sub(std::int64_t n);
};

struct MemoryStats {
  Counter allocated_bytes;  // after rounding, freed memory still in flight excluded
  Counter reserved_bytes;   // allocated plus freed-but-cached
  Counter requested_bytes;
  Counter allocations;
  std::uint64_t programs_bytes = 0;
  std::uint64_t largest_free = 0;
  std::uint64_t free_blocks = 0;
  std::int64_t ooms = 0, retries = 0;
};

/// A block of the snapshot: address, bytes, true when allocated.
struct BlockInfo {
  std::uint64_t address, bytes;
  bool allocated;
};

enum class Arena { Tensors, Programs };

/// A point in a stream's order: work submitted to `stream` up to `ticket`.
struct StreamPoint {
  std::uint64_t stream;
  std::uint64_t ticket;
};

/// Thread-safe.
class Memory {
 public:
  /// True when the stream has finished everything up to the point.
  using Passed = bool (*)(void* context, const StreamPoint&);

  Memory(int card, Passed passed, void* context);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::uint8_t* base() const { return base_; }
  std::uint8_t* host(std::uint64_t address) const { return base_ + address; }

  /// Address of a new block of at least `bytes` (> 0), rounded up to 128. Throws OutOfMemory.
  std::uint64_t allocate(std::uint64_t bytes, Arena arena = Arena::Tensors);
  /// Gives a block back. It is reused once every point has passed.
  void free(std::uint64_t address, std::vector<StreamPoint> after = {});
  /// Returns the host pages of free memory to the system.
  void trim();

  /// At most `bytes` of tensors from now on (0: the whole capacity).
  void set_limit(std::uint64_t bytes);
  std::uint64_t limit() const;
  MemoryStats stats() const;
  void reset_peak();
  void reset_accumulated();
  std::vector<BlockInfo> snapshot() const;
  /// True when [address, address + bytes) lies in one live block of the arena.
  bool live(std::uint64_t address, std::uint64_t bytes) const;

 private:
  struct Block {
    std::uint64_t bytes, requested;
  };
  struct Pool {
    std::map<std::uint64_t, std::uint64_t> free;  // address -> bytes, never adjacent
    std::set<std::pair<std::uint64_t, std::uint64_t>> by_size;
    std::map<std::uint64_t, Block> live;
    std::uint64_t top = 0;  // nothing at or above was ever handed out
  };
  struct Pending {
    std::uint64_t address, bytes;
    std::vector<StreamPoint> after;
  };

  static void give(Pool& pool, std::uint64_t address, std::uint64_t bytes);
  bool take(Pool& pool, std::uint64_t bytes, std::uint64_t* address);
  void reclaim();
  [[noreturn]] void refuse(std::uint64_t bytes, Arena arena);
  std::uint64_t held() const;
  std::uint64_t capacity(Arena arena) const;

  int card_;
  Passed passed_;
  void* context_;
  std::uint8_t* base_ = nullptr;
  mutable std::mutex mutex_;
  std::array<Pool, 2> pools_;
  std::vector<Pending> pending_;
  std::uint64_t limit_ = 0;
  MemoryStats stats_;
};

}  // namespace loom::rt
