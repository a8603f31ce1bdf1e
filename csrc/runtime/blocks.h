// Kernels on plain memory that transfers are made of: copies past the caches and block transposes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loom::rt {

/// Copies `bytes` with whole cache lines written past the caches, so that no line is read before it is
/// overwritten. Call `stream_fence` before anybody else may look at the destination.
void stream_copy(void* dst, const void* src, std::size_t bytes);
void stream_fence();

/// Fetches the cache line of `p`. GCC removes calls of functions that hold nothing but its own prefetch,
/// which it takes for functions without effect.
inline void prefetch(const void* p) {
#if defined(__SSE2__) && defined(__GNUC__)
  asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p)));
#else
  __builtin_prefetch(p);
#endif
}

/// The side of a transpose that is not in the first cache: its lines are used up one after another.
enum class Far { Src, Dst };

/// dst[c * dst_pitch + r] = src[r * src_pitch + c] for `rows` x `columns` elements of 1, 2, 4 or 8 bytes;
/// pitches count elements.
void transpose(void* dst, std::ptrdiff_t dst_pitch, const void* src, std::ptrdiff_t src_pitch,
               std::size_t rows, std::size_t columns, int bytes, Far far);

}  // namespace loom::rt
