// Element conversion of runs: the innermost loop of every transfer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/types.h"

namespace loom::rt {

/// Converts `n` elements; strides count elements of each side. Returns the number of elements done: less
/// than `n` means that element does not fit the destination and `*bad` holds it.
using Convert = std::size_t (*)(void* dst, std::ptrdiff_t dst_stride, const void* src,
                                std::ptrdiff_t src_stride, std::size_t n, std::int64_t* bad);

/// The conversion for a pair of bit patterns; every pair has one.
Convert converter(Phys dst, Phys src);

/// The same conversion with its results written past the caches (stream_fence applies), for the pairs that
/// have one; it cannot fail and needs unit strides and a destination aligned to kStreamAlignment bytes.
inline constexpr std::size_t kStreamAlignment = 32;
Convert streaming_converter(Phys dst, Phys src);

/// True when the conversion is a copy of bytes.
constexpr bool same_pattern(Phys dst, Phys src) {
  return dst == src || (dst == Phys::I32 && src == Phys::I32N);
}

/// Writes the `bytes`-sized pattern at `value` to `n` places.
void fill_run(void* dst, std::ptrdiff_t dst_stride, const void* value, int bytes, std::size_t n);

}  // namespace loom::rt
